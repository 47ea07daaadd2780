"""Vectors of words: a skip-gram with negative samples, on docstrings of the standard library."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cgqbench.tasks.data.stdlib import docstrings, plain_texts
from cgqbench.tasks.task import Task

VOCABULARY = 3_000
"""The most frequent words; the others are left out."""
REACH = 4
"""Words to each side that are a word's context."""
NEGATIVES = 5
"""Words drawn at random beside each true one."""
FLATTER = 0.75
"""They are drawn by frequency to this power."""
TRAINED, TESTED = 400_000, 20_000


def skip_gram() -> Task:
    """Which of six words stands near a word? A batch touches few rows of either table."""
    read = [words(text) for text in plain_texts(part=docstrings)]
    counts = Counter(read[0])
    known = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    number = {word: place for place, word in enumerate(known)}
    texts = [torch.tensor([number[word] for word in text if word in number]) for text in read]
    weights = torch.tensor([float(counts[word]) for word in known]) ** FLATTER
    draw = Generator().manual_seed(5)
    train = questions(texts[0], TRAINED, weights, draw)
    test = questions(texts[1], TESTED, weights, draw)
    content = hashlib.sha256()
    for inputs, _ in (train, test):
        content.update(inputs.numpy().tobytes())
    return Task(
        SkipGram,
        train,
        test,
        loss=six_answers,
        correct=None,
        prepared=Tensor.long,
        checksum=content.hexdigest()[:16],
    )


def words(text: bytes) -> Sequence[bytes]:
    """The words of a text, in small letters.

    >>> words(b"A heap, or heapq2?")
    [b'a', b'heap', b'or', b'heapq']
    """
    found: Sequence[bytes] = re.findall(rb"[a-z]+", text.lower())
    return found


def questions(text: Tensor, count: int, weights: Tensor, draw: Generator) -> tuple[Tensor, Tensor]:
    """Words with one of their context and some drawn ones, (N, 2 + negatives); which is true."""
    near = [
        torch.stack(pair, 1)
        for apart in range(1, REACH + 1)
        for pair in ((text[:-apart], text[apart:]), (text[apart:], text[:-apart]))
    ]
    pairs = torch.cat(near)
    pairs = pairs[torch.randperm(len(pairs), generator=draw)[:count]]
    drawn = torch.multinomial(weights, len(pairs) * NEGATIVES, replacement=True, generator=draw)
    inputs = torch.cat([pairs, drawn.view(-1, NEGATIVES)], 1).to(torch.int32)
    answers = torch.zeros(len(pairs), 1 + NEGATIVES)
    answers[:, 0] = 1
    return inputs, answers


class SkipGram(nn.Module):
    """A word and those asked about (N, 1 + K) → the logits of their standing nearby, (N, K)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.contexts = nn.Embedding(VOCABULARY, width)
        # As word2vec begins.
        nn.init.uniform_(self.words.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.contexts.weight)

    def forward(self, numbers: Tensor) -> Tensor:
        """Inner products of a row of one table with some of the other."""
        word, asked = self.words(numbers[:, 0]), self.contexts(numbers[:, 1:])
        logits: Tensor = (asked @ word[:, :, None]).squeeze(2)
        return logits


def six_answers(output: Tensor, target: Tensor) -> Tensor:
    """-ln σ(w·c) - Σ ln σ(-w·cₖ), the mean over the batch.

    >>> six_answers(torch.zeros(2, 6), torch.eye(6)[:2])
    tensor(4.1589)
    """
    return binary_cross_entropy_with_logits(output, target, reduction="sum") / len(target)
