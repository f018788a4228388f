"""GLIDE's draft layer (arXiv 2402.02082): it glimpses the keys and values of the target.

Self-attention over the tokens, cross-attention over the keys and values that the last layer of the
target has of the checked text, and an MLP. A backend gives hidden states, not keys: those of the
last layer are computed from its input by its own norm and projections, which are stored with the
head and never trained.
"""

from typing import ClassVar

from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.heads.moa import MoaConfig, MoaHead

FROZEN = ("memory_norm", "cross.k_proj", "cross.v_proj")  # the target's own


class GlideHead(MoaHead):
    """Tokens and inputs of the target's last layer in, logits over the draft vocabulary out."""

    kind: ClassVar[str] = "glide"

    def __init__(self, config: MoaConfig) -> None:
        super().__init__(config)
        self.remember = nn.Identity()
        for name in FROZEN:
            self.get_submodule(name).requires_grad_(False)

    def attach_last_layer(self, norm: Tensor, keys: Tensor, values: Tensor) -> None:
        """Take the last layer's norm [width] and projections [kv heads * d, width]."""
        for name, given in zip(FROZEN, (norm, keys, values), strict=True):
            weight = self.get_parameter(f"{name}.weight")
            if weight.shape != given.shape:
                raise SapwoodError(
                    f"glide wants {name} of shape {list(weight.shape)} and the target has "
                    f"{list(given.shape)}; it needs a layer like Llama's"
                )
            weight.data.copy_(given)
