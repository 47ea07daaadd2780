"""Characters of the standard library: small GPTs and an LSTM."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from cgqbench.tasks.data import standard_library
from cgqbench.tasks.data.text import VOCABULARY, Text
from cgqbench.tasks.networks.bf16 import Bf16
from cgqbench.tasks.networks.gpt import GPT
from cgqbench.tasks.networks.recurrent import CharacterLSTM
from cgqbench.tasks.task import Task, per_character

TESTED = 128_000
"""Characters to test on."""


def gpt_small() -> Task:
    """Two layers, 64 wide, in float32."""
    return characters(partial(GPT, VOCABULARY, 64, width=64, layers=2, heads=4), library(64))


def gpt_bf16() -> Task:
    """Four layers, 128 wide, as nanoGPT has them, under autocast."""
    return characters(wide_gpt, library(256))


def gpt_fp32() -> Task:
    """The same without autocast."""
    return characters(tied_gpt, library(256))


def lstm() -> Task:
    """Two layers, 128 wide."""
    return characters(partial(CharacterLSTM, VOCABULARY, width=128, layers=2), library(128))


def wide_gpt() -> nn.Module:
    """The network below under autocast."""
    return Bf16(tied_gpt())


def tied_gpt() -> nn.Module:
    """No biases, and one table for what is read and what is written."""
    return GPT(VOCABULARY, 256, width=128, layers=4, heads=4, bias=False, tied=True)


def library(length: int, part: Callable[[bytes], bytes] = bytes) -> Text:
    """Windows of the standard library, or of a part of every file; few of them to test on."""
    return standard_library(tests=TESTED // length, length=length, part=part)


def characters(model: Callable[[], nn.Module], text: Text) -> Task:
    """A text with a network that predicts each next character; it is judged by its loss alone."""
    return Task(
        model,
        (text.train[:, :-1], text.train[:, 1:]),
        (text.test[:, :-1], text.test[:, 1:]),
        loss=per_character,
        correct=None,
        prepared=Tensor.long,
        checksum=text.checksum,
    )
