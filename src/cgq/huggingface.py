"""Hugging Face: a Trainer whose every optimizer step is a line search."""

from cgq.hosts.huggingface import CGQTrainer

__all__ = ["CGQTrainer"]
