"""Draws tokens from the target's own distributions after the same n-gram, as last averaged.

STAND (arXiv 2506.04708): instead of the counts of n-grams, the table keeps the target's
distributions at the positions of emitted text, its best tokens each, averaged over all occurrences
of the n-gram before it. A node is looked up by its longest known n-gram, and children are drawn
without replacement from what is found, by Gumbel noise, so that sampled text is matched as well as
greedy text. Attempts at the same problem share the table, as do all requests of an engine.

Drawn children keep the target's distribution under every rule for draws without replacement.
"""

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part, between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.sampling import draft_probs
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.propose import kind, propose

TINY = 1e-30  # replaces a probability that is zero in single precision
Context = tuple[int, ...]


@dataclass
class Stand(Part):
    """Draw from the target's averaged distributions after the same n-gram."""

    n: int = 4  # tokens of the longest n-gram, 1 to 32
    count: int = 10  # best tokens kept of a distribution, 1 to 1024
    most: int = 100_000  # n-grams kept; when full the oldest half is dropped, >= 2
    draws: Draw = Draw.SWOR

    reads_scores = True
    paper: ClassVar[str] = "2506.04708"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        between(1, 32, n=self.n)
        between(1, 1024, count=self.count)
        between(2, 100_000_000, most=self.most)

    def bind(self, setting: EngineContext) -> None:
        """Begin an empty table, shared by all requests."""
        self.vocab = setting.target.info.vocab
        # n-gram -> occurrences, and the summed probability of each token
        self.table: dict[Context, tuple[int, dict[int, float]]] = {}

    def reset(self, request: RequestContext) -> None:
        """Keep the prompt, and learn from its prefill where there was one."""
        self.sampler_ = request.sampler
        self.text_ = list(request.prompt)
        read = request.session.prefill_output(len(request.prompt))
        if read is not None:
            tokens, logps = read.topk(min(self.count, self.vocab))
            ends = range(len(self.text_) - len(tokens), len(self.text_))
            self._learn(self.text_, list(ends), tokens, np.exp(logps))

    def observe(self, outcome: Outcome) -> None:
        """Add the distributions along the accepted path."""
        path = list(outcome.verdict.path)
        if outcome.asked and outcome.grown.pruned is None:
            tokens, logps = outcome.scores.topk(min(self.count, self.vocab))
            text = self.text_ + outcome.tokens
            ends = range(len(self.text_), len(self.text_) + len(path))
            self._learn(text, list(ends), tokens[path], np.exp(logps[path]))
        self.text_ += outcome.tokens

    def _learn(
        self, text: list[int], ends: list[int], tokens: np.ndarray, chances: np.ndarray
    ) -> None:
        """Add distributions to the n-grams that end before these positions."""
        for end, row, probs in zip(ends, tokens.tolist(), chances.tolist(), strict=True):
            for size in range(1, min(self.n, end) + 1):
                context = tuple(text[end - size : end])
                times, sums = self.table.pop(context, (0, {}))
                for token, prob in zip(row, probs, strict=True):
                    sums[token] = sums.get(token, 0.0) + prob
                self.table[context] = times + 1, sums  # last in the table: the newest
        if len(self.table) > self.most:
            for context in list(islice(self.table, len(self.table) - self.most // 2)):
                del self.table[context]

    def known(self, context: Context) -> dict[int, float]:
        """Mean probability of each token after the longest known end of this context."""
        for size in range(min(self.n, len(context)), 0, -1):
            found = self.table.get(context[len(context) - size :])
            if found is not None:
                times, sums = found
                return {token: mass / times for token, mass in sums.items()}
        return {}

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Draw children of each node from what its last tokens are known for."""
        draws = kind(self.draws, self.sampler_)
        for node, width in frontier:
            path = tree.spell(node)[1:]
            probs = self.known(tuple((*self.text_[-self.n :], *path)[-self.n :]))
            if not probs:
                continue
            logits = np.full(self.vocab, -np.inf)  # [vocab]
            logits[list(probs)] = np.log(np.maximum(list(probs.values()), TINY))
            # every known token is banned here
            if np.isneginf(self.sampler_.adjust(logits, path).max()):
                continue
            q = draft_probs(self.sampler_, logits, path)
            position = len(self.text_) + len(path)
            propose(tree, node, q, width, draws, position, rng, self.source)
