"""Whole trees of a packed EAGLE-3 head, each in one compiled call: the tables and the memory that it asks for."""

from collections.abc import Sequence
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
        features = np.zeros((1, self.parts[0].inputs), np.float32)
        terms = Terms(Budget(nodes=1, depth=1, width=1), 1, Counts(np.zeros(0), cell, cell, 1.0, 1.0))
        self.run(Growth(self, 0, terms, None, 0), Text(features, np.zeros(1, np.int64), 0, keys, values, 0))

    def form(self, levels: Levels) -> Terms | None:
        """What a growth of these levels goes by; None where one is not possible."""
        terms = levels.terms
        return terms if terms is not None and terms.stride <= TEXT else None

    def begin(self, root: int, levels: Levels, seed: Tree | None, source: int) -> "Growth":
        """A growth from the root, or from what others have proposed; whether it is to go on, it says itself."""
        assert levels.terms is not None
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

    def claim(self, outcome: Outcome) -> None:
        """Features are asked of the scores."""

    def foresee(self, cache: Any, committed: int, levels: Levels, source: int = 0) -> float:
        """Nothing grows before the verdict is known: 0 seconds."""
        return 0.0


def grower_for(head: Any, embedding: Tensor) -> Grower | None:
    """What grows trees of a packed head; None where its layers are not streamed."""
    streamed = head.midlayer.streamed and head.config.shape.head_width in WIDTHS
    able = streamed and head.fc.bias is None and embedding.dtype == torch.float32
    return Grower(head, embedding) if able else None


class Growth:
    """A tree on its way: columns, and what the policy wants of them."""

    def __init__(self, grower: Grower, root: int, terms: Terms, seed: Tree | None, source: int) -> None:
        self.grower, budget = grower, terms.budget
        self.width, self.best = budget.width, np.empty(budget.nodes + 1)
        self.wish, self.grown = wish_of(terms, source), columns(Tree(root, 1) if seed is None else seed, self.width)
        self.goes_on = begin(self.wish, self.best, self.grown)  # False where the seed is all that pays

    def run(self, cache: Any, features: Tensor, tokens: Sequence[int], committed: int) -> None:
        """Read new text, features [rows, width] and the token after each, the root last; and grow as far as it pays."""
        new = len(tokens)
        cache.reserve(cache.text + new + OPENED)
        keys, values = cache.keys[0].numpy(), cache.values[0].numpy()
        text = Text(features.numpy(), np.array(tokens), committed - new, keys, values, cache.text)
        self.grower.run(self, text)
        cache.text += new

    def tree(self) -> Tree:
        """What has grown; the next one will begin after a pass over this."""
        SOON.want(self.grower.memory)
        size = int(self.grown.size[0])
        tokens, parents, depths, ranks, sources, probs, reach, expanded = (part[:size] for part in self.grown[1:])
        return Tree.from_columns(
            tokens, parents, depths, probs, reach=reach, ranks=ranks, sources=sources, expanded=expanded
        )


def columns(seed: Tree, width: int) -> Grown:
    """Columns that begin with a tree, of which the head knows nothing yet."""
    size, most = len(seed), min(CAPACITY, len(seed) + OPENED * width)

    def column(values: Any) -> Any:
        made = np.empty(most, values.dtype)
        made[:size] = values
        return made

    return Grown(
        size=np.array([size, size]),
        tokens=column(seed.tokens),
        parents=column(seed.parents),
        depths=column(seed.depths),
        ranks=column(seed.ranks),
        sources=column(seed.sources),
        probs=column(seed.probs),
        reach=np.ones(most),
        expanded=np.zeros(most, np.bool_),
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
