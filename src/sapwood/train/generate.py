"""Many texts continued at once by the target: one pass adds a token to every row of a batch.

A row's noise is a function of its own key, so its text does not depend on its neighbours. On a GPU
the pass is captured as a CUDA graph for each shape, and the host looks only every few passes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.torch.on_disk import whole
from sapwood.backends.torch.quiet import quiet
from sapwood.backends.torch.support import layout_of, windows_of
from sapwood.train.board import Ask, Board
from sapwood.train.rows import Arena, RowsCache, batch_attention, masks_of, token_bytes

BUCKET = 128  # attention reads a multiple of so many slots
SHAPE = 256  # slots of a batch are a multiple of this, so that few shapes occur
LOGITS = 16  # bytes per row and word of the vocabulary that choosing a token takes: logits and their law
MEMORY = 0.5  # most of the free GPU memory that keys and values may take
LADDER = [size for power in range(4, 15) for size in (1 << power, 3 << (power - 1))]  # 16, 24, 32, 48, ...

Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """How a device likes its work."""

    rows: int  # most rows of a batch
    check: int  # passes between two looks at what is finished
    reading: int  # prompt tokens of one pass
    graphs: bool = False  # capture passes as CUDA graphs


CPU, CUDA = Pace(16, 1, 4096), Pace(4096, 16, 32768, graphs=True)


def nothing(_: Any) -> None:
    """Stands in where nobody listens."""


def up(number: int, step: int) -> int:
    """The next multiple of the step."""
    return -(-number // step) * step


class Generator:
    """Continues texts with a backend's model; `close` gives the memory back."""

    def __init__(
        self,
        backend: TorchBackend,
        *,
        pace: Pace | None = None,
        longest: int = 0,  # tokens of the longest text to come, where it is known: memory is taken once
        note: Callable[[str], None] = nothing,
    ) -> None:
        self.model, self.device, self.dtype, self.note = whole(backend.model), backend.device, backend.dtype, note
        self.pace = pace or (CUDA if self.device.type == "cuda" else CPU)
        self.layout, self.windows = layout_of(self.model), windows_of(self.model.config.get_text_config())
        self.ends = torch.zeros(backend.info.vocab, dtype=torch.bool, device=self.device)
        self.ahead, self.graphing = up(longest, SHAPE), self.pace.graphs and self.device.type == "cuda"
        self.causal = False  # True while attention needs no mask to read a prompt
        self.arena: Arena | None = None
        self.boards: dict[tuple[int, int], Board] = {}
        self.graphs: dict[tuple[int, ...], Any] = {}
        self.pool: Any = None  # memory that all graphs share
        self.side: Any = None  # stream of the pass before a capture
        self.budget = self._budget()

    def _budget(self) -> int:
        """Tokens whose keys and values fit the memory."""
        if self.device.type != "cuda":
            return 1 << 40
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(MEMORY * free) // token_bytes(self.layout)

    @torch.inference_mode()
    def run(self, asks: Sequence[Ask], ends: Sequence[int], tick: Tick = nothing) -> list[list[int]]:
        """The tokens added to each text, up to and with the first of `ends`; `tick` hears their number so far."""
        self.ends.zero_()
        self.ends[list(ends)] = True
        made: list[list[int]] = [[] for _ in asks]
        before = 0
        device: Any = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with device, quiet(), batch_attention(self.model) as self.causal:
            for batch in self._batches(asks):
                texts = self._batch([asks[index] for index in batch], before, tick)
                for index, text in zip(batch, texts, strict=True):
                    made[index] = text
                before += sum(map(len, texts))
        return made

    def close(self) -> None:
        """Give the memory back."""
        self.graphs.clear()
        self.boards.clear()
        self.arena = self.pool = self.side = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # ---------------------------------------------------------------------------------- batches
    def _batches(self, asks: Sequence[Ask]) -> Iterator[list[int]]:
        """Texts of similar length, longest first, as many at once as fit."""
        left = sorted(range(len(asks)), key=lambda index: (len(asks[index].tokens), index))
        while left:
            rows = self._fitting(up(max(len(asks[index].tokens) + asks[index].new for index in left), SHAPE))
            yield left[-rows:]
            del left[-rows:]

    def _fitting(self, slots: int) -> int:
        """Most rows of so many slots; on a GPU a size of the ladder, since they are filled up to one."""
        logits = LOGITS * len(self.ends) // token_bytes(self.layout)  # in tokens' worth of memory
        rows = max(1, min(self.pace.rows, self.budget // (slots + logits)))
        return max((size for size in LADDER if size <= rows), default=rows) if self.graphing else rows

    def _rows(self, count: int) -> int:
        """Rows of a batch for so many texts: few shapes where each takes a graph."""
        return next(size for size in LADDER if size >= count) if self.graphing else count

    def _room(self, rows: int, slots: int) -> Arena:
        if self.arena is None or self.arena.tokens < rows * slots:
            self.graphs.clear()
            self.arena = None  # first, so that old and new need not fit together
            ahead = self._fitting(self.ahead) * self.ahead if self.device.type == "cuda" else 0
            self.arena = Arena(self.layout, max(rows * slots, ahead))
        return self.arena

    def _board(self, rows: int, new: int) -> Board:
        if (rows, new) not in self.boards:
            self.boards[rows, new] = Board(rows, new, self.device)
        return self.boards[rows, new]

    def _batch(self, asks: Sequence[Ask], before: int, tick: Tick) -> list[list[int]]:
        """Continue these texts side by side; when half of the rows are finished, go on with the others."""
        slots, new = up(max(len(ask.tokens) + ask.new for ask in asks), SHAPE), up(max(a.new for a in asks), BUCKET)
        board, sampled = self._board(self._rows(len(asks)), new), any(ask.temperature for ask in asks)
        arena = self._room(board.rows, slots)
        board.fill(asks)
        self._read(asks, RowsCache(self.layout, arena.view(board.rows, slots)))
        texts: list[list[int]] = [[] for _ in asks]
        owners = list(range(len(asks)))  # which text each row continues
        while True:
            made, places, done = board.look()
            tick(before + sum(map(len, texts)) + sum(made[: len(owners)]))
            live = [row for row in range(len(owners)) if not done[row]]
            size = self._rows(len(live)) if live else 0
            if 2 * size > board.rows:
                self._advance(board, slots, sampled, max(places[row] for row in live))
                continue
            said = board.out.tolist()
            for row, owner in enumerate(owners):
                texts[owner] = said[row][: made[row]] if done[row] else []
            if not live:
                return texts
            smaller = self._board(size, new)
            smaller.take(board, live)
            arena.shrink(board.rows, slots, torch.tensor(live + live[:1] * (size - len(live)), device=self.device))
            board, owners = smaller, [owners[row] for row in live]

    # ----------------------------------------------------------------------------------- passes
    def _read(self, asks: Sequence[Ask], cache: RowsCache) -> None:
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

    def _advance(self, board: Board, slots: int, sampled: bool, longest: int) -> None:
        """Some passes, until it is time to look; `longest` is the furthest place of a row that goes on."""
        assert self.arena is not None
        keys, passes = min(slots, up(longest + self.pace.check, BUCKET)), self.pace.check
        cache = RowsCache(self.layout, self.arena.view(board.rows, slots))

        def step() -> None:
            self._pass(board, cache, keys, sampled)

        shape = (*board.out.shape, slots, keys, int(sampled))
        if self.graphing and shape not in self.graphs:
            self._capture(shape, step)
            passes -= 1
        run = self.graphs[shape].replay if self.graphing else step
        for _ in range(passes):
            run()

    def _pass(self, board: Board, cache: RowsCache, keys: int, sampled: bool) -> None:
        cache.extend(board.place, keys)
        out = self.model(
            input_ids=board.token[:, None],
            position_ids=board.place[:, None],
            attention_mask=masks_of(self.windows, board.place[:, None], keys, self.dtype, causal=False),
            past_key_values=cache,
            use_cache=True,
        )
        board.accept(board.draw(out.logits[:, 0], sampled), self.ends)

    def _capture(self, shape: tuple[int, ...], step: Callable[[], None]) -> None:
        """Run one pass as it is, which loads what kernels need, then capture it; where that fails, do without."""
        cuda: Any = torch.cuda  # parts of it have no types
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
            cuda.set_stream(here)  # a capture that breaks off does not come back by itself
            self.graphing = False
            self.graphs.clear()
            self.note(f"generating without CUDA graphs, which this model does not allow: {str(error).splitlines()[0]}")
            return
        self.graphs[shape] = graph
