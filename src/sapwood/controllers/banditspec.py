"""A bandit that chooses among budgets, round by round.

BanditSpec (arXiv 2505.15141): the arms are settings, such as draft lengths, and a round's reward
the tokens it emitted. UCB suits text of one kind; EXP3 makes no such assumption. The public code
rewards tokens per second, which is the default here as well, since in tokens alone the longest
draft always wins; it also divides every arm's bonus by the rounds of all arms together, which adds
the same to each and so never explores. Here the bonus counts an arm's own rounds, and rewards are
brought to between 0 and 1. Arms are controllers: any of them may adapt by itself.
"""

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.common.bandits import ARM, ArmChoice, Bandit, BanditRule, gain, prompt_key
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part, between
from sapwood.core.protocols import Controller, EngineContext, RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.types import Budget, Outcome
from sapwood.errors import SapwoodError


class BanditSpecReward(enum.Enum):
    """Reward of a round for the bandit."""

    TOKENS = "tokens"  # emitted
    SPEED = "speed"  # speedup over plain decoding


@dataclass
class BanditSpec(Part):
    """A bandit over budgets: UCB or EXP3 by tokens per second."""

    arms: list[Controller] = field(
        default_factory=lambda: [Fixed(length, length, 1) for length in (1, 2, 3, 4)]
    )
    bandit: BanditRule = BanditRule.UCB
    reward: BanditSpecReward = BanditSpecReward.SPEED
    fade: float = 1.0  # weight that a round keeps after the next one, except in EXP3
    seed: int = 0

    paper: ClassVar[str] = "2505.15141"
    priced: ClassVar[bool] = True  # the cost curve gives the seconds of plain decoding

    def __post_init__(self) -> None:
        between(0, 1, fade=self.fade)
        if not self.arms:
            raise SapwoodError(
                "banditspec needs at least one arm; write banditspec(arms=[fixed(nodes=2), ema])"
            )

    def bind(self, setting: EngineContext) -> None:
        """Begin a bandit shared by all requests: trying every arm per request costs too much."""
        super().bind(setting)
        self.cost = setting.cost
        self.learner: Bandit = self.bandit.make(len(self.arms), self.fade)
        self.watched = not any(arm.priced for arm in self.arms)  # else an arm refines the curve

    def reset(self, request: RequestContext) -> None:
        """Key the noise by the prompt."""
        super().reset(request)
        self.sampler_ = request.sampler
        self.before_ = len(request.prompt) - 1
        self.rng_: Rng = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.begun_ = False
        # budgets of rounds not observed yet, with the longest draft of any arm; rounds of a device
        # are observed late
        self.played_: deque[tuple[ArmChoice, Budget, int]] = deque()

    def budget(self) -> Budget:
        """The budget of the chosen arm."""
        budgets = [arm.budget() for arm in self.arms]
        longest = max(min(budget.nodes, budget.depth) for budget in budgets)
        place = NoiseKey(self.before_ + self.sampler_.emitted, ARM, 0, self.prompt_)
        choice = self.learner.choose(self.rng_, place)
        budget = budgets[choice.arm]
        left = self.sampler_.sampling.max_tokens - self.sampler_.emitted - 1
        if left < budget.depth:  # the text ends before the draft could: the arm is not rewarded
            longest = 0
        self.played_.append((choice, budget, longest))
        return budget

    def observe(self, outcome: Outcome) -> None:
        """Reward the arm; rounds at the end of the text or without drafts are skipped."""
        super().observe(outcome)
        if self.watched and outcome.shared is None:  # a shared pass is observed by the batch
            self.cost.observe(len(outcome.tree), outcome.context, outcome.times.verify)
        choice, budget, longest = self.played_.popleft()
        first = not self.begun_
        self.begun_ = True
        if not longest or (budget.nodes and len(outcome.tree) == 1):
            return
        if self.reward is BanditSpecReward.TOKENS:
            self.learner.learn(choice, min(len(outcome.tokens) / (longest + 1), 1.0))
        elif not first:  # the first round's seconds include the drafter's prefill
            self.learner.learn(choice, min(gain(outcome, self.cost) / (longest + 1), 1.0))
