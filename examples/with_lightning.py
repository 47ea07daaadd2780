"""CGQ in PyTorch Lightning: one import, and one line in `configure_optimizers`.

`python examples/with_lightning.py` tells two spirals apart, with gradient accumulation, clipping, a
warm-up of the ceiling and a checkpoint to resume from. It takes a few seconds.
"""

from __future__ import annotations

import logging
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from cgq.lightning import CGQ, StepMonitor

EPOCHS = 16


class Spirals(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 2)
        self.accuracy = MeanMetric()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        points, labels = batch
        scores = self.head(self.net(points))
        loss = nn.functional.cross_entropy(scores, labels)
        self.accuracy(scores.argmax(1) == labels)
        self.log("loss", loss, on_step=False, on_epoch=True)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = CGQ(self)
        warm_up = LinearLR(optimizer, start_factor=0.1, total_iters=20)  # of the ceiling
        return [optimizer], [{"scheduler": warm_up, "interval": "step"}]

    def on_train_epoch_end(self) -> None:
        if self.current_epoch % 4 == 3:
            values = self.trainer.callback_metrics
            step_size = float(self.trainer.optimizers[0].param_groups[0]["step_size"])
            print(
                f"epoch {self.current_epoch + 1:2}: loss {values['loss']:.3f}, "
                f"accuracy {values['accuracy']:.3f}, last step {step_size:.3f}, "
                f"{values['cgq/capped']:.0%} of the searches ended at the ceiling"
            )


def spirals(count: int) -> TensorDataset:
    """Points on two arms wound around each other, with a little noise."""
    angle = 3 * math.pi * torch.rand(count).sqrt()
    label = torch.arange(count) % 2
    turned = angle + math.pi * label
    points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / (3 * math.pi)
    return TensorDataset(points + 0.02 * torch.randn_like(points), label)


def trainer(epochs: int) -> Trainer:
    return Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[StepMonitor()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batches = DataLoader(spirals(1000), batch_size=25, shuffle=True)
    first = trainer(EPOCHS // 2)
    first.fit(Spirals(), batches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half.ckpt"
        first.save_checkpoint(path)
        print("saved, and resumed from the checkpoint")
        second = trainer(EPOCHS)
        second.fit(Spirals(), batches, ckpt_path=str(path))
    print(f"{second.global_step} steps of 2 micro-batches each")


if __name__ == "__main__":
    main()
