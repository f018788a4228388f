"""Trees on the device, copied to the host when a column is first read there.

All results of a round lie in one buffer of 8-byte words, so that one transfer copies the verdict,
the pruned tree and the drafted tree together. The next round overwrites the buffer; copies on the
host stay valid.
"""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.eagle_layer import LevelSizes
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.tree import CAPACITY, LazyTree, Tree

Event: Any = torch.cuda.Event  # it has no types
ROWS = 128  # most rows of a pruned tree, the root included
LONGEST = 62  # most accepted nodes, the root included
OPENED = 256  # most nodes a head expands besides the root
WORDS = ROWS // 64  # 64-bit words that name a row's ancestors

SIZES = {  # 64-bit words of each field; probabilities are stored as float64
    "verdict": 2 + LONGEST,  # length of the path, the bonus, then the path
    "target_tokens": ROWS,  # the target's token after each row
    "tokens": ROWS,
    "parents": ROWS,
    "depths": ROWS,
    "ranks": ROWS,
    "kept": ROWS,  # index of each row in the drafted tree
    "probs": ROWS,
    "reach": ROWS,
    "grown_tokens": CAPACITY,
    "grown_parents": CAPACITY,
    "grown_probs": CAPACITY,
    "grown_reach": CAPACITY,
    "opened": OPENED,  # nodes of the drafted tree that the head expanded, level by level
}
REAL = ("probs", "reach", "grown_probs", "grown_reach")
ENDS = np.cumsum(list(SIZES.values())).tolist()
PLACES = {
    name: slice(end - size, end) for (name, size), end in zip(SIZES.items(), ENDS, strict=True)
}


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The pruned tree on the device, in static buffers.

    Unused rows hold token 0, depth 0 and no parent.
    """

    tokens: Tensor  # [ROWS] int64, as are all
    parents: Tensor  # [ROWS], -1 for the root
    depths: Tensor  # [ROWS]
    words: Tensor  # [ROWS, WORDS] bits of the nodes that each row attends to, itself included


class DeferredMove:
    """A move of KV slots that waits until its path is overwritten or needed; runs at most once."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def run(self) -> None:
        """Run it, unless it has run or was cancelled."""
        work, self._work = self._work, None
        if work is not None:
            work()

    def cancel(self) -> None:
        """Drop it: another step does the move, or the slots are freed."""
        self._work = None


class RoundFields:
    """The fields of a round on the device, of one request or of several."""

    def __init__(self, words: Tensor, seen: Tensor) -> None:
        self.words = words  # [words] or [requests, words]
        self.seen = seen  # [ROWS, WORDS] or [requests, ROWS, WORDS]
        self.requests = 1 if words.dim() == 1 else len(words)
        self.pace = 0 if words.dim() == 1 else words.stride(0)  # from one request to the next
        self.rows = DeviceRows(
            self.field("tokens"), self.field("parents"), self.field("depths"), seen
        )

    @classmethod
    def make(cls, device: torch.device, *requests: int) -> "RoundFields":
        """Fields of zeros, of one request or of so many."""
        options: dict[str, Any] = {"dtype": torch.int64, "device": device}
        return RoundFields(
            torch.zeros(*requests, ENDS[-1], **options),
            torch.zeros(*requests, ROWS, WORDS, **options),
        )

    def field(self, name: str) -> Tensor:
        """One field on the device; probabilities as float64."""
        words = self.words_of(name)
        return words.view(torch.float64) if name in REAL else words

    def words_of(self, name: str) -> Tensor:
        """One field on the device as int64 words."""
        return self.words[..., PLACES[name]]

    def of_request(self, number: int) -> "RoundFields":
        """The fields of one of several requests."""
        return RoundFields(self.words[number], self.seen[number])


