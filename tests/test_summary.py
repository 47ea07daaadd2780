"""How numbers are written, and the paper's own."""

import pytest

from cgqbench.analysis.measures import shown_loss, shown_with_spread
from cgqbench.analysis.spread import Statistic
from cgqbench.experiments import paper


@pytest.mark.parametrize(
    ("metric", "mean", "spread", "text"),
    [
        ("train_loss", 0.0204, 0.00004, "0.0204 ± <0.0001"),
        ("train_loss", 0.0204, 0.00006, "0.0204 ± 0.0001"),
        ("test_accuracy", 98.0, 0.001, "98.00 ± <0.01"),
        ("test_accuracy", 98.0, 0.0, "98.00 ± 0.00"),
        ("train_loss", 3e-7, 1e-9, "3.00e-07 ± 1.00e-09"),
        ("train_loss", 1234.0, 0.2, "1234 ± <1"),
    ],
)
def test_a_small_spread_is_not_shown_as_none(metric, mean, spread, text):
    assert shown_with_spread(metric, Statistic(mean, spread, 3)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (123456.0, "123456"),
        (3.2e-7, "3.20e-07"),
        (0.0999, "0.0999"),
        (2e9, "2.00e+09"),
    ],
)
def test_losses_of_every_size_keep_three_digits(value, text):
    assert shown_loss(value) == text


def test_the_paper_s_tables_are_whole():
    assert len(paper.RESULTS) == 10 * len(paper.METHODS)
    missing = [key for key, value in paper.RESULTS.items() if value is None]
    assert sorted(missing) == [
        ("cifar10", "vgg16", "pal"),
        ("cifar100", "vgg16", "pal"),
        ("svhn", "densenet100", "armijo"),
        ("svhn", "resnet110", "armijo"),
        ("svhn", "vgg16", "pal"),
    ]
    assert paper.RESULTS["cifar100", "resnet164", "cocob"] == (1.450, 48.00)
    assert paper.RESULTS["cifar100", "densenet100", "scgq"] == (0.035, 76.15)
