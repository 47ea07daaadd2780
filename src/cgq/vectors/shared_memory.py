"""Parameters whose memory is not theirs alone: a line cannot move them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cgq.vectors.sharding import local


def refuse_shared(params: Sequence[Tensor]) -> None:
    """Refuse parameters whose memory holds other values than they, or those of another one too."""
    places: dict[int, int] = {}
    for number, param in enumerate(map(local, params)):
        if param.is_conj() or param.is_neg():
            raise ValueError(
                "A parameter is a conjugated or negated view of other memory, where a step would "
                "be taken the wrong way. Resolve it first: nn.Parameter(x.resolve_conj()."
                "resolve_neg())."
            )
        place = param.data_ptr() if param.numel() else 0
        if place and places.setdefault(place, number) != number:
            raise ValueError(
                f"Parameters {places[place]} and {number} of those with a gradient lie in the same "
                "memory, so neither can be moved alone. To tie weights, use one Parameter in both "
                "places: decoder.weight = encoder.weight."
            )
