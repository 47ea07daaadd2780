"""The three closures, the closure-free step, and what is refused."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgq import CGQ, LineSearch
from cgq.evaluation.closure_kinds import called_with_backward

STEPS = 12


def problem() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    inputs, targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
    return model, lambda: nn.functional.mse_loss(model(inputs), targets)


def loss_only(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    return loss


def asked(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    def closure(backward: bool) -> Tensor:
        value = loss()
        if backward:
            value.backward()
        return value

    return closure


def asked_by_keyword(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    def closure(scale: float = 1.0, *, backward: bool = True) -> Tensor:
        return asked(optimizer, lambda: scale * loss())(backward)

    return closure


def asked_by_position(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    return lambda b: asked(optimizer, loss)(b)


def accumulating(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    """Two micro-batches; returns a plain number."""

    def closure(backward: bool) -> float:
        total = 0.0
        for _ in range(2):
            part = loss() / 2
            if backward:
                part.backward()
            total += part.item()
        return total

    return closure


def classic(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    return closure


def classic_in_place(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        value = loss()
        value.backward()
        return value

    return closure


def classic_partial(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    def closure(loss: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    return functools.partial(closure, loss)


def binding_defaults(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    return lambda loss=loss, scale=1.0: scale * loss()


def zeroing(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    """Loss only, but with the habit of zeroing in place: gradients must survive the probes."""

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        return loss()

    return closure


def decorated(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    return torch.enable_grad()(asked(optimizer, loss))


class Called:
    def __init__(self, loss: Callable[[], Tensor]) -> None:
        self.loss = loss

    def __call__(self, backward: bool) -> Tensor:
        value = self.loss()
        if backward:
            value.backward()
        return value


def called(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    return Called(loss)


def bound(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    return Called(loss).__call__


KINDS = [
    loss_only,
    decorated,
    called,
    bound,
    asked,
    asked_by_keyword,
    asked_by_position,
    accumulating,
    classic,
    classic_in_place,
    classic_partial,
    binding_defaults,
    zeroing,
]


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.filterwarnings("ignore:This closure runs backward")
def test_every_closure_gives_the_same_run(kind: Callable[..., Any]) -> None:
    runs = []
    for make in (loss_only, kind):
        model, loss = problem()
        optimizer = CGQ(model.parameters(), search_prob=0.5)
        values = [float(optimizer.step(make(optimizer, loss))) for _ in range(STEPS)]
        runs.append((values, [p.detach().clone() for p in model.parameters()]))
    assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-12)
    for mine, other in zip(runs[0][1], runs[1][1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:This closure runs backward")
def test_step_returns_the_old_loss_and_leaves_its_gradient(kind: Callable[..., Any]) -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    for _ in range(3):
        before = loss()
        gradients = torch.autograd.grad(before, list(model.parameters()))
        returned = optimizer.step(kind(optimizer, loss))
        assert float(returned) == pytest.approx(before.item(), rel=1e-12)
        assert not (isinstance(returned, Tensor) and returned.requires_grad)
        for param, gradient in zip(model.parameters(), gradients, strict=True):
            assert param.grad is not None
            torch.testing.assert_close(param.grad, gradient)


@pytest.mark.parametrize(
    ("kind", "backwards"),
    [(loss_only, 0), (asked, 0), (decorated, 0), (bound, 0), (classic, 1), (classic_partial, 1)],
)
@pytest.mark.filterwarnings("ignore:This closure runs backward")
def test_probes_run_backward_only_in_classic_closures(
    kind: Callable[..., Any], backwards: int
) -> None:
    model, loss = problem()
    calls = {"forward": 0, "backward": 0}
    model.register_forward_hook(lambda *_: calls.update(forward=calls["forward"] + 1))
    first = next(model.parameters())
    first.register_hook(lambda _: calls.update(backward=calls["backward"] + 1))
    optimizer = CGQ(model.parameters())
    optimizer.step(kind(optimizer, loss))
    assert optimizer.last_search is not None
    probes = optimizer.last_search.evaluations
    assert calls == {"forward": 1 + probes, "backward": 1 + probes * backwards}


def test_classic_closures_are_told_once() -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    with pytest.warns(UserWarning, match="pays for a backward") as told:
        for _ in range(3):
            optimizer.step(classic(optimizer, loss))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CGQ(model.parameters()).step(loss)


def not_zeroing(optimizer: CGQ, loss: Callable[[], Tensor]) -> Any:
    def closure() -> Tensor:
        value = loss()
        value.backward()
        return value

    return closure


@pytest.mark.parametrize("kind", [asked, accumulating, not_zeroing])
@pytest.mark.filterwarnings("ignore:This closure runs backward")
def test_gradients_accumulated_outside_the_closure_are_missed_aloud(
    kind: Callable[..., Any],
) -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    with pytest.warns(UserWarning, match=r"run every micro-batch in closure\(backward\)") as told:
        for _ in range(3):
            loss().backward()
            optimizer.step(kind(optimizer, loss))
    assert [warning.filename for warning in told if "micro" in str(warning.message)] == [__file__]


@pytest.mark.parametrize(
    "zero",
    [
        lambda optimizer, model: optimizer.zero_grad(),
        lambda optimizer, model: optimizer.zero_grad(set_to_none=False),
        lambda optimizer, model: model.zero_grad(),
        lambda optimizer, model: model.zero_grad(set_to_none=False),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:This closure runs backward")
def test_gradients_that_were_zeroed_are_not_missed(
    kind: Callable[..., Any], zero: Callable[[CGQ, nn.Module], None]
) -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    for _ in range(2):
        loss().backward()
        zero(optimizer, model)
        optimizer.step(kind(optimizer, loss))
    assert optimizer.last_search is not None


def test_a_closure_that_zeroes_itself_misses_nothing() -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    loss().backward()
    with pytest.warns(UserWarning, match="pays for a backward") as told:
        optimizer.step(classic(optimizer, loss))
    assert len(told) == 1


@pytest.mark.parametrize("kind", [asked, accumulating])
def test_a_second_optimizer_does_not_miss_what_the_first_one_left(kind: Callable[..., Any]) -> None:
    model, loss = problem()
    first = CGQ(model.parameters())
    first.step(kind(first, loss))
    second = CGQ(model.parameters())
    second.step(kind(second, loss))
    third = CGQ(model.parameters())
    loss().backward()  # added to what is there
    with pytest.warns(UserWarning, match="do not count"):
        third.step(kind(third, loss))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_closure_that_only_returns_the_loss_does_not_add_to_gradients(set_to_none: bool) -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    optimizer.step(loss)
    loss().backward()  # of another optimizer's step, for all that is known
    optimizer.step(loss)
    optimizer.zero_grad(set_to_none)
    optimizer.step(loss)
    optimizer.zero_grad(set_to_none)
    loss().backward()
    with pytest.warns(UserWarning, match="do not count"):
        optimizer.step(loss)


def test_gradients_made_before_the_optimizer_can_be_at_hand() -> None:
    model, loss = problem()
    loss().backward()
    optimizer = CGQ(model.parameters())
    optimizer.step(lambda: loss().item())
    assert optimizer.last_search is not None


def test_zeros_are_no_gradients_at_hand() -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    loss().backward()
    optimizer.zero_grad(set_to_none=False)
    with pytest.raises(RuntimeError, match="left no gradient"):
        optimizer.step(lambda: loss().item())


def test_a_warning_made_an_error_undoes_the_first_pass() -> None:
    model, loss = problem()
    before = copy.deepcopy(model.state_dict())
    optimizer = CGQ(model.parameters())
    loss().backward()
    with pytest.raises(UserWarning, match="do not count"):
        optimizer.step(asked(optimizer, loss))
    assert not optimizer.state
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_the_model_may_be_named_later() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    inputs = torch.randn(8, 4).double()
    optimizer = CGQ(model.parameters())
    assert optimizer.model is None
    optimizer.model = model
    assert optimizer.model is model

    def bypassing() -> Tensor:  # no module is called that a hook could see
        hidden = nn.functional.linear(inputs, model[0].weight, model[0].bias)
        return model[2].forward(model[1].forward(hidden)).square().mean()

    optimizer.step(bypassing)
    assert optimizer.last_search is not None
    assert optimizer.last_search.evaluations >= 1
    assert model[1].num_batches_tracked == 1
    assert copy.deepcopy(optimizer).model is None
    with pytest.raises(ValueError, match="Invalid model"):
        optimizer.model = "net"  # type: ignore[assignment]


def test_closure_of_value_uses_gradients_at_hand() -> None:
    runs = []
    for at_hand in (False, True):
        model, loss = problem()
        optimizer = CGQ(model.parameters())
        for _ in range(STEPS):
            if at_hand:
                optimizer.zero_grad()
                loss().backward()
                with torch.no_grad():
                    optimizer.step(lambda: loss().detach())
            else:
                optimizer.step(loss)
        runs.append([p.detach().clone() for p in model.parameters()])
    for mine, other in zip(*runs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("kind", ["CGQ", "LineSearch"])
@pytest.mark.parametrize("constant", [1.0, torch.tensor(1.0)], ids=["float", "tensor"])
@pytest.mark.parametrize("in_between", ["nothing", "bare", "graph"])
def test_gradients_the_caller_put_there_are_used_every_time(
    kind: str, constant: Any, in_between: str
) -> None:
    """As torch's own suite calls step: a closure that returns a constant, and one .grad."""
    weight = torch.nn.Parameter(torch.ones(3))
    params = [weight]
    optimizer: Any = CGQ(params)
    if kind == "LineSearch":
        optimizer = LineSearch(torch.optim.SGD(params, lr=0.1))
    grad = torch.tensor([1.0, 2.0, -1.0])
    weight.grad = grad
    for _ in range(4):
        before = weight.detach().clone()
        assert optimizer.step(lambda: constant) == 1.0
        moved = weight.detach() - before
        assert (moved * grad < 0.0).all(), "downhill, in every entry"
        assert weight.grad is grad
        assert torch.equal(grad, torch.tensor([1.0, 2.0, -1.0])), "and it is never written to"
        if in_between == "bare":
            optimizer.step()
        elif in_between == "graph":
            # Its own pass leaves its own gradient; then the caller puts one there again.
            optimizer.step(lambda: weight.square().sum())
            assert weight.grad is not grad
            weight.grad = grad
    assert optimizer.param_groups[0]["skipped"] == 0


