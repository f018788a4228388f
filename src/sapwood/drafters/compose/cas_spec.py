"""Chooses a drafter for every node, and the number of tokens that it drafts.

The dynamic tree cascade of CAS-Spec (arXiv 2510.26843). For a drafter with estimated acceptance a
and cost c, in target passes per call, and the last drafter of the list as the cheapest (a', c'), a
draft of k tokens brings

    T(k) = (a + a^2 + ... + a^k + a^k a') / (c k + c')    tokens per target pass.

The best (drafter, k) is used for all nodes of a frontier, and for their descendants in the next
k - 1 levels. A node whose reach times T is below the present tokens per target pass is not
expanded: a new round would bring more. Acceptance is the accepted share of verified tokens in
recent rounds; costs are learned from the seconds of whole rounds, by a Bayesian linear regression
on the number of calls. The paper's drafters, which the recipe `cas-spec` names, are the target
itself without some sublayers or in fewer bits, over prompt lookup; they are options here.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, TreeShape
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.errors import SapwoodError

# accepted and verified tokens that every drafter begins with
KEPT = 0.6
TESTED = 1.0
# prior of the cost of a call, in target passes, and its weight in calls
GUESS = 0.1
SURE = 4.0
RECENT = 0.95  # weight that a round's seconds keep after the next one


class DrafterAcceptance:
    """Acceptance of one drafter over its last rounds."""

    def __init__(self, rounds: int, fade: float) -> None:
        # (accepted, verified), newest first
        self.rounds: deque[tuple[int, int]] = deque(maxlen=rounds)
        self.fade = fade

    @property
    def acceptance(self) -> float:
        """Accepted share of verified tokens, rounds faded by age; always below 1."""
        weights = self.fade ** np.arange(len(self.rounds))
        kept = KEPT + sum(
            weight * kept for weight, (kept, _) in zip(weights, self.rounds, strict=True)
        )
        tested = TESTED + sum(
            weight * tested for weight, (_, tested) in zip(weights, self.rounds, strict=True)
        )
        return float(kept / tested)


class DrafterCosts:
    """Cost of a call of each drafter, in target passes: a Bayesian linear regression."""

    def __init__(self, count: int) -> None:
        self.precision = SURE * np.eye(count)  # [drafters, drafters]
        self.moment: FloatArray = np.full(count, SURE * GUESS)  # [drafters]

    def observe(self, calls: FloatArray, passes: float) -> None:
        """Observe a round with these calls, whose drafting took so many target passes."""
        prior = SURE * np.eye(len(calls))
        self.precision = prior + RECENT * (self.precision - prior) + np.outer(calls, calls)
        self.moment = SURE * GUESS + RECENT * (self.moment - SURE * GUESS) + calls * passes

    def estimate(self) -> list[float]:
        """Cost of a call of each drafter, above 0."""
        costs: list[float] = np.maximum(np.linalg.solve(self.precision, self.moment), 1e-3).tolist()
        return costs


@dataclass
class CasSpec(Merge):
    """The drafter with the most tokens per cost at each node, of several."""

    # the cheapest last
    drafters: list[Drafter] = field(default_factory=lambda: [AutoDraftModel(), Suffix()])
    most: int = 5  # longest stretch of one drafter, >= 1
    rounds: int = 20  # rounds that acceptance looks back on, >= 1
    fade: float = 0.7  # weight of a round against the one after it
    # target passes per call of each; empty measures them
    costs: list[float] = field(default_factory=list)

    paper: ClassVar[str] = "2510.26843"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, most=self.most, rounds=self.rounds)
        between(0, 1, fade=self.fade)
        if self.costs and (len(self.costs) != len(self.drafters) or min(self.costs) <= 0):
            raise SapwoodError(
                f"costs={self.costs} must name a positive cost "
                f"for each of {len(self.drafters)} drafters"
            )

    @property
    def fan(self) -> int:
        """The largest fan of the drafters: one alone expands a node."""
        return max(drafter.fan for drafter in self.drafters)

    def grow(self, root: int, levels: TreeShape) -> Tree | None:
        """None: the drafter is chosen node by node."""
        return None

    def bind(self, setting: EngineContext) -> None:
        """Begin records that all requests share."""
        super().bind(setting)
        self.records = [DrafterAcceptance(self.rounds, self.fade) for _ in self.drafters]
        self.learned = DrafterCosts(len(self.drafters))

    def reset(self, request: RequestContext) -> None:
        """Begin at plain decoding's pace."""
        super().reset(request)
        self.tree_: Tree | None = None
        self.tokens_ = self.passes_ = 1.0  # emitted, and target passes spent on it, faded
        self.begun_ = False

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand each node by the drafter in charge of it; choose one if there is none."""
        if tree is not self.tree_:
            self.tree_ = tree
            self.charge_: dict[int, tuple[int, int]] = {}  # node -> (drafter, levels it has left)
            self.makers_: dict[int, int] = {}  # expanded node -> drafter
            self.calls_ = np.zeros(len(self.drafters))
        free = [node for node, _ in frontier if node not in self.charge_]
        if free:
            self._choose(tree, free)
        for index, drafter in enumerate(self.drafters):
            mine = [
                (node, width)
                for node, width in frontier
                if self.charge_.get(node, (-1, 0))[0] == index
            ]
            if mine:
                self._call(index, drafter, tree, mine, rng)

    def _choose(self, tree: Tree, nodes: list[int]) -> None:
        """Put the best drafter in charge of the nodes that are worth a draft."""
        worth, drafter, levels = best_stretch(self.acceptance(), self.prices(), self.most)
        pace = self.tokens_ / self.passes_
        for node in nodes:
            if node == ROOT or tree.reach[node] * worth >= pace:
                self.charge_[node] = drafter, levels

    def _call(self, index: int, drafter: Drafter, tree: Tree, mine: Frontier, rng: Rng) -> None:
        """One call of a drafter; children stay with it while it has levels left."""
        size = len(tree)
        drafter.expand(tree, mine, rng)
        self.calls_[index] += 1
        for node, _ in mine:
            self.makers_[node] = index
        for child in range(size, len(tree)):
            parent = int(tree.parents[child])
            if (left := self.charge_[parent][1] - 1) > 0:
                self.charge_[child] = index, left

    def acceptance(self) -> list[float]:
        """Present estimate of each drafter."""
        return [record.acceptance for record in self.records]

    def prices(self) -> list[float]:
        """Target passes per call of each drafter."""
        return self.costs or self.learned.estimate()

    def observe(self, outcome: Outcome) -> None:
        """Update acceptance, costs and tokens per pass."""
        super().observe(outcome)
        if self.tree_ is not outcome.grown:  # nothing was drafted
            return
        for record, (kept, tested) in zip(self.records, self._tested(outcome), strict=True):
            # rounds without a trial push old ones out, so that the drafter is tried again
            record.rounds.appendleft((kept, tested))
        times = outcome.times
        # the first round's seconds include the prompt
        if self.begun_ and times.verify > 0 and self.calls_.any():
            self.learned.observe(self.calls_, times.draft / times.verify)
        self.begun_ = True
        spent = 1.0 + float(self.calls_ @ np.array(self.prices()))
        self.tokens_ = RECENT * self.tokens_ + len(outcome.tokens)
        self.passes_ = RECENT * self.passes_ + spent

    def _tested(self, outcome: Outcome) -> list[tuple[int, int]]:
        """(accepted, verified) sibling groups of each drafter on the accepted path."""
        found = [(0, 0)] * len(self.drafters)
        tree = outcome.tree
        path = outcome.verdict.path
        for place, node in enumerate(path):
            grown = node if tree.kept is None else int(tree.kept[node])
            maker = self.makers_.get(grown)
            if maker is not None and (place + 1 < len(path) or tree.children(node)):
                kept, tested = found[maker]
                found[maker] = kept + int(place + 1 < len(path)), tested + 1
        return found


def best_stretch(
    acceptance: Sequence[float], costs: Sequence[float], most: int
) -> tuple[float, int, int]:
    """Tokens per target pass, drafter and length of the best draft; see the module's formula."""
    bottom = acceptance[-1]
    last = costs[-1]
    found = (0.0, 0, 1)
    for index, (chance, cost) in enumerate(zip(acceptance, costs, strict=True)):
        for length in range(1, most + 1):
            powers = chance ** np.arange(1, length + 1)
            worth = float((powers.sum() + powers[-1] * bottom) / (cost * length + last))
            found = max(found, (worth, index, length), key=lambda entry: entry[0])
    return found
