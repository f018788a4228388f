"""Arguments and results of a draft for several requests: one transfer to the device, one back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import PLACES, RoundFields
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.eagle_layer import CELLS, LevelSizes
from sapwood.backends.torch.cuda.draft.reference import SCALARS
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.tree import LazyTree

Event: Any = torch.cuda.Event  # it has no types


class BatchArgs:
    """Arguments of a draft for several requests; the first table takes probabilities as they are.

    One after the other: scalars, rows of the roots, tokens of new text, where the features of each
    of its rows are found, acceptance tables.
    """

    def __init__(self, device: torch.device, requests: int) -> None:
        rows = requests * MAX_NEW_ROWS
        ends = np.cumsum([requests * SCALARS, requests, rows, rows]).tolist()
        size = ends[-1] + (requests + 1) * 2 * CELLS
        self.words = torch.zeros(size, dtype=torch.int64, device=device)
        self.host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        words, host = self.words, self.host.numpy()
        self.requests = requests
        self.scalars = words[: ends[0]].view(requests, SCALARS)
        self.roots = words[ends[0] : ends[1]]
        self.tokens = words[ends[1] : ends[2]]
        self.places = words[ends[2] : ends[3]]
        self.table = words[ends[3] :].view(torch.float64).view(-1, CELLS, 2)
        self.host_scalars: IntArray = host[: ends[0]].reshape(requests, SCALARS)
        self.host_roots: IntArray = host[ends[0] : ends[1]]
        self.host_tokens: IntArray = host[ends[1] : ends[2]]
        self.host_places: IntArray = host[ends[2] : ends[3]]
        self.host_table: FloatArray = host[ends[3] :].view(np.float64).reshape(-1, CELLS, 2)
        self.host_table[:] = 0.0, 1.0
        self.table.copy_(torch.from_numpy(self.host_table))
        self._without_tables = ends[-1]
        # the device has read the arguments that were written last
        self.read: Any = Event() if device.type == "cuda" else None

    def begin(self) -> None:
        """Wait until the device has read the last arguments."""
        if self.read is not None:
            self.read.synchronize()

    def write(
        self,
        scalars: list[list[int]],  # of each request
        tokens: list[list[int]],  # of its new text, the root last
        places: list[list[int]],  # rows of features of its new text
        rows: int,  # of new text for each request, of which the first ones are used
        padding: list[int],  # scalars of a place without a request
    ) -> None:
        """Write the arguments of the requests, then those of places without a request."""
        count = len(scalars)
        if count:  # none while a draft is captured
            self.host_scalars[:count] = scalars
        self.host_scalars[count:] = padding
        ends = rows * np.arange(self.requests)
        self.host_roots[:] = ends
        self.host_roots[:count] += np.array([len(some) - 1 for some in tokens], np.int64)
        end = self.requests * rows
        blank = [0] * rows
        for goal, given in ((self.host_tokens, tokens), (self.host_places, places)):
            goal[: count * rows] = [word for some in given for word in (some + blank)[:rows]]
            goal[count * rows : end] = 0

    def send(self, tables: int = 0) -> None:
        """Start the transfer, of so many tables besides the first."""
        end = self._without_tables + (2 * CELLS * (tables + 1) if tables else 0)
        self.words[:end].copy_(self.host[:end], non_blocking=True)
        if self.read is not None:
            self.read.record()


@dataclass(frozen=True)
class ResultLayout:
    """The words of a round that the host needs: the drafted tree, and which nodes were kept."""

    sizes: LevelSizes
    kept: int  # most rows of a pruned tree, the root included

    @cached_property
    def counts(self) -> dict[str, int]:
        """Words of each field."""
        size = self.sizes.size
        grown = ("grown_tokens", "grown_parents", "grown_probs", "grown_reach")
        return {
            "kept": self.kept,
            "parents": self.kept,
            **dict.fromkeys(grown, size),
            "opened": self.sizes.opened,
        }

    @cached_property
    def starts(self) -> dict[str, int]:
        """First word of each field."""
        ends = np.cumsum([0, *self.counts.values()]).tolist()
        return dict(zip(self.counts, ends, strict=False))

    @cached_property
    def columns(self) -> IntArray:
        """Index of each word among those of a round."""
        return np.concatenate(
            [PLACES[name].start + np.arange(count) for name, count in self.counts.items()]
        )


@dataclass(frozen=True, slots=True)
class TreeMarks:
    """Sizes of a request's tree, known before the device has drafted it."""

    depth: int  # of its drafted tree
    size: int  # nodes of it, the root included
    nodes: int  # of its pruned tree, the root included
    mark: int  # bit of its drafter


