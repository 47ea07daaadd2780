"""How Sphinx makes the site: `make docs`."""

import os
import re
import sys
from pathlib import Path
from typing import Any

# transformers would look for checkpoints on the hub; the site is made without a network.
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

from sphinx.application import Sphinx

from cgq import __version__

project = "cgq"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
highlight_language = "text"

default_role = "literal"  # `lr` in a docstring is code, as in Markdown
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
maximum_signature_line_length = 130

nitpicky = True
# What other libraries document: their inventories lie on the network.
nitpick_ignore_regex = [
    (r"py:.*", rf"{library}\..*")
    for library in (
        "torch",
        "lightning",
        "transformers",
        "collections",
        "contextlib",
        "numpy",
        "typing",
    )
]

html_theme = "furo"
html_title = f"cgq {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which a browser forbids to file://


def setup(app: Sphinx) -> None:
    """Called by Sphinx at its start."""
    app.connect("autodoc-process-docstring", lengths)
    app.connect("source-read", results)


def lengths(app: Sphinx, *args: Any) -> None:
    """Let |d| in a docstring be a length, as it reads, and no substitution."""
    lines = args[-1]
    lines[:] = [re.sub(r"\|(\w+)\|", r"\|\1\|", line) for line in lines]


def results(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead to the site's own page of results, where the files lead to results/README.md."""
    source[0] = source[0].replace("(../results/README.md", "(results.md")
