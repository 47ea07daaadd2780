"""CGQ from timm's optimizer factory, with its layer decay, schedule, average and clipping.

`python examples/with_timm.py` tells two spirals apart. It needs timm and the torchvision that timm
needs, and takes a few seconds.
"""

from __future__ import annotations

import math

import timm.optim  # type: ignore[import-not-found,unused-ignore]
import torch
from timm.scheduler import CosineLRScheduler  # type: ignore[import-not-found,unused-ignore]
from timm.utils import (  # type: ignore[import-not-found,unused-ignore]
    ModelEmaV3,
    dispatch_clip_grad,
)
from torch import Tensor, nn

import cgq.timm

EPOCHS, BATCH = 50, 64


class Network(nn.Sequential):
    def __init__(self) -> None:
        hidden = [nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
        super().__init__(*hidden, nn.Linear(64, 2))

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Which layer is how deep, for timm's layer decay."""
        return {"stem": "^0", "blocks": r"^(\d+)"}


def spirals(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points on two arms wound around each other, with a little noise."""
    draw = torch.Generator().manual_seed(seed)
    angle = 3 * math.pi * torch.rand(count, generator=draw).sqrt()
    label = torch.arange(count) % 2
    turned = angle + math.pi * label
    points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / (3 * math.pi)
    return points + 0.02 * torch.randn(count, 2, generator=draw), label


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cgq.timm.register()
    model, (points, labels) = Network(), spirals(1000, seed=1)
    optimizer = timm.optim.create_optimizer_v2(
        model, "cgq", lr=0.5, weight_decay=1e-4, layer_decay=0.9
    )
    scheduler = CosineLRScheduler(
        optimizer, t_initial=EPOCHS, lr_min=0.1, warmup_t=2, warmup_lr_init=0.05
    )
    averaged = ModelEmaV3(model, decay=0.99)
    for epoch in range(1, EPOCHS + 1):
        for picked in torch.split(torch.randperm(len(points)), BATCH):

            def closure(backward: bool, picked: Tensor = picked) -> Tensor:
                loss = nn.functional.cross_entropy(model(points[picked]), labels[picked])
                if backward:
                    loss.backward()  # type: ignore[no-untyped-call]
                    with optimizer.clipping():
                        dispatch_clip_grad(model.parameters(), value=1.0)
                return loss

            loss = optimizer.step(closure)
            averaged.update(model)
        if epoch % 10 == 0:
            group = optimizer.param_groups[-1]
            step, ceiling = group["step_size"], group["lr"]
            print(f"epoch {epoch}: loss {loss:.3f}, last step {step:.3f} of at most {ceiling:.3f}")
        scheduler.step(epoch)
    inputs, expected = spirals(500, seed=2)
    accuracy = (averaged.module(inputs).argmax(1) == expected).float().mean()
    print(f"accuracy of the average {accuracy:.3f}")


if __name__ == "__main__":
    main()
