"""Batches of texts of similar length, in an order that depends on the seed alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sapwood.core.array_types import IntArray
from sapwood.train.corpus import Corpus

STEP = 64  # lengths are rounded up to a multiple of this


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Texts padded on the right, with the target's hidden states."""

    tokens: Tensor  # [batch, rows]
    lengths: Tensor  # [batch]
    answers: Tensor  # [batch] where the target's own text begins
    features: Tensor  # [batch, rows, layers * width]
    final: Tensor  # [batch, rows, width]

    def labelled_places(self) -> tuple[Tensor, Tensor]:
        """(text, position) of every state that predicts a token of an answer, each [rows]."""
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        inside = (place >= self.answers[:, None] - 1) & (place < self.lengths[:, None] - 1)
        texts, places = inside.nonzero(as_tuple=True)
        return texts, places


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Batches of texts of similar length, shuffled anew in every epoch."""

    lengths: IntArray  # [texts]
    tokens: int  # of one batch, padding included
    seed: int

    def epoch(self, number: int) -> list[IntArray]:
        """Batches of text indices."""
        rng = np.random.default_rng((self.seed, number))
        order = rng.permutation(len(self.lengths))
        rounded = -(-self.lengths[order] // STEP) * STEP
        batches: list[IntArray] = []
        for length in np.unique(rounded):
            group = order[rounded == length]
            size = max(1, self.tokens // int(length))
            batches += [group[start : start + size] for start in range(0, len(group), size)]
        return [batches[index] for index in rng.permutation(len(batches))]

    def after(self, done: int) -> Iterator[IntArray]:
        """Endless batches, without the first `done`."""
        epoch = 0
        while True:
            batches = self.epoch(epoch)
            if done < len(batches):
                yield from batches[done:]
                done = 0
            else:
                done -= len(batches)
            epoch += 1


def gather(corpus: Corpus, texts: IntArray, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [batch, rows] padded with the last one, lengths [batch], answer starts [batch]."""
    found = [corpus.sequence(int(text))[:longest] for text in texts]
    # padding stays within `longest`: a model may have no further positions
    rows = min(longest, -(-max(len(tokens) for tokens in found) // STEP) * STEP)
    tokens = np.stack([np.pad(text, (0, rows - len(text)), mode="edge") for text in found]).astype(
        np.int64
    )
    lengths = np.array([len(text) for text in found])
    return (
        torch.from_numpy(tokens),
        torch.from_numpy(lengths),
        torch.from_numpy(corpus.answers[texts].astype(np.int64)),
    )
