"""Recurrent networks, torch's own: one that predicts characters, one that answers at the end."""

from __future__ import annotations

from torch import Tensor, nn


class CharacterLSTM(nn.Module):
    """Tokens (N, T) → the logits (N, T, vocabulary) of the token after each of them."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each next token."""
        logits: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return logits


class SequenceGRU(nn.Module):
    """Sequences (N, T, inputs) → one number each, from the state after the last of them."""

    def __init__(self, inputs: int = 2, width: int = 64) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, sequences: Tensor) -> Tensor:
        """The numbers, (N,)."""
        numbers: Tensor = self.head(self.gru(sequences)[0][:, -1])
        return numbers.squeeze(1)
