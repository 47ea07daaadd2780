"""A compiled model: name it, and probes run its second graph, the one without gradient.

`python examples/with_compile.py` takes about half a minute on one core, most of it to compile.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cgq import CGQ

EPOCHS = 6


def rings(count: int) -> tuple[Tensor, Tensor]:
    """Points of the plane, and in which of three rings around the origin they lie."""
    points = torch.randn(count, 2)
    return points, torch.bucketize(points.norm(dim=1), torch.tensor([0.8, 1.5]))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
    optimizer = CGQ(model.parameters(), lr=3.0, model=model)
    compiled = torch.compile(model)
    # Batches of one size: another would be compiled anew, twice.
    data = TensorDataset(*rings(2000))
    loader = DataLoader(data, batch_size=100, shuffle=True, drop_last=True)
    for _ in range(EPOCHS):
        for points, labels in loader:

            def closure(points: Tensor = points, labels: Tensor = labels) -> Tensor:
                return nn.functional.cross_entropy(compiled(points), labels)

            optimizer.step(closure)

    model.eval()
    points, labels = rings(2000)
    with torch.no_grad():
        right = (model(points).argmax(1) == labels).float().mean().item()
    print(
        f"test accuracy {100 * right:.1f} %, last step {optimizer.param_groups[0]['step_size']:.3f}"
    )


if __name__ == "__main__":
    main()
