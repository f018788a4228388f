"""Interface of networks, which run the rows of a pass, and the rows' bookkeeping."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from sapwood.backends.torch.kv_slots import KvLayout, RowSpan
from sapwood.core.array_types import BoolArray, IntArray
from sapwood.core.lookahead import LookaheadModel

WHOLE = 0  # window of a layer with full attention

Kept = dict[int, Tensor]  # layer -> its input, [rows, width]


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate arrays; most passes have a single one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class MaskBlock:
    """The rows of one session in a pass, and their visible keys."""

    length: int  # committed keys
    parents: IntArray  # [nodes]
    depths: IntArray  # [nodes]
    since: int = 0  # first node that is run
    gap: int = 0  # committed positions whose keys are left out

    @property
    def rows(self) -> int:
        """Nodes that are run."""
        return len(self.parents) - self.since

    @property
    def positions(self) -> IntArray:
        """Position of each row in its text, [rows]."""
        return self.length + self.gap + self.depths[self.since :]

    @property
    def slots(self) -> int:
        """Keys of the committed text and all nodes."""
        return self.length + len(self.parents)

    def windowed(self, window: int) -> bool:
        """True when some key lies outside some row's window."""
        return window != WHOLE and self.length + int(self.depths[self.since :].max()) >= window


def ancestors(block: MaskBlock) -> BoolArray:
    """True for the ancestors of each row, itself included, [rows, nodes]."""
    # a path is an integer with a bit for each node; the root's parent, -1, has none
    nodes = len(block.parents)
    seen = [0]
    for node, parent in enumerate(block.parents.tolist()):
        seen.append(seen[parent + 1] | 1 << node)
    width = -(-nodes // 8)  # bytes
    packed = b"".join([path.to_bytes(width, "little") for path in seen[block.since + 1 :]])
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return bits.reshape(-1, 8 * width)[:, :nodes].view(bool)


def visible_nodes(block: MaskBlock, window: int) -> BoolArray:
    """Nodes that each row attends to, [rows, nodes]."""
    mask = ancestors(block)
    if block.windowed(window):
        mask &= block.depths[block.since :, None] - block.depths[None, :] < window
    return mask


@dataclass(frozen=True, slots=True)
class PassInput:
    """The rows of a pass, session by session."""

    tokens: IntArray
    blocks: Sequence[MaskBlock]  # visible keys
    spans: Sequence[RowSpan]  # slots of their keys and values

    @property
    def positions(self) -> IntArray:
        """Position of each row in its text."""
        found: IntArray = joined([block.positions for block in self.blocks])
        return found


class Network(Protocol):
    """A model's layers, with keys and values in the slots of sessions."""

    precision: str  # dtype name, as in the option `dtype`

    @property
    def layout(self) -> KvLayout:
        """Layout of a session's KV slots."""

    def read(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run a pass without the output head: final states [rows, width], and watched inputs."""

    def compute_logits(self, states: Tensor) -> Tensor:
        """Logits of final states, [rows, vocab], with the same best tokens as those of `score`."""

    def score(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run a pass; logits [rows, vocab] and the inputs of watched layers."""

    def convert_head(self, net: nn.Module) -> Any:
        """A trained head in the dtype and on the device of this network."""


@runtime_checkable
class LookaheadNetwork(Protocol):
    """A network that runs rows for later tokens beside the nodes of a tree."""

    def lookahead(self, derive: Callable[[Any], LookaheadModel]) -> Any:
        """The same network for passes with the rows of the model that `derive` makes."""

    def score_lookahead(
        self, rows: PassInput, watched: Collection[int], index: IntArray, anchors: IntArray
    ) -> tuple[Tensor, Kept]:
        """Run a pass in which the rows `index` stand for later tokens, each behind its anchor."""


@runtime_checkable
class MixedNetwork(Network, Protocol):
    """A network that can run prefill chunks and trees in one pass."""

    def mix(
        self, rows: PassInput, watched: Collection[int], logit_rows: int
    ) -> tuple[Tensor, Kept]:
        """Run a pass: logits of the first rows, [logit_rows, vocab], and watched layers' inputs.

        A pass over one session's tree may overlap the host: its slots' `settle` waits for it.
        """


@runtime_checkable
class BoundedNetwork(Network, Protocol):
    """A network whose sessions may be shorter than the model's context."""

    longest: int  # tokens of a session


@runtime_checkable
class PartialNetwork(Network, Protocol):
    """A network that can be run in part: some of its layers, some of its sublayers, fewer bits.

    Sublayers are numbered as they are run: 2 i is the attention of layer i, 2 i + 1 its MLP.
    """

    def check_layer(self, layer: int) -> None:
        """Refuse a model that cannot be split before this layer."""

    def layer_input(
        self, rows: PassInput, watched: Collection[int], layer: int
    ) -> tuple[Tensor, Kept]:
        """Run the layers before this one: its input [rows, width], and watched inputs."""

    def resume(
        self, rows: PassInput, watched: Collection[int], layer: int, states: Tensor
    ) -> tuple[Tensor, Kept]:
        """Run the other layers from its input: logits [rows, vocab], and watched inputs."""

    @property
    def parallel_stages(self) -> bool:
        """True when `span` may run in several threads at once, on layers that are apart."""

    def span(
        self, rows: PassInput, first: int, stop: int, states: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run layers `first` to `stop`: the states after them, and behind the last the logits.

        States are [rows, width], those of the output head behind the last layer; None begins with
        the tokens.
        """

    def skipping(self, sublayers: Collection[int]) -> "Network":
        """The same network, weights and layout, without these sublayers."""

    def rounded(self, bits: int) -> "Network":
        """The network in fewer bits; with the same layout, it can use the same keys and values."""
