"""Follow the drafter that would have done best: the emitted text judges all of them.

HedgeSpec (arXiv 2510.20064). Each round one drafter alone grows the tree. Afterwards the others are asked
what they would have proposed at every accepted node, and the text that the target went on to emit says what
each would have got: no drafter has to be tried out, and the target makes no further pass. A drafter's
factor at a token x is 1 if it chose x and 0 if not, or min(1, q(x) / p(x)) where it draws; the product of
k factors is, on average over the target's text, the exact chance that its next k drafts are accepted. The
paper's own factor, the overlap of p and q, is so only for the last of them: accepted tokens do not follow p.
A start counts when the window behind it is known, as the end of a round says nothing about longer drafts.
NormalHedge then weighs the drafters. Several draws at a node are taken as several chances of one draw.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.drafters.found import Found
from sapwood.drafters.merge import MOST, Merge
from sapwood.drafters.recycling import Recycling
from sapwood.drafters.small import Small
from sapwood.drafters.suffix import Suffix
from sapwood.learners import ARM, NormalHedge, prompt_key
from sapwood.part import at_least, between
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.records import Levels, Outcome
from sapwood.rng import Keyed, Place, Rng
from sapwood.tree import Tree


@dataclass
class Hedge(Merge):
    """One of several drafters each round: the one that the text so far speaks for."""

    drafters: list[Drafter] = field(
        default_factory=lambda: [Suffix(), Found(otherwise=Recycling()), Small(otherwise=None)]
    )
    window: int = 4  # tokens behind a place that a drafter is judged by, >= 1
    draw: bool = False  # draw the drafter by its weight instead of taking the heaviest
    fade: float = 1.0  # weight that a place keeps after the next one; below 1 old text is forgotten
    seed: int = 0

    paper: ClassVar[str] = "2510.20064"

    def __post_init__(self) -> None:
        between(1, MOST, drafters=sum(drafter.fan for drafter in self.drafters))
        at_least(1, window=self.window)
        between(0, 1, fade=self.fade)

    @property
    def fan(self) -> int:
        """The most voices of any of them; one speaks at a time."""
        return max((drafter.fan for drafter in self.drafters), default=0)

    def bind(self, setting: Setting) -> None:
        """Begin without regrets; they are shared by all requests."""
        super().bind(setting)
        self.learner = NormalHedge(len(self.drafters), self.fade)

    def reset(self, request: Request) -> None:
        """Choose for the first round."""
        super().reset(request)
        self.sampler_, self.rng_ = request.sampler, Keyed(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.width_ = 1  # most children asked for at one node in this round
        self.factors_: list[FloatArray] = []  # of the last emitted tokens, [drafters] each
        self._choose(len(request.prompt) - 1)

    def _choose(self, position: int) -> None:
        weights = self.learner.weights()
        if self.draw:
            self.leader_ = self.rng_.pick(weights, Place(position, ARM, 0, self.prompt_))
        else:
            self.leader_ = int(np.argmax(weights))

    def grow(self, root: int, levels: Levels) -> Tree | None:
        """No tree is grown whole: the drafters must be asked again afterwards."""
        return None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the leader propose."""
        self.width_ = max(self.width_, *(width for _, width in frontier)) if frontier else self.width_
        self.drafters[self.leader_].expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Judge every drafter by what was emitted, then let each of them learn."""
        if outcome.asked:
            self._judge(outcome)
        else:  # nobody drafts just now; what is asked later begins behind this text
            self.factors_ = []
        self.width_ = 1
        super().observe(outcome)
        self._choose(outcome.context + outcome.verdict.accepted + 1)

    def _judge(self, outcome: Outcome) -> None:
        """The factors of each emitted token, and the losses of every start whose window they complete."""
        path = outcome.verdict.path
        path = path if outcome.tree.kept is None else tuple(outcome.tree.kept[list(path)].tolist())
        columns = [self._factors(index, outcome, path) for index in range(len(self.drafters))]
        for factors in np.stack(columns, axis=1):
            self.factors_.append(factors)
            if len(self.factors_) >= self.window:
                lengths = 1.0 + np.cumprod(self.factors_, axis=0).sum(0)
                self.learner.learn(1.0 - lengths / (self.window + 1))
                self.factors_.pop(0)

    def _factors(self, index: int, outcome: Outcome, path: tuple[int, ...]) -> FloatArray:
        """Of one drafter: the chance that it gets each emitted token right once it got those before."""
        drafter, grown = self.drafters[index], outcome.grown
        probe = grown.keep(range(len(grown)))  # the nodes keep their numbers, as drafters remember them
        known = {node for node in path if grown.expanded[node]} if index == self.leader_ else set[int]()
        missing = [(node, self.width_) for node in path if node not in known]
        if missing:
            drafter.expand(probe, missing, self.rng_)
        emitted = zip(path, outcome.verdict.path, outcome.tokens, strict=True)
        return np.array([self._factor(drafter, probe, outcome, *step) for step in emitted])

    def _factor(self, drafter: Drafter, probe: Tree, outcome: Outcome, node: int, row: int, token: int) -> float:
        """Of one token: whether it was chosen, or how far the draft law covers the target's."""
        own = [child for child in probe.children(node) if int(probe.sources[child]) & bits(drafter)]
        if any(not probe.sampled[child] and int(probe.tokens[child]) == token for child in own):
            return 1.0
        drawn = [child for child in own if probe.sampled[child]]
        if not drawn:
            return 0.0
        chance = float(probe.law(node, drawn[0])[token])
        target = float(self.sampler_.law(outcome.scores.logits(row), [])[token])  # penalties: those of the round's end
        covered = min(1.0, chance / target) if target > 0 else 1.0
        return 1.0 - (1.0 - covered) ** len(drawn)


def bits(drafter: Drafter) -> int:
    """The sources of a drafter and of those inside it, as a bit set."""
    inner = drafter.drafters if isinstance(drafter, Merge) else []
    return sum(bits(one) for one in inner) if inner else 1 << drafter.source
