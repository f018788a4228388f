"""What runs the rows of a pass: the seam between sessions and a model's arithmetic."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Layout, Span
from sapwood.backends.torch.mask import Block

Kept = dict[int, Tensor]  # layer -> its input, [rows, width]


def joined(parts: Sequence[Any]) -> Any:
    """Arrays one after the other; most passes have one of each."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a pass, session by session."""

    tokens: IntArray
    blocks: Sequence[Block]  # what they see
    spans: Sequence[Span]  # where their keys and values go

    @property
    def positions(self) -> IntArray:
        """Place of each row in its text."""
        found: IntArray = joined([block.positions for block in self.blocks])
        return found


class Network(Protocol):
    """A model's layers, with keys and values in slots that sessions own."""

    precision: str  # name of the number format, as people ask for it

    @property
    def layout(self) -> Layout:
        """What a session's slots hold."""

    def read(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run a pass without the output head; what the head would read, [rows, width], and the inputs of layers."""

    def speak(self, states: Tensor) -> Tensor:
        """Logits of such states, the same best tokens as `score` gives; [rows, vocab]."""

    def score(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run a pass; logits [rows, vocab] and the inputs of watched layers."""

    def adopt(self, net: nn.Module) -> Any:
        """A trained head in the number format of this network, on its device."""


@runtime_checkable
class Mixing(Network, Protocol):
    """A network whose rows cost the same in any company, so that pieces of prompts may join trees."""

    def mix(self, rows: Rows, watched: Collection[int], spoken: int) -> tuple[Tensor, Kept]:
        """Run a pass; logits of the first rows, [spoken, vocab], and the inputs of watched layers.

        A pass over one session's tree may go on beside the host: its slots' `settle` waits for it.
        """


@runtime_checkable
class Divisible(Network, Protocol):
    """A network that can be run in part: some of its layers, some of its sublayers, fewer bits.

    Sublayers are numbered as they are run: 2 i is the attention of layer i, 2 i + 1 its MLP.
    """

    def check_layer(self, layer: int) -> None:
        """Refuse a model that cannot stop before this layer and go on later."""

    def enter(self, rows: Rows, watched: Collection[int], layer: int) -> tuple[Tensor, Kept]:
        """Run the layers before this one; its input, [rows, width], and the inputs of watched layers among them."""

    def resume(self, rows: Rows, watched: Collection[int], layer: int, states: Tensor) -> tuple[Tensor, Kept]:
        """Run the others from such inputs; logits [rows, vocab] and the inputs of watched layers among them."""

    def skipping(self, sublayers: Collection[int]) -> "Network":
        """The same network, weights and layout, without these sublayers."""

    def rounded(self, bits: int) -> "Network":
        """The network in fewer bits; where its layout is the same, it can go on from the same keys and values."""
