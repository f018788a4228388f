"""The verdict on the device: the target's own token after every row, and the walk along them.

The token is the best one, or the keyed draw of `rng.Keyed`: the largest of logit / temperature plus
Gumbel noise, whose numbers are a hash of (key of the position, token). Noise belongs to a position,
so all rows of one depth share it. In double precision, as on the host: the same token, not a likely one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.fused.capture import Captured
from sapwood.backends.torch.fused.tree import LONGEST, ROWS, DeviceTree, Parcel
from sapwood.rng import MASK

GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # as signed 64-bit numbers
STEPS = 32  # most positions that one pass draws at
LEVELS = (1, 2, 4, 6, 8, 10, 12, 16, 24, STEPS)  # depths that a captured step makes noise for
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ROWS)  # rows of a captured verdict: there are few
SIGN = 1 << 63

Key = Callable[[int], int]  # depth -> 64 bits that name the noise of the token after it


def shifted(words: Tensor, bits: int) -> Tensor:
    """Shift 64-bit words right, filling with zeros."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def noise(keys: Tensor, vocab: int, out: Tensor) -> None:
    """Gumbel noise of each key, [keys, vocab] float64."""
    each = torch.arange(1, vocab + 1, device=keys.device) * GOLDEN
    words = keys[:, None] + each[None, :]
    words = (words ^ shifted(words, 30)) * FIRST
    words = (words ^ shifted(words, 27)) * SECOND
    words = words ^ shifted(words, 31)
    uniform = (shifted(words, 12).double() + 0.5) * 2.0**-52
    out.copy_(-(-uniform.log()).log())


def best(logits: Tensor, said: Tensor) -> None:
    """The best token of each row; the lowest id wins a tie."""
    said[: len(logits)] = logits.argmax(-1)


def drawn(logits: Tensor, gumbel: Tensor, depths: Tensor, temperature: Tensor, said: Tensor) -> None:
    """The keyed draw of each row: its depth names its noise, gumbel [depths, vocab]; temperature [1] float64."""
    rows = len(logits)
    said[:rows] = (logits.double() / temperature + gumbel[depths[:rows]]).argmax(-1)


def recall(parcel: Parcel, states: Sequence[Tensor]) -> None:
    """Put what the target thought of the walked path, states [rows, width] by layer, where a growth reads it."""
    out = parcel.thoughts
    assert out is not None
    verdict = parcel.field("verdict")
    each = torch.arange(len(out), device=out.device)
    path = torch.where(each < verdict[0], verdict[2 : 2 + len(out)], 0)
    out.copy_(torch.cat([layer[path] for layer in states], -1))


def walk(parcel: Parcel, said: Tensor, rows: int) -> None:
    """Follow what was said [rows] from the root while the tree holds it; write the path and the bonus."""
    verdict = parcel.field("verdict")
    tokens, parents = (column[:rows] for column in (parcel.rows.tokens, parcel.rows.parents))
    each = torch.arange(rows, device=said.device)
    node, count = each.new_zeros(()), each.new_zeros(())
    going = torch.ones((), dtype=torch.bool, device=said.device)
    verdict.zero_()
    for step in range(LONGEST):
        verdict[2 + step] = torch.where(going, node, 0)
        count = count + going
        held = (parents == node) & (tokens == said[node])
        found = torch.where(held, each, rows).min()
        going = going & (found < rows)
        node = torch.where(going, found, node)
    verdict[0], verdict[1] = count, said[node]


def kernels(device: torch.device) -> Any:
    """The module or object whose functions do the steps on this device."""
    if device.type != "cuda":
        return Plain
    from sapwood.backends.torch.fused import draws

    return draws


class Plain:
    """The steps in plain torch operations."""

    noise, best, drawn, walk = staticmethod(noise), staticmethod(best), staticmethod(drawn), staticmethod(walk)
    recall = staticmethod(recall)


class Draws:
    """Keys and noise of one pass, in buffers that stay where they are."""

    def __init__(self, device: torch.device, vocab: int) -> None:
        cuda: Any = torch.cuda if device.type == "cuda" else None  # parts of it have no types
        self.device, self.ops = device, kernels(device)
        self.words = torch.zeros(STEPS + 1, dtype=torch.int64, device=device)
        self.host = torch.zeros(STEPS + 1, dtype=torch.int64, pin_memory=cuda is not None)
        self.here = self.host.numpy()
        self.keys, self.temperature = self.words[:STEPS], self.words[STEPS:].view(torch.float64)
        self.gumbel = torch.empty(STEPS, vocab, dtype=torch.float64, device=device)
        self.captured: dict[int, Captured] = {}  # by levels
        self.side: Any = None if cuda is None else cuda.Stream(device)
        self.made: Any = None if cuda is None else cuda.Event()

    def tell(self, levels: int, key: Key, temperature: float) -> None:
        """Have the noise of so many depths made, beside the pass that runs; what is queued from now on waits for it."""
        self.here[:levels] = [signed(key(depth)) for depth in range(levels)]
        self.here[STEPS:].view(np.float64)[0] = temperature
        count = next(step for step in LEVELS if step >= levels)
        if count not in self.captured:
            self.captured[count] = Captured(partial(self.body, count), self.device)
        if self.side is None:
            self.captured[count]()
            return
        with torch.cuda.stream(self.side):
            self.captured[count]()
            self.made.record()
        torch.cuda.current_stream(self.device).wait_event(self.made)

    def body(self, levels: int) -> None:
        """Keys to the device, and their noise; what is captured."""
        self.words.copy_(self.host, non_blocking=True)
        self.ops.noise(self.keys[:levels], self.gumbel.shape[1], self.gumbel[:levels])


