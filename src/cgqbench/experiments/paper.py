"""The paper's own methods and numbers: tables 1 and 2 of Hao, Jiang, Yu and Chiang (2021)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Result(NamedTuple):
    """What the paper prints for one network and method: a loss, and an accuracy in percent."""

    train_loss: float
    test_accuracy: float


METHODS = (
    *("sgd", "adam", "lookahead", "cocob", "armijo", "pal"),
    *("cgq", "cgq_ls", "scgq", "scgq_ls"),
)
"""In the order of the tables' rows."""

BESIDE = ("sgd_cosine", "search")
"""What is put beside the paper's methods: a schedule, and no rate at all."""

EPOCHS: Mapping[str, int] = MappingProxyType(
    {"mnist": 20, "svhn": 40, "cifar10": 200, "cifar100": 200}
)
"""The training budget on each dataset."""

BATCH_SIZE = 64
"""Of the authors' experiment scripts; the paper prints none."""

_TABLES = {
    ("mnist", "mlp"): """
        .076 97.24  .014 98.02  .131 95.99  .267 92.72  .023 97.85  .021 97.60
        .007 98.24  .007 98.24  .008 98.24  .008 98.12""",
    ("svhn", "vgg16"): """
        .080 93.16  .026 93.14  .039 93.95  .036 91.81  .008 92.42  - -
        .011 94.70  .006 94.79  .020 93.89  .016 94.93""",
    ("svhn", "resnet110"): """
        .217 92.68  .134 95.34  .157 93.14  .069 90.34  - -         .016 94.73
        .009 95.31  .012 95.81  .043 95.84  .039 95.63""",
    ("svhn", "densenet100"): """
        .158 94.34  .093 95.35  .112 94.12  .035 91.30  - -         .017 95.10
        .004 96.11  .008 95.99  .029 94.23  .032 95.43""",
    ("cifar10", "vgg16"): """
        .116 89.64  .044 88.06  .069 89.21  .087 84.78  .298 81.18  - -
        .008 88.21  .010 88.64  .035 89.16  .041 88.88""",
    ("cifar100", "vgg16"): """
        .685 64.37  .408 55.21  .369 60.97  .772 44.83  .025 62.50  - -
        .025 65.46  .019 66.49  .038 63.12  .044 62.93""",
    ("cifar10", "resnet164"): """
        .271 86.06  .144 90.06  .155 88.33  .330 78.96  .003 93.64  .017 92.04
        .007 93.04  .010 93.52  .017 93.75  .016 93.56""",
    ("cifar100", "resnet164"): """
        .860 63.55  .419 68.07  .526 59.21  1.450 48.00  .004 73.26  .452 64.01
        .014 75.26  .019 73.43  .016 75.94  .016 75.60""",
    ("cifar10", "densenet100"): """
        .255 86.71  .127 90.42  .153 88.50  .205 80.63  .009 92.72  .023 90.99
        .009 91.49  .010 92.23  .020 93.71  .028 93.13""",
    ("cifar100", "densenet100"): """
        .901 62.06  .364 68.23  .594 61.62  1.103 51.56  .086 65.55  .072 65.90
        .020 75.01  .029 74.35  .035 76.15  .032 76.04""",
}


def _results() -> dict[tuple[str, str, str], Result | None]:
    found: dict[tuple[str, str, str], Result | None] = {}
    for (dataset, network), column in _TABLES.items():
        words = column.split()
        for method, loss, accuracy in zip(METHODS, words[::2], words[1::2], strict=True):
            result = None if loss == "-" else Result(float(loss), float(accuracy))
            found[dataset, network, method] = result
    return found


RESULTS: Mapping[tuple[str, str, str], Result | None] = MappingProxyType(_results())
"""By (dataset, network, method); None where the paper says that a method does not converge.

>>> RESULTS["mnist", "mlp", "cgq"]
Result(train_loss=0.007, test_accuracy=98.24)
>>> RESULTS["svhn", "resnet110", "armijo"] is None
True
"""
