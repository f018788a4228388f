"""What a pass leaves: buffers that stay where they are, and views of them until the next pass."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from sapwood.arrays import IntArray
from sapwood.backends.torch.fused.graphs import MOST
from sapwood.backends.torch.fused.sayer import Sayer
from sapwood.backends.torch.fused.stream import Margin
from sapwood.backends.torch.llama import Llama
from sapwood.backends.torch.network import Kept

LOGITS = 128  # rows of logits at first


@dataclass(frozen=True, slots=True)
class Answer:
    """What a pass leaves in buffers that the next pass overwrites."""

    logits: Tensor | None  # [rows, vocab]
    best: Tensor | None  # [rows]
    states: Tensor | None  # [rows, width], what the output head reads, of passes without it
    kept: Kept

    def copy(self) -> "Answer":
        """The same in memory of its own."""
        logits, best, states = (
            None if part is None else part.clone() for part in (self.logits, self.best, self.states)
        )
        return Answer(logits, best, states, {layer: states.clone() for layer, states in self.kept.items()})


class Desk:
    """Buffers of a pass."""

    def __init__(self, model: Llama) -> None:
        like, heads = model.embedding, model.heads * model.head_width
        self.like, self.vocab, self.width = like, model.vocab, model.width
        self.streams = like.new_zeros(2, MOST, model.width)  # inputs of layers, in turn
        self.middle = like.new_zeros(MOST, model.width)
        self.margins = [Margin.make(like, MOST, model.width) for _ in range(2)]  # of layers' inputs, and of the middle
        self.turns = like.new_zeros(MOST, model.head_width, dtype=torch.float32)  # angles of the rows' positions
        self.queries = like.new_zeros(MOST, model.heads, model.head_width)
        self.read = like.new_zeros(MOST, heads)
        self.inner = like.new_zeros(MOST, model.inner)
        self.final = like.new_zeros(MOST, model.width)
        self.best = torch.zeros(MOST, dtype=torch.int64, device=like.device)
        self.told = torch.zeros(MOST, dtype=torch.int64, pin_memory=like.is_cuda)  # the same on the host
        self.heard: IntArray = self.told.numpy()
        self.logits = like.new_zeros(LOGITS, model.vocab)
        self.watched: dict[int, Tensor] = {}
        self.sayer: Sayer | None = None
        self._answers: dict[tuple[int, bool, frozenset[int]], Answer] = {}

    def reserve(self, rows: int) -> bool:
        """Room for so many rows of logits; True where it was not there."""
        if rows <= len(self.logits):
            return False
        self.logits, self.sayer = self.like.new_zeros(MOST, self.vocab), None
        self._answers.clear()
        return True

    def twin(self, model: Llama) -> "Desk":
        """Another one with room for as much."""
        twin = Desk(model)
        twin.reserve(len(self.logits))
        twin.watch(self.watched)
        return twin

    def watch(self, layers: Collection[int]) -> bool:
        """Buffers for the inputs of these layers; True where some are new."""
        new = [layer for layer in layers if layer not in self.watched]
        for layer in new:
            self.watched[layer] = self.like.new_zeros(MOST, self.width)
        return bool(new)

    def answer(self, rows: int, watched: Collection[int], head: bool) -> Answer:
        """Where a pass over so many rows leaves what it found."""
        name = rows, head, frozenset(watched)
        if name not in self._answers:
            kept = {layer: self.watched[layer][:rows] for layer in sorted(watched)}
            self._answers[name] = (
                Answer(self.logits[:rows], self.best[:rows], None, kept)
                if head
                else Answer(None, None, self.final[:rows], kept)
            )
        return self._answers[name]


def join(answers: list[Answer]) -> Answer:
    """Answers of several passes as one."""
    if len(answers) == 1:
        return answers[0]

    def cat(parts: list[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return torch.cat(there) if there else None

    return Answer(
        cat([answer.logits for answer in answers]),
        cat([answer.best for answer in answers]),
        cat([answer.states for answer in answers]),
        {layer: torch.cat([answer.kept[layer] for answer in answers]) for layer in answers[0].kept},
    )
