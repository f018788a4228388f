"""Merges the proposals of several drafters into one tree.

SpecInfer (arXiv 2305.09781): a token that several drafters choose is one node with several sources,
so that an estimator can learn the acceptance of agreed tokens. Random draws stay separate nodes,
each verified with its own q; chosen children come first, and draws without replacement exclude
them. Drafters expand in the order they are listed, best from cheap to expensive: with `enough`
below 1 the later ones do not expand a node for which the earlier ones are sure, so that repeated
text costs no draft passes.

When one of them drafts whole trees on a device, the round's tree is its own, or a path that
another has looked up. The others still observe each round; those that need only the text do so
while the device runs the next pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part, between
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import HINTS, Tree
from sapwood.core.types import AcceptanceRatio, Draw, Outcome, TreeShape
from sapwood.core.whole_tree import (
    BatchShapes,
    DraftLaunch,
    TreeJob,
    WholeTreeDrafter,
    drafts_batches,
    drafts_rounds,
    drafts_whole_trees,
    looks_up,
)
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.drafters.propose import covering

MOST = HINTS  # drafters that one tree can tell apart
# if a smaller share of a request's looked-up paths took a tree's place, the next tree is
# prelaunched even where a path can be looked up; above it, discarded drafts and passes cost more
# than is saved
SELDOM = 0.25
FOLLOW = 0.25  # weight of the last one in that share


@dataclass
class Merge(Part, WholeTreeDrafter):
    """Grow one tree from several drafters."""

    drafters: list[Drafter] = field(
        default_factory=lambda: [Suffix(), AutoHead(otherwise=Recycling(prompt=0))]
    )
    # probability of a node's chosen children together at which later drafters skip it; 1: never
    enough: float = 1.0

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
        """The sum of the drafters' fans."""
        return sum(drafter.fan for drafter in self.drafters)

    @property
    def needs(self) -> frozenset[str]:
        """The needs of all drafters."""
        return frozenset[str]().union(*(drafter.needs for drafter in self.drafters))

    @property
    def observes_roots(self) -> bool:
        """True when all drafters do."""
        return all(drafter.observes_roots for drafter in self.drafters)

    def bind(self, setting: EngineContext) -> None:
        """Give each drafter its bit of a node's sources."""
        self.number(self.source)
        self.promise = AcceptanceRatio()  # of looked-up paths; shared by all requests
        super().bind(setting)

    def number(self, first: int) -> int:
        """Give the drafters the sources from `first` on; return the next free one."""
        for drafter in self.drafters:
            drafter.source = first
            first = drafter.number(first) if isinstance(drafter, Merge) else first + 1
        return first

    def reset(self, request: RequestContext) -> None:
        """Begin a request in each of them."""
        self.late_: list[tuple[Drafter, Outcome]] = []  # rounds that a drafter has yet to observe
        # the looked-up path of this round, and its expected tokens
        self.looked_up_: tuple[Tree, float] | None = None
        self.taken_ = 1.0  # recent share of looked-up paths that took a tree's place
        self.whole_ = self._whole()
        self.each_ = [(drafter, looks_up(drafter)) for drafter in self.drafters]
        self.lookups_ = [drafter for drafter in self.drafters if looks_up(drafter)]
        super().reset(request)

    def observe(self, outcome: Outcome) -> None:
        """Let each drafter observe; lookups do so late when a device drafts the next tree."""
        self._catch_up()
        self._remember(outcome)
        whole = outcome.grown.pruned is not None
        for drafter, lookup in self.each_:
            if whole and lookup:
                self.late_.append((drafter, outcome))
            else:
                drafter.observe(outcome)

    def observe_roots(self, outcomes: Sequence[Outcome]) -> None:
        """Let each drafter observe rounds without a tree."""
        self._catch_up()
        self.looked_up_ = None
        for _ in outcomes:
            self.promise.fade()
        for drafter in self.drafters:
            drafter.observe_roots(outcomes)

    def _remember(self, outcome: Outcome) -> None:
        """Count the accepted tokens of a looked-up path."""
        found, self.looked_up_ = self.looked_up_, None
        if found is not None and found[0] is outcome.grown:
            self.promise.add(found[1], outcome.verdict.accepted)
        else:
            self.promise.fade()

    def _catch_up(self) -> None:
        late = self.late_
        self.late_ = []
        for drafter, outcome in late:
            drafter.observe(outcome)

    def close(self) -> None:
        """Free the drafters' memory."""
        self._catch_up()
        super().close()

    def accepts_seed(self) -> bool:
        """True when a whole tree may start from other drafters' nodes."""
        return any(drafter.accepts_seed() for drafter in self.whole_)

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """A whole tree of the first drafter that can draft one; None where none can.

        A path that can be looked up takes its place where that promises more, unless the tree
        begins with it: it needs no drafting.
        """
        if not self.accepts_seed() and (found := self._look_up(root, shape)) is not None:
            return found
        for drafter in self.whole_:
            begun = None
            if drafter.accepts_seed():
                begun = self._seed(root, shape) if seed is None else seed
            tree = drafter.draft_tree(root, shape, begun)
            if tree is not None:
                return tree
        return None

    def tree_job(self, root: int, shape: TreeShape) -> TreeJob | Tree | None:
        """A looked-up path where that promises more, else the job of the whole-tree drafter."""
        if self.accepts_seed() or type(self).draft_tree is not Merge.draft_tree:
            return None
        if (found := self._look_up(root, shape)) is not None:
            return found
        for drafter in self.whole_:
            return drafter.tree_job(root, shape) if drafts_batches(drafter) else None
        return None

    def joins_rounds(self) -> bool:
        """True when one drafter does, and the others look the text up."""
        own = type(self).draft_tree is Merge.draft_tree and not self.accepts_seed()
        heads = [drafter for drafter in self.drafters if not looks_up(drafter)]
        return own and len(heads) == 1 and drafts_rounds(heads[0]) and heads[0].joins_rounds()

    def round_job(self, shape: TreeShape) -> TreeJob | None:
        """The next tree of the drafter that joins rounds; nothing is looked up there."""
        self._catch_up()
        self.looked_up_ = None
        jobs = (drafter.round_job(shape) for drafter in self.drafters if drafts_rounds(drafter))
        return next(jobs, None)

    def observe_rounds(self, tokens: Sequence[int], last: Outcome | None) -> None:
        """Let each drafter go on after rounds on a device."""
        for drafter in self.drafters:
            if looks_up(drafter):
                drafter.append(tokens)
            elif drafts_rounds(drafter):
                drafter.observe_rounds(tokens, last)

    def prepare_batches(self, shapes: BatchShapes, requests: int) -> None:
        """Prepare whole-tree drafters for these shapes of several requests."""
        for drafter in self._whole():
            if drafts_batches(drafter):
                drafter.prepare_batches(shapes, requests)

    def _whole(self) -> list[WholeTreeDrafter]:
        """The drafters that may draft whole trees."""
        return [drafter for drafter in self.drafters if drafts_whole_trees(drafter)]

    def _seed(self, root: int, shape: TreeShape) -> Tree | None:
        """A looked-up tree from which another drafter continues."""
        seeds = (drafter.lookup_seed(root, shape.width, shape.longest) for drafter in self.lookups_)
        return next(seeds, None)

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Prepare whole-tree drafters for these shapes."""
        for drafter in self._whole():
            drafter.prepare(shapes)

    def prelaunch(self, shape: TreeShape, tree: Tree) -> DraftLaunch | None:
        """The next draft of the first whole-tree drafter, unless a lookup may well replace it."""
        self._catch_up()  # the device is at work
        for drafter in self.lookups_:
            drafter.catch_up()
        if self.taken_ > SELDOM and any(drafter.matches_text() for drafter in self.lookups_):
            return None
        launches = (drafter.prelaunch(shape, tree) for drafter in self.whole_)
        return next(launches, None)

    def _look_up(self, root: int, shape: TreeShape) -> Tree | None:
        """A looked-up path, if it is expected to bring more than a drafted tree."""
        for drafter in self.lookups_:
            if drafter.matches_text():  # as of the last round it has observed
                self._catch_up()
                tree = drafter.likely_path(root, shape.longest)
                promised = float(np.cumprod(tree.probs[1:]).sum())
                taken = self.promise.ratio * promised > shape.hope
                self.taken_ += FOLLOW * (taken - self.taken_)
                if taken:
                    self.looked_up_ = tree, promised
                    return tree
        return None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let each drafter add its children, those that choose before those that draw."""
        self._catch_up()
        for drafter in sorted(self.drafters, key=lambda drafter: drafter.draws is not Draw.TOPK):
            if open_nodes := self._open(tree, frontier):
                drafter.expand(tree, open_nodes, rng)

    def _open(self, tree: Tree, frontier: Frontier) -> Frontier:
        """The nodes whose chosen children together are below `enough`."""
        if self.enough >= 1 or len(tree) == 1:
            return frontier
        chosen = np.flatnonzero(~tree.sampled[1:]) + 1
        covered = np.bincount(tree.parents[chosen], tree.probs[chosen], len(tree))
        return [(node, width) for node, width in frontier if covered[node] < self.enough]
