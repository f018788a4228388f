"""Continue the longest context seen before, in this text and in earlier outputs.

SuffixDecoding (arXiv 2411.04975) with the automaton of SAM decoding (arXiv 2411.10666) in place of
its trees. Every match, from the longest down, spreads a part of what the longer ones left over its
continuations, by their share of the counts; the text at hand comes before earlier ones.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.drafters.automaton import START, Automaton, Context, Match
from sapwood.part import Part, at_least
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Draw, Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

LEAD = 4  # last prompt tokens kept before an output, so that its first tokens have a context
REACH = 32  # prompt tokens matched against earlier outputs
HOME = 8  # tokens of a match after which a text is likely to go on along it
LIKELY = 0.5  # least chance of a recited token
LEFT = 0.02  # shorter matches are left out once the longer ones have spread all but this


class Memory:
    """Earlier outputs in two generations: when the young one is full, the old one is forgotten."""

    def __init__(self, most: int) -> None:
        self.half = most // 2
        self.young, self.old = Automaton(), Automaton()

    def learn(self, output: Sequence[int]) -> None:
        """Keep one output, or as much of its end as half the memory holds."""
        output = output[max(0, len(output) - self.half) :]
        if self.young.size + len(output) > self.half:
            self.young, self.old = Automaton(), self.young
        self.young.learn(output)


@dataclass
class Suffix(Part):
    """Continue the longest match in the text and in earlier outputs, by counts."""

    shortest: int = 1  # tokens a match must have, >= 1
    memory: int = 100_000  # most tokens of earlier outputs kept, the newest, at about 400 bytes each

    paper: ClassVar[str] = "2411.04975"
    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()
    patient: ClassVar[bool] = True  # observes the text alone, so it may do so late

    def __post_init__(self) -> None:
        at_least(1, shortest=self.shortest)
        at_least(0, memory=self.memory)

    def bind(self, setting: Setting) -> None:
        """Begin an empty memory, shared by all requests."""
        self.earlier = Memory(self.memory)

    def reset(self, request: Request) -> None:
        """Take the prompt; it is read when it is first needed, or while others are at work."""
        self.local_, self.unread_ = Automaton(), request.prompt
        self.unheard_: list[int] = []  # emitted while nobody asked
        self.past_ = [book for book in (self.earlier.young, self.earlier.old) if book.size]
        self.ends_ = [(START, 0) for _ in self.past_]  # how each book matches the end of the text
        self._follow(request.prompt[-REACH:])
        self.tree_: Tree | None = None
        self.matches_: dict[int, list[Match]] = {}  # node -> match in the text and in each book
        self.output_ = list(request.prompt[-LEAD:])

    def catch_up(self) -> None:
        """Read the prompt and what was emitted, unless that was done."""
        prompt, self.unread_ = self.unread_, ()
        tokens, self.unheard_ = self.unheard_, []
        if prompt:
            self.local_.learn(prompt)
        if tokens:
            self.local_.extend(tokens)
            self._follow(tokens)

    def observe(self, outcome: Outcome) -> None:
        """Append what was emitted; while drafting rests, that can wait."""
        self.unheard_ += outcome.tokens
        self.output_ += outcome.tokens
        if outcome.asked:
            self.catch_up()

    def close(self) -> None:
        """Remember the output."""
        self.earlier.learn(self.output_)

    @property
    def at_home(self) -> bool:
        """True where the text at hand has matched an earlier one for a while, so that the next words may be known."""
        if self.unread_ or self.unheard_:
            return False
        return max(length for _, length in [self.local_.match(), *self.ends_]) >= HOME

    def recite(self, root: int, longest: int) -> Tree:
        """The likeliest continuation of the text as one path, for as long as it is likely."""
        tree, tip = Tree(root), ROOT
        while len(tree) <= longest:
            probs = self._spread(self._match_of(tree, tip))
            token = max(probs, key=probs.__getitem__, default=None)
            if token is None or probs[token] < LIKELY:
                break
            tree.close(tip)
            tip = tree.add(tip, token, probs[token], source=self.source)
        return tree

    def seed(self, root: int, width: int, longest: int) -> Tree:
        """The likeliest continuations of the text, and what follows the first of them for as long as that is likely."""
        self.catch_up()
        matches, books = [self.local_.match(), *self.ends_], [self.local_, *self.past_]
        nodes, tip, depth = [(root, -1, 0, 0, 1.0)], ROOT, 0  # token, parent, depth, rank and chance of each
        while depth < longest and (probs := self._spread(matches)):
            best = sorted(probs, key=probs.__getitem__, reverse=True)[:width]
            parent, tip, depth = tip, len(nodes), depth + 1
            nodes += [(token, parent, depth, rank, probs[token]) for rank, token in enumerate(best)]
            if probs[best[0]] < LIKELY:
                break
            matches = [book.advance(match, best[0]) for book, match in zip(books, matches, strict=True)]
        *numbers, chances = zip(*nodes, strict=True)
        tokens, parents, depths, ranks = np.array(numbers)
        sources = (depths > 0).astype(np.int64) << self.source
        return Tree.from_columns(tokens, parents, depths, np.array(chances), ranks=ranks, sources=sources)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the likeliest continuations of each node's context."""
        for node, width in frontier:
            probs = self._spread(self._match_of(tree, node))
            best = sorted(probs, key=probs.__getitem__, reverse=True)[:width]
            tree.extend(node, best, [probs[token] for token in best], source=self.source)

    def _match_of(self, tree: Tree, node: int) -> list[Match]:
        """How the text and each book match the path to a node of this tree."""
        if tree is not self.tree_:
            self.catch_up()
            self.tree_, self.matches_ = tree, {ROOT: [self.local_.match(), *self.ends_]}
        return self._match(tree, node)

    def _match(self, tree: Tree, node: int) -> list[Match]:
        if node not in self.matches_:
            before, token = self._match(tree, int(tree.parents[node])), int(tree.tokens[node])
            books = [self.local_, *self.past_]
            self.matches_[node] = [book.advance(match, token) for book, match in zip(books, before, strict=True)]
        return self.matches_[node]

    def _spread(self, matches: list[Match]) -> dict[int, float]:
        """Chance of each continuation, from the longest match of any book down."""
        books = zip([self.local_, *self.past_], matches, strict=True)
        probs: dict[int, float] = {}
        left = 1.0
        for matched, shares in heapq.merge(*(book.contexts(match) for book, match in books), key=longest_first):
            if matched < self.shortest or left < LEFT:
                break
            # measured on chat output: what followed m matching tokens follows again about m times in m + 2
            trust = left * matched / (matched + 2)
            left -= trust
            for token, share in shares:
                probs[token] = probs.get(token, 0.0) + trust * share
        return probs

    def _follow(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.ends_ = [book.advance(end, token) for book, end in zip(self.past_, self.ends_, strict=True)]


def longest_first(context: Context) -> int:
    """Sort key of contexts; the text at hand stays first among equals."""
    return -context[0]
