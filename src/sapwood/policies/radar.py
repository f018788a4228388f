"""Depth of the tree by a small recurrent network that learns while decoding.

RADAR: an LSTM gets the path probabilities of each level's best nodes and says how likely it should
be that the tree goes one level deeper. The paper trains it beforehand by REINFORCE on recorded
rounds. A round tells what every shallower tree would have brought, though: with n tokens accepted,
one that stopped after d levels would have had min(n, d), for d levels of drafting. So each decision
to go on is compared with the stop that it replaced, and the network follows that gradient after
each round, in numpy, without training beforehand. The reward of a depth is its tokens less the
tokens that its seconds are worth at the present speed. Decisions are drawn, so that deeper trees
are tried now and then; the draws are keyed by the part's own seed and the position.

The levels are a beam's, chosen by tokens, so the depth cannot change the output of a rule that
takes chosen tokens. The network is shared by all requests.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.bandits import ARM, prompt_key
from sapwood.common.numpy_mlp import sigmoid
from sapwood.common.small_lstm import LstmStep, SmallLstm
from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome
from sapwood.policies.beam import Beam

BEST = 10  # nodes of a level among the inputs
FAINT = -10.0  # log probability that stands for a missing node
SCALE = 5.0  # divides log probabilities and depths, so that inputs are near 1
EAGER = 2.0  # log odds to go on before anything was learned
TRY = 0.05  # least chance to go on: what is never tried cannot be learned
RECENT = 64.0  # rounds in the running means of speed and costs


@dataclass
class RadarRecord:
    """Learned state that all requests share: the network, and running means of costs."""

    net: SmallLstm
    level: float = 0.0  # seconds of one level of drafting
    base: float = 0.0  # seconds of a round besides
    tokens: float = 0.0  # of a round
    rounds: float = 0.0

    def add(self, tokens: int, levels: int, draft: float, rest: float) -> None:
        """Add a round to the means."""
        self.rounds = min(self.rounds + 1.0, RECENT)
        self.level += (draft / max(levels, 1) - self.level) / self.rounds
        self.base += (rest - self.base) / self.rounds
        self.tokens += (tokens - self.tokens) / self.rounds

    def price(self, levels: int) -> float:
        """Tokens that one level of drafting must bring, in trees of so many levels."""
        seconds = self.base + levels * self.level
        return self.level * self.tokens / seconds if seconds > 0 else 0.0


@dataclass
class Radar(Beam):
    """A beam whose depth a recurrent network decides, level by level, learning online."""

    hidden: int = 16  # units of the network, 1 to 1024
    rate: float = 0.02  # of learning; 0 leaves the network as it is
    seed: int = 0
    least: int = 1  # levels that are always grown

    paper: ClassVar[str] = "github.com/minaduki-sora/RADAR"

    def __post_init__(self) -> None:
        super().__post_init__()
        between(1, 1024, hidden=self.hidden)
        between(0, 1, rate=self.rate)
        at_least(1, least=self.least)

    def bind(self, setting: EngineContext) -> None:
        """Begin a network shared by all requests."""
        super().bind(setting)
        net = SmallLstm(BEST + 1, self.hidden, self.seed, self.rate, EAGER)
        self.record = RadarRecord(net)

    def reset(self, request: RequestContext) -> None:
        """Begin at the prompt's length."""
        super().reset(request)
        self.rng_ = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.context_ = len(request.prompt) - 1
        self.begun_ = False
        self._restart(None)

    def _restart(self, tree: Tree | None) -> None:
        self.tree_ = tree
        self.steps_: list[LstmStep] = []  # of the levels of this round's tree
        self.going_: dict[int, bool] = {}  # height -> decision to go on

    def tree_shape(self, budget: Budget) -> None:
        """None: the depth is not known before the tree is grown."""

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best leaves of the deepest level, while the network goes on."""
        if tree is not self.tree_:
            self._restart(tree)
        found = super().frontier(tree, budget)
        height = tree.height
        if not found or height < self.least:
            return found
        if height not in self.going_:
            before = self.steps_[-1] if self.steps_ else None
            level = tree.reach[[node for node, _ in found]]
            self.steps_.append(self.record.net.step(level_inputs(level, height), before))
            chance = max(TRY, float(sigmoid(np.array(self.steps_[-1].logit))))
            place = NoiseKey(self.context_, ARM, height, self.prompt_)
            self.going_[height] = self.rng_.flip(chance, place)
        return found if self.going_[height] else []

    def observe(self, outcome: Outcome) -> None:
        """Follow the gradient of the reward of every stop up to this round's depth."""
        super().observe(outcome)
        self.context_ = outcome.context + outcome.verdict.accepted + 1
        begun, self.begun_ = self.begun_, True
        mine = outcome.grown is self.tree_ and outcome.asked
        if mine and begun:  # the first round includes the drafter's prefill
            times = outcome.times
            height = outcome.grown.height
            self.record.add(len(outcome.tokens), height, times.draft, times.verify + times.other)
            # what lies behind a stop is not known
            went = self.steps_[: sum(self.going_.values())]
            if went and self.rate:
                depths = np.arange(self.least, self.least + len(went) + 1)
                tokens = np.minimum(depths, outcome.verdict.accepted)
                chances = sigmoid(np.array([step.logit for step in went]))
                rewards = tokens - self.record.price(height) * depths
                self.record.net.ascend(went, slopes(chances, rewards))
        self._restart(None)


def level_inputs(reach: FloatArray, depth: int) -> FloatArray:
    """Inputs of one level: log path probabilities of its best nodes, and the depth, [BEST + 1]."""
    best = np.sort(reach)[::-1][:BEST]
    logs = np.full(BEST + 1, FAINT)
    logs[: len(best)] = np.log(np.maximum(best, np.exp(FAINT)))
    logs[-1] = depth
    return logs / SCALE


def slopes(chances: FloatArray, rewards: FloatArray) -> list[float]:
    """Slope of the expected reward in the log odds of each decision to go on, [decisions].

    Stopping at decision i brings R_i; from there on V_i = (1 - c_i) R_i + c_i V_{i+1} is expected,
    the last reward being that of the depth that was reached. The decision was reached by drawing,
    so its slope is c_i (1 - c_i) (V_{i+1} - R_i).
    """
    value = float(rewards[-1])
    found = list[float]()
    for chance, reward in zip(chances[::-1].tolist(), rewards[-2::-1].tolist(), strict=True):
        found.append(chance * (1.0 - chance) * (value - reward))
        value = (1.0 - chance) * reward + chance * value
    return found[::-1]
