"""A bandit that chooses the stop rule of the draft, round by round.

TapOut (arXiv 2511.02017): every rule for ending a chain has a threshold, and the best of them
changes with model and text. Each round one of several policies grows the tree; a bandit learns
which does best. The paper's reward blends the share of the longest draft that was accepted with the
share of this draft. The second term is not speed: a rule that drafts one sure token has all of it.
`reward=speed` counts seconds instead. The choice depends on finished rounds alone, so drafts of
every kind keep the target's distribution if they do with the chosen policy. The arms are the
paper's five; their thresholds are our reading of it. The choice at every token is `tapout-token`.
"""

import enum
from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.common.bandits import ARM, Bandit, BanditRule, gain, prompt_key
from sapwood.core.part import Part, between
from sapwood.core.protocols import EngineContext, Frontier, Policy, RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Outcome, Prune
from sapwood.errors import SapwoodError
from sapwood.policies.adaedl import AdaEdl
from sapwood.policies.logit_margin import LogitMargin
from sapwood.policies.max_confidence import MaxConfidence
from sapwood.policies.svip import Svip
from sapwood.policies.svip_difference import SvipDifference

CUTS = (Prune.NOTHING, Prune.GROUPS, Prune.NODES)  # safest first


def published_arms() -> list[Policy]:
    """The five stop rules of the paper, with fixed thresholds.

    An adaptive one would also follow the rounds of other arms.
    """
    return [
        MaxConfidence(confidence=0.8),
        Svip(),
        AdaEdl(step=0.0),
        SvipDifference(),
        LogitMargin(),
    ]


class TapOutReward(enum.Enum):
    """Reward of a round for the bandit."""

    BLEND = "blend"  # accepted / longest draft, and accepted / drafted
    SHARE = "share"  # accepted / longest draft
    SPEED = "speed"  # speedup over plain decoding / (longest draft + 1)


@dataclass
class TapOut(Part):
    """A bandit over policies: each round the one that did best ends the draft."""

    policies: list[Policy] = field(default_factory=published_arms)  # the arms
    bandit: BanditRule = BanditRule.UCB
    reward: TapOutReward = TapOutReward.BLEND
    weight: float = 0.5  # of the first share in the blend, 0 to 1
    fade: float = 1.0  # weight that a round keeps after the next one; below 1 the bandit forgets
    seed: int = 0

    paper: ClassVar[str] = "2511.02017"

    def __post_init__(self) -> None:
        between(0, 1, weight=self.weight, fade=self.fade)
        if not self.policies:
            raise SapwoodError(
                "tapout needs at least one policy; write tapout(policies=[chain, svip])"
            )

    @property
    def prunes(self) -> Prune:
        """The most that any of them prunes."""
        return max((policy.prunes for policy in self.policies), key=CUTS.index)

    @property
    def reads_probs(self) -> bool:  # type: ignore[override]
        """True when one of them does."""
        return any(policy.reads_probs for policy in self.policies)

    def bind(self, setting: EngineContext) -> None:
        """Begin a bandit that all requests share."""
        super().bind(setting)
        self.cost = setting.cost
        self.learner: Bandit = self.bandit.make(len(self.policies), self.fade)

    def reset(self, request: RequestContext) -> None:
        """Choose for the first round."""
        super().reset(request)
        self.rng_: Rng = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        # longest draft that was ever allowed here, and in this round
        self.longest_ = 0
        self.now_ = 0
        self.rounds_ = 0
        self._choose(len(request.prompt) - 1)

    def _choose(self, position: int) -> None:
        self.choice_ = self.learner.choose(self.rng_, NoiseKey(position, ARM, 0, self.prompt_))

    @property
    def chosen(self) -> Policy:
        """The policy of this round."""
        return self.policies[self.choice_.arm]

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The chosen policy's frontier."""
        if not tree.expanded[ROOT]:
            self.now_ = min(budget.nodes, budget.depth)
            self.longest_ = max(self.longest_, self.now_)
        return self.chosen.frontier(tree, budget)

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The nodes that the chosen policy keeps."""
        return self.chosen.prune(tree, budget)

    def observe(self, outcome: Outcome) -> None:
        """Reward the chosen policy and choose the next; short and empty drafts are skipped."""
        super().observe(outcome)
        first = not self.rounds_
        self.rounds_ = self.rounds_ + 1
        whole = self.now_ == self.longest_ and len(outcome.grown) > 1
        # the first round's seconds include the drafter's prefill
        if whole and not (first and self.reward is TapOutReward.SPEED):
            self.learner.learn(self.choice_, self._worth(outcome))
        self._choose(outcome.context + outcome.verdict.accepted + 1)

    def _worth(self, outcome: Outcome) -> float:
        """Reward of a round, from 0 to 1."""
        accepted = outcome.verdict.accepted
        # a stop rule may have pruned all nodes
        drafted = max(len(outcome.tree) - 1, 1)
        if self.reward is TapOutReward.SPEED:
            return min(gain(outcome, self.cost) / (self.longest_ + 1), 1.0)
        share = accepted / self.longest_
        weight = 1.0 if self.reward is TapOutReward.SHARE else self.weight
        return weight * share + (1.0 - weight) * accepted / drafted
