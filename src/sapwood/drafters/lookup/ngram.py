"""Copies what followed the last few tokens when they occurred before.

Prompt lookup (Saxena 2023) and its tree form: contexts from `longest` tokens down to one, the most
recent occurrence first, each new continuation a sibling. A copied passage is followed by its
position, so that it continues where it came from even if its last tokens occur elsewhere too.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part, at_least
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome

SCAN = 16  # occurrences of one context that are considered, newest first
FADE = 0.4  # probability of an older continuation, relative to the newest of the same context


@dataclass
class Ngram(Part):
    """Copy the continuation of the longest, most recent match in prompt and output."""

    longest: int = 4  # most last tokens that are looked up, >= 1

    paper: ClassVar[str] = "github.com/apoorvumang/prompt-lookup-decoding"
    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()
    observes_roots: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, longest=self.longest)

    def reset(self, request: RequestContext) -> None:
        """Index the prompt."""
        self.text_: list[int] = []
        # context -> places of the tokens after it
        self.index_: dict[tuple[int, ...], list[int]] = {}
        self.tree_: Tree | None = None
        self.tails_: dict[int, tuple[int, ...]] = {}  # node -> the last tokens up to it
        # node -> (its place in the text, tokens matched)
        self.copies_: dict[int, tuple[int, int]] = {}
        self.unread_ = [*request.prompt]  # tokens that are not indexed yet

    def observe(self, outcome: Outcome) -> None:
        """Note what was emitted; it is indexed when a tree is next grown."""
        self.unread_ += outcome.tokens

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the continuations of each node's context."""
        if tree is not self.tree_:
            self._learn()
            self.tree_ = tree
            self.copies_ = {}
            self.tails_ = {ROOT: tuple(self.text_[-self.longest :])}
        for node, width in frontier:
            mass = 1.0
            last = 0
            fade = 1.0
            for rank, (place, matched) in enumerate(self._candidates(tree, node, width)):
                fade = fade * FADE if matched == last else 1.0
                # measured on chat output: what followed m matching tokens follows again about m
                # times in m + 2
                prob = mass * fade * matched / (matched + 2)
                child = tree.add(node, self.text_[place], prob, rank=rank, source=self.source)
                self.copies_[child] = place, matched + 1
                mass = mass - prob
                last = matched

    def _candidates(self, tree: Tree, node: int, width: int) -> list[tuple[int, int]]:
        """Places of distinct continuations and the tokens matched before each, best first."""
        tail = self._tail(tree, node)
        found = dict[int, tuple[int, int]]()
        place, matched = self.copies_.get(node, (0, 0))
        if matched > self.longest and place + 1 < len(self.text_):
            found[self.text_[place + 1]] = place + 1, matched
        for size in range(len(tail), 0, -1):
            for spot in self.index_.get(tail[-size:], [])[: -SCAN - 1 : -1]:
                found.setdefault(self.text_[spot], (spot, size))
            if len(found) >= width:
                break
        return list(found.values())[:width]

    def _tail(self, tree: Tree, node: int) -> tuple[int, ...]:
        if node not in self.tails_:
            before = self._tail(tree, int(tree.parents[node]))
            self.tails_[node] = (*before, int(tree.tokens[node]))[-self.longest :]
        return self.tails_[node]

    def _learn(self) -> None:
        """Index the tokens that are not indexed yet."""
        tokens = self.unread_
        self.unread_ = []
        for token in tokens:
            end = len(self.text_)
            for size in range(1, min(self.longest, end) + 1):
                self.index_.setdefault(tuple(self.text_[end - size :]), []).append(end)
            self.text_.append(token)
