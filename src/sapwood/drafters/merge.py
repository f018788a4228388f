"""Ask several drafters about the same nodes and merge their answers into one tree.

SpecInfer (arXiv 2305.09781): a token that several drafters choose is one node with several sources,
so that an estimator can learn what their agreement is worth. Draws at random stay apart, each
judged by its own q; chosen children come first, and draws without replacement leave them out.
Drafters are asked in the order they are listed, which may be from cheap to dear: with `enough` below 1 the later
ones are left alone where the earlier ones are sure, so that a text known by heart costs no draft passes.

Where one of them grows whole trees, on a device, the round's tree is its own, or what another knows by heart.
The others go on reading along, those that need only the text while the device is busy with the next pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sapwood.drafters.draw import covering
from sapwood.drafters.found import Found
from sapwood.drafters.recycling import Recycling
from sapwood.drafters.suffix import Suffix
from sapwood.part import Part, between
from sapwood.promise import Promise
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.records import Draw, Levels, Outcome
from sapwood.rng import Rng
from sapwood.tree import AIDS, Tree

MOST = AIDS  # drafters that one tree can tell apart


@dataclass
class Merge(Part):
    """Grow one tree from several drafters."""

    drafters: list[Drafter] = field(default_factory=lambda: [Suffix(), Found(otherwise=Recycling())])
    enough: float = (
        1.0  # chance of a node's chosen children together from which on later drafters are not asked; 1 asks
    )

    paper: ClassVar[str] = "2305.09781"

    def __post_init__(self) -> None:
        between(1, MOST, drafters=self.fan)
        between(0, 1, enough=self.enough)

    @property
    def draws(self) -> Draw:
        """The kind that covers all drafters; independent draws mix with nothing else."""
        return covering({drafter.draws for drafter in self.drafters}, self)

    @property
    def fan(self) -> int:
        """The voices of all drafters."""
        return sum(drafter.fan for drafter in self.drafters)

    @property
    def needs(self) -> frozenset[str]:
        """What any of the drafters needs."""
        return frozenset[str]().union(*(drafter.needs for drafter in self.drafters))

    def bind(self, setting: Setting) -> None:
        """Give each drafter its bit of a node's sources."""
        self.number(self.source)
        self.promise = Promise()  # of texts known by heart; shared by all requests
        super().bind(setting)

    def number(self, first: int) -> int:
        """Give the drafters the sources from `first` on; return the next free one."""
        for drafter in self.drafters:
            drafter.source = first
            first = drafter.number(first) if isinstance(drafter, Merge) else first + 1
        return first

    def reset(self, request: Request) -> None:
        """Begin a request in each of them."""
        self.late_: list[tuple[Part, Outcome]] = []  # rounds that a drafter has yet to observe
        self.recited_: tuple[Tree, float] | None = None  # what was recited in this round, and tokens it promised
        super().reset(request)

    def observe(self, outcome: Outcome) -> None:
        """Let each of them learn; those that can wait while a device is to grow the next tree do."""
        self._catch_up()
        self._remember(outcome)
        whole = outcome.grown.pruned is not None
        for drafter in self.nested():
            if whole and getattr(drafter, "patient", False):
                self.late_.append((drafter, outcome))
            else:
                drafter.observe(outcome)

    def _remember(self, outcome: Outcome) -> None:
        """Learn how far what was recited came true."""
        recited, self.recited_ = self.recited_, None
        if recited is not None and recited[0] is outcome.grown:
            self.promise.take(recited[1], outcome.verdict.accepted)
        else:
            self.promise.fade()

    def _catch_up(self) -> None:
        late, self.late_ = self.late_, []
        for drafter, outcome in late:
            drafter.observe(outcome)

    def close(self) -> None:
        """Free what they held."""
        self._catch_up()
        super().close()

    @property
    def seeded(self) -> bool:
        """True where a whole tree begins with what others have proposed."""
        return any(getattr(drafter, "seeded", False) for drafter in self.drafters)

    def grow(self, root: int, levels: Levels) -> Tree | None:
        """A whole tree of the first drafter that can grow one; None where none can.

        A text that is known by heart is recited instead, unless the tree begins with it: that needs no drafting.
        """
        if not self.seeded and (recited := self._recite(root, levels)) is not None:
            return recited
        for drafter in self.drafters:
            ask: Any = getattr(drafter, "grow", None)
            seed = self._seed(root, levels) if getattr(drafter, "seeded", False) else None
            tree: Tree | None = None if ask is None else ask(root, levels) if seed is None else ask(root, levels, seed)
            if tree is not None:
                return tree
        return None

    def _seed(self, root: int, levels: Levels) -> Tree | None:
        """What a drafter knows from the text alone, for another to go on from."""
        seeds = (getattr(drafter, "seed", None) for drafter in self.drafters)
        return next((seed(root, levels.width, levels.longest) for seed in seeds if seed is not None), None)

    def prepare(self, several: Sequence[Levels]) -> None:
        """Have whoever grows whole trees prepare for these."""
        for drafter in self.drafters:
            if (ready := getattr(drafter, "prepare", None)) is not None:
                ready(several)

    def foresee(self, levels: Levels) -> float:
        """Have the drafter that grows whole trees begin the next one, unless what comes may be known by heart."""
        self._catch_up()  # the device is at work
        for drafter in self.drafters:
            if getattr(drafter, "patient", False):
                drafter.catch_up()  # type: ignore[attr-defined]
        if any(getattr(drafter, "at_home", False) for drafter in self.drafters):
            return 0.0
        asks = (getattr(drafter, "foresee", None) for drafter in self.drafters)
        return next((ask(levels) for ask in asks if ask is not None), 0.0)

    def _recite(self, root: int, levels: Levels) -> Tree | None:
        """The path that a drafter knows from the text alone, where it promises more than a drafted tree."""
        for drafter in self.drafters:
            if getattr(drafter, "at_home", False):  # as of the last round it has observed
                self._catch_up()
                tree: Tree = drafter.recite(root, levels.longest)  # type: ignore[attr-defined]
                promised = float(np.cumprod(tree.probs[1:]).sum())
                if self.promise.kept * promised > levels.hope:
                    self.recited_ = tree, promised
                    return tree
        return None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let each drafter add its children, those that choose before those that draw."""
        self._catch_up()
        for drafter in sorted(self.drafters, key=lambda drafter: drafter.draws is not Draw.TOPK):
            if open_nodes := self._open(tree, frontier):
                drafter.expand(tree, open_nodes, rng)

    def _open(self, tree: Tree, frontier: Frontier) -> Frontier:
        """The nodes whose children so far are not enough; what was drawn at random does not count."""
        if self.enough >= 1 or len(tree) == 1:
            return frontier
        chosen = np.flatnonzero(~tree.sampled[1:]) + 1
        covered = np.bincount(tree.parents[chosen], tree.probs[chosen], len(tree))
        return [(node, width) for node, width in frontier if covered[node] < self.enough]
