"""An adapter that speaks for the target after its first few layers (Kangaroo, arXiv 2404.18911).

The adapter is one decoder layer with a small MLP behind the target's first layers, with a norm of its
own and the target's output head. A few numbers of a model's inner states are a hundred times larger
than the rest, so a norm and a matrix come first. The adapter takes the place of a layer in a copy of the
target that shares all weights: what runs the target also runs the exit, keys included.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.heads.borrowed import Borrowed
from sapwood.heads.layers import Attention, GatedMLP, Norm, Shape, linear

UNKNOWN = -1e4  # logit of tokens outside the draft vocabulary: proposed only where all others are banned
FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class EarlyExitConfig:
    """Sizes of an adapter and of the target it was made for."""

    shape: Shape  # of the adapter; its width is the target's
    vocab: int  # of the target
    draft_vocab: int  # tokens the adapter can propose
    layer: int  # how many of the target's layers are run, >= 1
    attention: bool = True  # False: each row for itself
    levelled: bool = True  # states pass a norm and a matrix on their way in; False: they come as they are


class EarlyExit(Borrowed):
    """States after a few layers in, states for the output head out; also a layer of a transformers model."""

    kind: ClassVar[str] = "early-exit"

    def __init__(self, config: EarlyExitConfig) -> None:
        super().__init__(config.shape.width, config.vocab, config.draft_vocab)
        self.config = config
        shape = config.shape
        if config.levelled:
            self.enter_norm = Norm(shape.width, shape.eps)
            self.fc = linear(shape.width, shape.width)
        if config.attention:
            self.input_layernorm = Norm(shape.width, shape.eps)
            self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)
        self.norm = Norm(shape.width, shape.eps)

    def forward(
        self,
        hidden_states: Tensor,  # [batch, rows, width]
        attention_mask: Tensor | None = None,  # [.., rows, keys], added to the products
        position_ids: Tensor | None = None,  # [batch, rows]
        past_key_values: Any = None,
        causal: bool = False,  # each row sees those before it; instead of a mask
        **_: Any,
    ) -> Tensor:
        """The adapter as a layer among those of the target."""
        states: Tensor = self.fc(self.enter_norm(hidden_states)) if self.config.levelled else hidden_states
        if self.config.attention:
            assert position_ids is not None
            query, key, value = self.self_attn.project(
                self.input_layernorm(states), position_ids.expand(states.shape[:2])
            )
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.config.layer)
            states = states + self.self_attn.attend(query, key, value, attention_mask, causal)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class Exit(nn.Module):
    """The output head of the short model: logits over the whole vocabulary, for the tokens the adapter knows."""

    states: Tensor  # [rows, width] what the newest pass gave it to read

    def __init__(self, head: EarlyExit) -> None:
        super().__init__()
        self.vocab, self.tokens, self.weight = head.config.vocab, head.vocabulary, head.output

    def forward(self, states: Tensor) -> Tensor:
        """Logits [batch, rows, vocab] of normed states [batch, rows, width]."""
        self.states = states.flatten(0, -2)
        whole = states.new_full((*states.shape[:-1], self.vocab), UNKNOWN)
        whole[..., self.tokens] = nn.functional.linear(states, self.weight)
        return whole


def check_exits(model: Any, layer: int) -> None:
    """Refuse a model whose layers cannot be cut, or a place where it has none."""
    base, depth = model.base_model, model.config.get_text_config().num_hidden_layers
    if not all(isinstance(getattr(base, name, None), nn.Module) for name in ("layers", "norm")):
        raise SapwoodError(
            f"{type(model).__name__} is not built as layers and a norm; early-exit needs a model that is"
        )
    if not 1 <= layer < depth:
        raise SapwoodError(f"early-exit after {layer} layers needs a model of more layers than that; this has {depth}")


def shortened(model: Any, head: EarlyExit) -> Any:
    """The model's first layers, the adapter and its way out, as a model of the same class that shares all weights."""
    count, model = head.config.layer, getattr(model, "whole", model)  # what stands in for a model loads it now
    check_exits(model, count)
    short, base = shell(model), shell(model.base_model)
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if kinds:
        text.layer_types = [*kinds[:count], FULL if FULL in kinds else kinds[count]]
    text.num_hidden_layers = count + 1
    short.config, base.config = config, text
    base.layers = nn.ModuleList([*model.base_model.layers[:count], head])
    base.norm = head.norm
    setattr(short, model.base_model_prefix, base)
    short.set_output_embeddings(Exit(head))
    return short


def shell(module: Any) -> Any:
    """A copy whose submodules are the same, and can be exchanged without touching the original."""
    made = copy.copy(module)
    made._modules = dict(module._modules)
    return made
