"""What an unfinished run goes on from."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from cgqbench.records.checkpoint import Checkpoint, CheckpointError
from cgqbench.records.record import RecordError


def continued_from(
    checkpoint: Checkpoint, names: set[str], record: Path, place: torch.device
) -> dict[str, Any]:
    """What a checkpoint holds, these names among it, for a record that goes on from there."""
    try:
        saved = checkpoint.load(place)
        if not isinstance(saved, dict) or not names <= saved.keys():
            raise CheckpointError(f"{checkpoint.path} is another program's.")
    # What torch raises depends on where the bytes end.
    except (pickle.UnpicklingError, EOFError, RuntimeError, OSError, LookupError) as error:
        raise RecordError(
            f"{checkpoint.path} is no whole checkpoint of numbers, so {record} cannot be "
            "continued. Add --restart to begin again."
        ) from error
    return saved
