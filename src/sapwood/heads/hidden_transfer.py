"""Hidden transfer (arXiv 2404.12022): pseudo states of later tokens, made inside the target.

At the input of one of the target's layers, matrix i turns the state of a text's last token into a
pseudo state of the token i places further. The pseudo states go through the target's remaining
layers behind the text, where each sees the text and the pseudo states before it, and the target's
output head predicts a token from each. The target itself stays as it is.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.errors import SapwoodError
from sapwood.heads.early_exit import shallow_copy
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class HiddenTransferConfig:
    """Sizes of the matrices and of the target they were made for."""

    width: int  # of the target
    vocab: int  # of the target
    layer: int  # of the target, at whose input pseudo states are made
    rows: int = 3  # pseudo states, >= 1


class HiddenTransferHead(TiedBase):
    """A matrix for each pseudo state; initially the identity, nearly."""

    kind: ClassVar[str] = "hidden-transfer"

    def __init__(self, config: HiddenTransferConfig) -> None:
        super().__init__(config.width, config.vocab, 0)
        if config.rows < 1:
            raise SapwoodError(f"{config.rows} pseudo states predict nothing; use at least 1")
        self.config = config
        self.transfers = nn.ModuleList(
            nn.Linear(config.width, config.width) for _ in range(config.rows)
        )
        with torch.no_grad():
            for transfer in self.matrices():
                transfer.weight.mul_(0.1).add_(torch.eye(config.width))
                transfer.bias.zero_()

    def matrices(self) -> list[nn.Linear]:
        """The matrix of each pseudo state."""
        return [one for one in self.transfers if isinstance(one, nn.Linear)]

    def pseudo(self, states: Tensor) -> Tensor:
        """Pseudo states [..., rows, width] of states [..., width] at the layer's input."""
        return torch.stack([transfer(states) for transfer in self.matrices()], -2)


class PseudoTokens(nn.Module):
    """The target's embedding, in which ids from its vocabulary's size on are pseudo states."""

    tokens: Tensor  # [batch, rows] of the pass under way

    def __init__(self, table: nn.Module, vocab: int) -> None:
        super().__init__()
        self.table = table
        self.vocab = vocab

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., width]; those of pseudo states are replaced at their layer."""
        self.tokens = tokens
        embeds: Tensor = self.table(tokens.clamp(max=self.vocab - 1))
        return embeds


class TransferLayer(nn.Module):
    """One of the target's layers, at whose input pseudo states are made."""

    def __init__(self, layer: nn.Module, words: PseudoTokens, head: HiddenTransferHead) -> None:
        super().__init__()
        self.layer = layer
        self.words = words
        self.transfers = [
            (transfer.weight.detach(), transfer.bias.detach()) for transfer in head.matrices()
        ]

    def __getattr__(self, name: str) -> Any:
        """Attributes of the layer, which the model's own code reads."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
        """Replace the rows of pseudo states, then run the layer."""
        number = (self.words.tokens - self.words.vocab).view(hidden_states.shape[:-1])
        # pseudo states lie in a row behind the token that they are made from
        source = torch.arange(number.shape[-1], device=number.device) - 1 - number.clamp(min=0)
        from_state = hidden_states.gather(
            -2, source.clamp(min=0)[..., None].expand_as(hidden_states)
        )
        for row, (weight, bias) in enumerate(self.transfers):
            made = F.linear(from_state, weight.to(from_state.dtype), bias.to(from_state.dtype))
            hidden_states = torch.where((number == row)[..., None], made, hidden_states)
        return self.layer(hidden_states, *given, **named)


def hidden_transfer_model(model: Any, head: HiddenTransferHead) -> Any:
    """The same model, with shared weights, that knows pseudo states."""
    made = shallow_copy(model)
    base = shallow_copy(model.base_model)
    check_layers(model, head.config.layer)
    words = PseudoTokens(model.get_input_embeddings(), head.config.vocab)
    layers = list(base.layers)
    layers[head.config.layer] = TransferLayer(layers[head.config.layer], words, head)
    base.layers = nn.ModuleList(layers)
    setattr(made, model.base_model_prefix, base)
    made.set_input_embeddings(words)
    return made


def later_layers(model: Any, layer: int) -> Any:
    """The model's base from this layer on, with shared weights; its input is the layer's."""
    check_layers(model, layer)
    base = shallow_copy(model.base_model)
    base.layers = nn.ModuleList(list(model.base_model.layers)[layer:])
    return base


def check_layers(model: Any, layer: int) -> None:
    """Refuse a model without a list of layers, or with too few."""
    layers = dict(model.base_model.named_children()).get("layers")
    if not isinstance(layers, nn.ModuleList):
        raise SapwoodError(
            f"{type(model).__name__} is not built as a list of layers; "
            "hidden-transfer needs a model that is"
        )
    if not 0 <= layer < len(layers):
        raise SapwoodError(
            f"hidden transfer at layer {layer} needs a model of more layers than that; "
            f"this has {len(layers)}"
        )
