"""KV cache of a head for one request, and its prefill."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sapwood.core.tree import CAPACITY

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 512  # rows of a text in one call of the head
SPARE = 256  # slots a request has beyond its prompt's at first


class HeadKvCache:
    """Keys and values of the head's rows, [1, heads, slots, width], the text's first."""

    def __init__(self, shape: Any, like: "Tensor", text: int) -> None:
        self.text = 0  # rows of the text
        slots = text + SPARE
        self.keys, self.values = (
            like.new_empty(1, shape.kv_heads, slots, shape.head_width) for _ in range(2)
        )
        self.outputs = like.new_empty(CAPACITY, shape.width)  # of the tree's rows, the root's first
        self._arrays: tuple[Any, Any] | None = None

    def write(self, key: "Tensor", value: "Tensor", start: int) -> None:
        """Write rows from slot `start` on."""
        stop = start + key.shape[2]
        self.reserve(stop)
        self.keys[:, :, start:stop] = key
        self.values[:, :, start:stop] = value

    def reserve(self, slots: int) -> None:
        """Make room for this many rows; the slots at least double."""
        if slots > self.keys.shape[2]:
            self.keys, self.values = doubled(self.keys, slots), doubled(self.values, slots)
            self._arrays = None

    def arrays(self) -> tuple[Any, Any]:
        """Keys and values as numpy views, [heads, slots, width]."""
        if self._arrays is None:
            self._arrays = self.keys[0].numpy(), self.values[0].numpy()
        return self._arrays

    def close(self) -> None:
        """Free the rows."""
        del self.keys, self.values, self.outputs, self._arrays

    def take(self, rows: list[int]) -> "Tensor":
        """Outputs of these rows of the tree, [rows, width]."""
        first = rows[0]
        stop = rows[-1] + 1
        return self.outputs[first:stop] if rows == list(range(first, stop)) else self.outputs[rows]


def doubled(slots: "Tensor", least: int) -> "Tensor":
    """The same slots in a tensor twice as long, or of `least` slots if that is more."""
    heads, used, width = slots.shape[1:]
    more = slots.new_empty(1, heads, max(least, 2 * used), width)
    more[:, :, :used] = slots
    return more


def write_rows(
    net: Any,
    embedding: "Tensor",
    cache: Any,
    states: "Tensor",
    tokens: "Tensor",
    positions: "Tensor",
    start: int,
) -> tuple["Tensor", "Tensor"]:
    """Write keys and values of rows from slot `start` on; returns their states and queries."""
    query, key, value = net.midlayer.project(embedding[tokens][None], states[None], positions[None])
    cache.write(key, value, start)
    return states[None], query


def prefill(
    net: Any, embedding: "Tensor", cache: Any, features: "Tensor", text: Sequence[int], first: int
) -> tuple["Tensor", "Tensor"]:
    """Write the rows of a text that begins at position `first`; states and queries of the last."""
    import torch

    with torch.inference_mode():
        tokens = torch.tensor(text, device=features.device)
        positions = torch.arange(first, first + len(tokens), device=features.device)
        for start in range(0, len(tokens), CHUNK):
            rows = slice(start, start + CHUNK)
            begun = net.begin(features[rows])
            states, query = write_rows(
                net, embedding, cache, begun, tokens[rows], positions[rows], cache.text
            )
            cache.text += states.shape[1]
    return states, query
