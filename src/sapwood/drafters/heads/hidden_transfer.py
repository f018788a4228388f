"""Hidden transfer (arXiv 2404.12022): pseudo states of later tokens in the target's own layers.

The pass over the last token makes a pseudo state for each later token at one layer and runs them
through the layers above. It predicts the next token, which is the target's own, and one more for
each pseudo state; all nodes of a depth share one distribution. The paper's pass is the one that
verifies the tree; here it is a pass of its own, with keys of its own.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.drafters.heads.mask_rows import MaskRows


@dataclass
class HiddenTransfer(MaskRows):
    """The target's own pass with pseudo states behind the text, made at one of its layers."""

    name: ClassVar[str] = "hidden-transfer"
    paper: ClassVar[str] = "2404.12022"
    trained: ClassVar[str] = "hidden-transfer"

    def _derived(self, model: Any) -> Any:
        from sapwood.heads.hidden_transfer import hidden_transfer_model

        return hidden_transfer_model(model, self.net)