def signed(word: int) -> int:
    """The same 64 bits as a signed number."""
    word &= MASK
    return word - (1 << 64) if word & SIGN else word


@dataclass(frozen=True, slots=True)
class Case:
    """What a verdict is found from."""

    logits: Tensor  # [rows, vocab]
    leading: Tensor | None  # [rows] best tokens, where they are known already
    states: tuple[Tensor, ...]  # [rows, width] of each layer that a growth wants to know about
    levels: int  # depths that are drawn at; none takes the best tokens

    def padded(self) -> "Case":
        """The same with as many rows as the next step of the ladder has, where they lie in the same buffer."""
        rows = next(step for step in LADDER if step >= len(self.logits))
        return replace(self, logits=lengthened(self.logits, rows))

    @property
    def key(self) -> tuple[int, ...]:
        """What a captured verdict is made for."""
        leading = 0 if self.leading is None else self.leading.data_ptr()
        states = [layer.data_ptr() for layer in self.states]
        return self.logits.data_ptr(), self.logits.shape[0], leading, int(self.levels > 0), *states


def lengthened(rows: Tensor, count: int) -> Tensor:
    """A view of so many rows from the first one on; as many as before where the buffer ends earlier."""
    end = rows.storage_offset() + count * rows.shape[1]
    if not rows.is_contiguous() or end * rows.element_size() > rows.untyped_storage().nbytes():
        return rows
    return rows.as_strided((count, rows.shape[1]), rows.stride())


class Judge:
    """Judges the trees of one parcel."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel, self.device = parcel, parcel.words.device
        self.ops = kernels(self.device)
        self.draws: Draws | None = None
        self.captured: dict[tuple[int, ...], Captured] = {}
        self.steps: dict[tuple[int, ...], Captured] = {}  # the same by cases that were met, of which several share one

    @torch.inference_mode()
    def follow(
        self, tree: DeviceTree, case: Case, temperature: float, key: Key, *, static: bool
    ) -> tuple[tuple[int, ...], int]:
        """The accepted path and the bonus, brought to the host together with the tree."""
        if case.levels:
            self._noise(case.logits.shape[1]).tell(case.levels, key, temperature)
        if case.states:
            self.parcel.vacate()
        self.parcel.settle()
        self._step(case, static)()
        turn = tree.turn
        words = turn.words = self.parcel.wait(turn if case.states else None)
        count, bonus = words[:2].tolist()
        turn.path = path = tuple(words[2 : 2 + count].tolist())
        turn.recalled = (
            bool(case.states) and self.parcel.thoughts is not None and count <= self.parcel.thoughts.shape[0]
        )
        return path, bonus

    def _step(self, case: Case, static: bool) -> Captured:
        if not static:
            return Captured(partial(self.body, case), self.device)
        met = case.key
        if met not in self.steps:
            case = case.padded()
            self.steps[met] = self.captured.setdefault(case.key, Captured(partial(self.body, case), self.device))
        return self.steps[met]

    def _noise(self, vocab: int) -> Draws:
        if self.draws is None:
            self.draws = Draws(self.device, vocab)
        return self.draws

    def body(self, case: Case) -> None:
        """Say, walk, recall and send; what is captured."""
        logits, leading = case.logits, case.leading
        said = self.parcel.field("said") if case.levels or leading is None else leading
        if case.levels and self.draws is not None:
            draws = self.draws
            self.ops.drawn(logits, draws.gumbel, self.parcel.rows.depths, draws.temperature, said)
        elif leading is None:
            self.ops.best(logits, said)
        self.ops.walk(self.parcel, said, len(logits))
        if case.states:
            self.ops.recall(self.parcel, case.states)
        self.parcel.send()


def follow(
    tree: DeviceTree,
    logits: Tensor,  # [rows, vocab]
    temperature: float,
    key: Key,
    *,
    leading: Tensor | None = None,  # [rows] best tokens, where they are known already
    hidden: Mapping[int, Tensor] | None = None,  # layer -> [rows, width]
    static: bool = False,  # all of these lie where those of the next pass will
) -> tuple[tuple[int, ...], int] | None:
    """Judge a tree that lies on the device; None where it has left it or is too deep."""
    turn, parcel = tree.turn, tree.turn.parcel
    if not turn.live or turn.depth >= STEPS or logits.shape[0] != len(tree) or len(tree) > ROWS:
        return None
    if parcel.judge is None:
        parcel.judge = Judge(parcel)
    known = hidden or {}
    states = tuple(known[layer] for layer in parcel.layers) if all(layer in known for layer in parcel.layers) else ()
    case = Case(logits, leading, states, 0 if temperature == 0 else turn.depth + 1)
    found: tuple[tuple[int, ...], int] = parcel.judge.follow(tree, case, temperature, key, static=static)
    return found


@torch.inference_mode()
def say(logits: Tensor, depths: Tensor, temperature: float, keys: list[int]) -> Tensor:
    """The keyed draw of each row of any pass, [rows]; keys by depth, from 0 on."""
    ops, device = kernels(logits.device), logits.device
    named = torch.tensor([signed(key) for key in keys], device=device)
    gumbel = torch.empty(len(keys), logits.shape[1], dtype=torch.float64, device=device)
    ops.noise(named, logits.shape[1], gumbel)
    said = torch.empty(len(logits), dtype=torch.int64, device=device)
    ops.drawn(logits, gumbel, depths, torch.tensor([temperature], dtype=torch.float64, device=device), said)
    return said
