"""Choose at every node which of several drafters goes on from it, and for how many tokens.

The dynamic tree cascade of CAS-Spec (arXiv 2510.26843). For a drafter with estimated acceptance a and cost c, in
target passes per call, and the last one of the list as the bottom (a', c'), a draft of k tokens is worth

    T(k) = (a + a^2 + ... + a^k + a^k a') / (c k + c')    tokens per target pass;

the best (drafter, k) is taken, for all nodes that are asked about at once, and their children stay with it for
the remaining k - 1 levels. A node whose reach times T falls below the present tokens per target pass is left
alone: its tokens would come dearer than those of a new round. Acceptance is what was kept of what was put to
the test, faded over the last rounds; costs are learned from the seconds of whole rounds by a Bayesian linear
regression on the calls that were made. The paper's drafters are variants of the target itself; here they are options.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.drafters.merge import Merge
from sapwood.drafters.small import Small
from sapwood.drafters.suffix import Suffix
from sapwood.errors import SapwoodError
from sapwood.part import at_least, between
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.records import Levels, Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

KEPT, TESTED = 0.6, 1.0  # what a drafter without a record is taken for
GUESS, SURE = 0.1, 4.0  # cost that a drafter is taken for at first, in target passes, and calls that this is worth
RECENT = 0.95  # weight that a round's seconds keep after the next one


class Record:
    """Acceptance of one drafter over its last rounds."""

    def __init__(self, rounds: int, fade: float) -> None:
        self.rounds: deque[tuple[int, int]] = deque(maxlen=rounds)  # (kept, put to the test), newest first
        self.fade = fade

    @property
    def acceptance(self) -> float:
        """Share kept of what was tested, rounds faded by age; below 1, since no drafter is always right."""
        weights = self.fade ** np.arange(len(self.rounds))
        kept = KEPT + sum(weight * kept for weight, (kept, _) in zip(weights, self.rounds, strict=True))
        tested = TESTED + sum(weight * tested for weight, (_, tested) in zip(weights, self.rounds, strict=True))
        return float(kept / tested)


class Costs:
    """Seconds of a call of each drafter, in target passes: a linear regression that begins at a guess."""

    def __init__(self, count: int) -> None:
        self.precision = SURE * np.eye(count)  # [drafters, drafters]
        self.moment: FloatArray = np.full(count, SURE * GUESS)  # [drafters]

    def observe(self, calls: FloatArray, passes: float) -> None:
        """Take in a round that made these calls and drafted for so many target passes."""
        prior = SURE * np.eye(len(calls))
        self.precision = prior + RECENT * (self.precision - prior) + np.outer(calls, calls)
        self.moment = SURE * GUESS + RECENT * (self.moment - SURE * GUESS) + calls * passes

    def estimate(self) -> list[float]:
        """Cost of a call of each; never nothing."""
        costs: list[float] = np.maximum(np.linalg.solve(self.precision, self.moment), 1e-3).tolist()
        return costs


@dataclass
class CasSpec(Merge):
    """Of several drafters, the one whose tokens come cheapest from here on, by acceptance and cost."""

    drafters: list[Drafter] = field(default_factory=lambda: [Small(), Suffix()])  # the cheapest last
    most: int = 5  # longest stretch of one drafter, >= 1
    rounds: int = 20  # rounds that acceptance looks back on, >= 1
    fade: float = 0.7  # weight of a round against the one after it
    costs: list[float] = field(default_factory=list)  # target passes per call of each; empty measures them

    paper: ClassVar[str] = "2510.26843"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, most=self.most, rounds=self.rounds)
        between(0, 1, fade=self.fade)
        if self.costs and (len(self.costs) != len(self.drafters) or min(self.costs) <= 0):
            raise SapwoodError(
                f"costs={self.costs} must name a positive cost for each of {len(self.drafters)} drafters"
            )

    @property
    def fan(self) -> int:
        """The voices of the drafter that has most: a node is asked of one alone."""
        return max(drafter.fan for drafter in self.drafters)

    def grow(self, root: int, levels: Levels) -> Tree | None:
        """Nothing: who goes on is decided node by node."""
        return None

    def bind(self, setting: Setting) -> None:
        """Begin records that all requests share."""
        super().bind(setting)
        self.records = [Record(self.rounds, self.fade) for _ in self.drafters]
        self.learned = Costs(len(self.drafters))

    def reset(self, request: Request) -> None:
        """Begin at plain decoding's pace."""
        super().reset(request)
        self.tree_: Tree | None = None
        self.tokens_ = self.passes_ = 1.0  # emitted, and target passes spent on it, faded
        self.begun_ = False

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the drafter in charge of each node propose; where none is, choose one."""
        if tree is not self.tree_:
            self.tree_ = tree
            self.charge_: dict[int, tuple[int, int]] = {}  # node -> (drafter, levels it has left)
            self.makers_: dict[int, int] = {}  # expanded node -> drafter
            self.calls_ = np.zeros(len(self.drafters))
        free = [node for node, _ in frontier if node not in self.charge_]
        if free:
            self._choose(tree, free)
        for index, drafter in enumerate(self.drafters):
            mine = [(node, width) for node, width in frontier if self.charge_.get(node, (-1, 0))[0] == index]
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
        """Count what was kept of what was tested, learn the costs, and keep the pace."""
        super().observe(outcome)
        if self.tree_ is not outcome.grown:  # nothing was drafted
            return
        for record, (kept, tested) in zip(self.records, self._tested(outcome), strict=True):
            record.rounds.appendleft((kept, tested))  # one that was not tried is forgotten, and so tried again
        times = outcome.times
        if self.begun_ and times.verify > 0 and self.calls_.any():  # the first round's seconds hold the prompt
            self.learned.observe(self.calls_, times.draft / times.verify)
        self.begun_ = True
        spent = 1.0 + float(self.calls_ @ np.array(self.prices()))
        self.tokens_ = RECENT * self.tokens_ + len(outcome.tokens)
        self.passes_ = RECENT * self.passes_ + spent

    def _tested(self, outcome: Outcome) -> list[tuple[int, int]]:
        """(kept, tested) of each drafter: groups of its siblings on the accepted path, of which one stayed or none."""
        found, tree = [(0, 0)] * len(self.drafters), outcome.tree
        path = outcome.verdict.path
        for place, node in enumerate(path):
            grown = node if tree.kept is None else int(tree.kept[node])
            maker = self.makers_.get(grown)
            if maker is not None and (place + 1 < len(path) or tree.children(node)):
                kept, tested = found[maker]
                found[maker] = kept + int(place + 1 < len(path)), tested + 1
        return found


def best_stretch(acceptance: Sequence[float], costs: Sequence[float], most: int) -> tuple[float, int, int]:
    """Tokens per target pass, drafter and length of the most valuable stretch; see the module's formula."""
    bottom, last = acceptance[-1], costs[-1]
    found = (0.0, 0, 1)
    for index, (chance, cost) in enumerate(zip(acceptance, costs, strict=True)):
        for length in range(1, most + 1):
            powers = chance ** np.arange(1, length + 1)
            worth = float((powers.sum() + powers[-1] * bottom) / (cost * length + last))
            found = max(found, (worth, index, length), key=lambda entry: entry[0])
    return found
