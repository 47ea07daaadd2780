"""What the first line of a record names: a problem and a method."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cgqbench.records.record import Line

TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "stdlib": "Python source",
    "mlp": "MLP",
    "vgg16": "VGG-16",
    "resnet20": "ResNet-20",
    "resnet110": "ResNet-110",
    "resnet164": "ResNet-164",
    "densenet100": "DenseNet-100",
    "gpt1m": "GPT-1M",
    "gpt10m": "GPT-10M",
    "zoo": "Zoo",
    "convnet": "convnet",
    "gpt_small": "GPT, small",
    "gpt_bf16": "GPT, bf16",
    "gpt_fp32": "GPT, fp32",
    "vae": "VAE",
    "derivatives": "derivatives",
    "resnet_gn": "ResNet, GroupNorm",
    "gcn": "GCN",
    "lstm": "LSTM",
    "vit": "ViT",
    "factorisation": "factorisation",
    "autoencoder": "autoencoder, float64",
    "lora": "LoRA",
    "finetune": "fine-tuning",
    "gpt_large_batch": "GPT, large batch",
    "vgg_svhn": "VGG-16, SVHN",
    "gru_regression": "GRU",
    "skip_gram": "skip-gram",
    "clicks": "clicks",
    "mixer": "MLP-Mixer",
    "diffusion": "diffusion",
    "sorting": "sorting, GRU",
    "flow": "flow",
    "contrastive": "contrastive",
    "tabular": "tabular",
}
"""How datasets and networks are written in headings, in the order of the columns."""


@dataclass(frozen=True)
class Problem:
    """What methods are compared on: runs of one problem may stand side by side."""

    experiment: str
    dataset: str
    network: str
    epochs: int
    batch_size: int
    content: str | None = None
    """The checksum of a task whose name does not say all: what it is, wherever it lies."""
    task: str | None = field(default=None, compare=False)

    @property
    def title(self) -> str:
        """Its plain heading, which another problem may share.

        >>> Problem("table1", "svhn", "vgg16", epochs=40, batch_size=64).title
        'SVHN / VGG-16'
        """
        if self.task is not None:
            return Path(self.task).stem
        return " / ".join(TITLES.get(name, name) for name in (self.dataset, self.network))


def problem_of(header: Line) -> Problem:
    """The problem that the first line of a record names."""
    return Problem(
        header["experiment"],
        header["dataset"],
        header["network"],
        header["epochs"],
        header["batch_size"],
        header.get("checksum") or header.get("task"),
        header.get("task"),
    )


def label_of(header: Line) -> str:
    """The method's name in tables, with the settings that tell it from its kin.

    >>> label_of({"method": "scgq:search_prob=0.3,lr=0.1", "label": "sCGQ(2pt)"})
    'sCGQ(2pt) search_prob=0.3, lr=0.1'
    """
    name, *settings = words_of(header)
    return f"{name} {', '.join(settings)}".strip()


def words_of(header: Line) -> list[str]:
    """A method's name and the settings it was given."""
    name, _, text = str(header["method"]).partition(":")
    settings = text.split(",") if text else []
    label = str(header.get("label") or name).removesuffix(", ".join(settings)).strip()
    return [label or name, *settings]
