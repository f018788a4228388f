"""Uses the drafter that would have been accepted most on the emitted text so far.

HedgeSpec (arXiv 2510.20064). Each round one drafter grows the tree. Afterwards the other drafters
propose tokens at every accepted node, and the emitted text shows how many each would have had
accepted: no drafter has to be tried in a round, and the target makes no further pass. A drafter's
factor at a token x is 1 if it chose x and 0 if not, or min(1, q(x) / p(x)) if it draws; the product
of k factors is, on average over the target's text, the exact probability that its next k drafts
are accepted. The paper's factor, the overlap of p and q, is exact only for the last of them, since
accepted tokens do not follow p. A position is counted once all tokens of its window are known,
since the end of a round limits how long drafts could have been. NormalHedge weighs the drafters.
Several draws at a node count as several independent trials of one draw.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.common.bandits import ARM, NormalHedge, prompt_key
from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, TreeShape
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.merge import MOST, Merge
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix


@dataclass
class Hedge(Merge):
    """One of several drafters each round: the best one on the emitted text so far."""

    drafters: list[Drafter] = field(
        default_factory=lambda: [
            Suffix(),
            AutoHead(otherwise=Recycling()),
            AutoDraftModel(otherwise=None),
        ]
    )
    window: int = 4  # tokens behind a place that a drafter is judged by, >= 1
    draw: bool = False  # draw the drafter by its weight instead of taking the heaviest
    fade: float = 1.0  # weight that a place keeps after the next one; below 1 old text is forgotten
    seed: int = 0

    paper: ClassVar[str] = "2510.20064"
    reads_scores = True

    def __post_init__(self) -> None:
        between(1, MOST, drafters=sum(drafter.fan for drafter in self.drafters))
        at_least(1, window=self.window)
        between(0, 1, fade=self.fade)

    @property
    def fan(self) -> int:
        """The largest fan of the drafters: one drafts at a time."""
        return max((drafter.fan for drafter in self.drafters), default=0)

    def bind(self, setting: EngineContext) -> None:
        """Begin without regrets; they are shared by all requests."""
        super().bind(setting)
        self.learner = NormalHedge(len(self.drafters), self.fade)

    def reset(self, request: RequestContext) -> None:
        """Choose for the first round."""
        super().reset(request)
        self.sampler_ = request.sampler
        self.rng_ = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.width_ = 1  # most children asked for at one node in this round
        self.factors_: list[FloatArray] = []  # of the last emitted tokens, [drafters] each
        self._choose(len(request.prompt) - 1)

    def _choose(self, position: int) -> None:
        weights = self.learner.weights()
        if self.draw:
            self.leader_ = self.rng_.pick(weights, NoiseKey(position, ARM, 0, self.prompt_))
        else:
            self.leader_ = int(np.argmax(weights))

    def grow(self, root: int, levels: TreeShape) -> Tree | None:
        """None: all drafters are evaluated on the tree afterwards."""
        return None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier by the leader."""
        self.width_ = (
            max(self.width_, *(width for _, width in frontier)) if frontier else self.width_
        )
        self.drafters[self.leader_].expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Evaluate every drafter on the emitted tokens, then let each of them learn."""
        if outcome.asked:
            self._judge(outcome)
        else:  # drafting is paused; later windows begin after this text
            self.factors_ = []
        self.width_ = 1
        super().observe(outcome)
        self._choose(outcome.context + outcome.verdict.accepted + 1)

    def _judge(self, outcome: Outcome) -> None:
        """Add the factors of each emitted token, and the losses of completed windows."""
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
        """Of one drafter: probability of accepting each emitted token, given those before."""
        drafter = self.drafters[index]
        grown = outcome.grown
        # the nodes keep their numbers, by which drafters have stored their state
        probe = grown.keep(range(len(grown)))
        known = (
            {node for node in path if grown.expanded[node]} if index == self.leader_ else set[int]()
        )
        missing = [(node, self.width_) for node in path if node not in known]
        if missing:
            drafter.expand(probe, missing, self.rng_)
        emitted = zip(path, outcome.verdict.path, outcome.tokens, strict=True)
        return np.array([self._factor(drafter, probe, outcome, *step) for step in emitted])

    def _factor(
        self, drafter: Drafter, probe: Tree, outcome: Outcome, node: int, row: int, token: int
    ) -> float:
        """Of one token: 1 if it was chosen, 0 if not; min(1, q / p) if drawn."""
        own = [child for child in probe.children(node) if int(probe.sources[child]) & bits(drafter)]
        if any(not probe.sampled[child] and int(probe.tokens[child]) == token for child in own):
            return 1.0
        drawn = [child for child in own if probe.sampled[child]]
        if not drawn:
            return 0.0
        chance = float(probe.proposal(node, drawn[0])[token])
        # with the penalties at the end of the round
        target = float(self.sampler_.probs(outcome.scores.logits(row), [])[token])
        covered = min(1.0, chance / target) if target > 0 else 1.0
        return 1.0 - (1.0 - covered) ** len(drawn)


def bits(drafter: Drafter) -> int:
    """The sources of a drafter and of those inside it, as a bit set."""
    inner = drafter.drafters if isinstance(drafter, Merge) else []
    return sum(bits(one) for one in inner) if inner else 1 << drafter.source
