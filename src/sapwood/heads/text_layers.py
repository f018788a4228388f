"""Causal decoder layers over a text, which several heads put between the target and their outputs.

Row t of the first layer is made from the target's final state at t, by some heads joined with the
token at t + 1. Training runs whole texts at once; a drafter keeps keys and values of its own.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from sapwood.heads.layers import Attention, GatedMLP, LayerShape, RMSNorm


class CausalLayer(nn.Module):
    """A Llama-like decoder layer; its keys and values are the caller's."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, rows, d] of x [batch, rows, width]."""
        return self.self_attn.project(self.input_layernorm(x), positions)

    def finish(self, x: Tensor, read: Tensor) -> Tensor:
        """The layer's output from its input and the output of attention, [batch, rows, width]."""
        middle = x + read
        out: Tensor = middle + self.mlp(self.post_attention_layernorm(middle))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of whole texts [batch, rows, width]; each row sees those before it."""
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        query, key, value = self.project(x, positions)
        return self.finish(x, self.self_attn.attend(query, key, value, None, causal=True))


def causal(layers: Iterable[nn.Module]) -> list[CausalLayer]:
    """The layers of a head, in order."""
    return [layer for layer in layers if isinstance(layer, CausalLayer)]


@torch.no_grad()
def scale_outputs_down(layers: Iterable[nn.Module]) -> None:
    """Scale the outputs of new layers down, so that each changes its input a little."""
    for layer in causal(layers):
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)


class JoinedState(nn.Module):
    """A matrix that joins a state with the embedding of a token; initially the state, mostly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * width, width)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, width:] += torch.eye(width)
            self.fc.bias.zero_()

    def forward(self, embeds: Tensor, states: Tensor) -> Tensor:
        """Joined rows, as wide as the states [..., width]."""
        out: Tensor = self.fc(torch.cat((embeds, states), -1))
        return out