def test_gradients_the_caller_put_there_survive_a_closure_that_raises() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = CGQ([weight])
    grad = weight.grad = torch.ones(3)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        assert weight.grad is grad
        before = weight.detach().clone()
        optimizer.step(lambda: 1.0)
        assert (weight < before).all()


def test_a_gradient_of_the_optimizer_s_own_pass_is_not_the_caller_s() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = CGQ([weight])
    weight.grad = torch.ones(3)
    for _ in range(2):
        optimizer.step(lambda: 1.0)
    optimizer.zero_grad()
    optimizer.step(lambda: weight.square().sum())
    before = weight.detach().clone()
    with pytest.raises(RuntimeError, match="left no gradient"):
        optimizer.step(lambda: 1.0)
    assert torch.equal(weight, before)


def test_gradients_of_the_last_step_do_not_pass_as_new() -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    optimizer.step(loss)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="left no gradient"):
        optimizer.step(lambda: loss().item())
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True)
    )


@pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")
@pytest.mark.parametrize("with_backward", [False, True])
def test_closure_that_returns_none_counts_as_none(with_backward: bool) -> None:
    runs = []
    for closure_free in (False, True):
        model, loss = problem()
        optimizer = CGQ(model.parameters())
        for _ in range(STEPS):
            optimizer.zero_grad()

            def run_backward() -> None:
                optimizer.zero_grad()
                loss().backward()

            if closure_free or not with_backward:
                run_backward()
            if closure_free:
                assert optimizer.step() is None
            else:
                assert optimizer.step(run_backward if with_backward else lambda: None) is None
            assert optimizer.last_search is None
        runs.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_step_without_closure_uses_the_average_step() -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters(), smoothing=0.5, momentum=0.0)
    for _ in range(3):
        optimizer.step(loss)
    found = optimizer.param_groups[0]["step_size"]
    old = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["step_size"] == found
    for param, before in zip(model.parameters(), old, strict=True):
        assert param.grad is not None
        assert torch.equal(param.detach(), before.add(-param.grad, alpha=found))


