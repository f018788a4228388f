"""Trees that lie on the device until somebody reads a column on the host.

All that a round leaves behind lies in one buffer of 8-byte words, so that one transfer brings the
verdict, the checked tree and the grown one together. The next round overwrites the buffer; what
was brought to the host stays.
"""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import FloatArray, IntArray
from sapwood.tree import CAPACITY, Tree

Event: Any = torch.cuda.Event  # it has no types
ROWS = 128  # most rows of a checked tree, the root included
LONGEST = 62  # most accepted nodes, the root included
OPENED = 256  # most nodes a head expands besides the root
WORDS = ROWS // 64  # 64-bit words that name a row's ancestors

SIZES = {  # words of each field; probabilities are the bits of float64
    "verdict": 2 + LONGEST,  # nodes on the path, the bonus, then the path
    "said": ROWS,  # the target's own token after each row
    "tokens": ROWS,
    "parents": ROWS,
    "depths": ROWS,
    "ranks": ROWS,
    "kept": ROWS,  # index of each row in the grown tree
    "probs": ROWS,
    "reach": ROWS,
    "grown_tokens": CAPACITY,
    "grown_parents": CAPACITY,
    "grown_probs": CAPACITY,
    "grown_reach": CAPACITY,
    "opened": OPENED,  # nodes of the grown tree that the head expanded, level by level
}
REAL = ("probs", "reach", "grown_probs", "grown_reach")
ENDS = np.cumsum(list(SIZES.values())).tolist()
PLACES = {name: slice(end - size, end) for (name, size), end in zip(SIZES.items(), ENDS, strict=True)}
LAZY = frozenset(Tree.from_columns(*(np.zeros(1, np.int64),) * 3, np.zeros(1)).__dict__)  # what loading fills in


@dataclass(frozen=True, slots=True)
class Rows:
    """The checked tree on the device, in buffers that stay where they are.

    Rows that are not used hold token 0, depth 0 and no parent.
    """

    tokens: Tensor  # [ROWS] int64, as are all
    parents: Tensor  # [ROWS], -1 for the root
    depths: Tensor  # [ROWS]
    words: Tensor  # [ROWS, WORDS] bits of the nodes that each row sees, itself included


