"""Batched generation by the target: one pass adds a token to every row of a batch.

A row's random numbers are a function of its own key, so its text does not depend on its neighbours.
On a GPU the pass is captured as a CUDA graph for each shape, and the host synchronizes only every
few passes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.hf.support import layout_of, windows_of
from sapwood.backends.torch.lazy_model import whole
from sapwood.backends.torch.silence import quiet
from sapwood.train.batch_cache import BatchCache, KvArena, batch_attention, masks_of, token_bytes
from sapwood.train.decode_state import DecodeState, TextToContinue
from sapwood.train.journal import TextJournal, WrittenText

BUCKET = 128  # attention reads a multiple of this many slots
SHAPE = 256  # slots of a batch are a multiple of this, so that few shapes occur
LOGITS = 16  # bytes per row and token of the vocabulary for sampling: logits and probs
FEWEST = 16  # tokens that each text of a batch gets, however little time there is
MEMORY = 0.5  # most of the free GPU memory for keys and values
LADDER = [size for power in range(4, 15) for size in (1 << power, 3 << (power - 1))]  # 16, 24, 32..

Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Batch sizes of a device."""

    rows: int  # most rows of a batch
    check: int  # passes between two synchronizations with the host
    reading: int  # prompt tokens of one prefill pass
    graphs: bool = False  # capture passes as CUDA graphs


CPU = GenerationSettings(16, 1, 4096)
CUDA = GenerationSettings(4096, 16, 32768, graphs=True)


def nothing(_: Any) -> None:
    """Ignore the argument: the default callback."""