def test_step_without_anything_is_a_no_op() -> None:
    model, _ = problem()
    before = copy.deepcopy(model.state_dict())
    optimizer = CGQ(model.parameters())
    assert optimizer.step() is None
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True)
    )
    assert not optimizer.state


@pytest.mark.parametrize(
    ("closure", "error", "cure"),
    [
        (lambda: torch.zeros(3, requires_grad=True), ValueError, r"\.mean\(\)"),
        (lambda: torch.zeros((), dtype=torch.complex64), ValueError, "one real number"),
        (lambda: "loss", ValueError, "as a tensor or a number"),
        (lambda a, b: 0.0, ValueError, r"closure\(backward: bool\)"),
        (lambda: torch.zeros((), requires_grad=True) * 1, RuntimeError, "left no gradient"),
        (lambda: 1.0, RuntimeError, "left no gradient"),
        (lambda: torch.tensor(1.0), RuntimeError, r"not loss\.item\(\)"),
        (lambda backward: torch.tensor(1.0), RuntimeError, r"when backward is True"),
    ],
)
def test_wrong_closures_are_refused_with_a_cure(
    closure: Callable[..., Any], error: type[Exception], cure: str
) -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    optimizer.step(loss)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(error, match=cure):
        optimizer.step(closure)
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = CGQ(table.parameters())
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step(lambda: table(torch.tensor([1, 2])).sum())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"lr": float("nan")}, "Invalid learning rate"),
        ({"lr": torch.tensor([0.1, 0.1])}, "Tensor lr must be 1-element"),
        ({"weight_decay": -0.1}, "Invalid weight_decay"),
        ({"max_relative_step": 0.0}, "Invalid max_relative_step"),
        ({"momentum": -0.5}, "Invalid momentum value: -0.5"),
        ({"momentum": "polak_ribiere"}, "Use a rule such as"),
        ({"max_momentum": -1.0}, "Invalid max_momentum"),
        ({"fit": "two_point"}, "Invalid fit"),
        ({"max_fits": 0}, "Invalid max_fits"),
        ({"max_fits": 2.5}, "Invalid max_fits"),
        ({"probe": 0.0}, "Invalid probe"),
        ({"search_prob": 1.5}, "Invalid search_prob"),
        ({"smoothing": 1.0}, "Invalid smoothing"),
        ({"seed": 0.5}, "Invalid seed"),
        ({"model": "net"}, "Invalid model"),
        # As a configuration file may give them.
        ({"lr": "0.1"}, "Invalid learning rate: 0.1"),
        ({"weight_decay": None}, "Invalid weight_decay"),
        ({"search_prob": "0.1"}, "Invalid search_prob"),
        ({"smoothing": None}, "Invalid smoothing"),
        ({"max_momentum": "0.8"}, "Invalid max_momentum"),
        ({"max_relative_step": "0.005"}, "Invalid max_relative_step"),
        ({"decoupled_weight_decay": "false"}, "Invalid decoupled_weight_decay.*True or False"),
    ],
)
def test_wrong_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CGQ([nn.Parameter(torch.zeros(1))], **kwargs)


