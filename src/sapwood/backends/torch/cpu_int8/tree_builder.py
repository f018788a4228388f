"""Builds whole trees of an int8 EAGLE-3 head, each in one compiled call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8.best_first import GrowthArgs, TreeColumns, pick, prune, value
from sapwood.backends.torch.cpu_int8.embedding_table import HALVES, EmbeddingTable, parts_of
from sapwood.backends.torch.cpu_int8.int_attention import STRIP, WIDTHS
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, DEEP
from sapwood.backends.torch.cpu_int8.pointwise import compiled
from sapwood.backends.torch.cpu_int8.runner import APART, KEYS, place, width_of
from sapwood.backends.torch.cpu_int8.thread_team import (
    COUNTERS,
    PREFETCHER,
    TEAM,
    address_ranges,
    aligned,
)
from sapwood.backends.torch.cpu_int8.tree_kernel import (
    STAGES,
    HeadText,
    HeadWeights,
    TreeScratch,
    grow,
)
from sapwood.backends.torch.output import TorchOutput
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import AcceptanceCounts, Budget, GrowthRule, Outcome, TreeShape
from sapwood.core.whole_tree import NewText
from sapwood.heads.eagle3 import FEATURES
from sapwood.heads.kv_cache import HeadKvCache, prefill

TEXT = 32  # most rows of newly committed text
OPENED = 128  # most expanded nodes of a tree, the root included
STEPS = 32  # most expansion steps of a tree
NO_PRICE = np.empty(0)


class CpuTreeBuilder:
    """Grows trees of one int8 head, and stops when no leaf is worth expanding."""

    most_rows = TEXT
    accepts_seed = True

    def __init__(self, head: Any, embedding: Tensor | EmbeddingTable) -> None:
        layer, shape = head.midlayer, head.config.shape
        floats, blocks = parts_of(embedding)
        # the head keeps the memory that places point to alive
        self.head = head
        self.embedding: Any = embedding
        self.shape = shape
        self.parts = [
            head.fc.inner,
            layer.qkv,
            layer.out.inner,
            layer.gate_up,
            layer.down,
            head.head,
        ]
        self.net = HeadWeights(
            places=np.array([place(part) for part in self.parts]),
            norms=np.stack([*layer.norms, layer.middle_norm, head.norm]),
            embedding=floats,
            blocks=blocks,
            halves=HALVES,
            vocabulary=head.tokens,
            rates=layer.rates,
            eps=head.eps,
            after=bool(layer.after),
            heads=shape.heads,
            inner=shape.inner,
        )
        self.memory = address_ranges([part.packed.bytes for part in self.parts])
        self.buffers: dict[str, Any] | None = None
        self._warm_up()

    def _warm_up(self) -> None:
        """Build one tree, so that kernels are compiled before rounds are timed."""
        shape = self.shape
        cell = np.zeros((1, 1, 1, 1))
        keys, values = (
            np.zeros((shape.kv_heads, OPENED + 1, shape.head_width), np.float32) for _ in range(2)
        )
        low, middle, high = np.zeros((FEATURES, 1, self.head.config.target_width), np.float32)
        row = np.zeros(1, np.int64)
        terms = GrowthRule(
            Budget(nodes=1, depth=1, width=1),
            1,
            AcceptanceCounts(np.zeros(0), cell, cell, 1.0, 1.0),
        )
        self.run(
            TreeState(self, 0, terms, None, 0),
            HeadText(low, middle, high, row, row, 0, keys, values, 0),
        )

    def open(self, rows: int) -> HeadKvCache:
        """A KV cache of the head for a request with so many rows of text."""
        return HeadKvCache(self.shape, self.embedding, rows)

    def fits(self, shape: TreeShape) -> bool:
        """True if the shape has a growth rule that expands few enough leaves at a time."""
        return shape.terms is not None and shape.terms.stride <= TEXT

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Do nothing: all shapes use the same compiled code."""

    def read(self, cache: HeadKvCache, features: Tensor, tokens: Sequence[int], first: int) -> None:
        """Prefill the head with text too long for one call; its first row has position `first`."""
        prefill(self.head, self.embedding, cache, features, tokens, first)

    def build(
        self,
        root: int,
        shape: TreeShape,
        cache: HeadKvCache,
        text: Callable[[], NewText],
        committed: int,
        source: int = 0,
        seed: Tree | None = None,
    ) -> Tree:
        """A tree from the root or a seed tree; the head runs only if more nodes pay."""
        assert shape.terms is not None
        PREFETCHER.want(self.memory)  # the next draft follows the pass over this tree
        growth = TreeState(self, root, shape.terms, seed, source)
        if growth.goes_on:
            growth.run(cache, *text(), committed)
        return growth.tree()

    def run(self, growth: "TreeState", text: HeadText) -> None:
        """Prefill new text and grow the tree, in one compiled call."""
        (buffers, self.buffers), width = (
            (self.buffers, None),
            min(growth.width, len(self.net.vocabulary)),
        )
        buffers = self._new_buffers() if buffers is None else buffers
        workers, _, keys = buffers["weights"].shape
        if workers < torch.get_num_threads() or keys < text.keys.shape[1] + BLOCK:
            buffers |= self._attention_buffers(text.keys.shape[1])
        choice = {"ids": np.empty((TEXT, width), np.int64), "chances": np.empty((TEXT, width))}
        facts = np.zeros((STEPS + 1, 2), np.int64)
        counters = np.zeros((STEPS * STAGES, COUNTERS), np.int64)
        given = TreeScratch(**buffers, **choice, best=growth.best)
        TEAM.run(grow, self.net, text, growth.rule, given, growth.grown, facts, counters)
        self.buffers = buffers

    def _new_buffers(self) -> dict[str, Any]:
        """Buffers for intermediate results."""
        shape = self.shape
        longest = max(part.packed.depth * DEEP for part in self.parts)
        seen = np.zeros((OPENED, OPENED), np.bool_)
        seen[0, 0] = True
        return {
            "entered": np.empty((TEXT, longest), np.float32),
            "whole": aligned(TEXT, longest, dtype=np.uint8),
            "products": np.empty((TEXT, max(map(width_of, self.parts[:-1]))), np.float32),
            "scales": np.empty(TEXT, np.float32),
            "states": np.empty((TEXT, shape.width), np.float32),
            "embeds": np.empty((TEXT, shape.width), np.float32),
            "query": np.empty((TEXT, shape.heads, shape.head_width), np.float32),
            "turns": np.empty((TEXT, 2, shape.head_width // 2), np.float32),
            "bits": np.empty((TEXT, shape.inner), np.int32),
            "logits": np.empty((TEXT, width_of(self.head.head) + APART), np.float32),
            "scratch": np.empty((TEXT, len(self.net.vocabulary)), np.float32),
            "outputs": np.empty((OPENED, shape.width), np.float32),
            "owners": np.zeros(OPENED, np.int64),
            "ups": np.zeros(OPENED, np.int64),
            "seen": seen,
        } | self._attention_buffers(KEYS)

    def _attention_buffers(self, keys: int) -> dict[str, Any]:
        """Attention buffers for so many keys."""
        shape = self.shape
        workers = torch.get_num_threads()
        group = shape.heads // shape.kv_heads
        return {
            "weights": np.empty((workers, group, keys + BLOCK), np.float32),
            "sums": np.empty((workers, shape.head_width // STRIP, group, STRIP), np.float32),
        }

    def path_features(self, outcome: Outcome) -> "RowFeatures | None":
        """References to the features of the accepted path."""
        scores, path = outcome.scores, outcome.verdict.path
        return (
            RowFeatures(scores.states(self.head.config.features), path)
            if isinstance(scores, TorchOutput)
            else None
        )

    def prelaunch(
        self, shape: TreeShape, tree: Tree, cache: HeadKvCache, committed: int, source: int = 0
    ) -> None:
        """Do nothing: a CPU drafts after the host has the verdict."""


def builder_for(head: Any, embedding: Tensor | EmbeddingTable) -> CpuTreeBuilder | None:
    """A tree builder of an int8 head; None without our kernels or for other shapes."""
    streamed = head.midlayer.streamed and head.config.shape.head_width in WIDTHS
    able = streamed and head.fc.bias is None and embedding.dtype == torch.float32
    return CpuTreeBuilder(head, embedding) if able else None


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """Hidden states of some rows of a pass, as references into the pass's buffers."""

    states: Sequence[Tensor]  # of each layer, [rows of the pass, width]
    rows: Sequence[int]

    def tensor(self) -> Tensor:
        """The hidden states as one tensor, [rows, layers * width]."""
        rows = self.rows
        # most often the root alone; a slice takes a fifth of the time of a list
        chosen = slice(rows[0], rows[0] + 1) if len(rows) == 1 else list(rows)
        return torch.cat([states[chosen] for states in self.states], -1)


def row_features(features: Tensor | RowFeatures) -> RowFeatures:
    """Features [rows, layers * width] as `RowFeatures`."""
    if isinstance(features, RowFeatures):
        return features
    return RowFeatures(
        [part.contiguous() for part in features.chunk(FEATURES, -1)], range(len(features))
    )


@compiled
def expand_root(rule: Any, best: Any, grown: Any) -> bool:
    """Compute the seeds' reach; True if expanding the root pays."""
    value(rule, grown, 1)
    goes_on = pick(rule, best, grown, np.empty(1, np.int64), 1) > 0
    if not goes_on:
        prune(rule, best, grown)
    return goes_on


class TreeState:
    """A tree under construction: its columns and the growth rule."""

    def __init__(
        self, builder: CpuTreeBuilder, root: int, terms: GrowthRule, seed: Tree | None, source: int
    ) -> None:
        self.builder = builder
        self.budget = terms.budget
        self.width = terms.budget.width
        self.rule = growth_args(terms, source)
        self.best = np.empty(self.budget.nodes + 1)
        self.grown = columns(
            Tree(root, 1) if seed is None else seed, self.width, self.budget.nodes + 1
        )
        # False if no node besides the seed pays
        self.goes_on = expand_root(self.rule, self.best, self.grown)

    def run(
        self,
        cache: HeadKvCache,
        features: Tensor | RowFeatures,
        tokens: Sequence[int],
        committed: int,
    ) -> None:
        """Prefill new text (features, and the next token of each row; the root last), then grow."""
        new = len(tokens)
        cache.reserve(cache.text + new + OPENED)
        source, (keys, values) = row_features(features), cache.arrays()
        low, middle, high = (states.numpy() for states in source.states)
        rows = np.array(source.rows)
        after = np.array(tokens)
        text = HeadText(low, middle, high, rows, after, committed - new, keys, values, cache.text)
        self.builder.run(self, text)
        cache.text += new

    def tree(self) -> Tree:
        """The finished tree, with its pruned version if both have the same price."""
        size, _, count = self.grown.size.tolist()
        tokens, parents, depths, ranks, sources, probs, reach, expanded = (
            part[:size] for part in self.grown[1:9]
        )
        tree = Tree.from_columns(
            tokens,
            parents,
            depths,
            probs,
            reach=reach,
            ranks=ranks,
            sources=sources,
            expanded=expanded,
        )
        # otherwise growing and pruning go by different prices
        if (self.budget.price is None) == (not self.budget.rate):
            tree.priced = self.budget, self._left(count)
        return tree

    def _left(self, count: int) -> Tree:
        """The tree after pruning."""
        (tokens, parents, depths, ranks, sources, kept), (probs, reach) = (
            self.grown.left,
            self.grown.worth,
        )
        return Tree.from_columns(
            tokens[:count],
            parents[:count],
            depths[:count],
            probs[:count],
            reach=reach[:count],
            ranks=ranks[:count],
            sources=sources[:count],
            expanded=self.grown.opened[:count],
            kept=kept[:count],
        )


def columns(seed: Tree, width: int, left: int) -> TreeColumns:
    """Columns that begin with a seed tree; `left` is the most nodes after pruning."""
    size = len(seed)
    most = min(CAPACITY, len(seed) + OPENED * width)

    def column(values: Any) -> Any:
        made = np.empty(most, values.dtype)
        made[:size] = values
        return made

    return TreeColumns(
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


def growth_args(terms: GrowthRule, source: int) -> GrowthArgs:
    """The growth rule as arguments of compiled code."""
    budget = terms.budget
    price = np.zeros(budget.nodes + 1) if budget.price is None else budget.price
    return GrowthArgs(
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
