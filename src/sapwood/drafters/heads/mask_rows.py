"""PaSS (arXiv 2311.13581): the target drafts by look-ahead rows behind the text, in one pass.

The pass over the last token and the look-ahead rows predicts the next token, which is the target's
own, and one more for each row. The distributions are marginal: all nodes of a depth share one. The
target runs a second time for it, with keys of its own; nothing of the target is changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.compose.masked_base import MaskedBase
from sapwood.drafters.heads.head_base import HeadBase


@dataclass
class MaskedChain(MaskedBase):
    """The target with look-ahead rows as its own draft model."""

    rows: int = 4
    first: int = 0  # id of the first look-ahead row

    def _ahead(self) -> Sequence[int]:
        """A row of its own for each later token."""
        return range(self.first, self.first + self.rows)


@dataclass
class MaskRows(HeadBase):
    """The target's own pass with trained look-ahead rows behind the text."""

    paper: ClassVar[str] = "2311.13581"
    needs: ClassVar[frozenset[str]] = frozenset()
    trained: ClassVar[str] = "mask-rows"

    def bind(self, setting: EngineContext) -> None:
        """Load the embeddings and make the model that knows them."""
        super().bind(setting)
        derive = setting.target.capabilities.run_derived
        assert derive is not None
        backend = derive(self._derived, f"{setting.target.info.model} with look-ahead rows")
        self.inner = MaskedChain(backend, self.draws, rows=self.net.config.rows, first=self.vocab)
        self.inner.bind(setting)

    def _derived(self, model: Any) -> Any:
        """The target's model with look-ahead rows, of shared weights."""
        from sapwood.heads.mask_rows import mask_rows_model

        return mask_rows_model(model, self.net)

    def reset(self, request: RequestContext) -> None:
        """Prefill the prompt in the model with look-ahead rows."""
        self.inner_ = self.inner.fresh()
        self.inner_.source = self.source
        self.inner_.reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand by the rows of this round's pass."""
        self.inner_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Take the emitted tokens."""
        self.inner_.observe(outcome)

    def close(self) -> None:
        """Free the session."""
        self.inner_.close()
