"""What drafters with a head of one layer keep: whether it fits the target, and the keys and values of its rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sapwood.arrays import BoolArray, FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.tree import CAPACITY

if TYPE_CHECKING:
    from torch import Tensor

SPARE = 256  # slots a request has beyond its prompt's at first


def check(net: Any, target: Any, width: int) -> None:
    """Refuse a head that was made for another target."""
    config, model = net.config, target.info.model
    facts = [  # what, as the head wants it, as the target has it
        ("a vocabulary of", config.vocab, target.info.vocab),
        ("states of width", config.target_width, width),
        ("embeddings of width", config.shape.width, width),
        ("layers up to", max(config.features), target.model.config.get_text_config().num_hidden_layers),
    ]
    for what, ours, theirs in facts:
        if ours > theirs or (ours < theirs and what != "layers up to"):
            raise SapwoodError(
                f"the {net.kind} head wants {what} {ours} and {model} has {theirs}; "
                f"make one that fits with `sapwood train {net.kind} --model {model}`"
            )


class Cache:
    """Keys and values of the head's rows, [1, heads, slots, width] each, those of the text first."""

    def __init__(self, shape: Any, like: "Tensor", text: int) -> None:
        self.text, slots = 0, text + SPARE  # rows of the text, and room
        self.keys, self.values = (like.new_empty(1, shape.kv_heads, slots, shape.head_width) for _ in range(2))
        self.outputs = like.new_empty(CAPACITY, shape.width)  # of the tree's rows, the root's first
        self._arrays: tuple[Any, Any] | None = None

    def write(self, key: "Tensor", value: "Tensor", start: int) -> None:
        """Put rows at slot `start`."""
        stop = start + key.shape[2]
        self.reserve(stop)
        self.keys[:, :, start:stop] = key
        self.values[:, :, start:stop] = value

    def reserve(self, slots: int) -> None:
        """Have room for so many rows; the slots double where they do not suffice."""
        if slots > self.keys.shape[2]:
            self.keys, self.values = doubled(self.keys, slots), doubled(self.values, slots)
            self._arrays = None

    def arrays(self) -> tuple[Any, Any]:
        """Keys and values on the host, [heads, slots, width], the same memory."""
        if self._arrays is None:
            self._arrays = self.keys[0].numpy(), self.values[0].numpy()
        return self._arrays

    def close(self) -> None:
        """Free the rows."""
        del self.keys, self.values, self.outputs, self._arrays

    def take(self, rows: list[int]) -> "Tensor":
        """Outputs of these rows of the tree, [rows, width]."""
        first, stop = rows[0], rows[-1] + 1
        return self.outputs[first:stop] if rows == list(range(first, stop)) else self.outputs[rows]


def doubled(slots: "Tensor", least: int) -> "Tensor":
    """The same slots, followed by as many empty ones, or by more to make `least`."""
    heads, used, width = slots.shape[1:]
    more = slots.new_empty(1, heads, max(least, 2 * used), width)
    more[:, :, :used] = slots
    return more


def lineage(ups: Sequence[int], first: int) -> BoolArray:
    """Which rows the rows from `first` on descend from, themselves included, [rows, all rows]."""
    up = np.array(ups)
    above = np.arange(first, len(up))
    seen = np.zeros((len(above), len(up)), bool)
    rows = np.arange(len(above))
    seen[rows, above] = True
    while above.any():  # the root's row is 0, and its own parent
        above = up[above]
        seen[rows, above] = True
    return seen


def tensor(features: Any) -> "Tensor":
    """Features as they are, or those that a claim stands for."""
    found: Tensor = features.tensor() if hasattr(features, "tensor") else features
    return found


def joined(parts: Sequence[Any]) -> Any:
    """Features of several texts as one; of a single one, or a claim on them, as they are."""
    import torch

    return parts[0] if len(parts) == 1 else torch.cat([tensor(features) for features in parts])


def leading(net: Any, outputs: "Tensor", count: int, vocabulary: IntArray) -> tuple[IntArray, FloatArray]:
    """Best tokens of each row and their probabilities, both [rows, count], found by the head itself where it can."""
    own = getattr(net, "best", None)
    found: tuple[IntArray, FloatArray] | None = None if own is None else own(outputs, count)
    return best(net.logits(outputs), count, vocabulary) if found is None else found


def best(logits: "Tensor", count: int, vocabulary: IntArray) -> tuple[IntArray, FloatArray]:
    """Best tokens of each row and their probabilities, both [rows, count]."""
    import torch

    exact = logits.float()
    top, ids = exact.topk(min(count, exact.shape[1]), -1)
    logps = (top - exact.logsumexp(-1, keepdim=True)).double()
    drafted, chances = torch.stack((ids.double(), logps)).cpu().numpy()  # one transfer
    tokens = vocabulary[drafted.astype(np.int64)]
    order = np.lexsort((tokens, -chances))  # of equals, the lowest id first
    return np.take_along_axis(tokens, order, 1), np.exp(np.take_along_axis(chances, order, 1))
