"""The trained head of the model, where there is one; nothing where there is none.

For recipes that are to work with every model and to be faster where a head was trained or shipped.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.eagle import Eagle
from sapwood.part import Part
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Draw, Levels, Outcome
from sapwood.rng import Rng
from sapwood.trained import has
from sapwood.tree import Tree


@dataclass
class Found(Part):
    """The EAGLE-3 head of this model, if it has one."""

    draws: Draw = Draw.TOPK

    paper: ClassVar[str] = "2503.01840"
    needs: ClassVar[frozenset[str]] = frozenset()

    def bind(self, setting: Setting) -> None:
        """Look for a head on targets that can show what it reads."""
        info = setting.target.info
        able = "hidden" in info.provides and has(Eagle.trained, info.model)
        self.eagle: Eagle | None = Eagle(draws=self.draws) if able else None
        if self.eagle is not None:
            self.eagle.bind(setting)

    def reset(self, request: Request) -> None:
        """Begin a request with a copy of the drafter that was found."""
        self.eagle_ = self.eagle and self.eagle.fresh()
        if self.eagle_ is not None:
            self.eagle_.source = self.source
            self.eagle_.reset(request)

    def grow(self, root: int, levels: Levels) -> Tree | None:
        """A whole tree, where it can grow one."""
        return None if self.eagle_ is None else self.eagle_.grow(root, levels)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let it propose."""
        if self.eagle_ is not None:
            self.eagle_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Let it see what was committed."""
        if self.eagle_ is not None:
            self.eagle_.observe(outcome)

    def close(self) -> None:
        """Free what it held."""
        if self.eagle_ is not None:
            self.eagle_.close()