class RoundBuffer(RoundFields):
    """The results of one round on the device, and their copy on the host."""

    def __init__(self, device: torch.device) -> None:
        pinned = device.type == "cuda"
        made = RoundFields.make(device)
        super().__init__(made.words, made.seen)
        self.host = torch.zeros(ENDS[-1], dtype=torch.int64, pin_memory=pinned)
        self.host_array: IntArray = self.host.numpy()
        self.path = self.field("verdict")[2:]  # [LONGEST]
        self.stamp = 0  # rounds that have used the buffer
        self.verifier: Any = None  # the `DeviceVerifier` of its trees, made with the first one
        # [rows, features] of the target for new text, read by the next draft
        self.hidden_states: Tensor | None = None
        self.layers: tuple[int, ...] = ()  # layers of the target whose inputs are these features
        self.features: weakref.ref[FeatureRef] | None = None  # the reference to `hidden_states`
        self.deferred: DeferredMove | None = None  # the move of the path that has not run yet
        self.runner: Any = None  # the `PassRunner` of its last tree; can prelaunch the next pass
        self.arrival: Any = Event() if pinned else None  # end of the transfer to the host
        self.verified_at = 0.0  # when the host read the last verdict, by `time.perf_counter`
        self.waited = 0.0  # seconds that the host waited for it

    def release_features(self) -> None:
        """Copy features that are still referenced: `hidden_states` is about to be overwritten."""
        features = None if self.features is None else self.features()
        if features is not None:
            features.copy_out()
        self.features = None

    def run_deferred(self) -> None:
        """Run the deferred move: the path it reads is about to be overwritten."""
        if self.deferred is not None:
            self.deferred.run()
            self.deferred = None

    def send(self) -> None:
        """Start the transfer to the host."""
        self.host.copy_(self.words, non_blocking=True)

    def record_arrival(self) -> None:
        """Record the end of the transfer on the stream; `wait` waits for nothing after it."""
        if self.arrival is not None:
            self.arrival.record()

    def wait(self) -> IntArray:
        """Wait for the transfer; a copy of the words."""
        begun = time.perf_counter()
        if self.arrival is not None:
            self.arrival.synchronize()
        self.verified_at = time.perf_counter()
        self.waited = self.verified_at - begun
        return self.host_array.copy()


class FeatureRef:
    """Target features of an accepted path, in the buffer where the next draft reads them."""

    def __init__(self, round_buffer: RoundBuffer, rows: int) -> None:
        self.round_buffer = round_buffer
        self.rows = rows
        self.saved: Tensor | None = None  # their copy, once the buffer was needed
        round_buffer.features = weakref.ref(self)

    @property
    def in_place(self) -> bool:
        """True while the features are in the round buffer."""
        return self.saved is None

    def copy_out(self) -> None:
        """Copy the features out of the round buffer."""
        self.saved = self.tensor().clone()

    def tensor(self) -> Tensor:
        """The features, [rows, features]."""
        if self.saved is not None:
            return self.saved
        assert self.round_buffer.hidden_states is not None
        return self.round_buffer.hidden_states[: self.rows]


def ints(words: IntArray, name: str, size: int) -> IntArray:
    """The first `size` numbers of a field on the host."""
    start = PLACES[name].start
    return words[start : start + size]


def reals(words: IntArray, name: str, size: int) -> FloatArray:
    """The same of a field of probabilities."""
    return ints(words, name, size).view(np.float64)


@dataclass
class RoundUse:
    """One round's use of a round buffer; `live` until the next round takes the buffer over."""

    round_buffer: RoundBuffer
    depth: int  # longest path that its tree may have
    stamp: int
    words: IntArray | None = None  # the host's copy, once fetched
    path: tuple[int, ...] = ()  # accepted nodes, once verified
    features_ready: bool = False  # the target's features of that path lie in the buffer
    prelaunched_pass: Any = None  # the pass over its tree, if launched behind the draft

    @classmethod
    def begin(cls, round_buffer: RoundBuffer, depth: int) -> "RoundUse":
        """Take the buffer over from the previous round."""
        round_buffer.stamp += 1
        return cls(round_buffer, depth, round_buffer.stamp)

    @property
    def live(self) -> bool:
        """True while the device still holds this round's words."""
        return self.stamp == self.round_buffer.stamp

    def path_features(self) -> FeatureRef | None:
        """The target's features of the accepted path; None if they are not in the buffer."""
        if not self.features_ready or not self.live:
            return None
        return FeatureRef(self.round_buffer, len(self.path))

    def fetch(self) -> IntArray:
        """The words of the round, copied to the host on the first call."""
        if self.words is None:
            if not self.live:
                raise RuntimeError(
                    "the tree was overwritten by the next draft before it was read; "
                    "read a column before the next round"
                )
            self.round_buffer.send()
            self.round_buffer.record_arrival()
            self.words = self.round_buffer.wait()
        return self.words


