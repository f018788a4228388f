"""Let a bandit choose the rule that ends the draft, round by round.

TapOut (arXiv 2511.02017): every rule for ending a chain has a threshold, and the best of them changes with
model and text. Each round one of several policies grows the tree; a bandit learns which does best. The
paper's reward blends the share of the longest draft that was accepted with the share of this draft. The
second term is not speed: a rule that drafts one sure token has all of it. `reward=speed` counts seconds
instead. The choice looks at finished rounds alone, so drafts of every kind keep the target's law as far
as the chosen policy does. The paper's vote at every token is not made here.
"""

import enum
from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.errors import SapwoodError
from sapwood.learners import ARM, Bandit, Rule, gain, prompt_key
from sapwood.part import Part, between
from sapwood.policies.adaedl import AdaEdl
from sapwood.policies.chain import Chain
from sapwood.policies.fallback import Fallback
from sapwood.policies.svip import Svip
from sapwood.protocols import Frontier, Policy, Request, Setting
from sapwood.records import Budget, Outcome, Prune
from sapwood.rng import Keyed, Place, Rng
from sapwood.tree import ROOT, Tree

CUTS = (Prune.NOTHING, Prune.GROUPS, Prune.NODES)  # from what is safest


class Reward(enum.Enum):
    """What a round is worth to the bandit."""

    BLEND = "blend"  # accepted / longest draft, and accepted / drafted
    SHARE = "share"  # accepted / longest draft
    SPEED = "speed"  # times as fast as plain decoding / longest draft and one


@dataclass
class TapOut(Part):
    """A bandit over policies: each round the one that did best ends the draft."""

    # the arms, with thresholds that stay where they are: one that moves would follow other arms' rounds too
    policies: list[Policy] = field(default_factory=lambda: [Chain(), AdaEdl(step=0.0), Svip(), Fallback()])
    bandit: Rule = Rule.UCB
    reward: Reward = Reward.BLEND
    weight: float = 0.5  # of the first share in the blend, 0 to 1
    fade: float = 1.0  # weight that a round keeps after the next one; below 1 the bandit forgets
    seed: int = 0

    paper: ClassVar[str] = "2511.02017"

    def __post_init__(self) -> None:
        between(0, 1, weight=self.weight, fade=self.fade)
        if not self.policies:
            raise SapwoodError("tapout needs at least one policy; write tapout(policies=[chain, svip])")

    @property
    def prunes(self) -> Prune:
        """The most that any of them cuts."""
        return max((policy.prunes for policy in self.policies), key=CUTS.index)

    @property
    def reads_laws(self) -> bool:  # type: ignore[override]
        """True when one of them does."""
        return any(policy.reads_laws for policy in self.policies)

    def bind(self, setting: Setting) -> None:
        """Begin a bandit that all requests share."""
        super().bind(setting)
        self.cost = setting.cost
        self.learner: Bandit = self.bandit.make(len(self.policies), self.fade)

    def reset(self, request: Request) -> None:
        """Choose for the first round."""
        super().reset(request)
        self.rng_: Rng = Keyed(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.longest_, self.now_ = 0, 0  # longest draft that was ever allowed here, and in this round
        self.rounds_ = 0
        self._choose(len(request.prompt) - 1)

    def _choose(self, position: int) -> None:
        self.choice_ = self.learner.choose(self.rng_, Place(position, ARM, 0, self.prompt_))

    @property
    def chosen(self) -> Policy:
        """The policy of this round."""
        return self.policies[self.choice_.arm]

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """What the chosen policy wants."""
        if not tree.expanded[ROOT]:
            self.now_ = min(budget.nodes, budget.depth)
            self.longest_ = max(self.longest_, self.now_)
        return self.chosen.frontier(tree, budget)

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """What the chosen policy keeps."""
        return self.chosen.prune(tree, budget)

    def observe(self, outcome: Outcome) -> None:
        """Reward the chosen policy and choose the next; rounds that were cut short or drafted nothing say nothing."""
        super().observe(outcome)
        first, self.rounds_ = not self.rounds_, self.rounds_ + 1
        whole = self.now_ == self.longest_ and len(outcome.grown) > 1
        if whole and not (first and self.reward is Reward.SPEED):  # the first round has read the prompt
            self.learner.learn(self.choice_, self._worth(outcome))
        self._choose(outcome.context + outcome.verdict.accepted + 1)

    def _worth(self, outcome: Outcome) -> float:
        """Reward of a round, from 0 to 1."""
        accepted, drafted = outcome.verdict.accepted, max(len(outcome.tree) - 1, 1)  # a rule may take all back
        if self.reward is Reward.SPEED:
            return min(gain(outcome, self.cost) / (self.longest_ + 1), 1.0)
        share = accepted / self.longest_
        weight = 1.0 if self.reward is Reward.SHARE else self.weight
        return weight * share + (1.0 - weight) * accepted / drafted
