"""Data sets: the shipped one, the official formats, every kind of damage, and images on device."""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch

from cgqbench.tasks.data import NAMES, DamagedData, MissingData, data_folder, fetch, load
from cgqbench.tasks.data.image_sets import SOURCES
from cgqbench.tasks.data.images import cropped_and_flipped, normalised
from cgqbench.tasks.data.loading import dataset

DOWNLOADED = [name for name in NAMES if name != "mnist"]


def test_mnist_ships_with_the_package(tmp_path: Path) -> None:
    mnist = load("mnist", tmp_path)
    assert mnist.train.images.shape == (60_000, 1, 28, 28)
    assert mnist.test.images.shape == (10_000, 1, 28, 28)
    assert mnist.train.images.dtype == torch.uint8
    assert mnist.train.labels.dtype == torch.int64
    assert mnist.train.labels.bincount().tolist()[:3] == [5923, 6742, 5958]
    assert mnist.train.labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    # The full digest of the official training images, which identifies every pixel.
    digest = hashlib.sha256(mnist.train.images.numpy().tobytes()).hexdigest()
    assert digest.startswith("741c988805d008ac")
    assert (mnist.classes, mnist.mean, mnist.std, mnist.augment) == (10, (0.5,), (1.0,), False)


def test_fetching_mnist_finds_it_in_the_package(tmp_path: Path) -> None:
    assert all(path.is_file() for path in fetch("mnist", tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", DOWNLOADED)
def test_official_formats(name: str, tmp_path: Path) -> None:
    official_files.write(name, tmp_path)
    read = dataset(official_files.small(name), tmp_path)
    for split, expected in ((read.train, "train"), (read.test, "test")):
        images, labels = official_files.arrays(name, expected)
        assert np.array_equal(split.images.numpy(), images)
        assert split.labels.tolist() == labels.tolist()
        assert split.labels.dtype == torch.int64


def test_idx_files_may_be_unpacked(tmp_path: Path) -> None:
    official_files.write("fashion_mnist", tmp_path)
    for path in (tmp_path / "fashion-mnist").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    read = dataset(official_files.small("fashion_mnist"), tmp_path)
    assert len(read.train.labels) == official_files.TRAIN


@pytest.mark.parametrize("name", DOWNLOADED)
def test_missing_data_names_the_folder_and_the_command(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingData) as raised:
        load(name, tmp_path)
    assert isinstance(raised.value, FileNotFoundError)
    assert str(tmp_path) in str(raised.value)
    assert f"cgq data get {name}" in str(raised.value)


@pytest.mark.parametrize("name", DOWNLOADED)
@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "one bit"])
def test_damage_names_the_file_and_the_cure(name: str, damage: str, tmp_path: Path) -> None:
    official_files.write(name, tmp_path)
    path = max(tmp_path.rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    content = bytearray(path.read_bytes())
    if damage == "one bit":
        content[2 * len(content) // 3] ^= 1
    path.write_bytes(
        {"truncated": content[: len(content) // 3], "empty": b"", "text": b"<html>not found"}.get(
            damage, content
        )
    )
    with pytest.raises(DamagedData) as raised:
        dataset(official_files.small(name), tmp_path)
    assert str(path) in str(raised.value)
    assert f"cgq data get {name}" in str(raised.value)


@pytest.mark.parametrize("name", DOWNLOADED)
def test_another_data_set_in_the_same_format_is_refused(name: str, tmp_path: Path) -> None:
    official_files.write(name, tmp_path)
    with pytest.raises(DamagedData, match=r"expected .* of each"):
        load(name, tmp_path)


def test_wrong_labels_are_refused(tmp_path: Path) -> None:
    official_files.write("cifar10", tmp_path)
    path = tmp_path / "cifar-10-batches-bin/test_batch.bin"
    content = bytearray(path.read_bytes())
    content[0] = (content[0] + 1) % 10
    path.write_bytes(content)
    with pytest.raises(DamagedData, match="not the images and labels published as cifar10"):
        dataset(official_files.small("cifar10"), tmp_path)


def test_matlab_file_of_other_things_is_refused(tmp_path: Path) -> None:
    official_files.write("svhn", tmp_path)
    path = tmp_path / "svhn/train_32x32.mat"
    official_files.savemat(path, {"X": np.zeros((3, 3)), "y": np.zeros((20, 1))})
    with pytest.raises(DamagedData, match=r"holds X of shape \(3, 3\)"):
        dataset(official_files.small("svhn"), tmp_path)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="mnist, fashion_mnist, svhn, cifar10, cifar100"):
        load("imagenet")


def test_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CGQ_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("CGQ_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg/cgq"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data_folder() == tmp_path / ".cache/cgq"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_folder() == tmp_path / "Library/Caches/cgq"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data_folder() == tmp_path / "local/cgq"


@pytest.mark.parametrize("name", DOWNLOADED)
def test_real_data(name: str) -> None:
    try:
        real = load(name)
    except MissingData:
        pytest.skip(f"{name} is not on this machine; to test it: cgq data get {name}")
    assert len(real.train.labels) == SOURCES[name].train.count
    assert int(real.train.labels.max()) == real.classes - 1
    if real.augment:  # the normalisation written down is that of the training images
        pixels = real.train.images.transpose(0, 1).flatten(1)
        for channel, mean, std in zip(pixels, real.mean, real.std, strict=True):
            deviation, average = torch.std_mean(channel.double() / 255, correction=0)
            assert round(average.item(), 4) == mean
            assert round(deviation.item(), 4) == std


def test_normalised_is_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (5, 3, 4, 6), generator=generator).to(torch.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 1.0)
    found = normalised(images, mean, std)
    exact = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(
        3, 1, 1
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="zip"):
        normalised(images, (0.5,), std)


def test_crops_and_flips_are_those_of_the_slow_twin() -> None:
    images = torch.randint(1, 256, (200, 3, 8, 9), dtype=torch.uint8)
    padding = 2
    found = cropped_and_flipped(images, torch.Generator().manual_seed(1), padding)
    chance = torch.Generator().manual_seed(1)
    tops, lefts = torch.randint(2 * padding + 1, (2, 200), generator=chance).tolist()
    mirrored = torch.randint(2, (200,), generator=chance).tolist()
    for image, top, left, mirror, new in zip(images, tops, lefts, mirrored, found, strict=True):
        expected = torch.zeros_like(image)
        for row in range(8):
            for column in range(9):
                y, x = row + top - padding, column + left - padding
                if 0 <= y < 8 and 0 <= x < 9:
                    expected[:, row, column] = image[:, y, x]
        assert torch.equal(new, expected.flip(2) if mirror else expected)
    assert set(tops) == set(lefts) == set(range(5))
    assert 70 < sum(mirrored) < 130


def test_crops_and_flips_follow_the_generator_alone() -> None:
    images = torch.randint(256, (16, 1, 8, 8), dtype=torch.uint8)
    before = images.clone()
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(3)
    first, second = (cropped_and_flipped(images, generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, cropped_and_flipped(images, generator.manual_seed(3)))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(images, before)