def test_group_that_is_no_dict_is_refused() -> None:
    optimizer = CGQ([nn.Parameter(torch.zeros(1))])
    with pytest.raises(TypeError, match="must be a dict with 'params'"):
        optimizer.add_param_group([nn.Parameter(torch.zeros(1))])  # type: ignore[arg-type]


def test_line_wide_options_speak_in_one_voice() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = CGQ([{"params": [a], "search_prob": 0.5}, {"params": [b]}])
    assert optimizer.options.search_prob == 0.5
    with pytest.raises(ValueError, match="one line runs through all groups"):
        CGQ([{"params": [a], "nesterov": True}, {"params": [b], "nesterov": False}])


def test_closure_that_differentiates_is_told_the_cure() -> None:
    model, _ = problem()
    x = torch.randn(16, 4, dtype=torch.float64, requires_grad=True)

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().sum()

    optimizer = CGQ(model.parameters())
    with pytest.raises(RuntimeError, match=r"@torch\.enable_grad\(\)"):
        optimizer.step(penalty)
    optimizer.step(torch.enable_grad()(penalty))
    assert optimizer.last_search is not None


def test_gradient_of_a_failed_step_is_not_used_later() -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        if len(calls) >= 2:
            raise ValueError
        return loss()

    with pytest.raises(ValueError):  # noqa: PT011
        optimizer.step(closure)
    with pytest.raises(RuntimeError, match="left no gradient"):
        optimizer.step(lambda: loss().item())