class BatchResult:
    """The words of all trees of one draft, copied to the host when one is first read."""

    def __init__(
        self, layout: ResultLayout, trees: Sequence[TreeMarks], host: Tensor, arrival: Any
    ) -> None:
        self.layout = layout
        self.trees = trees
        self._host = host  # [requests, words], which the next draft overwrites
        self._arrival = arrival  # of the words on the host; None on a CPU
        self._words: IntArray | None = None

    def fetch(self) -> IntArray:
        """The words of all requests, [requests, words]; waits for the transfer once."""
        if self._words is None:
            if self._arrival is not None:
                self._arrival.synchronize()
            self._words = self._host.numpy().copy()
        return self._words

    def _field(self, name: str) -> IntArray:
        """One field of all requests, [requests, n]."""
        start = self.layout.starts[name]
        return self.fetch()[:, start : start + self.layout.counts[name]]

    @cached_property
    def drafted(self) -> dict[str, Any]:
        """Columns of all drafted trees, [requests, n]; depths and ranks are [n]."""
        sizes = self.layout.sizes
        opened = self._field("opened")
        before = np.array([sizes.before(tree.depth) for tree in self.trees])
        # nodes of a request's last level were expanded for others only
        opened = np.where(np.arange(opened.shape[1]) < before[:, None], opened, 0)
        expanded = np.zeros((len(opened), sizes.size), bool)
        expanded[:, 0] = True
        np.put_along_axis(expanded, opened, True, 1)
        return {
            "_tokens": self._field("grown_tokens"),
            "_parents": self._field("grown_parents"),
            "_depths": sizes.depths,
            "_probs": self._field("grown_probs").view(np.float64),
            "_reach": self._field("grown_reach").view(np.float64),
            "_ranks": sizes.ranks,
            "_sources": self._sources(sizes.size),
            "_sampled": np.zeros(expanded.shape, bool),
            "_expanded": expanded,
        }

    @cached_property
    def pruned(self) -> dict[str, Any]:
        """Columns of all pruned trees, [requests, n]."""
        kept = self._field("kept")
        whole = self.drafted
        drafted = {
            name: np.take_along_axis(whole[f"_{name}"], kept, 1)
            for name in ("tokens", "probs", "reach", "expanded")
        }
        return {
            "_tokens": drafted["tokens"],
            "_parents": self._field("parents"),
            "_depths": whole["_depths"][kept],
            "_probs": drafted["probs"],
            "_reach": drafted["reach"],
            "_ranks": whole["_ranks"][kept],
            "_sources": self._sources(kept.shape[1]),
            "_sampled": np.zeros(kept.shape, bool),
            "_expanded": drafted["expanded"],
            "kept": kept,
        }

    @cached_property
    def drafted_trees(self) -> list[dict[str, Any]]:
        """Columns of each drafted tree, [n]."""
        return self._apart(self.drafted, max(tree.size for tree in self.trees))

    @cached_property
    def pruned_trees(self) -> list[dict[str, Any]]:
        """Columns of each pruned tree, [n]."""
        return self._apart(self.pruned, max(tree.nodes for tree in self.trees))

    def _apart(self, columns: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
        """The first `size` nodes of the columns of each request."""
        count = len(self.trees)
        rows = [
            [column[:size]] * count if column.ndim == 1 else list(column[:, :size])
            for column in columns.values()
        ]
        return [dict(zip(columns, row, strict=True)) for row in zip(*rows, strict=True)]

    def _sources(self, size: int) -> IntArray:
        """Drafters of all nodes, [requests, size]."""
        sources = np.repeat(np.array([[tree.mark] for tree in self.trees]), size, 1)
        sources[:, 0] = 0
        return sources


class DraftedTree(LazyTree):
    """The drafted tree of one request of a batch."""

    def __init__(self, result: BatchResult, number: int, size: int) -> None:
        super().__init__(size)
        self._result = result
        self._number = number

    def load(self) -> None:
        """Take the columns from those of all requests."""
        if "_tokens" not in self.__dict__:
            self.__dict__["kept"] = None
            self._take(self._result.drafted_trees)

    def _take(self, trees: Sequence[Mapping[str, Any]]) -> None:
        size = self._size
        own = self.__dict__
        own.update(trees[self._number])
        if len(own["_tokens"]) > size:  # others have deeper or larger ones
            own.update({name: own[name][:size] for name in trees[self._number]})
        own["valued"] = size
        own["_known"] = False  # chosen children are looked up when a child is first added


class PrunedTree(DraftedTree):
    """The pruned tree of one request of a batch."""

    def load(self) -> None:
        """Take the columns from those of all requests."""
        if "_tokens" not in self.__dict__:
            self._take(self._result.pruned_trees)


class ResultTransfer:
    """Copies results to the host, one batch after the other."""

    def __init__(self, fields: RoundFields) -> None:
        self.fields = fields
        device = fields.words.device
        self.pinned = device.type == "cuda"
        self.host = torch.zeros(0, dtype=torch.int64, pin_memory=self.pinned)
        self.arrival: Any = Event() if self.pinned else None
        self.last: BatchResult | None = None
        self._columns: dict[ResultLayout, Tensor] = {}

    def columns(self, layout: ResultLayout) -> Tensor:
        """Index of each word of the layout among those of a round, on the device."""
        columns = self._columns.get(layout)
        if columns is None:
            columns = torch.from_numpy(layout.columns).to(self.fields.words.device)
            self._columns[layout] = columns
        return columns

    def send_one(
        self, layout: ResultLayout, marks: TreeMarks, index: int, arrival: Any
    ) -> BatchResult:
        """Start the transfer of one request's tree; `arrival` is recorded after it."""
        words = self.fields.words[index : index + 1].index_select(1, self.columns(layout))
        host = torch.empty(words.shape, dtype=torch.int64, pin_memory=self.pinned)
        host.copy_(words, non_blocking=True)
        return BatchResult(layout, [marks], host, arrival)

    def send(self, layout: ResultLayout, trees: Sequence[TreeMarks]) -> BatchResult:
        """Start the transfer of these trees, of the first requests."""
        if self.last is not None:
            self.last.fetch()  # its words on the host are about to be overwritten
        words = self.fields.words[: len(trees)].index_select(1, self.columns(layout))
        if len(self.host) < words.numel():
            self.host = torch.zeros(words.numel(), dtype=torch.int64, pin_memory=self.pinned)
        host = self.host[: words.numel()].view(words.shape)
        host.copy_(words, non_blocking=True)
        if self.arrival is not None:
            self.arrival.record()
        self.last = BatchResult(layout, trees, host, self.arrival)
        return self.last
