"""Prompt tokens (PPD, arXiv 2405.18628): embeddings of rows in the target's verifying pass.

Row i behind a node has a learned embedding instead of a token's, and predicts the token i places
after the next. The layers and the output head are the target's own and stay as they are.
"""

from typing import Any, ClassVar

from sapwood.core.lookahead import LookaheadModel, RowGate
from sapwood.heads.mask_rows import MaskRowsHead, mask_rows_model


class PpdHead(MaskRowsHead):
    """Embeddings of the prompt tokens behind a node, in order."""

    kind: ClassVar[str] = "ppd"

    def lookahead(self, model: Any) -> LookaheadModel:
        """The target with an embedding that knows the prompt tokens."""
        return LookaheadModel(mask_rows_model(model, self), RowGate())
