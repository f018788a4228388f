"""Keys and values of all sessions in one static buffer for captured passes; one sequence each.

Slot i below a sequence's length holds its committed token i; node i of the tree in flight lies in
slot length + i. Keeping a path is one gather over all layers.
"""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.kv_slots import KvLayout, KvSlots
from sapwood.errors import OutOfMemory

CHUNK = 32  # slots that one launch moves
MOVES = 512  # paths that may wait to be moved
SHARE = 0.4  # of the free memory of the device that keys and values may take


class PendingMoves:
    """Moves of accepted paths that wait for the next pass, which runs all of them at once."""

    def __init__(self, device: torch.device) -> None:
        pinned = device.type == "cuda"
        size = (MOVES, 2 + CHUNK)
        self.waiting: dict[int, tuple[int, list[int]]] = {}  # sequence -> first target, sources
        self.on_device = torch.zeros(size, dtype=torch.int64, device=device)
        # two in turn: the device may still read the last one
        self.host = [torch.zeros(size, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]

    def table(self, slots: int) -> Tensor:
        """The moves that wait, in slots of all sequences, [moves, 2 + CHUNK]; none wait then."""
        self.host.reverse()
        lines = self.host[0].numpy()
        for line, (sequence, (start, sources)) in zip(lines, self.waiting.items(), strict=False):
            first = sequence * slots
            line[0] = first + start
            line[1] = len(sources)
            line[2 : 2 + len(sources)] = [first + source for source in sources]
        count = len(self.waiting)
        self.waiting.clear()
        found = self.on_device[:count]
        found.copy_(self.host[0][:count], non_blocking=True)
        return found


class CudaKvPool:
    """Slots of all KV sequences, [2 * layers, sequences, slots, kv heads, width].

    Keys and values of a layer are neighbours in the first dimension.
    """

    def __init__(self, layers: int, heads: HeadSizes, like: Tensor, slots: int) -> None:
        self.layers = layers
        self.heads = heads
        self.like = like
        self.kept = self._empty(1, slots)
        self.free = [0]
        self.moves = PendingMoves(like.device)
        self.version = 0  # how often the buffer was replaced, which voids captured passes
        self._max_slots: int | None = None  # slots of all sequences together

    def _empty(self, sequences: int, slots: int) -> Tensor:
        # zeros: masked values are multiplied by 0, so they must be finite
        return self.like.new_zeros(
            2 * self.layers, sequences, slots, self.heads.keys, self.heads.width
        )

    @property
    def sequences(self) -> int:
        """KV sequences in the buffer."""
        return self.kept.shape[1]

    @property
    def slots(self) -> int:
        """Slots of each sequence."""
        return self.kept.shape[2]

    # -------------------------------------------------------------------------- memory accounting
    cached = 0  # there is no prefix cache

    @property
    def block(self) -> int:
        """Slots of a sequence; a text takes a whole sequence."""
        return self.slots

    @property
    def blocks(self) -> int | None:
        """Most sequences that the limit allows; None without a limit."""
        return (
            None if self._max_slots is None else max(self._max_slots // self.slots, self.sequences)
        )

    @property
    def used(self) -> int:
        """Sequences in use."""
        return self.sequences - len(self.free)

    def fits(self, tokens: int) -> bool:
        """True when one more text of this many tokens has room."""
        if self._max_slots is None:
            return True
        if tokens <= self.slots:
            return bool(self.free) or (self.sequences + 1) * self.slots <= self._max_slots
        sequence = min(self.free, default=self.sequences)  # the one that `take` would give
        return (1 + max(sequence, self._last())) * tokens <= self._max_slots

    def _last(self) -> int:
        """The last sequence in use; -1 if none is."""
        free = set(self.free)
        return next(
            (sequence for sequence in reversed(range(self.sequences)) if sequence not in free), -1
        )

    def forget(self) -> None:
        """Clear the prefix cache, of which there is none."""

    def limit(self, tokens: int) -> None:
        """Limit the slots of all sequences together; existing ones stay."""
        self._max_slots = tokens

    def _check(self, sequences: int, slots: int) -> None:
        if self._max_slots is not None and sequences * slots > self._max_slots:
            raise OutOfMemory(
                f"{sequences} sequences of {slots} tokens do not fit memory's {self._max_slots}; "
                "wait until a text is closed, or give memory more tokens"
            )

    def planes(self, layer: int) -> Tensor:
        """Keys and values of a layer, [2, sequences, slots, kv heads, width]."""
        return self.kept[2 * layer : 2 * layer + 2]

    @property
    def free_tokens(self) -> int:
        """Further slots that the free memory of the device has room for."""
        each = self.kept[:, 0, 0].numel() * self.kept.element_size()
        if not self.kept.is_cuda:
            return self.sequences * self.slots
        free, _ = torch.cuda.mem_get_info(self.kept.device)
        # while the buffer grows there are two of them
        return int(SHARE * free) // each

    def allocate(self, sequences: int) -> None:
        """Make room for this many sequences, as far as the limit allows."""
        if self._max_slots is not None:
            sequences = min(sequences, self._max_slots // self.slots)
        if sequences > self.sequences:
            self._resize(sequences, self.slots)

    def take(self) -> int:
        """Take the first free sequence: those at the end can then be given up for longer ones."""
        if not self.free:
            self._check(self.sequences + 1, self.slots)
            most = 2 * self.sequences if self._max_slots is None else self._max_slots // self.slots
            self._resize(min(2 * self.sequences, most), self.slots)
        sequence = min(self.free)
        self.free.remove(sequence)
        return sequence

    def release(self, sequence: int) -> None:
        """Free a sequence."""
        self.moves.waiting.pop(sequence, None)
        self.free.append(sequence)

    def reserve(self, slots: int) -> None:
        """Make room for this many slots in every sequence, if needed by giving up free ones."""
        if slots > self.slots:
            sequences = self.sequences
            if self._max_slots is not None:
                sequences = min(sequences, max(self._last() + 1, self._max_slots // slots, 1))
            self._check(sequences, slots)
            most = 2 * self.slots if self._max_slots is None else self._max_slots // sequences
            self._resize(sequences, max(slots, min(2 * self.slots, most)))

    def _resize(self, sequences: int, slots: int) -> None:
        self.run_moves()
        old = self.kept
        both = min(sequences, self.sequences)
        free = [sequence for sequence in self.free if sequence < sequences] + list(
            range(self.sequences, sequences)
        )
        self.kept = self._empty(sequences, slots)
        self.kept[:, :both, : old.shape[2]] = old[:, :both]
        self.free = free
        self.version += 1

    def copy(self, origin: int, sequence: int, used: int) -> None:
        """Copy the first slots of one sequence to another."""
        self.run_moves()
        self.kept[:, sequence, :used] = self.kept[:, origin, :used]

    def move_later(self, sequence: int, sources: list[int], start: int) -> None:
        """Move slots, ascending and never below their targets, before the next pass."""
        waiting = self.moves.waiting
        if len(sources) > CHUNK or len(waiting) == MOVES or sequence in waiting:
            self.move(sequence, torch.tensor(sources, device=self.kept.device), start)
        else:
            waiting[sequence] = start, sources

    @torch.inference_mode()
    def run_moves(self) -> None:
        """Run the moves that wait."""
        if self.moves.waiting:
            from sapwood.backends.torch.cuda.kernels import kv_move

            kv_move.move_many(self.kept, self.moves.table(self.slots), CHUNK)

    def move(self, sequence: int, sources: Tensor, start: int, base: int = 0) -> None:
        """Copy slots base + sources, ascending and never below their targets, to start, ..."""
        from sapwood.backends.torch.cuda.kernels import kv_move

        self.run_moves()
        first = sequence * self.slots
        for at in range(0, len(sources), CHUNK):
            part = sources[at : at + CHUNK]
            kv_move.move(self.kept, part, first + base, first + start + at, CHUNK)

    def keep(self, path: Tensor, facts: Tensor) -> None:
        """Run the pending move of an accepted path, given by `PassArgs`; at most CHUNK nodes."""
        from sapwood.backends.torch.cuda.kernels import kv_move

        kv_move.keep(self.kept, path, facts, CHUNK)


class KvSequence(KvSlots):
    """The slots of one session; freed on release or garbage collection."""

    contiguous = True

    def __init__(self, pool: CudaKvPool, layout: KvLayout, used: int) -> None:
        self.pool = pool
        self.layout = layout
        self.index = pool.take()
        self._release = weakref.finalize(self, pool.release, self.index)
        self.reserve(used, 0)

    def release(self) -> None:
        """Free the slots."""
        self._release()

    @property
    def first(self) -> int:
        """Index of its first slot among the slots of all sequences."""
        return self.index * self.pool.slots

    def reserve(self, size: int, used: int) -> None:
        """Make room for `size` slots; all slots keep their contents."""
        self.pool.reserve(size)

    @torch.inference_mode()
    def copy(self, used: int) -> "KvSequence":
        """A new sequence with a copy of the first `used` slots."""
        new = KvSequence(self.pool, self.layout, used)
        self.pool.copy(self.index, new.index, used)
        return new

    @torch.inference_mode()
    def gather(self, sources: Tensor, start: int, base: int) -> None:
        """Copy the slots base + sources, a tensor on the device, as `CudaKvPool.move` does."""
        self.pool.move(self.index, sources, start, base)

    @torch.inference_mode()
    def move(self, slots: Sequence[int], start: int) -> None:
        """Copy these slots, ascending and never below their targets, to `start` and on."""
        self.pool.move_later(self.index, list(slots), start)
