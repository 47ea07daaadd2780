"""Small models and data for the Hugging Face Trainer, and its runs repeated by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)

from cgq import CGQ, LineSearch
from cgq.huggingface import CGQTrainer

Batch = dict[str, Tensor]


class Noisy(nn.Module):
    """Dropout, BatchNorm, float64, and a loss that is a mean over its micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
        ).double()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.forwards += 1
        predicted = self.layers(x)[:, 0]
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


def noisy() -> Noisy:
    torch.manual_seed(1)
    return Noisy()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    sizes = {"vocab_size": 17, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))  # has dropout


def vectors(count: int = 20) -> list[Batch]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return [{"x": row, "labels": row.sin().sum()} for row in x]


def sentences(count: int = 20) -> list[Batch]:
    """Of different numbers of tokens that count, so that a mean of means is not the mean."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 17, (count, 8), generator=generator)
    lengths = torch.randint(3, 9, (count,), generator=generator)
    labels = tokens.masked_fill(torch.arange(8) >= lengths[:, None], -100)
    labels[:, 0] = -100  # nothing predicts it, and versions differ in whether they count it
    return [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]


def stacked(rows: list[Batch]) -> Batch:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class Diary(TrainerCallback):
    """What a plain loop must know to repeat a run: the batches, and the noise of each step."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.noise: list[Tensor] = []
        self.searches: list[Any] = []

    def collated(self, rows: list[Batch]) -> Batch:
        batch = stacked(rows)
        if len(rows) < 20:  # evaluation comes in one piece
            self.batches.append(batch)
        return dict(batch)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.noise.append(torch.get_rng_state())

    def on_optimizer_step(self, *args: Any, optimizer: Any, **kwargs: Any) -> None:
        self.searches.append(optimizer.optimizer.last_search)


def arguments(folder: Any, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
    }
    return TrainingArguments(str(folder), **{**settings, **changes})


def trained(
    model: nn.Module,
    args: TrainingArguments,
    data: list[Batch],
    cls: type[CGQTrainer] = CGQTrainer,
    **more: Any,
) -> tuple[CGQTrainer, Diary]:
    diary = Diary()
    if not more.keys() & {"optimizers", "optimizer_cls_and_kwargs"}:
        more["optimizers"] = CGQ(model.parameters()), None
    trainer = cls(
        model, args, train_dataset=data, data_collator=diary.collated, callbacks=[diary], **more
    )
    trainer.train()
    return trainer, diary


def windows(batches: list[Batch], size: int, per_epoch: int) -> list[list[Batch]]:
    epochs = [batches[i : i + per_epoch] for i in range(0, len(batches), per_epoch)]
    return [epoch[i : i + size] for epoch in epochs for i in range(0, per_epoch, size)]


def mean_of_means(model: nn.Module, window: list[Batch]) -> Callable[[Batch], Tensor]:
    return lambda batch: model(**batch)["loss"] / len(window)


def mean_over_tokens(model: nn.Module, window: list[Batch]) -> Callable[[Batch], Tensor]:
    count = sum((batch["labels"] != -100).sum() for batch in window)
    return lambda batch: model(**batch, num_items_in_batch=count)["loss"]


def plain_loop(
    model: nn.Module,
    diary: Diary,
    loss_of: Any,
    size: int = 1,
    max_norm: float = 0.0,
    make: Callable[..., CGQ | LineSearch] = CGQ,
    **options: Any,
) -> tuple[list[float], CGQ | LineSearch]:
    """Train by hand as the Trainer did, with its default schedule; the losses."""
    model.train()
    optimizer = make(model.parameters(), **options)
    steps = windows(diary.batches, size, per_epoch=7)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, len(steps))
    found: list[float] = []
    for window, noise in zip(steps, diary.noise, strict=True):
        loss_on = loss_of(model, window)

        def closure(backward: bool) -> float:
            total = 0.0
            for batch in window:
                loss = loss_on(batch)
                if backward:
                    loss.backward()
                total += loss.item()
            if backward:
                found.append(total)
                if max_norm:
                    with optimizer.clipping():
                        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            return total

        torch.set_rng_state(noise)
        optimizer.step(closure)
        schedule.step()
    return found, optimizer


def assert_same(one: nn.Module, two: nn.Module) -> None:
    state = two.state_dict()
    assert state
    for name, value in one.state_dict().items():
        assert torch.equal(value, state[name]), name