def never() -> bool:
    """False: the work ends by itself."""
    return False


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Callbacks of a batch that is generated."""

    tick: Tick  # gets the number of tokens of the batch
    note: Callable[[Mapping[int, WrittenText]], None]  # gets the texts so far, by row
    due: Callable[[], bool]  # True when `note` should be called
    over: Callable[[], bool]  # True ends the work


def tick_after(tick: Tick, before: int, count: int) -> None:
    """Report so many tokens of a batch after those of earlier ones."""
    tick(before + count)


def note_texts(
    journal: TextJournal | None,
    places: Sequence[int],  # number of each row's text
    before: Sequence[list[int]],  # tokens of each text before this run
    texts: Mapping[int, WrittenText],  # tokens of this run, by row
) -> None:
    """Write the texts of a batch into the journal, if there is one."""
    if journal is not None:
        journal.note(
            {
                places[row]: WrittenText(before[places[row]] + text.tokens, text.finished)
                for row, text in texts.items()
            }
        )


def continued(ask: TextToContinue, said: Sequence[int]) -> TextToContinue:
    """The rest of a text that was begun with these tokens."""
    if not said:
        return ask
    return replace(
        ask, tokens=[*ask.tokens, *said], new=ask.new - len(said), said=ask.said + len(said)
    )


def up(number: int, step: int) -> int:
    """The next multiple of the step."""
    return -(-number // step) * step


class TextGenerator(Protocol):
    """Continues texts."""

    def run(
        self,
        asks: Sequence[TextToContinue],
        ends: Sequence[int],
        tick: Tick = nothing,
        *,
        journal: TextJournal | None = None,
        over: Callable[[], bool] = never,
    ) -> list[list[int]]:
        """The tokens added to each text, the first of `ends` included."""

    def close(self) -> None:
        """Free the memory."""


class Generator:
    """Continues texts with a backend's model; `close` frees the memory."""

    def __init__(
        self,
        backend: TorchBackend,
        *,
        pace: GenerationSettings | None = None,
        # tokens of the longest text to come, if known: memory is allocated once
        longest: int = 0,
        note: Callable[[str], None] = nothing,
    ) -> None:
        self.model = whole(backend.model)
        self.device = backend.device
        self.dtype = backend.dtype
        self.note = note
        self.pace = pace or (CUDA if self.device.type == "cuda" else CPU)
        self.layout = layout_of(self.model)
        self.windows = windows_of(self.model.config.get_text_config())
        self.ends = torch.zeros(backend.info.vocab, dtype=torch.bool, device=self.device)
        self.ahead = up(longest, SHAPE)
        self.graphing = self.pace.graphs and self.device.type == "cuda"
        self.causal = False  # True while prefill needs no mask
        self.arena: KvArena | None = None
        self.boards: dict[tuple[int, int], DecodeState] = {}
        self.graphs: dict[tuple[int, ...], Any] = {}
        self.pool: Any = None  # memory that all graphs share
        self.side: Any = None  # stream of the pass before a capture
        self.budget = self._budget()

    def _budget(self) -> int:
        """Number of tokens whose keys and values fit into memory."""
        if self.device.type != "cuda":
            return 1 << 40
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(MEMORY * free) // token_bytes(self.layout)

    @torch.inference_mode()
    def run(
        self,
        asks: Sequence[TextToContinue],
        ends: Sequence[int],
        tick: Tick = nothing,
        *,
        journal: TextJournal | None = None,  # continued, and written at intervals
        over: Callable[[], bool] = never,  # True ends the work: texts stay as they are then
    ) -> list[list[int]]:
        """The tokens added to each text, the first of `ends` included; `tick` gets their count."""
        self.ends.zero_()
        self.ends[list(ends)] = True
        known = {} if journal is None else journal.texts
        made = [known[i].tokens if i in known else [] for i in range(len(asks))]
        before = sum(map(len, made))
        left = [i for i in range(len(asks)) if i not in known or not known[i].finished]
        rest = [continued(asks[i], made[i]) for i in left]
        device: Any = (
            torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        )
        with device, quiet(), batch_attention(self.model) as self.causal:
            for batch in self._batches(rest):
                note = partial(note_texts, journal, [left[index] for index in batch], made)
                due = never if journal is None else journal.is_due
                work = BatchWork(partial(tick_after, tick, before), note, due, over)
                texts = self._batch([rest[index] for index in batch], work)
                note(dict(enumerate(texts)))
                for index, text in zip(batch, texts, strict=True):
                    made[left[index]] = made[left[index]] + text.tokens
                before += sum(len(text.tokens) for text in texts)
                if over():
                    break
        if journal is not None and over():  # what was cut stays cut when a killed run goes on
            journal.note({i: WrittenText(text, finished=True) for i, text in enumerate(made)})
        return made

    def close(self) -> None:
        """Free the memory."""
        self.graphs.clear()
        self.boards.clear()
        self.arena = self.pool = self.side = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # ------------------------------------------------------------------------------- batches
    def _batches(self, asks: Sequence[TextToContinue]) -> Iterator[list[int]]:
        """Texts of similar length, longest first, as many at once as fit."""
        left = sorted(range(len(asks)), key=lambda index: (len(asks[index].tokens), index))
        while left:
            rows = self._fitting(
                up(max(len(asks[index].tokens) + asks[index].new for index in left), SHAPE)
            )
            yield left[-rows:]
            del left[-rows:]

    def _fitting(self, slots: int) -> int:
        """Most rows of this many slots; with CUDA graphs one of LADDER."""
        # memory of a row's logits, as slots
        logits = LOGITS * len(self.ends) // token_bytes(self.layout)
        rows = max(1, min(self.pace.rows, self.budget // (slots + logits)))
        return (
            max((size for size in LADDER if size <= rows), default=rows) if self.graphing else rows
        )

    def _rows(self, count: int) -> int:
        """Rows of a batch for this many texts: few shapes, since each takes a CUDA graph."""
        return next(size for size in LADDER if size >= count) if self.graphing else count

    def _room(self, rows: int, slots: int) -> KvArena:
        if self.arena is None or self.arena.tokens < rows * slots:
            self.graphs.clear()
            self.arena = None  # first, so that old and new need not fit together
            ahead = self._fitting(self.ahead) * self.ahead if self.device.type == "cuda" else 0
            self.arena = KvArena(self.layout, max(rows * slots, ahead))
        return self.arena

    def _board(self, rows: int, new: int) -> DecodeState:
        if (rows, new) not in self.boards:
            self.boards[rows, new] = DecodeState(rows, new, self.device)
        return self.boards[rows, new]

    def _batch(self, asks: Sequence[TextToContinue], work: "BatchWork") -> list[WrittenText]:
        """Continue these texts together; when half of the rows are finished, shrink the batch."""
        slots = up(max(len(ask.tokens) + ask.new for ask in asks), SHAPE)
        new = up(max(a.new for a in asks), BUCKET)
        board = self._board(self._rows(len(asks)), new)
        sampled = any(ask.temperature for ask in asks)
        arena = self._room(board.rows, slots)
        board.fill(asks)
        self._prefill(asks, BatchCache(self.layout, arena.view(board.rows, slots)))
        texts = [WrittenText([], finished=False) for _ in asks]
        owners = list(range(len(asks)))  # which text each row continues
        while True:
            made, places, done = board.look()
            # of texts that have left the batch
            gone = sum(len(text.tokens) for i, text in enumerate(texts) if i not in owners)
            work.tick(gone + sum(made[: len(owners)]))
            live = [row for row in range(len(owners)) if not done[row]]
            size = self._rows(len(live)) if live else 0
            ends = work.over() and min((made[row] for row in live), default=0) >= FEWEST
            if ends or work.due():
                out = board.out.tolist()
                for row, owner in enumerate(owners):
                    texts[owner] = WrittenText(out[row][: made[row]], bool(done[row]))
                if ends:
                    return texts
                work.note(dict(enumerate(texts)))
                for owner in (owners[row] for row in live):
                    texts[owner] = WrittenText([], finished=False)
            if 2 * size > board.rows:
                self._advance(board, slots, sampled, max(places[row] for row in live))
                continue
            out = board.out.tolist()
            for row, owner in enumerate(owners):
                if done[row]:
                    texts[owner] = WrittenText(out[row][: made[row]], finished=True)
            if not live:
                return texts
            smaller = self._board(size, new)
            smaller.take(board, live)
            arena.shrink(
                board.rows,
                slots,
                torch.tensor(live + live[:1] * (size - len(live)), device=self.device),
            )
            board = smaller
            owners = [owners[row] for row in live]

    # -------------------------------------------------------------------------------- passes
    def _prefill(self, asks: Sequence[TextToContinue], cache: BatchCache) -> None:
        """Compute the keys and values of all but the last token of each text."""
        rows = max(1, self.pace.reading // max(len(ask.tokens) for ask in asks))
        for start in range(0, len(asks), rows):
            texts = [ask.tokens[:-1] for ask in asks[start : start + rows]]
            width = max(map(len, texts))
            if not width:
                continue
            tokens = np.zeros((len(texts), width), np.int64)
            for row, text in enumerate(texts):
                tokens[row, : len(text)] = text
            cache.read(slice(start, start + len(texts)))
            places = torch.arange(width, device=self.device)[None]
            self.model.base_model(
                input_ids=torch.from_numpy(tokens).to(self.device),
                position_ids=places.expand(len(texts), width),
                attention_mask=masks_of(self.windows, places, width, self.dtype, self.causal),
                past_key_values=cache,
                use_cache=True,
            )

    def _advance(self, board: DecodeState, slots: int, sampled: bool, longest: int) -> None:
        """Run passes until the next synchronization; `longest` is the furthest unfinished place."""
        assert self.arena is not None
        keys = min(slots, up(longest + self.pace.check, BUCKET))
        passes = self.pace.check
        cache = BatchCache(self.layout, self.arena.view(board.rows, slots))

        def step() -> None:
            self._pass(board, cache, keys, sampled)

        shape = (*board.out.shape, slots, keys, int(sampled))
        if self.graphing and shape not in self.graphs:
            self._capture(shape, step)
            passes -= 1
        run = self.graphs[shape].replay if self.graphing else step
        for _ in range(passes):
            run()

    def _pass(self, board: DecodeState, cache: BatchCache, keys: int, sampled: bool) -> None:
        cache.extend(board.place, keys)
        out = self.model(
            input_ids=board.token[:, None],
            position_ids=board.place[:, None],
            attention_mask=masks_of(
                self.windows, board.place[:, None], keys, self.dtype, causal=False
            ),
            past_key_values=cache,
            use_cache=True,
        )
        board.accept(board.draw(out.logits[:, 0], sampled), self.ends)

    def _capture(self, shape: tuple[int, ...], step: Callable[[], None]) -> None:
        """Run one pass eagerly, which loads kernels, then capture it; eager for good on failure."""
        cuda: Any = torch.cuda  # partly untyped
        self.side = self.side or cuda.Stream(self.device)
        self.pool = self.pool or cuda.graph_pool_handle()
        here = cuda.current_stream(self.device)
        self.side.wait_stream(here)
        with cuda.stream(self.side):
            step()
        here.wait_stream(self.side)
        graph = cuda.CUDAGraph()
        try:
            with cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                step()
        except RuntimeError as error:
            cuda.set_stream(here)  # a failed capture does not restore the stream
            self.graphing = False
            self.graphs.clear()
            self.note(
                "generating without CUDA graphs, which this model does not allow: "
                f"{str(error).splitlines()[0]}"
            )
            return
        self.graphs[shape] = graph
