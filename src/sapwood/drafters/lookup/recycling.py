"""Proposes tokens that the target found likely after the same token in earlier passes.

Token Recycling (arXiv 2408.08696): every row of a verified tree, rejected ones included, stores its
8 best next tokens under its own token; the last writer wins, and the table outlives requests. The
paper fills a fixed tree of 80 nodes from it breadth first: the child of rank r is the r-th token in
its parent's row. The recipe `recycling` is that rule: `pairs=0, prompt=0` and the policy
`rank-paths` with the paper's tree. Two differences do not change the text: a token without a row
gets no children here, where the published code drafts token 0 below it; and a row of the accepted
path is written after the others, so that it is the one that stays.

Ours beside it: probabilities are stored with the tokens, so that any policy can grow the tree
(`recycling-best` grows the likeliest node next); rows are kept once more under their last two
tokens, which are looked up first; and the end of the prompt is written before the first round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.heap import zeros_when_touched
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.sampling import draft_probs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.propose import kind, propose, ranks_do

NONE = -1  # in place of a pair of tokens where there is none
PAIR = 0.6  # weight of the row of two tokens, where there is one; the row of one token has the rest
# measured on chat output: a token that a single row gives p comes p (1 - SHRINK p) of the time
SHRINK = 0.5

TINY = 1e-30  # replaces a probability that is zero in single precision


@dataclass
class Recycling(Part):
    """Propose the target's own best tokens after the same one or two tokens, as last seen."""

    count: int = 8  # next tokens stored in a row, 1 to 1024
    # rows for pairs of tokens, 72 bytes each; best a prime; 0: no pairs
    pairs: int = 65_521
    prompt: int = 128  # last prompt tokens that are stored at the start, 0 stores none
    draws: Draw = Draw.TOPK

    paper: ClassVar[str] = "2408.08696"
    reads_scores = True
    observes_roots: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()
    stands_alone = True

    def __post_init__(self) -> None:
        between(1, 1024, count=self.count)
        between(0, 10_000_000, pairs=self.pairs)
        at_least(0, prompt=self.prompt)

    def bind(self, setting: EngineContext) -> None:
        """Begin an empty table, shared by all requests: a row per token, then the rows of pairs."""
        self.vocab = setting.target.info.vocab
        shape = self.vocab + self.pairs, min(self.count, self.vocab)
        self.successors: IntArray = zeros_when_touched(shape, np.int32)
        self.logps: FloatArray = zeros_when_touched(shape, np.float32)
        self.written = np.zeros(self.vocab, np.bool_)
        # the pair that holds each row; the last one evicts
        self.owners = np.full(self.pairs, NONE, np.int64)

    def reset(self, request: RequestContext) -> None:
        """Store the prefill output of the last prompt tokens."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1
        read = request.session.prefill_output(self.prompt)
        if read is not None:
            tokens, logps = read.topk(self.successors.shape[1])
            text = np.asarray(request.prompt[: self.committed_])
            self._write(
                text[-len(tokens) :], np.append(0, text)[-len(tokens) - 1 : -1], tokens, logps
            )
        self.before_ = request.prompt[-2] if self.committed_ else 0  # the token before the root

    def observe(self, outcome: Outcome) -> None:
        """Write every checked row, those of the text last."""
        tree = outcome.tree
        path = list(outcome.verdict.path)
        # it did not draft, and fetching rows takes long
        if not outcome.asked or outcome.grown.pruned is not None:
            self.before_ = int(tree.tokens[path[-1]])
            self.committed_ = outcome.context + len(path)
            return
        # a row written twice keeps the later value
        order = np.concatenate([np.arange(len(tree)), path])
        tokens, logps = outcome.scores.topk(self.successors.shape[1])
        before = tree.tokens[tree.parents]
        before[ROOT] = self.before_
        self._write(tree.tokens[order], before[order], tokens[order], logps[order])
        self.before_ = int(tree.tokens[path[-1]])
        self.committed_ = outcome.context + len(path)

    def observe_roots(self, outcomes: Sequence[Outcome]) -> None:
        """Go on behind rounds without a tree, whose rows are not written."""
        self.observe(outcomes[-1])

    def _write(self, last: IntArray, before: IntArray, tokens: IntArray, logps: FloatArray) -> None:
        """Keep these successors, [n, count], under their last token and under their last two."""
        self.successors[last], self.logps[last] = tokens, logps
        self.written[last] = True
        if self.pairs:
            keys = before * self.vocab + last
            rows = keys % self.pairs
            self.owners[rows] = keys
            self.successors[self.vocab + rows], self.logps[self.vocab + rows] = tokens, logps

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add successors of each node's last tokens, chosen or drawn."""
        draws = kind(self.draws, self.sampler_)
        plain = ranks_do(tree, self.draws, self.sampler_)
        for node, width in frontier:
            probs = self._successors(tree, node)
            if plain:
                best = sorted(probs, key=probs.__getitem__, reverse=True)[:width]
                tree.extend(node, best, [probs[token] for token in best], source=self.source)
            elif probs:
                self._propose(tree, node, probs, width, draws, rng)

    def _successors(self, tree: Tree, node: int) -> dict[int, float]:
        """Chance of each known successor; nothing for a token that was never scored."""
        token = int(tree.tokens[node])
        if not self.written[token]:
            return {}
        single = self._row(token)
        before = int(tree.tokens[tree.parents[node]]) if node else self.before_
        key = before * self.vocab + token
        if not self.pairs or self.owners[key % self.pairs] != key:
            return {successor: prob * (1 - SHRINK * prob) for successor, prob in single.items()}
        mixed = {successor: (1 - PAIR) * prob for successor, prob in single.items()}
        for successor, prob in self._row(self.vocab + key % self.pairs).items():
            mixed[successor] = mixed.get(successor, 0.0) + PAIR * prob
        return mixed

    def _row(self, row: int) -> dict[int, float]:
        return dict(
            zip(self.successors[row].tolist(), np.exp(self.logps[row]).tolist(), strict=True)
        )

    def _propose(
        self, tree: Tree, node: int, probs: dict[int, float], width: int, draws: Draw, rng: Rng
    ) -> None:
        """Propose from an explicit q: these probabilities after the request's sampling."""
        path = tree.spell(node)
        logits = np.full(self.vocab, -np.inf)  # [vocab]
        logits[list(probs)] = np.log(np.maximum(list(probs.values()), TINY))
        # every successor is banned here
        if np.isneginf(self.sampler_.adjust(logits, path[1:]).max()):
            return
        full_probs = draft_probs(self.sampler_, logits, path[1:])
        propose(tree, node, full_probs, width, draws, self.committed_ + len(path), rng, self.source)
