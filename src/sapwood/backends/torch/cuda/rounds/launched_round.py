"""A launched round: its arguments go to the device, its results to the host, a transfer each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.batch_buffers import BatchResult, DraftedTree, PrunedTree
from sapwood.backends.torch.cuda.draft.device_tree import PLACES
from sapwood.backends.torch.cuda.draft.head_kv_pool import HeadKvSequence
from sapwood.backends.torch.cuda.pass_inputs import MAX_ROWS
from sapwood.backends.torch.cuda.rounds.round_reference import ARGS, BEFORE, OWN, TEXT
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.device_rounds import RoundResult
from sapwood.core.protocols import TargetOutput
from sapwood.core.tree import LazyTree, Tree
from sapwood.core.types import Verdict

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.rounds.device_rounds import DeviceRounds

Event: Any = torch.cuda.Event  # it has no types
TREE = ("tokens", "parents", "depths", "ranks", "probs", "reach")
ON_THEIR_WAY = 3  # transfers of arguments: of a round, of the one behind it, and a spare
OVERWRITTEN = "a later round overwrote these scores; score the tree in a pass of its own"


class BatchArgsBuffer:
    """Arguments of up to `requests` requests on the device, and how many are there."""

    def __init__(self, device: torch.device, requests: int) -> None:
        self.words = torch.zeros(requests * ARGS + 1, dtype=torch.int64, device=device)
        self.args = self.words[:-1].view(requests, ARGS)
        self.live = self.words[-1:]
        # of sampled rows: noise keys and temperatures
        self.keys = torch.zeros(MAX_ROWS, dtype=torch.int64, device=device)
        self.heat = torch.zeros(MAX_ROWS, dtype=torch.float64, device=device)
        pinned = device.type == "cuda"
        self.hosts = [
            torch.zeros(requests * ARGS + 1, dtype=torch.int64, pin_memory=pinned)
            for _ in range(ON_THEIR_WAY)
        ]
        self.turn = 0

    def blank(self, padding: Sequence[int]) -> tuple[Tensor, IntArray]:
        """Arguments on the host without a request, and their lines, [requests, ARGS]."""
        self.turn = (self.turn + 1) % len(self.hosts)
        host = self.hosts[self.turn]
        words: IntArray = host.numpy()
        words[:] = 0
        lines = words[:-1].reshape(-1, ARGS)
        lines[:, BEFORE] = -1
        lines[:, OWN:TEXT] = padding
        return host, lines


@dataclass(frozen=True)
class ResultColumns:
    """The words of a request's round that come to the host: the verdict and the pruned tree."""

    depth: int
    rows: int  # of the pruned tree, the root included

    @property
    def path(self) -> int:
        """Words of the verdict: length of the path, bonus, path."""
        return 2 + self.depth + 1

    @cached_property
    def index(self) -> IntArray:
        """Index of each word among those of a round."""
        starts = [PLACES[name].start for name in TREE]
        parts = [PLACES["verdict"].start + np.arange(self.path)]
        parts += [start + np.arange(self.rows) for start in starts]
        return np.concatenate(parts)


@cache
def result_columns(depth: int, rows: int) -> ResultColumns:
    """The cached columns of trees of this depth and so many rows."""
    return ResultColumns(depth, rows)


class RoundTree(LazyTree):
    """The verified tree of one request; its columns are views of the round's transfer."""

    def __init__(self, words: IntArray, columns: ResultColumns, source: int) -> None:
        super().__init__(columns.rows)
        start = columns.path
        self._tokens = words[start : start + columns.rows]  # the other columns are seldom read
        self._words = words
        self._columns = columns
        self._source = source
        self.kept = None

    def load(self) -> None:
        """Set all columns."""
        rows, start = self._columns.rows, self._columns.path
        parts = self._words[start:].reshape(len(TREE), rows)
        own = self.__dict__
        for name, column in zip(TREE, parts, strict=True):
            own[f"_{name}"] = column.view(np.float64) if name in ("probs", "reach") else column
        depths = own["_depths"]
        own["_sources"] = (depths > 0).astype(np.int64) << self._source
        own["_sampled"] = np.zeros(rows, bool)
        own["_expanded"] = np.zeros(rows, bool)
        own["valued"] = rows
        own["_known"] = False  # chosen children are looked up when a child is first added


class PathOutput(TargetOutput):
    """Hidden states of one accepted path; logits are gone."""

    def __init__(self, launched: "CudaRound", index: int) -> None:
        self._launched = launched
        self._index = index

    def argmax(self) -> IntArray:
        """Refused: the logits are gone."""
        raise ValueError(OVERWRITTEN)

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Refused: the logits are gone."""
        raise ValueError(OVERWRITTEN)

    def logits(self, row: int) -> FloatArray:
        """Refused: the logits are gone."""
        raise ValueError(OVERWRITTEN)

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of the accepted path on the device, [rows, layers * width]."""
        rounds = self._launched.rounds
        if rounds.last is not self._launched:
            raise ValueError(OVERWRITTEN)
        return rounds.features[self._index, : len(rows)].clone()


class CudaRound:
    """A round that was launched; accepted paths are committed when it is read."""

    def __init__(
        self,
        rounds: "DeviceRounds",
        columns: ResultColumns,
        count: int,
        sessions: Sequence[CudaSession],
        caches: Sequence[HeadKvSequence],
        *,
        sources: Sequence[int],
        draft_seconds: float,
    ) -> None:
        self.rounds = rounds
        self.columns = columns
        self.sessions = sessions
        self.caches = caches
        self.sources = sources
        self.draft_seconds = draft_seconds
        # most tokens that a request may add, while they are not known
        self.longest = columns.depth + 1
        self.followed: set[int] = set()  # requests that the next round goes on with
        self.drafted_result: BatchResult | None = None
        pinned = rounds.device.type == "cuda"
        size = count, len(columns.index)
        self._host = torch.empty(size, dtype=torch.int64, pin_memory=pinned)
        self.arrival: Any = Event() if pinned else None
        self._results: list[RoundResult] | None = None

    def send(self, results: Tensor) -> None:
        """Start the transfer of the results of all requests."""
        self._host.copy_(results[: len(self._host)], non_blocking=True)

    def record(self) -> None:
        """Record the end of the transfer."""
        if self.arrival is not None:
            self.arrival.record()

    def read(self) -> Sequence[RoundResult]:
        """Wait for the round; commit accepted paths, and return the result of each request."""
        if self._results is None:
            if self.arrival is not None:
                self.arrival.synchronize()
            self._results = self._read()
        return self._results

    def _read(self) -> list[RoundResult]:
        words = self._host.numpy()
        found = []
        verdicts = words[:, : self.columns.path].tolist()
        for index, (session, line) in enumerate(zip(self.sessions, verdicts, strict=True)):
            count, bonus = line[:2]
            context = session.length
            if not session.closed:
                session.advance(count)
            if index in self.followed:
                self.caches[index].text += count
            tree = RoundTree(words[index], self.columns, self.sources[index])
            found.append(RoundResult(context, tree, Verdict(tuple(line[2 : 2 + count]), bonus)))
        return found

    def drafted(self) -> Tree:
        """The tree of the request to learn from as it was drafted, with its `pruned` tree."""
        result = self.drafted_result
        assert result is not None
        [marks] = result.trees
        tree = DraftedTree(result, 0, marks.size)
        tree.pruned = PrunedTree(result, 0, marks.nodes)
        return tree

    def output(self, index: int) -> TargetOutput:
        """Hidden states of a request's accepted path, until the next round is launched."""
        return PathOutput(self, index)
