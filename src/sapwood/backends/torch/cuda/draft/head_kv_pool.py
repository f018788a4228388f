"""KV cache of a drafting head: one sequence per request, in buffers that captured drafts read."""

import weakref

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.eagle_layer import EagleWeights
from sapwood.core.tree import CAPACITY

SLOTS = 2048  # rows a request has room for at first


class HeadKvPool:
    """Slots of all sequences, [sequences, kv heads, slots, d].

    The buffers grow by doubling; `version` then changes, and captured drafts are void.
    """

    def __init__(self, layer: EagleWeights) -> None:
        self.layer = layer
        self.free = [0]
        self.keys, self.values = (self._empty(1, SLOTS) for _ in range(2))
        self.version = 0  # how often the buffers were replaced

    def _empty(self, sequences: int, slots: int) -> Tensor:
        layer = self.layer
        # zeros: masked values must be finite
        return layer.embedding.new_zeros(sequences, layer.kv_heads, slots, layer.head_width)

    def take(self, slots: int) -> int:
        """Take a free sequence with room for this many rows."""
        sequences = len(self.keys)
        more = [] if self.free else list(range(sequences, 2 * sequences))
        self.make_room(slots, sequences + len(more))
        self.free += more
        return self.free.pop()

    def reserve(self, sequences: int, slots: int) -> None:
        """Make room for so many sequences of so many rows each, taken or not."""
        there = len(self.keys)
        self.make_room(slots, sequences)
        self.free += range(there, len(self.keys))

    def release(self, sequence: int) -> None:
        """Free a sequence."""
        self.free.append(sequence)

    def make_room(self, slots: int, sequences: int = 0) -> None:
        """Make room for at least this many rows in every sequence."""
        old_sequences, _, old_slots, _ = self.keys.shape
        if max(sequences, old_sequences) > old_sequences or slots > old_slots:
            self._grow(slots, max(sequences, old_sequences))

    @torch.inference_mode()
    def _grow(self, slots: int, sequences: int) -> None:
        old_sequences, _, old_slots, _ = self.keys.shape
        slots = old_slots if slots <= old_slots else max(slots, 2 * old_slots)
        keys, values = (self._empty(sequences, slots) for _ in range(2))
        keys[:old_sequences, :, :old_slots] = self.keys
        values[:old_sequences, :, :old_slots] = self.values
        self.keys = keys
        self.values = values
        self.version += 1


class HeadKvSequence:
    """The head's KV rows of one request: its text first, then the tree in flight."""

    def __init__(self, pool: HeadKvPool, text: int) -> None:
        self.pool = pool
        self.index = pool.take(text + CAPACITY)
        self.text = 0
        # frees the sequence also when a request fails before it starts
        self._release = weakref.finalize(self, pool.release, self.index)
        # of tree rows, the root's first
        self.outputs = pool.layer.embedding.new_empty(CAPACITY, pool.layer.width)

    @property
    def keys(self) -> Tensor:
        """Keys of the rows, [1, kv heads, slots, d]."""
        return self.pool.keys[self.index : self.index + 1]

    @property
    def values(self) -> Tensor:
        """Values of the rows."""
        return self.pool.values[self.index : self.index + 1]

    def write(self, key: Tensor, value: Tensor, start: int) -> None:
        """Write rows from slot `start` on."""
        stop = start + key.shape[2]
        self.pool.make_room(stop)
        self.keys[:, :, start:stop] = key
        self.values[:, :, start:stop] = value

    def take(self, rows: list[int]) -> Tensor:
        """Outputs of these rows of the tree, [rows, width]."""
        return self.outputs[torch.tensor(rows, device=self.outputs.device)]

    def close(self) -> None:
        """Free the sequence."""
        self._release()