class Owed:
    """Work on the words of a round that can wait until they, or what it changes, are needed; done at most once."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def pay(self) -> None:
        """Do it, unless it was done."""
        work, self._work = self._work, None
        if work is not None:
            work()

    def forgive(self) -> None:
        """Nobody needs it any more."""
        self._work = None


@dataclass(frozen=True, slots=True)
class Sequel:
    """Work that follows the verdict of a round on the device, whatever it is."""

    stamp: int  # of the round
    work: Callable[[], None]


class Parcel:
    """The buffer of one round on the device, and its twin on the host."""

    def __init__(self, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.words = torch.zeros(ENDS[-1], dtype=torch.int64, device=device)
        self.host = torch.zeros(ENDS[-1], dtype=torch.int64, pin_memory=pinned)
        self.there: IntArray = self.host.numpy()
        seen = torch.zeros(ROWS, WORDS, dtype=torch.int64, device=device)
        self.rows = Rows(self.field("tokens"), self.field("parents"), self.field("depths"), seen)
        self.path = self.field("verdict")[2:]  # [LONGEST]
        self.stamp = 0  # rounds that used it
        self.judge: Any = None  # of its trees, made when the first one is judged
        self.thoughts: Tensor | None = None  # [rows, features] of new text, where a growth reads them
        self.layers: tuple[int, ...] = ()  # of the target, whose inputs are these features
        self.claim: weakref.ref[Claim] | None = None  # of whoever relies on the thoughts
        self.owed: Owed | None = None  # what must still be done with the path
        self.sequel: Sequel | None = None  # what the device goes on with once it knows the verdict
        self.runner: Any = None  # who ran its last tree, and may queue the pass over the next one
        self.arrival: Any = Event() if pinned else None  # of the words on the host
        self.judged = 0.0  # when the last verdict was there, by `time.perf_counter`
        self.waited = 0.0  # seconds that the host had waited for it

    def field(self, name: str) -> Tensor:
        """One field on the device; probabilities as float64."""
        words = self.words_of(name)
        return words.view(torch.float64) if name in REAL else words

    def words_of(self, name: str) -> Tensor:
        """One field on the device as it lies there."""
        return self.words[PLACES[name]]

    def vacate(self) -> None:
        """Let whoever relies on the thoughts take a copy: they are about to be overwritten."""
        claim = None if self.claim is None else self.claim()
        if claim is not None:
            claim.leave()
        self.claim = None

    def settle(self) -> None:
        """Let what is owed be done with the path: another is about to take its place."""
        if self.owed is not None:
            self.owed.pay()
            self.owed = None

    def send(self) -> None:
        """Start the transfer to the host."""
        self.host.copy_(self.words, non_blocking=True)

    def wait(self, turn: "Round | None" = None) -> IntArray:
        """A copy of the words, once they have arrived; behind the verdict of a round the device goes on meanwhile."""
        if self.arrival is not None:
            self.arrival.record()
        sequel, self.sequel = self.sequel, None
        if sequel is not None and turn is not None and sequel.stamp == turn.stamp:
            sequel.work()
        begun = time.perf_counter()
        if self.arrival is not None:
            self.arrival.synchronize()
        self.judged = time.perf_counter()
        self.waited = self.judged - begun
        return self.there.copy()


class Claim:
    """What the target thought of an accepted path, left by its verdict where the next growth reads it."""

    def __init__(self, parcel: Parcel, rows: int) -> None:
        self.parcel, self.rows = parcel, rows
        self.saved: Tensor | None = None  # the same elsewhere, once the place was needed
        parcel.claim = weakref.ref(self)

    @property
    def here(self) -> bool:
        """True while it lies where the verdict left it."""
        return self.saved is None

    def leave(self) -> None:
        """Move elsewhere."""
        self.saved = self.tensor().clone()

    def tensor(self) -> Tensor:
        """The features, [rows, features]."""
        if self.saved is not None:
            return self.saved
        assert self.parcel.thoughts is not None
        return self.parcel.thoughts[: self.rows]


def ints(words: IntArray, name: str, size: int) -> IntArray:
    """The first `size` numbers of a field on the host."""
    start = PLACES[name].start
    return words[start : start + size]


def reals(words: IntArray, name: str, size: int) -> FloatArray:
    """The same of a field of probabilities."""
    return ints(words, name, size).view(np.float64)


@dataclass
class Round:
    """One use of a parcel: knows whether the words it would bring are still those of this round."""

    parcel: Parcel
    depth: int  # longest path that its tree may have
    stamp: int
    words: IntArray | None = None  # on the host, once brought
    path: tuple[int, ...] = ()  # walked by the target's own tokens, once judged
    recalled: bool = False  # what the target thought of that path lies in the parcel
    queued: Any = None  # the pass over its tree, where it was queued behind the growth

    @classmethod
    def begin(cls, parcel: Parcel, depth: int) -> "Round":
        """Take the parcel over from the round before."""
        parcel.stamp += 1
        return cls(parcel, depth, parcel.stamp)

    @property
    def live(self) -> bool:
        """True while the device still holds this round's words."""
        return self.stamp == self.parcel.stamp

    def claim(self) -> Claim | None:
        """The thoughts of the walked path; None where they are not there."""
        return Claim(self.parcel, len(self.path)) if self.recalled and self.live else None

    def bring(self) -> IntArray:
        """The words of the round on the host."""
        if self.words is None:
            if not self.live:
                raise RuntimeError("the tree was not read before the next one was grown; read a column while it is new")
            self.parcel.send()
            self.words = self.parcel.wait()
        return self.words


class DeviceTree(Tree):
    """A tree whose columns come to the host when the first of them is read there; its size is known before."""

    def __init__(self, turn: Round, size: int, build: Callable[[IntArray], Tree]) -> None:
        self._begin()
        del self.kept
        self._size = size
        self.turn, self._build = turn, build
        self.watch: Callable[[], float] | None = None  # seconds of its growth, once the device has passed it

    def __getattr__(self, name: str) -> Any:
        if name not in LAZY:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.load()
        return self.__dict__[name]

    def load(self) -> None:
        """Bring all columns to the host."""
        if "_tokens" not in self.__dict__:
            self.__dict__.update({**self._build(self.turn.bring()).__dict__, **self.__dict__})

    @property
    def drafting(self) -> float:
        """Seconds that the device went on growing it."""
        return self.watch() if self.watch is not None else 0.0

    @property
    def rows(self) -> Rows | None:
        """The checked tree on the device; None once another round has begun."""
        return self.turn.parcel.rows if self.turn.live else None

    def path_rows(self, path: tuple[int, ...]) -> Tensor | None:
        """The nodes of a path on the device, [path], where it is the one that was walked there, or its beginning."""
        walked = self.turn.live and path == self.turn.path[: len(path)]
        return self.turn.parcel.path[: len(path)] if walked else None


def aboard(tree: Tree, device: torch.device) -> DeviceTree:
    """The same tree in a parcel of its own, as if it had been grown there."""
    size, parcel = len(tree), Parcel(device)
    if size > ROWS:
        raise ValueError(f"a tree of {size} nodes does not fit the {ROWS} rows of a device tree; use a smaller one")
    for name in ("tokens", "parents", "depths"):
        parcel.field(name)[:size] = torch.from_numpy(getattr(tree, name)).to(device)
    seen = np.zeros((ROWS, WORDS * 64), bool)
    seen[:size, :size] = tree.ancestors()
    words = np.packbits(seen, axis=1, bitorder="little").view(np.int64)
    parcel.rows.words.copy_(torch.from_numpy(words))
    return DeviceTree(Round.begin(parcel, tree.height), size, lambda _: tree)
