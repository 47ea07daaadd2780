"""What an unfinished run goes on from."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from cgqbench.records.checkpoint import Checkpoint, CheckpointError
from cgqbench.records.record import RecordError


def continued_from(
    checkpoint: Checkpoint, names: set[str], record: Path, place: torch.device, cure: str
) -> dict[str, Any]:
    """What a checkpoint holds, these names among it, for a record that goes on from there."""
    try:
        saved = checkpoint.load(place)
        if not isinstance(saved, dict) or not names <= saved.keys():
            raise CheckpointError("it is another program's")
    # What torch raises depends on where the bytes end.
    except (pickle.UnpicklingError, EOFError, RuntimeError, OSError, LookupError) as error:
        is_plain = isinstance(error, CheckpointError | OSError)
        reason = error if is_plain else "its numbers cannot be read"
        raise RecordError(
            f"{checkpoint.path} is no whole checkpoint: {reason}. So {record} cannot be continued. "
            f"{cure}"
        ) from error
    return saved
