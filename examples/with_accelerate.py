"""A plain loop under Accelerate: gradient accumulation, clipping and a schedule on the ceiling.

`python examples/with_accelerate.py` takes a few seconds on one core. `accelerate launch` runs it on
several processes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset

from cgq import CGQ

EPOCHS = 20
MICRO_BATCHES = 4
MAX_NORM = 1.0


def rings(count: int) -> tuple[Tensor, Tensor]:
    """Points of the plane, and in which of three rings around the origin they lie."""
    points = torch.randn(count, 2)
    return points, torch.bucketize(points.norm(dim=1), torch.tensor([0.8, 1.5]))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)
    model: nn.Module = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
    optimizer = CGQ(model.parameters(), lr=3.0)
    warm_up = LinearLR(optimizer, 0.1, total_iters=10)
    loader = DataLoader(TensorDataset(*rings(2000)), batch_size=25, shuffle=True)
    model, optimizer, warm_up, loader = accelerator.prepare(model, optimizer, warm_up, loader)

    def closure_over(window: list[tuple[Tensor, Tensor]]) -> Callable[[bool], float]:
        def closure(backward: bool) -> float:
            total = 0.0
            for points, labels in window:
                loss = nn.functional.cross_entropy(model(points), labels)
                if backward:
                    accelerator.backward(loss)
                total += loss.item() / accelerator.gradient_accumulation_steps
            if backward:
                with optimizer.optimizer.clipping():
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            return total

        return closure

    for epoch in range(EPOCHS):
        window = []
        for batch in loader:
            with accelerator.accumulate(model):
                window.append(batch)
                if accelerator.sync_gradients:
                    optimizer.step(closure_over(window))
                    warm_up.step()
                    window = []
        group = optimizer.param_groups[0]
        found, ceiling = group["step_size"], group["lr"]
        accelerator.print(f"epoch {epoch + 1}: last step {found:.3f}, ceiling {ceiling:.2f}")

    model.eval()
    points, labels = (tensor.to(accelerator.device) for tensor in rings(2000))
    with torch.no_grad():
        right = (model(points).argmax(1) == labels).float().mean().item()
    accelerator.print(f"test accuracy {100 * right:.1f} %")


if __name__ == "__main__":
    main()