def test_a_notice_survives_code_without_a_name() -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    code = "def run(optimizer, closure):\n    return optimizer.step(closure)\n"
    nameless: dict[str, Any] = {"__name__": None}
    exec(code, nameless)
    del nameless["__name__"]
    with pytest.warns(UserWarning, match="pays for a backward"):
        nameless["run"](optimizer, classic(optimizer, loss))


@pytest.mark.parametrize(("name", "value"), [("search_prob", 0.1), ("momentum", 0.9)])
def test_an_option_of_the_line_written_into_a_group_is_refused(name: str, value: float) -> None:
    model, loss = problem()
    optimizer = CGQ(model.parameters())
    optimizer.param_groups[0][name] = value
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(ValueError, match=f"holds {name}, .*when the optimizer is made"):
        optimizer.step(loss)
    for param, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(param, old)


class Methods:
    """Those of which it shows without a signature what they take, and those of which not."""

    def loss(self) -> str:
        return "loss"

    def asked(self, backward: bool) -> str:
        return f"asked {backward}"

    def asked_or_not(self, *, backward: bool = False) -> str:
        return f"asked {backward}"

    @classmethod
    def of_class(cls) -> str:
        return "loss"

    @torch.no_grad()
    def decorated(self) -> str:
        return "loss"

    @torch.no_grad()
    def decorated_and_asked(self, backward: bool) -> str:
        return f"asked {backward}"

    def with_any(self, *args: bool) -> str:
        return "loss"

    def by_place(self, told: bool, /) -> str:
        return f"asked {told}"


@pytest.mark.parametrize(
    ("name", "takes_backward"),
    [
        ("loss", False),
        ("asked", True),
        ("asked_or_not", True),
        ("of_class", False),
        ("decorated", False),
        ("decorated_and_asked", True),
        ("with_any", False),
        ("by_place", True),
    ],
)
def test_methods_are_told_apart_as_functions_are(name: str, takes_backward: bool) -> None:
    call, takes = called_with_backward(getattr(Methods(), name))
    assert takes is takes_backward
    assert call(True) == ("asked True" if takes_backward else "loss")


@pytest.mark.parametrize("kind", [CGQ, lambda params: LineSearch(torch.optim.AdamW(params))])
def test_the_loss_of_the_old_point_outlives_a_closure_that_sums_in_one_tensor(kind: Any) -> None:
    weight, total = nn.Parameter(torch.ones(3)), torch.zeros(())
    optimizer = kind([weight])

    def closure(backward: bool) -> Tensor:
        total.zero_()
        for _ in range(2):
            loss = weight.square().sum() / 2.0
            if backward:
                loss.backward()
            total.add_(loss.detach())
        return total

    assert optimizer.step(closure).item() == 3.0 == optimizer.last_search.loss


@pytest.mark.parametrize("kind", [CGQ, lambda params: LineSearch(torch.optim.SGD(params, lr=0.1))])
@pytest.mark.parametrize(
    ("params", "message"),
    [
        (lambda: [nn.Parameter(torch.full((3,), 1.0 + 1.0j).conj())], "conjugated or negated"),
        (lambda: [nn.Parameter(torch.full((3,), 1.0j).conj().imag)], "conjugated or negated"),
        (
            lambda: [nn.Parameter(shared) for shared in [torch.ones(3)] * 2],
            "0 and 1 .* same memory",
        ),
    ],
    ids=["conjugate", "negative", "shared"],
)
def test_parameters_that_cannot_be_moved_alone_are_refused(
    kind: Any, params: Callable[[], list[Tensor]], message: str
) -> None:
    weights = params()
    before = [weight.detach().clone() for weight in weights]
    optimizer = kind(weights)
    with pytest.raises(ValueError, match=message):
        optimizer.step(lambda: sum(weight.abs().square().sum() for weight in weights))
    assert all(map(torch.equal, weights, before))


def test_empty_parameters_share_no_memory() -> None:
    weights = [
        nn.Parameter(torch.zeros(0)),
        nn.Parameter(torch.zeros(0)),
        nn.Parameter(torch.ones(1)),
    ]
    optimizer = CGQ(weights)
    optimizer.step(lambda: sum(weight.square().sum() for weight in weights))
    assert weights[2].item() < 1.0
