"""Let a bandit choose among budgets, round by round.

BanditSpec (arXiv 2505.15141): the arms are settings, such as draft lengths, and a round's reward the tokens
it emitted. UCB suits text of one kind; EXP3 makes no such assumption. The public code rewards tokens per
second, which is the default here as well, since in tokens alone the longest draft always wins; it also
divides every arm's bonus by the rounds of all arms together, which adds the same to each and so never
explores. Here the bonus counts an arm's own rounds, and rewards are brought to between 0 and 1. Arms are
controllers: any of them may adapt by itself.
"""

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.controllers.fixed import Fixed
from sapwood.errors import SapwoodError
from sapwood.learners import ARM, Bandit, Choice, Rule, gain, prompt_key
from sapwood.part import Part, between
from sapwood.protocols import Controller, Request, Setting
from sapwood.records import Budget, Outcome
from sapwood.rng import Keyed, Place, Rng


class Reward(enum.Enum):
    """What a round is worth to the bandit."""

    TOKENS = "tokens"  # emitted
    SPEED = "speed"  # times as fast as plain decoding


@dataclass
class BanditSpec(Part):
    """A bandit over budgets: UCB or EXP3 by tokens per second."""

    arms: list[Controller] = field(default_factory=lambda: [Fixed(length, length, 1) for length in (1, 2, 3, 4)])
    bandit: Rule = Rule.UCB
    reward: Reward = Reward.SPEED
    fade: float = 1.0  # weight that a round keeps after the next one, except in EXP3
    seed: int = 0

    paper: ClassVar[str] = "2505.15141"
    priced: ClassVar[bool] = True  # the cost curve says what plain decoding would have taken

    def __post_init__(self) -> None:
        between(0, 1, fade=self.fade)
        if not self.arms:
            raise SapwoodError("banditspec needs at least one arm; write banditspec(arms=[fixed(nodes=2), ema])")

    def bind(self, setting: Setting) -> None:
        """Begin a bandit that all requests share: trying every arm anew for each request costs too much."""
        super().bind(setting)
        self.cost = setting.cost
        self.learner: Bandit = self.bandit.make(len(self.arms), self.fade)
        self.watched = not any(getattr(arm, "priced", False) for arm in self.arms)  # else an arm refines the curve

    def reset(self, request: Request) -> None:
        """Key the noise by the prompt."""
        super().reset(request)
        self.sampler_, self.before_ = request.sampler, len(request.prompt) - 1
        self.rng_: Rng = Keyed(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.begun_ = False
        # budgets of rounds that were not observed yet, with the longest draft of any arm; a device's come late
        self.played_: deque[tuple[Choice, Budget, int]] = deque()

    def budget(self) -> Budget:
        """That of the chosen arm."""
        budgets = [arm.budget() for arm in self.arms]
        longest = max(min(budget.nodes, budget.depth) for budget in budgets)
        place = Place(self.before_ + self.sampler_.emitted, ARM, 0, self.prompt_)
        choice = self.learner.choose(self.rng_, place)
        budget = budgets[choice.arm]
        left = self.sampler_.sampling.max_tokens - self.sampler_.emitted - 1
        if left < budget.depth:  # the text ends before the draft could: that is no fault of the arm
            longest = 0
        self.played_.append((choice, budget, longest))
        return budget

    def observe(self, outcome: Outcome) -> None:
        """Reward the arm; rounds that were cut short, or where the drafter had nothing, say nothing about it."""
        super().observe(outcome)
        if self.watched and outcome.joint is None:  # else whoever joined the requests refines it
            self.cost.observe(len(outcome.tree), outcome.context, outcome.times.verify)
        choice, budget, longest = self.played_.popleft()
        first, self.begun_ = not self.begun_, True
        if not longest or (budget.nodes and len(outcome.tree) == 1):
            return
        if self.reward is Reward.TOKENS:
            self.learner.learn(choice, min(len(outcome.tokens) / (longest + 1), 1.0))
        elif not first:  # whose drafter has read the prompt
            self.learner.learn(choice, min(gain(outcome, self.cost) / (longest + 1), 1.0))
