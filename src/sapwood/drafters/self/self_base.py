"""Base of drafters that are a cheaper variant of the target.

When the variant can share the target's session, it has no prefill: each round it starts at the
root, over the KV cache that the target has committed, and its own entries are dropped.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.core.part import Part
from sapwood.core.protocols import Backend, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.errors import SapwoodError


@dataclass
class SelfDraftModel(DraftModel):
    """A draft model that shares the target's session, if the KV cache fits."""

    stands_alone = False

    def reset(self, request: RequestContext) -> None:
        """Share the target's session; prefill the prompt if that is impossible."""
        share = self.backend.capabilities.share_session
        found = None if share is None else share(request.session)
        self.shared_ = found is not None
        if found is None:
            super().reset(request)
            return
        self.session_ = found
        self.sampler_ = request.sampler
        self.unread_ = [request.prompt[-1]]
        self._drop_scratch()

    def observe(self, outcome: Outcome) -> None:
        """Start again at the new root; a session of its own commits the accepted path."""
        if not self.shared_:
            super().observe(outcome)
            return
        self.unread_ = outcome.tokens[-1:]
        self.scratch_ = None


@dataclass
class SelfBase(Part):
    """A drafter that is a cheaper variant of the target."""

    draws: Draw = Draw.TOPK

    needs: ClassVar[frozenset[str]] = frozenset({"variants"})

    def variant(self, target: Backend) -> Backend:
        """The cheaper variant."""
        raise NotImplementedError

    def bind(self, setting: EngineContext) -> None:
        """Make the variant."""
        self.inner = SelfDraftModel(model=self.variant(setting.target), draws=self.draws)
        self.inner.bind(setting)

    def reset(self, request: RequestContext) -> None:
        """Begin at the end of the target's session."""
        self.inner_ = self.inner.fresh()
        self.inner_.source = self.source
        self.inner_.reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier by the variant."""
        self.inner_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Let the variant observe the round."""
        self.inner_.observe(outcome)

    def close(self) -> None:
        """Free the variant's session."""
        self.inner_.close()


def made_cheaper(target: Backend, **how: Any) -> Backend:
    """The target's own model without some sublayers, in fewer bits, or over fewer keys."""
    variant = target.capabilities.variant
    if variant is None:
        raise SapwoodError(
            f"the {target.info.name} backend makes no cheaper form of {target.info.model}; "
            "use another drafter"
        )
    return variant(**how)
