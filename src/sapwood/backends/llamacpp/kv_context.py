"""One llama.cpp context for all sessions of a backend: KV cells, and sequences over them.

A cell belongs to any number of sequences, so a fork or a branch copies no keys. Attention sums in
the order of cells, and quantised weights amplify the smallest difference, so the cells of a text
must be in the order of its tokens if a tree is to score what plain decoding scores, bit for bit.
Hence cells are freed from the end only: others stay retired, in a sequence that no row reads, until
the context is full and everything moves to a new one, in order.
"""

import ctypes
import heapq
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sapwood.backends.llamacpp.weights import GgufModel
from sapwood.core.array_types import BoolArray, FloatArray, IntArray
from sapwood.errors import OutOfMemory, SapwoodError

ROWS = 512  # most tokens of one decode; more go in several
CELLS = 4096  # of the first context
FULL = 1  # return code of a decode that finds no free cells
BF16 = 30  # the number of this format in ggml
END = -1  # no end of a range of positions


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Tokens to decode, with positions and sequences; each attends to its first sequence."""

    tokens: IntArray
    positions: IntArray
    lanes: Sequence[Sequence[int]]

    def __getitem__(self, span: slice) -> "DecodeRows":
        return DecodeRows(self.tokens[span], self.positions[span], self.lanes[span])


class KvContext:
    """A context, its cells and its sequence ids."""

    def __init__(self, weights: GgufModel, threads: int) -> None:
        self._weights = weights
        self._threads = threads
        self._llama = weights.llama
        self.vocab = weights.vocab
        self._lanes: int = self._llama.llama_max_parallel_sequences()
        self._retired = 0  # the sequence of cells that must not be used again
        self._free = list(range(1, self._lanes))  # a heap: low ids first
        # first sequence of each open session -> cells that it needs, about
        self.sessions: dict[int, int] = {}
        self._cells = CELLS
        self._context = self._new_context()
        self._most: int | None = None  # cells that sessions may need in all

    # -------------------------------------------------------------------------- memory accounting
    block = 1  # tokens of a cell; there is no prefix cache
    cached = 0

    @property
    def blocks(self) -> int | None:
        """Most cells that sessions may need; None without a limit."""
        return self._most

    @property
    def used(self) -> int:
        """Cells that open sessions need; those that forks share are counted for each."""
        return sum(self.sessions.values())

    def fits(self, tokens: int) -> bool:
        """True when one more text of this many tokens has room."""
        return self._most is None or self.used + tokens <= self._most

    def limit(self, tokens: int) -> None:
        """Limit the cells of all sessions together."""
        self._most = tokens

    def check(self, wanted: Mapping[int, int]) -> None:
        """Refuse a pass after which sessions, by first sequence, would need too many cells."""
        need = sum({**self.sessions, **wanted}.values())
        if self._most is not None and need > self._most:
            raise OutOfMemory(
                f"a pass that needs {need} cells does not fit memory's {self._most}; "
                "wait until a text is closed, or give memory more tokens"
            )

    def _new_context(self) -> Any:
        llama = self._llama
        params = self._llama.llama_context_default_params()
        params.n_ctx = self._cells
        params.n_batch = params.n_ubatch = ROWS
        params.n_seq_max = self._lanes
        params.n_threads = params.n_threads_batch = self._threads
        params.kv_unified = True  # branches share cells
        params.swa_full = True  # a sliding window must not throw away what a rewind needs
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if not self._weights.gpu:
            # keys over which attention adds up a row in one order, however many rows there are
            params.type_k = BF16
        params.no_perf = True
        context = llama.llama_init_from_model(self._weights.model, params)
        if not context:
            raise SapwoodError(
                f"llama.cpp found no memory for {self._cells} tokens; use a smaller model"
            )
        self._release = weakref.finalize(self, llama.llama_free, context)
        self._sequences = llama.llama_get_memory(context)
        return context

    def _move(self) -> None:
        """Move all live cells to a new context, in order, with room for twice as many."""
        llama = self._llama
        old = self._context
        release = self._release
        llama.llama_memory_seq_rm(self._sequences, self._retired, 0, END)
        size = llama.llama_state_get_size(old)
        state = (ctypes.c_uint8 * size)()
        llama.llama_state_get_data(old, state, size)
        while self._cells < 2 * (sum(self.sessions.values()) + ROWS):
            self._cells *= 2
        self._context = self._new_context()
        release()
        if llama.llama_state_set_data(self._context, state, size) == 0:
            raise SapwoodError(
                f"llama.cpp could not move its memory to {self._cells} cells; use a shorter text"
            )

    # ------------------------------------------------------------------------------- sequences
    def take(self) -> int:
        """An empty sequence."""
        if not self._free:
            raise SapwoodError(
                f"all {self._lanes} sequences of llama.cpp are in use; use smaller trees"
            )
        return heapq.heappop(self._free)

    def give(self, lane: int) -> None:
        """Empty a sequence and free it."""
        self.truncate(lane, 0)
        heapq.heappush(self._free, lane)

    def truncate(self, lane: int, start: int) -> None:
        """Remove the cells from position `start` on from a sequence."""
        if len(self.sessions) > 1:  # a cell of one session may lie before those of another
            self.share(lane, self._retired, start, END)
        self._llama.llama_memory_seq_rm(self._sequences, lane, start, END)

    def share(self, source: int, lane: int, start: int, end: int) -> None:
        """Add the cells of `source` at positions start to end - 1 to another sequence."""
        self._llama.llama_memory_seq_cp(self._sequences, source, lane, start, end)

    def retire(self, lane: int, position: int) -> None:
        """Keep one cell of a sequence from being used again."""
        self.share(lane, self._retired, position, position + 1)

    def release(self, lanes: Sequence[int]) -> None:
        """Free the sequences of a closed session; the first one is its name."""
        for lane in lanes:
            self.give(lane)
        self.sessions.pop(lanes[0], None)
        if not self.sessions:
            self._llama.llama_memory_seq_rm(self._sequences, self._retired, 0, END)

    # ---------------------------------------------------------------------------------- a pass
    def decode(self, rows: DecodeRows, last: int) -> FloatArray:
        """Run the rows; logits of the last ones, float32 [last, vocab]."""
        count = len(rows.tokens)
        wanted = np.arange(count) >= count - last
        spans = [slice(start, start + ROWS) for start in range(0, count, ROWS)]
        parts = [self._decode(rows[span], wanted[span]) for span in spans]
        return (
            parts[0]
            if len(parts) == 1
            else np.concatenate([np.empty((0, self.vocab), np.float32), *parts])
        )

    def _decode(self, rows: DecodeRows, wanted: BoolArray) -> FloatArray:
        batch, arrays = self._batch(rows, wanted)
        code = self._llama.llama_decode(self._context, batch)
        if code == FULL:
            self._move()
            code = self._llama.llama_decode(self._context, batch)
        del arrays  # the batch points into them
        if code != 0:
            raise SapwoodError(
                f"llama.cpp could not run a pass over {len(rows.tokens)} tokens (code {code})"
            )
        count = int(wanted.sum())
        if not count:
            return np.empty((0, self.vocab), np.float32)
        # overwritten by the next pass, hence the copy
        logits = self._llama.llama_get_logits(self._context)
        found: FloatArray = np.ctypeslib.as_array(logits, (count, self.vocab)).copy()
        return found

    def _batch(self, rows: DecodeRows, wanted: BoolArray) -> tuple[Any, list[Any]]:
        """The C structure for these rows, and the arrays it points into."""
        sizes = np.array([len(lanes) for lanes in rows.lanes], np.int32)
        flat = np.array([lane for lanes in rows.lanes for lane in lanes], np.int32)
        starts = flat.ctypes.data + flat.itemsize * (
            np.cumsum(sizes, dtype=np.uint64) - sizes.astype(np.uint64)
        )
        tokens = rows.tokens.astype(np.int32)
        positions = rows.positions.astype(np.int32)
        flags = wanted.astype(np.int8)
        arrays: list[Any] = [tokens, positions, sizes, starts, flags, flat]
        fields = dict(self._llama.llama_batch._fields_)
        batch = self._llama.llama_batch(n_tokens=len(tokens))
        for name, array in zip(
            ("token", "pos", "n_seq_id", "seq_id", "logits"), arrays, strict=False
        ):
            setattr(batch, name, ctypes.cast(array.ctypes.data, fields[name]))
        return batch, arrays
