# make demo    set up, then train the paper's MLP on MNIST with four methods, side by side
# make test    set up, then every check and test
# make check   formatting, lint and types only
# make docs    the documentation site, in out/docs: pages, links and API checked
# make package the wheel and the source archive, in dist
# make bench   ratios of time and memory against plain torch, taken in one run
# make bench-gpu     epochs and steps on a CUDA device, several runs at once on it, and a profile
# make correctness   one small program on CGQ and on its rivals: who keeps which promise

SHELL  := /bin/bash -o pipefail
VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready

# Where nothing that is compiled may be kept, each of the many processes of the tests compiles anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs package bench bench-gpu correctness clean

demo: $(READY)
	@$(VENV)/bin/cgq landscape --out out/demo --quiet
	@$(VENV)/bin/cgq compare --epochs 5 --out out/demo --resume

test: check
	@# Three on two cores: some tests wait for processes of their own.
	$(PYTHON) -m pytest -n 3 -q

check: $(READY)
	$(VENV)/bin/ruff format --check -q .
	$(VENV)/bin/ruff check -q .
	$(VENV)/bin/mypy

docs: $(READY)
	@$(VENV)/bin/sphinx-build -W --keep-going -q -d out/docs.cache docs out/docs
	@echo "Look at out/docs/index.html in a browser."

package: $(READY)
	rm -rf dist
	$(PYTHON) -m build --no-isolation
	$(VENV)/bin/twine check --strict dist/*

bench: $(READY)
	COLUMNS=110 $(PYTHON) benchmarks/speed.py | tee results/speed.txt
	COLUMNS=110 $(PYTHON) benchmarks/loop.py | tee results/loop.txt
	$(PYTHON) benchmarks/line_search.py | tee results/line_search.txt
	COLUMNS=120 $(PYTHON) benchmarks/profile_step.py | tee results/profile.txt

bench-gpu: $(READY)
	$(PYTHON) benchmarks/gpu.py --runs 3 | tee results/gpu.txt
	$(PYTHON) benchmarks/line_search.py --device cuda | tee results/line_search_gpu.txt
	$(PYTHON) benchmarks/kernels.py | tee results/kernels_gpu.txt

correctness: $(READY)
	$(PYTHON) -m pip install -q -c constraints.txt -r benchmarks/rivals.txt
	COLUMNS=190 $(PYTHON) benchmarks/correctness.py | tee results/correctness.txt

$(READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt -e ".[bench,dev]"
	@# On all cores, which pip does not. What is no Python, or for another one, is left as it is.
	@$(PYTHON) -W ignore -m compileall -qq -j 0 $(VENV)/lib || true
	touch $(READY)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
