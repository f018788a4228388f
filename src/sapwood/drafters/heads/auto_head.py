"""The trained head of the target, if there is one; else another drafter or none.

For recipes that work with every model and are faster when a head was trained or shipped. Which
drafter took its place is said in a sentence (`substitutes`), which the recipe reports when it is
bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.drafter_store import has
from sapwood.core.part import Part
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo, Draw, Outcome, TreeShape
from sapwood.core.whole_tree import (
    BatchShapes,
    DraftLaunch,
    TreeJob,
    WholeTreeDrafter,
    drafts_batches,
    drafts_rounds,
    drafts_whole_trees,
)
from sapwood.drafters.heads.eagle3 import Eagle3


@dataclass
class AutoHead(Part, WholeTreeDrafter):
    """The EAGLE-3 head of this model, if it has one."""

    draws: Draw = Draw.TOPK
    otherwise: Drafter | None = None  # used when no head was trained

    paper: ClassVar[str] = "2503.01840"
    needs: ClassVar[frozenset[str]] = frozenset()
    wanted: ClassVar[str] = "EAGLE-3 head"  # trained part that it looks for

    def __post_init__(self) -> None:
        self.drafter: Drafter | None = None  # in use
        self.lacking = ""  # the model for which there is no trained part

    def bind(self, setting: EngineContext) -> None:
        """Look for a head that was trained for this target."""
        info = setting.target.info
        self.lacking = "" if self._able(info) else info.model
        self.drafter = self.choice(info)
        if self.drafter is not None:
            self.drafter.bind(setting)

    def choice(self, info: BackendInfo) -> Drafter | None:
        """The drafter that is used for this model."""
        return self._trained() if self._able(info) else self.otherwise

    def _able(self, info: BackendInfo) -> bool:
        """True when a head was trained and the target provides its inputs."""
        return "hidden" in info.provides and has(Eagle3.trained, info.model, info.weights)

    def _trained(self) -> Drafter:
        return Eagle3(draws=self.draws)

    @property
    def observes_roots(self) -> bool:
        """True when the drafter in use does, or there is none."""
        return self.drafter is None or self.drafter.observes_roots

    @property
    def stand_ins(self) -> list[str]:
        """The drafter that is used where nothing was trained."""
        other = self.otherwise
        return [] if other is None else other.stand_ins or [str(other).partition("(")[0]]

    @property
    def head_digests(self) -> dict[str, str]:
        """Digests of the heads of the drafter in use."""
        return {} if self.drafter is None else self.drafter.head_digests

    @property
    def substitutes(self) -> list[str]:
        """A sentence, if another drafter took the place of the trained one."""
        missing: list[str] = []
        part: Drafter | None = self
        while isinstance(part, AutoHead) and part.lacking:
            missing.append(f"no {part.wanted}")
            part = part.drafter
        if not missing:
            return []
        instead = "nothing is drafted" if part is None else f"{part} drafts instead"
        return [f"there is {' and '.join(missing)} for {self.lacking}: {instead}"]

    def reset(self, request: RequestContext) -> None:
        """Begin a request with a copy of the drafter in use."""
        self.drafter_ = self.drafter and self.drafter.fresh()
        self.whole_ = as_whole(self.drafter_)
        if self.drafter_ is not None:
            self.drafter_.source = self.source
            self.drafter_.reset(request)

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Prepare a device for trees of these shapes, before any request."""
        if (drafter := as_whole(self.drafter)) is not None:
            drafter.prepare(shapes)

    def accepts_seed(self) -> bool:
        """True when its whole trees may start from other drafters' nodes."""
        return self.whole_ is not None and self.whole_.accepts_seed()

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """A whole tree, if it can draft one."""
        return None if self.whole_ is None else self.whole_.draft_tree(root, shape, seed)

    def tree_job(self, root: int, shape: TreeShape) -> TreeJob | Tree | None:
        """A whole tree, to be built together with those of other requests, if it can be."""
        drafter = self.drafter_
        return drafter.tree_job(root, shape) if drafts_batches(drafter) else None

    def joins_rounds(self) -> bool:
        """True when the drafter in use does."""
        return drafts_rounds(self.drafter_) and self.drafter_.joins_rounds()

    def round_job(self, shape: TreeShape) -> TreeJob | None:
        """The next tree of the drafter in use, for a round on a device."""
        return self.drafter_.round_job(shape) if drafts_rounds(self.drafter_) else None

    def observe_rounds(self, tokens: Sequence[int], last: Outcome | None) -> None:
        """Let the drafter in use go on after rounds on a device."""
        if drafts_rounds(self.drafter_):
            self.drafter_.observe_rounds(tokens, last)

    def prepare_batches(self, shapes: BatchShapes, requests: int) -> None:
        """Prepare a device for trees of these shapes of several requests."""
        if drafts_batches(self.drafter):
            self.drafter.prepare_batches(shapes, requests)

    def prelaunch(self, shape: TreeShape, tree: Tree) -> DraftLaunch | None:
        """The next draft, if it can be launched before the host has the verdict."""
        return None if self.whole_ is None else self.whole_.prelaunch(shape, tree)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier by the drafter in use."""
        if self.drafter_ is not None:
            self.drafter_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Let the drafter in use observe the round."""
        if self.drafter_ is not None:
            self.drafter_.observe(outcome)

    def observe_roots(self, outcomes: Sequence[Outcome]) -> None:
        """Let the drafter in use observe rounds without a tree."""
        if self.drafter_ is not None:
            self.drafter_.observe_roots(outcomes)

    def close(self) -> None:
        """Free the drafter's memory."""
        if self.drafter_ is not None:
            self.drafter_.close()


def as_whole(drafter: Drafter | None) -> WholeTreeDrafter | None:
    """The drafter, if it can draft whole trees."""
    return drafter if drafter is not None and drafts_whole_trees(drafter) else None
