"""What a searching optimizer does, in Lightning's logs."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from cgq.engine.optimizer import SearchOptimizer


class StepMonitor(Callback):
    """Logs what CGQ or LineSearch does: `Trainer(callbacks=[StepMonitor()])`.

    After each step `cgq/step_size`, `cgq/evaluations` (probes of this step; 0 if it was not
    searched) and, of CGQ, `cgq/momentum`; after each epoch `cgq/capped`, the share of its searches
    that ended at the ceiling. A second such optimizer logs as `cgq-1`, and so on.

    >>> trainer = Trainer(callbacks=[StepMonitor()], accelerator="cpu", logger=False)
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._logged_step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        if trainer.global_step == self._logged_step:  # gradients are being accumulated
            return
        self._logged_step = trainer.global_step
        ours = [each for each in trainer.optimizers if isinstance(each, SearchOptimizer)]
        for number, optimizer in enumerate(ours):
            name = f"cgq-{number}" if number else "cgq"
            search = optimizer.last_search
            values = {
                f"{name}/step_size": max(group["step_size"] for group in optimizer.param_groups),
                f"{name}/evaluations": float(search.evaluations) if search else 0.0,
            }
            if "beta" in optimizer.NUMBERS:
                values[f"{name}/momentum"] = optimizer.param_groups[0]["beta"]
            pl_module.log_dict(values, on_step=True, on_epoch=False)
            if search:
                mean: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": True}
                pl_module.log(f"{name}/capped", float(search.capped), batch_size=1, **mean)
