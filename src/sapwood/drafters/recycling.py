"""Propose what the target itself found likely after the same token before.

Token Recycling (arXiv 2408.08696): every row of a checked tree, refused ones included, leaves its
best next tokens under its own token; the last writer wins, and the table outlives requests. Rows are
kept once more under their last two tokens, which are asked first, and the end of the prompt is written
before anything was checked; `pairs=0, prompt=0` is the paper's own rule.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.drafters.draw import draft_law, kind, propose, ranks_do
from sapwood.part import Part, at_least, between
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Draw, Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

NONE = -1  # marks a row that was never written
PAIR = 0.6  # weight of the row of two tokens, where there is one; the row of one token has the rest
DOUBT = 0.5  # measured on chat output: where one row says p, alone, the token comes p (1 - DOUBT p) of the time

TINY = 1e-30  # stands in for a chance that is zero in single precision


@dataclass
class Recycling(Part):
    """Propose the target's own best tokens after the same one or two tokens, as last seen."""

    count: int = 8  # successors kept per row, >= 1
    pairs: int = 65_521  # rows kept for two tokens, 72 bytes each; a prime spreads best, 0 keeps none
    prompt: int = 128  # last prompt tokens whose successors are read off the target, 0 reads none
    draws: Draw = Draw.TOPK

    paper: ClassVar[str] = "2408.08696"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        between(1, 1024, count=self.count)
        between(0, 10_000_000, pairs=self.pairs)
        at_least(0, prompt=self.prompt)

    def bind(self, setting: Setting) -> None:
        """Begin an empty table, shared by all requests: a row per token, then the rows of pairs."""
        self.vocab = setting.target.info.vocab
        shape = self.vocab + self.pairs, min(self.count, self.vocab)
        self.successors = np.full(shape, NONE, np.int32)
        self.logps = np.full(shape, -np.inf, np.float32)
        self.owners = np.full(self.pairs, NONE, np.int64)  # the pair that holds each row; the last one evicts

    def reset(self, request: Request) -> None:
        """Begin with what the target made of the prompt."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1
        read = request.session.reading(self.prompt)
        if read is not None:
            tokens, logps = read.topk(self.successors.shape[1])
            text = np.asarray(request.prompt[: self.committed_])
            self._write(text[-len(tokens) :], np.append(0, text)[-len(tokens) - 1 : -1], tokens, logps)
        self.before_ = request.prompt[-2] if self.committed_ else 0  # the token before the root

    def observe(self, outcome: Outcome) -> None:
        """Write every checked row, those of the text last."""
        tree, path = outcome.tree, list(outcome.verdict.path)
        if not outcome.asked or outcome.grown.pruned is not None:  # nobody asked it, and reading rows takes long
            self.before_, self.committed_ = int(tree.tokens[path[-1]]), outcome.context + len(path)
            return
        order = np.concatenate([np.arange(len(tree)), path])  # a row written twice keeps the later value
        tokens, logps = outcome.scores.topk(self.successors.shape[1])
        before = tree.tokens[tree.parents]
        before[ROOT] = self.before_
        self._write(tree.tokens[order], before[order], tokens[order], logps[order])
        self.before_ = int(tree.tokens[path[-1]])
        self.committed_ = outcome.context + len(path)

    def _write(self, last: IntArray, before: IntArray, tokens: IntArray, logps: FloatArray) -> None:
        """Keep these successors, [n, count], under their last token and under their last two."""
        self.successors[last], self.logps[last] = tokens, logps
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
        if self.successors[token, 0] == NONE:
            return {}
        single = self._row(token)
        before = int(tree.tokens[tree.parents[node]]) if node else self.before_
        key = before * self.vocab + token
        if not self.pairs or self.owners[key % self.pairs] != key:
            return {successor: prob * (1 - DOUBT * prob) for successor, prob in single.items()}
        mixed = {successor: (1 - PAIR) * prob for successor, prob in single.items()}
        for successor, prob in self._row(self.vocab + key % self.pairs).items():
            mixed[successor] = mixed.get(successor, 0.0) + PAIR * prob
        return mixed

    def _row(self, row: int) -> dict[int, float]:
        return dict(zip(self.successors[row].tolist(), np.exp(self.logps[row]).tolist(), strict=True))

    def _propose(self, tree: Tree, node: int, probs: dict[int, float], width: int, draws: Draw, rng: Rng) -> None:
        """Propose from an explicit q: these chances after the request's own sampling along the path."""
        path = tree.spell(node)
        logits = np.full(self.vocab, -np.inf)  # [vocab]
        logits[list(probs)] = np.log(np.maximum(list(probs.values()), TINY))
        if np.isneginf(self.sampler_.adjust(logits, path[1:]).max()):  # every successor is banned here
            return
        law = draft_law(self.sampler_, logits, path[1:])
        propose(tree, node, law, width, draws, self.committed_ + len(path), rng, self.source)
