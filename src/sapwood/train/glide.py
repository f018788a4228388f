"""Training of GLIDE's draft layer: every depth of a draft, at every place (arXiv 2402.02082)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.core.array_types import IntArray
from sapwood.errors import SapwoodError
from sapwood.heads.glide import GlideHead
from sapwood.heads.moa import MoaConfig
from sapwood.train.head_losses import share_weights
from sapwood.train.moa import MoaObjective
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class GlideObjective(MoaObjective):
    """Train GLIDE's draft layer."""

    kind: ClassVar[str] = "glide"

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """The input of the last layer."""
        return (teacher.layers - 1,)

    def build(self, teacher: Teacher, counts: IntArray) -> GlideHead:
        """A new layer, with the norm and the projections of the target's last one."""
        config = MoaConfig(
            shape=teacher.shape(self.inner),
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            features=self.features(teacher),
            context=teacher.backend.info.context,
        )
        head = GlideHead(config).to(teacher.device)
        share_weights(head, teacher, counts)
        norm, keys, values = last_layer(teacher)
        head.attach_last_layer(norm.weight, keys.weight, values.weight)
        return head


def last_layer(teacher: Teacher) -> tuple[Any, Any, Any]:
    """Norm, key and value projections of the target's last layer."""
    try:
        layer: Any = teacher.model.base_model.layers[-1]
        found = layer.input_layernorm, layer.self_attn.k_proj, layer.self_attn.v_proj
    except AttributeError as error:
        raise SapwoodError(
            f"glide reads the keys of a layer like Llama's, and {teacher.backend.info.model} has "
            "none; train another head"
        ) from error
    if found[1].bias is not None or "k_norm" in dict(layer.self_attn.named_children()):
        raise SapwoodError(
            f"glide reads keys without biases and norms, and those of "
            f"{teacher.backend.info.model} have them; train another head"
        )
    return found
