"""The same network in fp32, under bf16 autocast, and in fp16 with a gradient scaler.

`python examples/with_mixed_precision.py` takes a few seconds on one core. If it ends with "Illegal
instruction", a virtual processor claims more than it can: set ONEDNN_MAX_CPU_ISA=AVX512_CORE.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cgq import CGQ

EPOCHS = 6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rings(count: int) -> tuple[Tensor, Tensor]:
    """Points of the plane, and in which of three rings around the origin they lie."""
    points = torch.randn(count, 2, device=DEVICE)
    return points, torch.bucketize(points.norm(dim=1), torch.tensor([0.8, 1.5], device=DEVICE))


def train(precision: torch.dtype) -> None:
    """Train in `precision` and print how well it went."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 3)).to(DEVICE)
    optimizer = CGQ(model.parameters(), lr=3.0)
    autocast = torch.autocast(DEVICE, precision, enabled=precision != torch.float32)
    # fp16 alone has too narrow a range for gradients; a scaler that is not enabled does nothing.
    scaler = torch.amp.GradScaler(DEVICE, enabled=precision == torch.float16)
    loader = DataLoader(TensorDataset(*rings(2000)), batch_size=100, shuffle=True)
    for _ in range(EPOCHS):
        for points, labels in loader:

            def closure(backward: bool, points: Tensor = points, labels: Tensor = labels) -> Tensor:
                with autocast:
                    loss = nn.functional.cross_entropy(model(points), labels)
                if backward:
                    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                    scaler.unscale_(optimizer)
                return loss

            optimizer.step(closure)
            scaler.update()

    points, labels = rings(2000)
    with torch.no_grad():
        right = (model(points).argmax(1) == labels).float().mean().item()
    group = optimizer.param_groups[0]
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[precision]
    print(
        f"{name}: test accuracy {100 * right:.1f} %, {group['steps']} steps, "
        f"{group['skipped']} skipped, {group['rejected_fits']} parabolas rejected"
    )


def main() -> None:
    torch.set_num_threads(1)
    for precision in (torch.float32, torch.bfloat16, torch.float16):
        train(precision)


if __name__ == "__main__":
    main()
