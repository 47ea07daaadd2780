"""A small GPT-2 learns to count, trained by the Hugging Face Trainer with no learning rate.

`python examples/with_trainer.py` takes about fifteen seconds on one core and downloads nothing.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, TrainingArguments

from cgq.huggingface import CGQTrainer

NUMBERS = 11
LENGTH = 8


def sequences(count: int) -> list[dict[str, Tensor]]:
    """Each starts anywhere and goes on in equal steps, modulo NUMBERS."""
    start = torch.randint(NUMBERS, (count, 1))
    step = torch.randint(1, 4, (count, 1))
    tokens = (start + step * torch.arange(LENGTH)) % NUMBERS
    labels = tokens.clone()
    labels[:, :2] = -100  # the first two cannot be foreseen
    return [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=NUMBERS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            logging_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = CGQTrainer(
            model, args, train_dataset=sequences(1024), eval_dataset=sequences(256)
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    print(f"test loss {before:.3f} -> {after:.3f}")


if __name__ == "__main__":
    main()