class DeviceTree(LazyTree):
    """A tree on the device, whose columns are copied to the host when one is first read."""

    on_device = True

    def __init__(self, round_use: RoundUse, size: int, build: Callable[[IntArray], Tree]) -> None:
        super().__init__(size)
        self.round_use = round_use
        self._build = build
        # returns the seconds of its draft, once the device has finished it
        self.draft_timer: Callable[[], float] | None = None

    def load(self) -> None:
        """Copy all columns to the host."""
        if "_tokens" not in self.__dict__:
            self.__dict__.update({**self._build(self.round_use.fetch()).__dict__, **self.__dict__})

    @property
    def drafting(self) -> float:
        """Seconds that the device still drafted after the host went on."""
        return self.draft_timer() if self.draft_timer is not None else 0.0

    @property
    def rows(self) -> DeviceRows | None:
        """The pruned tree on the device; None once another round has begun."""
        return self.round_use.round_buffer.rows if self.round_use.live else None

    def path_rows(self, path: tuple[int, ...]) -> Tensor | None:
        """Nodes of an accepted path, or of its beginning, on the device, [path]; else None."""
        walked = self.round_use.live and path == self.round_use.path[: len(path)]
        return self.round_use.round_buffer.path[: len(path)] if walked else None


def to_device_tree(tree: Tree, device: torch.device) -> DeviceTree:
    """The same tree in a round buffer of its own, as if it had been drafted on the device."""
    size = len(tree)
    round_buffer = RoundBuffer(device)
    if size > ROWS:
        raise ValueError(
            f"a tree of {size} nodes does not fit the {ROWS} rows of a device tree; "
            "use a smaller one"
        )
    for name in ("tokens", "parents", "depths"):
        round_buffer.field(name)[:size] = torch.from_numpy(getattr(tree, name)).to(device)
    seen = np.zeros((ROWS, WORDS * 64), bool)
    seen[:size, :size] = tree.ancestors()
    words = np.packbits(seen, axis=1, bitorder="little").view(np.int64)
    round_buffer.rows.words.copy_(torch.from_numpy(words))
    return DeviceTree(RoundUse.begin(round_buffer, tree.height), size, lambda _: tree)


def build_drafted(sizes: LevelSizes, mark: int, words: IntArray) -> Tree:
    """All drafted nodes on the host; `mark` is the bit of their drafter."""
    size = sizes.size
    expanded = np.zeros(size, bool)
    expanded[0] = True
    expanded[ints(words, "opened", sizes.opened)] = True
    sources = np.full(size, mark)
    sources[0] = 0
    return Tree.from_columns(
        ints(words, "grown_tokens", size),
        ints(words, "grown_parents", size),
        sizes.depths,
        reals(words, "grown_probs", size),
        reach=reals(words, "grown_reach", size),
        ranks=sizes.ranks,
        sources=sources,
        expanded=expanded,
    )


def build_pruned(sizes: LevelSizes, size: int, mark: int, words: IntArray) -> Tree:
    """The pruned tree on the host; `mark` is the bit of its drafter."""
    kept = ints(words, "kept", size)
    sources = np.full(size, mark)
    sources[0] = 0
    expanded = np.zeros(sizes.size, bool)
    expanded[0] = True
    expanded[ints(words, "opened", sizes.opened)] = True
    return Tree.from_columns(
        ints(words, "tokens", size),
        ints(words, "parents", size),
        ints(words, "depths", size),
        reals(words, "probs", size),
        reach=reals(words, "reach", size),
        ranks=ints(words, "ranks", size),
        sources=sources,
        expanded=expanded[kept],
        kept=kept,
    )
