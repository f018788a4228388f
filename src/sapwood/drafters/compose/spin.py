"""One of several drafters for each request, chosen by a bandit.

SPIN (arXiv 2503.15921): there are several draft models, and the difficulty of a request is not
known beforehand. Each request gets one of them, and its speed over plain decoding is the reward by
which later requests choose. Only the chosen drafter reads the prompt, so that the others cost
nothing. A drafter that is chosen for every round instead is `hedge`. The paper also cuts long
requests into pieces of equal length, which batches without padding do not need.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.common.bandits import ARM, ArmChoice, Bandit, BanditRule, gain, prompt_key
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

FASTEST = 8.0  # speedup over plain decoding that counts as the full reward


@dataclass
class Spin(Merge):
    """One of several drafters per request: a bandit by speed over plain decoding."""

    drafters: list[Drafter] = field(
        default_factory=lambda: [
            Suffix(),
            AutoHead(otherwise=Recycling()),
            AutoDraftModel(otherwise=None),
        ]
    )
    bandit: BanditRule = BanditRule.THOMPSON
    fade: float = 0.98  # weight that a request keeps after the next one, except in EXP3
    rounds: int = 4  # rounds with a draft from which on a request counts
    seed: int = 0

    paper: ClassVar[str] = "2503.15921"

    def __post_init__(self) -> None:
        between(1, MOST, drafters=sum(drafter.fan for drafter in self.drafters))
        between(0, 1, fade=self.fade)
        at_least(1, rounds=self.rounds)

    @property
    def fan(self) -> int:
        """The largest fan of the drafters: one drafts."""
        return max((drafter.fan for drafter in self.drafters), default=0)

    def bind(self, setting: EngineContext) -> None:
        """Begin a bandit shared by all requests."""
        super().bind(setting)
        self.cost = setting.cost
        self.learner: Bandit = self.bandit.make(len(self.drafters), self.fade)

    def reset(self, request: RequestContext) -> None:
        """Choose a drafter, which alone begins the request."""
        place = NoiseKey(len(request.prompt), ARM, 0, prompt_key(request.prompt))
        self.choice_: ArmChoice = self.learner.choose(KeyedRng(self.seed), place)
        self.gains_: list[float] = []
        self.begun_ = False
        self.leader_ = self.drafters[self.choice_.arm]
        self.leader_.reset(request)

    def accepts_seed(self) -> bool:
        """False: one drafter drafts alone."""
        return False

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """None: trees grow level by level, whichever drafter was chosen."""
        return None

    def prelaunch(self, shape: TreeShape, tree: Tree) -> None:
        """None: there is no whole tree to launch."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier by the request's drafter."""
        self.leader_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Let the request's drafter learn, and keep the round's speed over plain decoding."""
        self.leader_.observe(outcome)
        begun, self.begun_ = self.begun_, True
        if begun and outcome.asked:  # the first round includes the drafter's prefill
            self.gains_.append(gain(outcome, self.cost))

    def close(self) -> None:
        """Reward the choice by the request's mean speed, if it was long enough."""
        self.leader_.close()
        if len(self.gains_) >= self.rounds:
            mean = sum(self.gains_) / len(self.gains_)
            self.learner.learn(self.choice_, min(mean / FASTEST, 1.0))
