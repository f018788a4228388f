"""What drafters share that are the target itself, made cheaper: its own words, its own keys and values.

Where the variant can go on from the target's session, it never reads the text: each round it starts
at the root, over the keys that the target has committed, and what it wrote is dropped.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.drafters.model import Model
from sapwood.part import Part
from sapwood.protocols import Backend, Frontier, Request, Setting
from sapwood.records import Draw, Outcome
from sapwood.rng import Rng
from sapwood.tree import Tree


@dataclass
class Within(Model):
    """A draft model that goes on from the target's own session, where its keys fit."""

    def reset(self, request: Request) -> None:
        """Look at the target's session; read the prompt where that cannot be."""
        backend: Any = self.backend
        found = backend.over(request.session)
        self.shared_ = found is not None
        if found is None:
            super().reset(request)
            return
        self.session_, self.sampler_ = found, request.sampler
        self.unread_, self.scratch_ = [request.prompt[-1]], None

    def observe(self, outcome: Outcome) -> None:
        """Begin again at the new root; a session of its own is kept in step."""
        if not self.shared_:
            super().observe(outcome)
            return
        self.unread_, self.scratch_ = outcome.tokens[-1:], None


@dataclass
class Own(Part):
    """A drafter that is a cheaper variant of the target."""

    draws: Draw = Draw.TOPK

    needs: ClassVar[frozenset[str]] = frozenset({"variants"})

    def variant(self, target: Any) -> Backend:
        """The target, made cheaper."""
        raise NotImplementedError

    def bind(self, setting: Setting) -> None:
        """Make the variant."""
        self.inner = Within(model=self.variant(setting.target), draws=self.draws)
        self.inner.bind(setting)

    def reset(self, request: Request) -> None:
        """Begin where the target's session stands."""
        self.inner_ = self.inner.fresh()
        self.inner_.source = self.source
        self.inner_.reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the variant propose."""
        self.inner_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Keep the variant in step."""
        self.inner_.observe(outcome)

    def close(self) -> None:
        """Free the variant's session."""
        self.inner_.close()
