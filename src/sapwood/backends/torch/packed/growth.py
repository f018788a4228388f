"""Whole trees of a packed EAGLE-3 head, each in one compiled call: the tables and the memory that it asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.packed.growth_plan import Grown, Wish, begin
from sapwood.backends.torch.packed.growth_steps import STAGES, Net, Room, Text, grow
from sapwood.backends.torch.packed.machine import BLOCK, DEEP
from sapwood.backends.torch.packed.passes import APART, KEYS, place, width_of
from sapwood.backends.torch.packed.reading import STRIP, WIDTHS
from sapwood.backends.torch.packed.soon import SOON, places_of
from sapwood.backends.torch.packed.stream import aligned
from sapwood.backends.torch.packed.team import DESK, TEAM
from sapwood.backends.torch.scores import TorchScores
from sapwood.heads.eagle3 import FEATURES
from sapwood.records import Budget, Counts, Levels, Outcome, Terms
from sapwood.tree import CAPACITY, Tree

TEXT = 32  # most rows of new text
OPENED = 128  # most rows of a tree, the root's included
STEPS = 32  # most steps of a growth
NO_PRICE = np.empty(0)


class Grower:
    """Grows trees of one packed head, and stops by itself where no leaf is worth opening."""

    text = TEXT

    def __init__(self, head: Any, embedding: Tensor) -> None:
        layer, shape = head.midlayer, head.config.shape
        self.head, self.shape = head, shape  # the head holds what places point to
        self.parts = [head.fc.inner, layer.qkv, layer.out.inner, layer.gate_up, layer.down, head.head]
        self.net = Net(
            places=np.array([place(part) for part in self.parts]),
            norms=np.stack([*layer.norms, layer.middle_norm, head.norm]),
            embedding=embedding.detach().numpy(),
            vocabulary=head.tokens,
            rates=layer.rates,
            eps=head.eps,
            after=bool(layer.after),
            heads=shape.heads,
            inner=shape.inner,
        )
        self.memory = places_of([part.packed.bytes for part in self.parts])
        self.room: dict[str, Any] | None = None
        self._wake()

    def _wake(self) -> None:
        """Grow from one row, so that what is compiled (at first for seconds) is ready before rounds are timed."""
        shape, cell = self.shape, np.zeros((1, 1, 1, 1))
        keys, values = (np.zeros((shape.kv_heads, OPENED + 1, shape.head_width), np.float32) for _ in range(2))
        low, middle, high = np.zeros((FEATURES, 1, self.head.config.target_width), np.float32)
        row = np.zeros(1, np.int64)
        terms = Terms(Budget(nodes=1, depth=1, width=1), 1, Counts(np.zeros(0), cell, cell, 1.0, 1.0))
        self.run(Growth(self, 0, terms, None, 0), Text(low, middle, high, row, row, 0, keys, values, 0))

    def form(self, levels: Levels) -> Terms | None:
        """What a growth of these levels goes by; None where one is not possible."""
        terms = levels.terms
        return terms if terms is not None and terms.stride <= TEXT else None

    def begin(self, root: int, levels: Levels, seed: Tree | None, source: int) -> "Growth":
        """A growth from the root, or from what others have proposed; whether it is to go on, it says itself."""
        assert levels.terms is not None
        SOON.want(self.memory)  # the next growth begins after a pass over this one's tree
        return Growth(self, root, levels.terms, seed, source)

    def run(self, growth: "Growth", text: Text) -> None:
        """Read new text and go on from there."""
        (room, self.room), width = (self.room, None), min(growth.width, len(self.net.vocabulary))
        room = self._room() if room is None else room
        workers, _, keys = room["weights"].shape
        if workers < torch.get_num_threads() or keys < text.keys.shape[1] + BLOCK:
            room |= self._reading(text.keys.shape[1])
        choice = {"ids": np.empty((TEXT, width), np.int64), "chances": np.empty((TEXT, width))}
        facts, desks = np.zeros((STEPS + 1, 2), np.int64), np.zeros((STEPS * STAGES, DESK), np.int64)
        given = Room(**room, **choice, best=growth.best)
        TEAM.run(grow, self.net, text, growth.wish, given, growth.grown, facts, desks)
        self.room = room

    def _room(self) -> dict[str, Any]:
        """Memory for numbers on the way."""
        shape, longest = self.shape, max(part.packed.depth * DEEP for part in self.parts)
        seen = np.zeros((OPENED, OPENED), np.bool_)
        seen[0, 0] = True
        return {
            "entered": np.empty((TEXT, longest), np.float32),
            "whole": aligned(TEXT, longest, dtype=np.uint8),
            "products": np.empty((TEXT, max(map(width_of, self.parts[:-1]))), np.float32),
            "scales": np.empty(TEXT, np.float32),
            "states": np.empty((TEXT, shape.width), np.float32),
            "query": np.empty((TEXT, shape.heads, shape.head_width), np.float32),
            "turns": np.empty((TEXT, 2, shape.head_width // 2), np.float32),
            "bits": np.empty((TEXT, shape.inner), np.int32),
            "logits": np.empty((TEXT, width_of(self.head.head) + APART), np.float32),
            "scratch": np.empty((TEXT, len(self.net.vocabulary)), np.float32),
            "outputs": np.empty((OPENED, shape.width), np.float32),
            "owners": np.zeros(OPENED, np.int64),
            "ups": np.zeros(OPENED, np.int64),
            "seen": seen,
        } | self._reading(KEYS)

    def _reading(self, keys: int) -> dict[str, Any]:
        """Memory for what heads read of so many keys."""
        shape, workers = self.shape, torch.get_num_threads()
        group = shape.heads // shape.kv_heads
        return {
            "weights": np.empty((workers, group, keys + BLOCK), np.float32),
            "sums": np.empty((workers, shape.head_width // STRIP, group, STRIP), np.float32),
        }

    def claim(self, outcome: Outcome) -> "Claim | None":
        """The features of the accepted path, where they lie."""
        scores, path = outcome.scores, outcome.verdict.path
        return Claim(scores.states(self.head.config.features), path) if isinstance(scores, TorchScores) else None

    def foresee(self, cache: Any, committed: int, levels: Levels, source: int = 0) -> float:
        """Nothing grows before the verdict is known: 0 seconds."""
        return 0.0


def grower_for(head: Any, embedding: Tensor) -> Grower | None:
    """What grows trees of a packed head; None where its layers are not streamed."""
    streamed = head.midlayer.streamed and head.config.shape.head_width in WIDTHS
    able = streamed and head.fc.bias is None and embedding.dtype == torch.float32
    return Grower(head, embedding) if able else None


@dataclass(frozen=True, slots=True)
class Claim:
    """What the target thought of some rows of a pass, left where it lies until it is read."""

    states: Sequence[Tensor]  # of each layer, [rows of the pass, width]
    rows: Sequence[int]

    def tensor(self) -> Tensor:
        """The same in one piece, [rows, layers * width]."""
        return torch.cat([states[list(self.rows)] for states in self.states], -1)


def claim_of(features: Tensor | Claim) -> Claim:
    """Features [rows, layers * width] as a claim on all of them, or one that they are already."""
    if isinstance(features, Claim):
        return features
    return Claim([part.contiguous() for part in features.chunk(FEATURES, -1)], range(len(features)))


class Growth:
    """A tree on its way: columns, and what the policy wants of them."""

    def __init__(self, grower: Grower, root: int, terms: Terms, seed: Tree | None, source: int) -> None:
        self.grower, self.budget, self.width = grower, terms.budget, terms.budget.width
        self.wish, self.best = wish_of(terms, source), np.empty(self.budget.nodes + 1)
        self.grown = columns(Tree(root, 1) if seed is None else seed, self.width, self.budget.nodes + 1)
        self.goes_on = begin(self.wish, self.best, self.grown)  # False where the seed is all that pays

    def run(self, cache: Any, features: Tensor | Claim, tokens: Sequence[int], committed: int) -> None:
        """Read new text, its features and the token after each, the root last; and grow as far as it pays."""
        new = len(tokens)
        cache.reserve(cache.text + new + OPENED)
        claim, (keys, values) = claim_of(features), cache.arrays()
        low, middle, high = (states.numpy() for states in claim.states)
        rows, after = np.array(claim.rows), np.array(tokens)
        text = Text(low, middle, high, rows, after, committed - new, keys, values, cache.text)
        self.grower.run(self, text)
        cache.text += new

    def tree(self) -> Tree:
        """What has grown, and what pays of it."""
        size, _, count = self.grown.size.tolist()
        tokens, parents, depths, ranks, sources, probs, reach, expanded = (part[:size] for part in self.grown[1:9])
        tree = Tree.from_columns(
            tokens, parents, depths, probs, reach=reach, ranks=ranks, sources=sources, expanded=expanded
        )
        if (self.budget.price is None) == (not self.budget.rate):  # else growing goes by other prices than checking
            tree.priced = self.budget, self._left(count)
        return tree

    def _left(self, count: int) -> Tree:
        """What is left of the tree when it is cut."""
        (tokens, parents, depths, ranks, sources, kept), (probs, reach) = self.grown.left, self.grown.worth
        return Tree.from_columns(
            tokens[:count], parents[:count], depths[:count], probs[:count], reach=reach[:count], ranks=ranks[:count],
            sources=sources[:count], expanded=self.grown.opened[:count], kept=kept[:count],
        )  # fmt: skip


def columns(seed: Tree, width: int, left: int) -> Grown:
    """Columns that begin with a tree, of which the head knows nothing yet; at most so many nodes will be left of it."""
    size, most = len(seed), min(CAPACITY, len(seed) + OPENED * width)

    def column(values: Any) -> Any:
        made = np.empty(most, values.dtype)
        made[:size] = values
        return made

    return Grown(
        size=np.array([size, size, 0]),
        tokens=column(seed.tokens),
        parents=column(seed.parents),
        depths=column(seed.depths),
        ranks=column(seed.ranks),
        sources=column(seed.sources),
        probs=column(seed.probs),
        reach=np.ones(most),
        expanded=np.zeros(most, np.bool_),
        left=np.empty((6, left), np.int64),
        worth=np.empty((2, left)),
        opened=np.empty(left, np.bool_),
    )


def wish_of(terms: Terms, source: int) -> Wish:
    """The same for compiled code."""
    budget = terms.budget
    price = np.zeros(budget.nodes + 1) if budget.price is None else budget.price
    return Wish(
        nodes=budget.nodes,
        depth=budget.depth,
        stride=terms.stride,
        price=price if budget.rate else NO_PRICE,
        least=terms.least,
        chance=terms.chance,
        level=terms.level,
        **terms.counts._asdict(),
        source=1 << source,
    )
