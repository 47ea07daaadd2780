"""CGQ in a plain PyTorch loop, with all that a loop may have around a step.

`python examples/with_pytorch.py` tells two spirals apart: gradient accumulation, clipping, warm-up
of the ceiling, parameter groups, an average of the weights, early stopping, and a checkpoint in the
middle from which the run is resumed. It takes a few seconds.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, update_bn

from cgq import CGQ, anytime_average

EPOCHS, PATIENCE, MICRO_BATCH, PARTS = 60, 8, 32, 2
Batch = tuple[Tensor, Tensor]


def spirals(count: int, seed: int) -> Batch:
    """Points on two arms wound around each other, with a little noise."""
    draw = torch.Generator().manual_seed(seed)
    angle = 3 * math.pi * torch.rand(count, generator=draw).sqrt()
    label = torch.arange(count) % 2
    turned = angle + math.pi * label
    points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / (3 * math.pi)
    return points + 0.02 * torch.randn(count, 2, generator=draw), label


def network() -> nn.Sequential:
    torch.manual_seed(0)
    hidden = [nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Dropout(0.05), nn.Linear(64, 2))


class Run:
    """A model with everything that must survive an interruption."""

    def __init__(self) -> None:
        self.model = network()
        weights = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizer = CGQ(
            [
                {"params": weights, "weight_decay": 1e-4},
                {"params": others, "lr": 0.5},  # half of each step
            ],
            lr=1.0,
        )
        self.scheduler = LinearLR(self.optimizer, start_factor=0.1, total_iters=20)
        self.averaged = AveragedModel(self.model, multi_avg_fn=anytime_average(eta=8))

    def state_dict(self) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in vars(self).items()}
        return {**parts, "generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in vars(self).items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["generator"])

    def epoch(self, data: Batch, number: int) -> float:
        """Train on all batches and return their mean loss."""
        self.model.train()
        order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(number))
        losses = []
        for picked in torch.split(order, MICRO_BATCH * PARTS):
            parts = torch.split(picked, MICRO_BATCH)
            window = [(data[0][part], data[1][part]) for part in parts]
            losses.append(float(self.optimizer.step(self.closure_over(window))))
            self.scheduler.step()
            self.averaged.update_parameters(self.model)
        return sum(losses) / len(losses)

    def closure_over(self, window: list[Batch]) -> Callable[[bool], float]:
        size = sum(len(points) for points, _ in window)

        def closure(backward: bool) -> float:
            total = 0.0
            for points, labels in window:
                loss = nn.functional.cross_entropy(self.model(points), labels, reduction="sum")
                if backward:
                    (loss / size).backward()  # type: ignore[no-untyped-call]
                total += loss.item() / size
            if backward:
                with self.optimizer.clipping():
                    nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
            return total

        return closure


@torch.no_grad()
def loss_and_accuracy(model: nn.Module, data: Batch) -> tuple[float, float]:
    model.eval()
    scores = model(data[0])
    right = (scores.argmax(1) == data[1]).float().mean()
    return nn.functional.cross_entropy(scores, data[1]).item(), right.item()


def interrupted(run: Run) -> Run:
    """As if the program had ended here and been started again."""
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    resumed = Run()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    return resumed


def main() -> None:
    torch.set_num_threads(1)
    train, validation = spirals(1000, seed=1), spirals(500, seed=2)
    run, best, best_weights, epoch_of_best = Run(), math.inf, {}, 0
    for epoch in range(1, EPOCHS + 1):
        loss = run.epoch(train, epoch)
        measured, accuracy = loss_and_accuracy(run.model, validation)
        if measured < best:
            best, best_weights, epoch_of_best = (
                measured,
                copy.deepcopy(run.model.state_dict()),
                epoch,
            )
        if epoch % 10 == 0:
            step_size = run.optimizer.param_groups[0]["step_size"]
            print(
                f"epoch {epoch}: loss {loss:.3f}, validation {measured:.3f}, "
                f"accuracy {accuracy:.3f}, last step {step_size:.3f}"
            )
        if epoch == 10:
            run = interrupted(run)
            print("saved, and resumed from the checkpoint")
        if epoch - epoch_of_best == PATIENCE:
            print(f"stopped after epoch {epoch}")
            break
    update_bn([train[0]], run.averaged)
    _, averaged = loss_and_accuracy(run.averaged, validation)
    run.model.load_state_dict(best_weights)
    _, accuracy = loss_and_accuracy(run.model, validation)
    print(f"best weights (epoch {epoch_of_best}): {accuracy:.3f}, average: {averaged:.3f}")


if __name__ == "__main__":
    main()
