"""Finds where the host waits for a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def _watched(mode: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once in a process that it does not see all
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within it a wait raises."""
    with _watched("error"):
        yield


@contextmanager
def noted_waits(*, of_events: bool = False) -> Iterator[list[str]]:
    """What the host has waited for, once the block is over; `of_events`, which torch leaves out."""
    found: list[str] = []
    wait = torch.cuda.Event.synchronize

    def noted(event: torch.cuda.Event) -> None:
        if of_events and not event.query():
            found.append("an event")
        wait(event)

    with (
        _watched("warn"),
        warnings.catch_warnings(record=True) as caught,
        mock.patch.object(torch.cuda.Event, "synchronize", noted),
    ):
        warnings.simplefilter("always")
        yield found
    messages = [str(each.message) for each in caught]
    found += [message for message in messages if "called a synchronizing" in message]
