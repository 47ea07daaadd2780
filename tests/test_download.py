"""Downloads over a real connection: whole, cut, resumed, wrong, and what is unpacked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import official_files
import pytest
from file_server import FileServer, serving

from cgqbench.tasks.data import DamagedData
from cgqbench.tasks.data.download import DownloadError, fetched
from cgqbench.tasks.data.image_sets import Source
from cgqbench.tasks.data.loading import dataset


@pytest.fixture
def site() -> Iterator[FileServer]:
    with serving(FileServer({})) as server:
        yield server


def offered(site: FileServer, name: str, archive: dict[str, bytes] | None = None) -> Source:
    """The small data set of that name, its official archives on the test server."""
    files, small = archive or official_files.contents(name), official_files.small(name)
    archives = []
    for entry in small.archives:
        content = official_files.tar(files) if entry.members else files[entry.path]
        url = f"/{entry.path}"
        site.files[url] = content
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        archives.append(replace(entry, url=site.address + url, md5=md5))
    return replace(small, archives=tuple(archives))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["fashion_mnist", "svhn", "cifar10", "cifar100"])
def test_download(name: str, site: FileServer, tmp_path: Path) -> None:
    source = offered(site, name)
    paths = fetched(source, tmp_path, progress=False)
    # No archive, no partial and no temporary file stays behind.
    assert files_in(tmp_path) == set(official_files.contents(name))
    assert {str(path.relative_to(tmp_path)) for path in paths} == files_in(tmp_path)
    assert len(dataset(source, tmp_path).train.labels) == official_files.TRAIN
    requests = len(site.sent)
    assert fetched(source, tmp_path, progress=False) == paths
    assert len(site.sent) == requests


def test_progress_goes_to_standard_error(
    site: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched(offered(site, "cifar10"), tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert not out
    assert "cifar-10-binary.tar.gz" in err


def test_interrupted_download_goes_on_where_it_stopped(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "cifar10")
    (content,) = site.files.values()
    half = site.hang_up_after = len(content) // 2
    with pytest.raises(DownloadError, match="cgq data get cifar10"):
        fetched(source, tmp_path, progress=False)
    assert files_in(tmp_path) == {"cifar-10-binary.tar.gz.part"}
    kept = (tmp_path / "cifar-10-binary.tar.gz.part").read_bytes()
    assert content.startswith(kept)
    assert half - (1 << 13) < len(kept) <= half
    site.hang_up_after = None
    fetched(source, tmp_path, progress=False)
    assert [(status, size) for _, status, size in site.sent] == [
        (200, half),
        (206, len(content) - len(kept)),
    ]
    assert files_in(tmp_path) == set(official_files.contents("cifar10"))


def test_server_without_ranges_starts_again(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "cifar10")
    (content,) = site.files.values()
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(content[:1000])
    site.ranges = False
    fetched(source, tmp_path, progress=False)
    assert [(status, size) for _, status, size in site.sent] == [(200, len(content))]


def test_server_that_sends_another_range_starts_again(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "cifar10")
    (content,) = site.files.values()
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(content[:1000])
    site.shift = 7
    fetched(source, tmp_path, progress=False)
    assert [status for _, status, _ in site.sent] == [206, 200]


def test_partial_file_that_is_whole_needs_no_more(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "cifar10")
    (content,) = site.files.values()
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(content)
    fetched(source, tmp_path, progress=False)
    assert [status for _, status, _ in site.sent] == [416]


def test_partial_file_that_is_too_long_starts_again(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "cifar10")
    (content,) = site.files.values()
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(content + b"more")
    fetched(source, tmp_path, progress=False)
    assert [status for _, status, _ in site.sent] == [416, 200]


def test_wrong_partial_file_fails_once_and_is_removed(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "cifar10")
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(b"x" * 1000)
    with pytest.raises(DownloadError, match="not with the md5"):
        fetched(source, tmp_path, progress=False)
    assert not files_in(tmp_path)
    fetched(source, tmp_path, progress=False)
    assert files_in(tmp_path) == set(official_files.contents("cifar10"))


def test_damaged_file_is_replaced(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "fashion_mnist")
    official_files.write("fashion_mnist", tmp_path)
    damaged = tmp_path / "fashion-mnist/t10k-images-idx3-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    fetched(source, tmp_path, progress=False)
    assert [path for path, _, _ in site.sent] == ["/fashion-mnist/t10k-images-idx3-ubyte.gz"]
    assert len(dataset(source, tmp_path).test.labels) == official_files.TEST


def test_absent_file_and_absent_server_name_the_cure(site: FileServer, tmp_path: Path) -> None:
    source = offered(site, "svhn")
    site.files.clear()
    with pytest.raises(DownloadError, match=r"404.*cgq data get svhn"):
        fetched(source, tmp_path, progress=False)
    unreachable = replace(source.archives[0], url="http://127.0.0.1:9/none")
    with pytest.raises(DownloadError, match="yourself"):
        fetched(replace(source, archives=(unreachable,)), tmp_path, progress=False)


def test_only_named_members_leave_the_archive(site: FileServer, tmp_path: Path) -> None:
    files = {**official_files.contents("cifar10"), "../outside": b"x", "unasked": b"x"}
    folder = tmp_path / "data"
    fetched(offered(site, "cifar10", files), folder, progress=False)
    assert files_in(folder) == set(official_files.contents("cifar10"))
    assert files_in(tmp_path) == {f"data/{path}" for path in official_files.contents("cifar10")}


def test_archive_without_a_member_is_refused(site: FileServer, tmp_path: Path) -> None:
    files = official_files.contents("cifar10")
    del files["cifar-10-batches-bin/test_batch.bin"]
    with pytest.raises(DamagedData, match=r"holds no file .*test_batch.bin"):
        fetched(offered(site, "cifar10", files), tmp_path, progress=False)
