"""A bandit that chooses a stop rule at every token of the draft.

TapOut's token-level form (arXiv 2511.02017): after each drafted token a bandit picks one of several
stop rules, which decides whether drafting goes on; the token stays in any case. Rules are drawn by
the Beta posterior of how often their decisions were right. The paper's reward of a single decision
is not known to us; here going on is right if the next token was accepted, and stopping is right if
the newest token was refused. What follows a refusal was not tested and teaches nothing.

A rule looks at tokens that are drafted already, and the bandit at finished rounds, so drafts of
every kind keep the target's distribution.
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from sapwood.common.bandits import ARM, ArmChoice, Bandit, BanditRule, prompt_key
from sapwood.core.part import between
from sapwood.core.protocols import EngineContext, Frontier, Policy, RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain, first_path
from sapwood.policies.stop_base import StopBase
from sapwood.policies.tapout import published_arms


class StopDecision(NamedTuple):
    """The rule that was picked after a token, and its decision."""

    choice: ArmChoice
    stops: bool


@dataclass
class TapOutToken(Chain):
    """A bandit over stop rules: after each token the one it picks ends the draft or goes on."""

    policies: list[Policy] = field(default_factory=published_arms)
    bandit: BanditRule = BanditRule.BETA
    fade: float = 1.0  # weight that a decision keeps after the next one; below 1 it forgets
    seed: int = 0

    paper: ClassVar[str] = "2511.02017"

    def __post_init__(self) -> None:
        between(0, 1, fade=self.fade)
        if not self.policies or not all(isinstance(rule, StopBase) for rule in self.policies):
            raise SapwoodError(
                "tapout-token needs stop rules; write tapout-token(policies=[svip, max-confidence])"
            )
        self.reads_probs = any(rule.reads_probs for rule in self.policies)

    def bind(self, setting: EngineContext) -> None:
        """Begin a bandit that all requests share."""
        super().bind(setting)
        self.learner: Bandit = self.bandit.make(len(self.policies), self.fade)

    def reset(self, request: RequestContext) -> None:
        """Key the noise by the prompt."""
        super().reset(request)
        self.rng_: Rng = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.position_ = len(request.prompt) - 1
        self.decisions_: list[StopDecision] = []  # after the first token, the second, ...

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain, until a rule that was picked stops it."""
        path = first_path(tree)
        found = super().frontier(tree, budget)
        if len(path) == 1:
            self.decisions_ = []
        elif found and self._decide(tree, path[-1]).stops:
            return []
        return found

    def _decide(self, tree: Tree, tip: int) -> StopDecision:
        """The decision after the newest token; made once."""
        depth = int(tree.depths[tip])
        if len(self.decisions_) < depth:
            key = NoiseKey(self.position_, ARM, 64 * depth, self.prompt_)
            choice = self.learner.choose(self.rng_, key)
            rule = self.policies[choice.arm]
            assert isinstance(rule, StopBase)
            self.decisions_.append(StopDecision(choice, rule.ends(tree, tip)))
        return self.decisions_[depth - 1]

    def observe(self, outcome: Outcome) -> None:
        """Reward every decision whose token was tested."""
        super().observe(outcome)
        accepted = outcome.verdict.accepted
        for depth, (choice, stops) in enumerate(self.decisions_[: accepted + 1], 1):
            right = accepted < depth if stops else accepted > depth
            self.learner.learn(choice, float(right))
        self.position_ = outcome.context + accepted + 1
        self.decisions_ = []
