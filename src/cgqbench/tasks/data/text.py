"""Text as tokens, and tokens as windows that a language model is trained on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LENGTH = 128
"""Characters that a model sees at once, unless said otherwise."""
VOCABULARY = 97
"""The 95 characters of ASCII from space to tilde, the line's end, and one token for all others."""

_LINE_END, _OTHER = 95, 96
_TOKENS = np.full(256, _OTHER, dtype=np.uint8)
_TOKENS[32:127] = np.arange(95)
_TOKENS[ord("\n")] = _LINE_END


@dataclass(frozen=True)
class Text:
    """Windows of a text, uint8 (N, length + 1): a character more than the model is shown."""

    train: Tensor
    test: Tensor
    checksum: str
    """Of both parts: what tells this text from another version of it."""

    @classmethod
    def of(cls, train: bytes, test: bytes, tests: int, length: int = LENGTH) -> Text:
        """A text in two parts.

        Training windows overlap by three quarters, so that a model rarely sees a character at the
        same place twice. The `tests` test windows do not overlap and lie evenly in their part.
        """
        tokens = [tokens_of(part) for part in (train, test)]
        content = hashlib.sha256(f"{length} {tests}".encode())
        for part in tokens:
            content.update(part.numpy().tobytes())
        apart = windows(tokens[1], length, length)
        evenly = torch.linspace(0, len(apart) - 1, min(tests, len(apart))).long()
        train_windows = windows(tokens[0], length // 4, length)
        return cls(train_windows, apart[evenly], content.hexdigest()[:16])


def tokens_of(text: bytes) -> Tensor:
    r"""The tokens of a text, one a byte; its lines may end as on any system.

    >>> tokens_of(b"if x:\r\n\tno").tolist()
    [73, 70, 0, 88, 26, 95, 96, 78, 79]
    """
    plain = np.frombuffer(text.replace(b"\r\n", b"\n"), dtype=np.uint8)
    return torch.from_numpy(_TOKENS[plain])


def windows(tokens: Tensor, stride: int, length: int = LENGTH) -> Tensor:
    """Every window of `length` + 1 tokens that starts at a multiple of `stride`; no copy is made.

    >>> windows(torch.arange(300), 64)[:, 0].tolist()
    [0, 64, 128]
    """
    return tokens.unfold(0, length + 1, stride)
