"""The data sets of images: where the official files come from and what they must hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cgqbench.tasks.data import formats
from cgqbench.tasks.data.stdlib import STDLIB


@dataclass(frozen=True)
class Part:
    """The files of a split, below the data folder, and what identifies their content."""

    files: tuple[str, ...]
    """Without the ending `.gz` or `.xz` they may have."""
    count: int
    pixels: str
    """The first 16 digits of the sha256 of the pixels, uint8 (N, H, W, C) in order."""
    labels: str
    """The same of the labels, uint8 (N,)."""


@dataclass(frozen=True)
class Archive:
    """A file to download: where from, its md5, and where it goes below the data folder."""

    url: str
    md5: str
    path: str
    members: tuple[str, ...] = ()
    """What to take out of a tar file, which is removed then; none: the file itself is the data."""


@dataclass(frozen=True)
class Source:
    """A data set on disk."""

    name: str
    reader: formats.Reader
    train: Part
    test: Part
    archives: tuple[Archive, ...]
    """None for a set that ships inside this package."""
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool
    label_counts: tuple[int, ...] = ()
    """How often each class is in the train split; none: all as often."""

    @property
    def label_entropy(self) -> float:
        """The cross-entropy of guessing by frequency, in nats."""
        if not self.label_counts:
            return math.log(self.classes)
        shares = [count / sum(self.label_counts) for count in self.label_counts]
        return -sum(share * math.log(share) for share in shares)


def _idx_files(folder: str, split: str) -> tuple[str, ...]:
    return (f"{folder}/{split}-images-idx3-ubyte", f"{folder}/{split}-labels-idx1-ubyte")


_MNIST = Source(
    "mnist",
    formats.idx,
    Part(_idx_files("mnist", "train"), 60_000, "741c988805d008ac", "1feba77c54802fa5"),
    Part(_idx_files("mnist", "t10k"), 10_000, "6d87418db22cc802", "ddeff807876a9661"),
    archives=(),
    classes=10,
    mean=(0.5,),
    std=(1.0,),
    augment=False,
)

_FASHION = "fashion-mnist"
_FASHION_HOST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_FASHION_MNIST = Source(
    "fashion_mnist",
    formats.idx,
    Part(_idx_files(_FASHION, "train"), 60_000, "2e487a6c89124f78", "657fbd221bfc9f41"),
    Part(_idx_files(_FASHION, "t10k"), 10_000, "c867c93ff9536059", "3d0e6c6ea990b53b"),
    tuple(
        Archive(f"{_FASHION_HOST}/{file}", md5, f"{_FASHION}/{file}")
        for file, md5 in _FASHION_MD5.items()
    ),
    classes=10,
    mean=(0.5,),
    std=(1.0,),
    augment=False,
)

_SVHN_HOST = "http://ufldl.stanford.edu/housenumbers"
_SVHN_MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
_SVHN = Source(
    "svhn",
    formats.svhn,
    Part(("svhn/train_32x32.mat",), 73_257, "a24062f843a6a126", "6a6e359bb9ecc6ce"),
    Part(("svhn/test_32x32.mat",), 26_032, "d945082451100953", "c2488ef300c629f4"),
    tuple(Archive(f"{_SVHN_HOST}/{file}", md5, f"svhn/{file}") for file, md5 in _SVHN_MD5.items()),
    classes=10,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    augment=False,
    label_counts=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
)

_CIFAR_HOST = "https://www.cs.toronto.edu/~kriz"
_CIFAR10_TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6))
_CIFAR10_TEST = ("cifar-10-batches-bin/test_batch.bin",)
_CIFAR10 = Source(
    "cifar10",
    formats.cifar10,
    Part(_CIFAR10_TRAIN, 50_000, "47af8b02cfcfb6cd", "2b7cd2f244873176"),
    Part(_CIFAR10_TEST, 10_000, "f9b1e2130bab680d", "cec8a24a1e92aa2e"),
    (
        Archive(
            f"{_CIFAR_HOST}/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-binary.tar.gz",
            _CIFAR10_TRAIN + _CIFAR10_TEST,
        ),
    ),
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    augment=True,
)

_CIFAR100_TRAIN = ("cifar-100-binary/train.bin",)
_CIFAR100_TEST = ("cifar-100-binary/test.bin",)
_CIFAR100 = Source(
    "cifar100",
    formats.cifar100,
    Part(_CIFAR100_TRAIN, 50_000, "4e457917601a66ae", "9f11b9f97aad759b"),
    Part(_CIFAR100_TEST, 10_000, "4cb8e5d9309da489", "4dad7d09c7c97d33"),
    (
        Archive(
            f"{_CIFAR_HOST}/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary.tar.gz",
            _CIFAR100_TRAIN + _CIFAR100_TEST,
        ),
    ),
    classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    augment=True,
)

SOURCES: Mapping[str, Source] = {
    source.name: source for source in (_MNIST, _FASHION_MNIST, _SVHN, _CIFAR10, _CIFAR100)
}
NAMES = tuple(SOURCES)


def source(name: str) -> Source:
    """The data set of that name."""
    if name not in SOURCES:
        known = ", ".join((*NAMES, STDLIB))
        raise ValueError(f"There is no data set {name!r}. Choose one of: {known}.")
    return SOURCES[name]
