"""The trained drafter of the model, where there is one; something else, or nothing, where there is none.

For recipes that are to work with every model and to be faster where a drafter was trained or shipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.drafters.eagle import Eagle
from sapwood.part import Part
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.records import Draw, Levels, Outcome
from sapwood.rng import Rng
from sapwood.trained import has
from sapwood.tree import Tree


@dataclass
class Found(Part):
    """The EAGLE-3 head of this model, if it has one."""

    draws: Draw = Draw.TOPK
    otherwise: Drafter | None = None  # drafts where nothing was trained

    paper: ClassVar[str] = "2503.01840"
    needs: ClassVar[frozenset[str]] = frozenset()

    def bind(self, setting: Setting) -> None:
        """Look for what was trained for this target."""
        self.drafter: Any = self._trained() if self._able(setting) else self.otherwise
        if self.drafter is not None:
            self.drafter.bind(setting)

    def _able(self, setting: Setting) -> bool:
        """True where a head was trained and the target can show what it reads."""
        info = setting.target.info
        return "hidden" in info.provides and has(Eagle.trained, info.model)

    def _trained(self) -> Part:
        return Eagle(draws=self.draws)

    def reset(self, request: Request) -> None:
        """Begin a request with a copy of the drafter that was found."""
        self.drafter_ = self.drafter and self.drafter.fresh()
        if self.drafter_ is not None:
            self.drafter_.source = self.source
            self.drafter_.reset(request)

    def prepare(self, several: Sequence[Levels]) -> None:
        """Have a device prepare for trees of these levels, before any request."""
        ready = getattr(getattr(self.drafter, "grower", None), "prepare", None)
        if ready is not None:
            ready(several)

    @property
    def seeded(self) -> bool:
        """True where its whole trees may begin with what others have proposed."""
        return bool(getattr(self.drafter_, "seeded", False))

    def grow(self, root: int, levels: Levels, seed: Tree | None = None) -> Tree | None:
        """A whole tree, where it can grow one."""
        ask = getattr(self.drafter_, "grow", None)
        return None if ask is None else ask(root, levels) if seed is None else ask(root, levels, seed)

    def foresee(self, levels: Levels) -> float:
        """The next tree, where it can begin before the verdict is known here."""
        ask = getattr(self.drafter_, "foresee", None)
        return 0.0 if ask is None else ask(levels)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let it propose."""
        if self.drafter_ is not None:
            self.drafter_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Let it see what was committed."""
        if self.drafter_ is not None:
            self.drafter_.observe(outcome)

    def close(self) -> None:
        """Free what it held."""
        if self.drafter_ is not None:
            self.drafter_.close()
