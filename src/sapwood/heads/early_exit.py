"""An adapter that predicts tokens after the target's first layers (Kangaroo, arXiv 2404.18911).

The adapter is one decoder layer with a small MLP behind the target's first layers, with a norm of
its own and the target's output head. A few channels of a model's hidden states are a hundred times
larger than the rest, so a norm and a matrix come first. Where the target cannot stop between two
layers, the adapter takes the place of a layer in a copy of the target that shares all weights: what
runs the target also runs the exit, with its KV cache.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.heads.layers import Attention, GatedMLP, LayerShape, RMSNorm, linear
from sapwood.heads.tied_base import TiedBase

# logit of tokens outside the draft vocabulary: proposed only when all others are banned
UNKNOWN = -1e4
FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class EarlyExitConfig:
    """Sizes of an adapter and of the target it was made for."""

    shape: LayerShape  # of the adapter; its width is the target's
    vocab: int  # of the target
    draft_vocab: int  # tokens the adapter can propose
    layer: int  # number of the target's layers that are run, >= 1
    attention: bool = True  # False: each row for itself
    levelled: bool = True  # a norm and a matrix are applied to the input states


class EarlyExitHead(TiedBase):
    """Hidden states in, states for the output head out; usable as a transformers layer."""

    kind: ClassVar[str] = "early-exit"

    def __init__(self, config: EarlyExitConfig) -> None:
        super().__init__(config.shape.width, config.vocab, config.draft_vocab)
        self.config = config
        shape = config.shape
        if config.levelled:
            self.enter_norm = RMSNorm(shape.width, shape.eps)
            self.fc = linear(shape.width, shape.width)
        if config.attention:
            self.input_layernorm = RMSNorm(shape.width, shape.eps)
            self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)
        self.norm = RMSNorm(shape.width, shape.eps)

    def forward(
        self,
        hidden_states: Tensor,  # [batch, rows, width]
        attention_mask: Tensor | None = None,  # [.., rows, keys], added to the products
        position_ids: Tensor | None = None,  # [batch, rows]
        past_key_values: Any = None,
        causal: bool = False,  # each row sees those before it; instead of a mask
        **_: Any,
    ) -> Tensor:
        """The output states of the adapter, with the arguments of a transformers layer."""
        states = self.begin(hidden_states)
        if self.config.attention:
            assert position_ids is not None
            query, key, value = self.project(states, position_ids.expand(states.shape[:2]))
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.config.layer)
            states = states + self.self_attn.attend(query, key, value, attention_mask, causal)
        return self.finish(states)

    def begin(self, hidden_states: Tensor) -> Tensor:
        """The adapter's residual stream at its input, [batch, rows, width]."""
        states: Tensor = (
            self.fc(self.enter_norm(hidden_states)) if self.config.levelled else hidden_states
        )
        return states

    def project(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the residual stream at positions [batch, rows]."""
        return self.self_attn.project(self.input_layernorm(states), positions)

    def finish(self, states: Tensor) -> Tensor:
        """The output of the adapter after its attention."""
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class ExitHead(nn.Module):
    """Output head of the early-exit model: logits of the draft vocabulary, over the whole one."""

    states: Tensor  # [rows, width] inputs of the last pass

    def __init__(self, head: EarlyExitHead) -> None:
        super().__init__()
        self.vocab = head.config.vocab
        self.tokens = head.vocabulary
        self.weight = head.output

    def forward(self, states: Tensor) -> Tensor:
        """Logits [batch, rows, vocab] of normed states [batch, rows, width]."""
        self.states = states.flatten(0, -2)
        whole = states.new_full((*states.shape[:-1], self.vocab), UNKNOWN)
        whole[..., self.tokens] = nn.functional.linear(states, self.weight)
        return whole


def check_exits(model: Any, layer: int) -> None:
    """Refuse a model that is not built of layers and a norm, or has too few layers."""
    base = model.base_model
    depth = model.config.get_text_config().num_hidden_layers
    if not all(isinstance(getattr(base, name, None), nn.Module) for name in ("layers", "norm")):
        raise SapwoodError(
            f"{type(model).__name__} is not built as layers and a norm; "
            "early-exit needs a model that is"
        )
    if not 1 <= layer < depth:
        raise SapwoodError(
            f"early-exit after {layer} layers needs a model of more layers than that; "
            f"this has {depth}"
        )


def early_exit_model(model: Any, head: EarlyExitHead) -> Any:
    """The model's first layers with the adapter, as a model of the same class and weights."""
    count = head.config.layer
    check_exits(model, count)
    short = shallow_copy(model)
    base = shallow_copy(model.base_model)
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if kinds:
        text.layer_types = [*kinds[:count], FULL if FULL in kinds else kinds[count]]
    text.num_hidden_layers = count + 1
    short.config = config
    base.config = text
    base.layers = nn.ModuleList([*model.base_model.layers[:count], head])
    base.norm = head.norm
    setattr(short, model.base_model_prefix, base)
    short.set_output_embeddings(ExitHead(head))
    return short


def shallow_copy(module: Any) -> Any:
    """A copy with the same submodules, which can be replaced without changing the original."""
    made = copy.copy(module)
    made._modules = dict(module._modules)
    return made
