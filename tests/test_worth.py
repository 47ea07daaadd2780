"""The order in which a budget is spent."""

from cgqbench.experiments import EXPERIMENTS, paper
from cgqbench.experiments.worth import by_worth

FIRST = ("sgd", "cgq", "scgq")
OTHERS = ("adam", "lookahead", "cocob", "armijo", "pal", "cgq_ls", "scgq_ls")


def columns(cells):
    return list(dict.fromkeys((cell.seed, cell.dataset, cell.network) for cell in cells))


def test_the_paper_s_tables_column_by_column():
    both = [cell for name in ("table1", "table2") for cell in EXPERIMENTS[name].cells(seeds=2)]
    wanted = [
        *(("svhn", "vgg16"), ("cifar10", "vgg16"), ("cifar100", "vgg16")),
        *(("cifar10", "resnet164"), ("svhn", "resnet110")),
        *(("mnist", "mlp"), ("svhn", "densenet100"), ("cifar100", "resnet164")),
        *(("cifar10", "densenet100"), ("cifar100", "densenet100")),
    ]
    ordered = by_worth(both)
    assert columns(ordered) == [(seed, *column) for seed in (0, 1) for column in wanted]
    assert sorted(map(str, ordered)) == sorted(map(str, both)), "nothing is lost or made up"


def test_within_a_column_the_paper_s_question_comes_first():
    assert set(FIRST) | set(OTHERS) == set(paper.METHODS)
    ordered = by_worth(EXPERIMENTS["table2"].cells(seeds=1))
    for start in range(0, len(ordered), 10):
        column = ordered[start : start + 10]
        assert [cell.method for cell in column] == [*FIRST, *OTHERS]
        assert len({(cell.dataset, cell.network) for cell in column}) == 1


def test_beside_the_paper_the_scheduled_rival_and_ours_come_first():
    ordered = by_worth(EXPERIMENTS["today2"].cells(seeds=1, only=["cifar10", "vgg16"]))
    assert [cell.method for cell in ordered[:3]] == ["sgd_cosine", "search", "adamw_cosine"]


def test_an_experiment_that_has_no_order_of_worth_keeps_its_own():
    cells = EXPERIMENTS["figure3c"].cells(seeds=2)
    assert by_worth(cells) == cells
