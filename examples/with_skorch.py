"""CGQ in skorch: `CGQNet` where there was `NeuralNet`, or in front of the net you use.

`python examples/with_skorch.py` tells two spirals apart with a classifier that scikit-learn takes
for one of its own: clipping, early stopping, a weight decay chosen by cross-validation. It takes a
few seconds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV  # type: ignore[import-untyped]
from skorch import NeuralNetClassifier  # type: ignore[import-untyped]
from skorch.callbacks import (  # type: ignore[import-untyped]
    EarlyStopping,
    GradientNormClipping,
)
from torch import nn

from cgq.skorch import CGQNet


class Classifier(CGQNet, NeuralNetClassifier):  # type: ignore[misc]
    pass


class Network(nn.Sequential):
    def __init__(self, width: int = 64) -> None:
        hidden = [nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        super().__init__(*hidden, nn.Linear(width, 2))


def spirals(count: int, seed: int) -> tuple[Any, Any]:
    """Points on two arms wound around each other, with a little noise."""
    draw = np.random.default_rng(seed)
    angle = 3 * math.pi * np.sqrt(draw.random(count))
    label = np.arange(count) % 2
    turned = angle + math.pi * label
    points = np.stack([np.cos(turned), np.sin(turned)], 1) * angle[:, None] / (3 * math.pi)
    return (points + 0.02 * draw.normal(size=points.shape)).astype(np.float32), label


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Classifier(
        Network,
        criterion=nn.CrossEntropyLoss,
        max_epochs=40,
        optimizer__lr=1.0,  # at 0.3 nearly all searches would end there: a warning says so
        batch_size=64,
        iterator_train__shuffle=True,
        callbacks=[
            ("clip", GradientNormClipping(1.0)),
            ("stop", EarlyStopping(patience=8, load_best=True, sink=lambda text: None)),
        ],
        verbose=0,
    )
    search = GridSearchCV(net, {"optimizer__weight_decay": [0.0, 1e-2]}, cv=2, refit=True)
    search.fit(*spirals(1000, seed=1))
    best = search.best_estimator_
    group = best.optimizer_.param_groups[0]
    print(f"weight decay {group['weight_decay']:g}, {len(best.history)} epochs")
    print(f"last step {group['step_size']:.3f} below the ceiling {group['lr']}")
    print(f"test accuracy {best.score(*spirals(1000, seed=2)):.3f}")


if __name__ == "__main__":
    main()
