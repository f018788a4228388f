"""Looks text up instead of drafting it where the target has been sure lately.

ReSpec (arXiv 2511.01282) answers when, what and how. When: a retrieved draft is tried if the target
was certain of its last tokens, by the mean entropy over `window` of them; the limit lies between
the mean entropies at which retrieved drafts were right and were not. What: of the candidates that
are found, those whose tokens were accepted most often after the same token come first, valued by
that share. Elsewhere the other drafter drafts. How: the paper accepts retrieved tokens more easily
than drafted ones, which changes the text; here all are verified alike.

The paper's constants were not available; those here are ours.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.common.uncertainty import entropy
from sapwood.core.part import at_least, between
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome, TreeShape
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.lookup.lookup_base import chosen
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix

PRIOR = 2.0  # tries that a candidate is given beforehand, at the chance that the lookup gave it
MORE = 2  # candidates that are looked up for each one that is used
MOST = 100_000  # pairs of tokens whose feedback is kept


@dataclass
class EntropyLimit:
    """Mean entropy, in nats, of rounds whose retrieved draft was right and of others, faded."""

    fade: float
    right: float = 1.0
    wrong: float = 3.0

    @property
    def nats(self) -> float:
        """The entropy up to which retrieval is tried."""
        return (self.right + self.wrong) / 2

    def add(self, nats: float, *, right: bool) -> None:
        """Count a retrieved draft."""
        if right:
            self.right = self.fade * self.right + (1 - self.fade) * nats
        else:
            self.wrong = self.fade * self.wrong + (1 - self.fade) * nats
        self.wrong = max(self.wrong, self.right)


@dataclass
class Respec(Merge):
    """Retrieve where the target was sure lately, by feedback; else draft."""

    # the drafter, and the one that retrieves
    drafters: list[Drafter] = field(
        default_factory=lambda: [AutoHead(otherwise=Recycling()), Suffix()]
    )
    window: int = 8  # emitted tokens whose entropy counts, >= 1
    fade: float = 0.9  # weight that a retrieved draft keeps after the next one, 0 to 1

    paper: ClassVar[str] = "2511.01282"
    reads_scores = True

    def __post_init__(self) -> None:
        between(2, 2, drafters=len(self.drafters))
        at_least(1, window=self.window)
        between(0, 1, fade=self.fade)

    @property
    def draws(self) -> Draw:
        """Chosen tokens alone."""
        return chosen(self, *self.drafters)

    @property
    def fan(self) -> int:
        """The larger fan of the two: one drafts."""
        return max(drafter.fan for drafter in self.drafters)

    def bind(self, setting: EngineContext) -> None:
        """Begin the feedback, shared by all requests."""
        super().bind(setting)
        self.limit = EntropyLimit(self.fade)
        # (token, next token) -> times that it was retrieved and checked, and was accepted
        self.feedback: dict[tuple[int, int], tuple[float, float]] = {}

    def reset(self, request: RequestContext) -> None:
        """Begin both drafters; nothing is known of the target's certainty yet."""
        super().reset(request)
        self.entropies_: deque[float] = deque(maxlen=self.window)
        self.retrieving_: Tree | None = None  # the tree that is retrieved

    def accepts_seed(self) -> bool:
        """False: one of the two drafts alone."""
        return False

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """None: which of the two drafts is decided while the tree grows."""
        return None

    def prelaunch(self, shape: TreeShape, tree: Tree) -> None:
        """None: there is no whole tree to launch."""

    @property
    def sure(self) -> bool:
        """True when the target was certain enough of its last tokens."""
        return bool(self.entropies_) and float(np.mean(self.entropies_)) <= self.limit.nats

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Retrieve a whole tree where the target was sure and something is found; else draft."""
        self._catch_up()
        if len(tree) == 1 and self.sure:
            found = self._retrieved(tree, frontier, rng)
            self.retrieving_ = tree if found else None
            if found:
                return
        elif tree is self.retrieving_:
            self._retrieved(tree, frontier, rng)
            return
        self.drafters[0].expand(tree, frontier, rng)

    def _retrieved(self, tree: Tree, frontier: Frontier, rng: Rng) -> bool:
        """Add the candidates of best feedback; False when nothing is found."""
        retriever = self.drafters[1]
        size = len(tree)
        for node, width in frontier:
            found = Tree(int(tree.tokens[ROOT]))
            place = ROOT
            for token in tree.spell(node)[1:]:
                place = found.add(place, token, 1.0)
            retriever.expand(found, [(place, MORE * width)], rng)
            before = int(tree.tokens[node])
            chances = {
                token: self.chance(before, token, float(found.probs[child]))
                for child in found.children(place)
                for token in [int(found.tokens[child])]
            }
            best = sorted(chances, key=lambda token: -chances[token])[:width]
            tree.extend(node, best, [chances[token] for token in best], source=retriever.source)
        return len(tree) > size

    def chance(self, before: int, token: int, prior: float) -> float:
        """Chance of a candidate, by what became of it before."""
        tried, right = self.feedback.get((before, token), (0.0, 0.0))
        return (right + PRIOR * prior) / (tried + PRIOR)

    def observe(self, outcome: Outcome) -> None:
        """Learn the entropy of the emitted tokens, and what became of retrieved ones."""
        if outcome.grown is self.retrieving_:
            self._judge(outcome)
        self.retrieving_ = None
        # nats of the target's own softmax, before sampling options
        for node in outcome.verdict.path:
            logits = np.asarray(outcome.scores.logits(node), np.float64)
            probs = np.exp(logits - logits.max())
            self.entropies_.append(entropy(probs / probs.sum()))
        super().observe(outcome)

    def _judge(self, outcome: Outcome) -> None:
        """Count the retrieved tokens that were checked."""
        if self.entropies_:
            nats = float(np.mean(self.entropies_))
            self.limit.add(nats, right=outcome.verdict.accepted > 0)
        tree = outcome.grown
        right, tried = outcome.verified_nodes()
        for node in np.flatnonzero(tried).tolist():
            key = int(tree.tokens[int(tree.parents[node])]), int(tree.tokens[node])
            times, hits = self.feedback.pop(key, (0.0, 0.0))
            self.feedback[key] = self.fade * times + 1.0, self.fade * hits + float(right[node])
        while len(self.feedback) > MOST:
            del self.feedback[next(iter(self.feedback))]
