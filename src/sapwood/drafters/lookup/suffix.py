"""Continues the longest context that occurred before, in this text and in earlier outputs.

After SuffixDecoding (arXiv 2411.04975), with the automaton of SAM decoding (arXiv 2411.10666) in
place of its trees and with another rule: matches are blended. Each one, from the longest down,
spreads a part of what the longer ones left over its continuations, by their share of the counts;
the text at hand comes before earlier ones. The published rule, one match of best score and a bound
on the draft by its length, is the drafter `suffix-decoding`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part, at_least
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome
from sapwood.core.whole_tree import LookupDrafter
from sapwood.drafters.lookup.suffix_automaton import START, Match, SuffixAutomaton

LEAD = 4  # last prompt tokens kept before an output, so that its first tokens have a context
REACH = 32  # prompt tokens matched against earlier outputs
HOME = 8  # tokens of a match after which a text is likely to go on along it
LIKELY = 0.5  # least chance of a looked-up token
AT_ONCE = 2  # outputs that one request indexes
WAITING = 32  # outputs that wait to be indexed, the newest are kept
LEFT = 0.02  # shorter matches are left out once the longer ones have spread all but this


class OutputHistory:
    """Earlier outputs in two generations: when the young one is full, the old one is dropped.

    Where drafting rests, nothing is looked up and indexing would be in vain: outputs wait until a
    later request looks something up.
    """

    def __init__(self, most: int) -> None:
        self.half = most // 2
        self.young = SuffixAutomaton()
        self.old = SuffixAutomaton()
        self.waiting: deque[Sequence[int]] = deque(maxlen=WAITING)

    def add(self, output: Sequence[int]) -> None:
        """Keep one output, to be indexed later."""
        self.waiting.append(output)

    def automata(self) -> list[SuffixAutomaton]:
        """The indexed outputs, among them the newest of those that waited."""
        for _ in range(min(AT_ONCE, len(self.waiting))):
            self.learn(self.waiting.pop())
        return [automaton for automaton in (self.young, self.old) if automaton.size]

    def learn(self, output: Sequence[int]) -> None:
        """Index one output, or as much of its end as half the memory holds."""
        output = output[max(0, len(output) - self.half) :]
        if self.young.size + len(output) > self.half:
            self.young, self.old = SuffixAutomaton(), self.young
        self.young.learn(output)


@dataclass
class Suffix(Part, LookupDrafter):
    """Continue the longest match in the text and in earlier outputs, by counts."""

    shortest: int = 1  # least tokens of a match, >= 1
    # most tokens of earlier outputs, the newest are kept; about 400 bytes each
    memory: int = 100_000
    # tokens by which a match in the text at hand goes before a longer one in earlier outputs
    local: int = 0

    paper: ClassVar[str] = "2411.04975"
    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()
    observes_roots: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, shortest=self.shortest)
        at_least(0, memory=self.memory, local=self.local)

    def bind(self, setting: EngineContext) -> None:
        """Begin an empty memory, shared by all requests."""
        self.earlier = OutputHistory(self.memory)

    def reset(self, request: RequestContext) -> None:
        """Keep the prompt; texts are indexed when first needed, or while the device is busy."""
        self.local_ = SuffixAutomaton()
        self.unindexed_prompt_ = request.prompt
        self.unindexed_: list[int] = []  # emitted, not indexed yet
        self.past_: list[SuffixAutomaton] = []  # of earlier outputs
        self.ends_: list[Match] = []  # match of the end of the text in each
        self.tree_: Tree | None = None
        self.matches_: dict[int, list[Match]] = {}  # node -> match in the text and in each
        self.output_ = list(request.prompt[-LEAD:])

    def catch_up(self) -> None:
        """Index the prompt and the emitted tokens that are not indexed yet."""
        prompt = self.unindexed_prompt_
        self.unindexed_prompt_ = ()
        tokens = self.unindexed_
        self.unindexed_ = []
        if prompt:
            self.local_.learn(prompt)
            self.past_ = self.earlier.automata()
            self.ends_ = [(START, 0) for _ in self.past_]
            self._follow(prompt[-REACH:])
        if tokens:
            self.local_.extend(tokens)
            self._follow(tokens)

    def observe(self, outcome: Outcome) -> None:
        """Append what was emitted; while drafting rests, that can wait."""
        self.unindexed_ += outcome.tokens
        self.output_ += outcome.tokens
        if outcome.asked:
            self.catch_up()

    def observe_roots(self, outcomes: Sequence[Outcome]) -> None:
        """Append the tokens of rounds without a tree."""
        self.append([outcome.verdict.bonus for outcome in outcomes])

    def append(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens; to index them can wait."""
        self.unindexed_ += tokens
        self.output_ += tokens

    def close(self) -> None:
        """Remember the output."""
        self.earlier.add(self.output_)

    def matches_text(self) -> bool:
        """True when the text matches an earlier one at some length."""
        if self.unindexed_prompt_ or self.unindexed_:
            return False
        return max(length for _, length in [self.local_.match(), *self.ends_]) >= HOME

    def likely_path(self, root: int, longest: int) -> Tree:
        """The likeliest continuation of the text as one path, for as long as it is likely."""
        self.catch_up()
        automata = self._automata()
        matches = [self.local_.match(), *self.ends_]
        tokens = [root]
        chances = [1.0]
        while len(tokens) <= longest:
            probs = self._spread(matches)
            token = max(probs, key=probs.__getitem__, default=None)
            if token is None or probs[token] < LIKELY:
                break
            tokens.append(token)
            chances.append(probs[token])
            matches = [
                automaton.advance(match, token)
                for automaton, match in zip(automata, matches, strict=True)
            ]
        depths = np.arange(len(tokens))
        return Tree.from_columns(
            np.array(tokens),
            depths - 1,
            depths,
            np.array(chances),
            sources=(depths > 0).astype(np.int64) << self.source,
            expanded=depths < depths[-1],
        )

    def lookup_seed(self, root: int, width: int, longest: int) -> Tree:
        """The likeliest continuations of the text, the first one as long as it is likely."""
        self.catch_up()
        matches = [self.local_.match(), *self.ends_]
        automata = self._automata()
        # token, parent, depth, rank and chance of each
        nodes = [(root, -1, 0, 0, 1.0)]
        tip = ROOT
        depth = 0
        while depth < longest and (probs := self._spread(matches)):
            best = sorted(probs, key=probs.__getitem__, reverse=True)[:width]
            parent = tip
            tip = len(nodes)
            depth = depth + 1
            nodes += [(token, parent, depth, rank, probs[token]) for rank, token in enumerate(best)]
            if probs[best[0]] < LIKELY:
                break
            matches = [
                automaton.advance(match, best[0])
                for automaton, match in zip(automata, matches, strict=True)
            ]
        *numbers, chances = zip(*nodes, strict=True)
        tokens, parents, depths, ranks = np.array(numbers)
        sources = (depths > 0).astype(np.int64) << self.source
        return Tree.from_columns(
            tokens, parents, depths, np.array(chances), ranks=ranks, sources=sources
        )

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the likeliest continuations of each node's context."""
        for node, width in frontier:
            probs = self._spread(self._match_of(tree, node))
            best = sorted(probs, key=probs.__getitem__, reverse=True)[:width]
            tree.extend(node, best, [probs[token] for token in best], source=self.source)

    def _match_of(self, tree: Tree, node: int) -> list[Match]:
        """Matches of the path to a node, in the text and in each store of earlier outputs."""
        if tree is not self.tree_:
            self.catch_up()
            self.tree_, self.matches_ = tree, {ROOT: [self.local_.match(), *self.ends_]}
        return self._match(tree, node)

    def _match(self, tree: Tree, node: int) -> list[Match]:
        if node not in self.matches_:
            before = self._match(tree, int(tree.parents[node]))
            token = int(tree.tokens[node])
            self.matches_[node] = [
                automaton.advance(match, token)
                for automaton, match in zip(self._automata(), before, strict=True)
            ]
        return self.matches_[node]

    def _automata(self) -> list[SuffixAutomaton]:
        """The automaton of the text at hand, and those of earlier outputs."""
        return [self.local_, *self.past_]

    def _spread(self, matches: list[Match]) -> dict[int, float]:
        """Chance of each continuation, from the longest match of any automaton down.

        Matches in the text at hand go `local` tokens ahead, and first among equals.
        """
        probs: dict[int, float] = {}
        left = 1.0
        automata = self._automata()
        contexts = [
            automaton.followed(match) for automaton, match in zip(automata, matches, strict=True)
        ]
        while left >= LEFT:
            ranks = [matched if state != START else -1 for state, matched in contexts]
            if contexts[0][0] != START:
                ranks[0] += self.local
            place = ranks.index(max(ranks))
            state, matched = contexts[place]
            if state == START or matched < self.shortest:
                break
            # measured on chat output: what followed m matching tokens follows again about m times
            # in m + 2
            trust = left * matched / (matched + 2)
            left -= trust
            for token, share in automata[place].shares(state):
                probs[token] = probs.get(token, 0.0) + trust * share
            contexts[place] = automata[place].shorter(contexts[place])
        return probs

    def _follow(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.ends_ = [
                automaton.advance(end, token)
                for automaton, end in zip(self.past_, self.ends_, strict=True)
            ]
