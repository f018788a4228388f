"""Verification on the device: the target's token after every row, and the path that matches them.

The token is the best one, or the keyed draw of `rng.KeyedRng`: the largest of logit / temperature
plus Gumbel noise, a hash of (key of the position, token). Noise belongs to a position, so all rows
of one depth share it. Double precision, as on the host, so that both draw the same token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep
from sapwood.backends.torch.cuda.draft.device_tree import LONGEST, ROWS, DeviceTree, RoundBuffer
from sapwood.core.rng import MASK

# constants of the hash, as signed 64-bit numbers
GOLDEN = -0x61C8864680B583EB
FIRST = -0x40A7B892E31B1A47
SECOND = -0x6B2FB644ECCEEE15
STEPS = 32  # most positions that one pass draws at
LEVELS = (1, 2, 4, 6, 8, 10, 12, 16, 24, STEPS)  # depths that a captured step makes noise for
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ROWS)  # numbers of rows that steps are captured for
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


def best(logits: Tensor, target_tokens: Tensor) -> None:
    """The best token of each row; the lowest id wins a tie."""
    target_tokens[: len(logits)] = logits.argmax(-1)


def keyed_draw(
    logits: Tensor, gumbel: Tensor, depths: Tensor, temperature: Tensor, target_tokens: Tensor
) -> None:
    """The keyed draw of each row, with gumbel [depths, vocab] at its depth; temperature [1]."""
    rows = len(logits)
    target_tokens[:rows] = (logits.double() / temperature + gumbel[depths[:rows]]).argmax(-1)


def draw_rows(logits: Tensor, keys: Tensor, temperatures: Tensor, target_tokens: Tensor) -> None:
    """The keyed draw of each row, with a key and a temperature of its own; 0: the best token."""
    gumbel = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    noise(keys, logits.shape[1], gumbel)
    warm = (temperatures > 0)[:, None]
    raw = logits.double()
    drawn = raw / torch.where(warm, temperatures[:, None], 1.0) + gumbel
    target_tokens[: len(logits)] = torch.where(warm, drawn, raw).argmax(-1)


def gather_features(round_buffer: RoundBuffer, states: Sequence[Tensor]) -> None:
    """Gather states [rows, width] of each layer along the accepted path for the next draft."""
    out = round_buffer.hidden_states
    assert out is not None
    verdict = round_buffer.field("verdict")
    each = torch.arange(len(out), device=out.device)
    path = torch.where(each < verdict[0], verdict[2 : 2 + len(out)], 0)
    out.copy_(torch.cat([layer[path] for layer in states], -1))


def walk(round_buffer: RoundBuffer, target_tokens: Tensor, rows: int) -> None:
    """Follow the target's tokens [rows] from the root; write the accepted path and the bonus."""
    verdict = round_buffer.field("verdict")
    tokens, parents = (
        column[:rows] for column in (round_buffer.rows.tokens, round_buffer.rows.parents)
    )
    each = torch.arange(rows, device=target_tokens.device)
    node = each.new_zeros(())
    count = each.new_zeros(())
    going = torch.ones((), dtype=torch.bool, device=target_tokens.device)
    verdict.zero_()
    for step in range(LONGEST):
        verdict[2 + step] = torch.where(going, node, 0)
        count = count + going
        held = (parents == node) & (tokens == target_tokens[node])
        found = torch.where(held, each, rows).min()
        going = going & (found < rows)
        node = torch.where(going, found, node)
    verdict[0], verdict[1] = count, target_tokens[node]


def kernels(device: torch.device) -> Any:
    """The module or class whose functions run the steps on this device."""
    if device.type != "cuda":
        return TorchVerifySteps
    from sapwood.backends.torch.cuda.verify import verify_kernels

    return verify_kernels


class TorchVerifySteps:
    """The steps in torch operations."""

    noise = staticmethod(noise)
    best = staticmethod(best)
    keyed_draw = staticmethod(keyed_draw)
    draw_rows = staticmethod(draw_rows)
    walk = staticmethod(walk)
    gather_features = staticmethod(gather_features)


class NoiseBuffers:
    """Keys and Gumbel noise of one pass, in static buffers."""

    def __init__(self, device: torch.device, vocab: int) -> None:
        cuda: Any = torch.cuda if device.type == "cuda" else None  # parts of it have no types
        self.device = device
        self.ops = kernels(device)
        self.words = torch.zeros(STEPS + 1, dtype=torch.int64, device=device)
        self.host = torch.zeros(STEPS + 1, dtype=torch.int64, pin_memory=cuda is not None)
        self.host_array = self.host.numpy()
        self.keys, self.temperature = self.words[:STEPS], self.words[STEPS:].view(torch.float64)
        self.gumbel = torch.empty(STEPS, vocab, dtype=torch.float64, device=device)
        self.captured: dict[int, CapturedStep] = {}  # by levels
        self.side: Any = None if cuda is None else cuda.Stream(device)
        self.made: Any = None if cuda is None else cuda.Event()
        if self.side is not None:  # the buffers are filled on another stream than the noise
            self.side.wait_stream(cuda.current_stream(device))

    def make_noise(self, levels: int, key: Key, temperature: float) -> None:
        """Launch the noise of this many depths beside the running pass; later work waits for it."""
        self.host_array[:levels] = [signed(key(depth)) for depth in range(levels)]
        self.host_array[STEPS:].view(np.float64)[0] = temperature
        count = next(step for step in LEVELS if step >= levels)
        if count not in self.captured:
            self.captured[count] = CapturedStep(partial(self.body, count), self.device)
        if self.side is None:
            self.captured[count]()
            return
        with torch.cuda.stream(self.side):
            self.captured[count]()
            self.made.record()
        torch.cuda.current_stream(self.device).wait_event(self.made)

    def body(self, levels: int) -> None:
        """The captured step: keys to the device, and their noise."""
        self.words.copy_(self.host, non_blocking=True)
        self.ops.noise(self.keys[:levels], self.gumbel.shape[1], self.gumbel[:levels])


def signed(word: int) -> int:
    """The same 64 bits as a signed number."""
    word &= MASK
    return word - (1 << 64) if word & SIGN else word


@dataclass(frozen=True, slots=True)
class VerifyInputs:
    """Inputs of a verification."""

    logits: Tensor  # [rows, vocab]
    leading: Tensor | None  # [rows] best tokens, where they are known already
    states: tuple[Tensor, ...]  # [rows, width] of each layer whose states the next draft reads
    levels: int  # depths that are sampled at; 0: greedy

    def padded(self) -> "VerifyInputs":
        """The same with rows padded to the next size of LADDER, if the buffer has them."""
        rows = next(step for step in LADDER if step >= len(self.logits))
        return replace(self, logits=lengthened(self.logits, rows))

    @property
    def key(self) -> tuple[int, ...]:
        """The key of its captured step."""
        leading = 0 if self.leading is None else self.leading.data_ptr()
        states = [layer.data_ptr() for layer in self.states]
        return self.logits.data_ptr(), self.logits.shape[0], leading, int(self.levels > 0), *states


def lengthened(rows: Tensor, count: int) -> Tensor:
    """A view of `count` rows from the first on; `rows` itself if the buffer ends earlier."""
    end = rows.storage_offset() + count * rows.shape[1]
    if not rows.is_contiguous() or end * rows.element_size() > rows.untyped_storage().nbytes():
        return rows
    return rows.as_strided((count, rows.shape[1]), rows.stride())


class DeviceVerifier:
    """Verifies the trees of one round buffer."""

    def __init__(self, round_buffer: RoundBuffer) -> None:
        self.round_buffer = round_buffer
        self.device = round_buffer.words.device
        self.ops = kernels(self.device)
        self.draws: NoiseBuffers | None = None
        self.captured: dict[tuple[int, ...], CapturedStep] = {}
        # the same by unpadded inputs, of which several share one step
        self.steps: dict[tuple[int, ...], CapturedStep] = {}

    @torch.inference_mode()
    def launch(
        self, tree: DeviceTree, inputs: VerifyInputs, temperature: float, key: Key, *, static: bool
    ) -> "PendingWalk":
        """Launch the verification; later launches on the stream may start from its result."""
        if inputs.levels:
            self._noise(inputs.logits.shape[1]).make_noise(inputs.levels, key, temperature)
        if inputs.states:
            self.round_buffer.release_features()
        self.round_buffer.run_deferred()
        self._step(inputs, static)()
        self.round_buffer.record_arrival()
        return PendingWalk(tree, leaves_features=bool(inputs.states))

    def _step(self, inputs: VerifyInputs, static: bool) -> CapturedStep:
        if not static:
            return CapturedStep(partial(self.body, inputs), self.device)
        met = inputs.key
        if met not in self.steps:
            inputs = inputs.padded()
            self.steps[met] = self.captured.setdefault(
                inputs.key, CapturedStep(partial(self.body, inputs), self.device)
            )
        return self.steps[met]

    def _noise(self, vocab: int) -> NoiseBuffers:
        if self.draws is None:
            self.draws = NoiseBuffers(self.device, vocab)
        return self.draws

    def body(self, inputs: VerifyInputs) -> None:
        """The captured step: target tokens, accepted path, features, transfer to the host."""
        logits, leading = inputs.logits, inputs.leading
        target_tokens = (
            self.round_buffer.field("target_tokens")
            if inputs.levels or leading is None
            else leading
        )
        if inputs.levels and self.draws is not None:
            draws = self.draws
            self.ops.keyed_draw(
                logits,
                draws.gumbel,
                self.round_buffer.rows.depths,
                draws.temperature,
                target_tokens,
            )
        elif leading is None:
            self.ops.best(logits, target_tokens)
        self.ops.walk(self.round_buffer, target_tokens, len(logits))
        if inputs.states:
            self.ops.gather_features(self.round_buffer, inputs.states)
        self.round_buffer.send()


@dataclass(slots=True)
class PendingWalk:
    """A verification that was launched on the device and not read yet."""

    tree: DeviceTree
    leaves_features: bool  # it gathers the target's features of the path for the next draft

    def read(self) -> tuple[tuple[int, ...], int]:
        """Wait for the accepted path and the bonus; the tree arrives in the same transfer."""
        round_use = self.tree.round_use
        round_buffer = round_use.round_buffer
        words = round_use.words = round_buffer.wait()
        count, bonus = words[:2].tolist()
        round_use.path = path = tuple(words[2 : 2 + count].tolist())
        round_use.features_ready = (
            self.leaves_features
            and round_buffer.hidden_states is not None
            and count <= round_buffer.hidden_states.shape[0]
        )
        return path, bonus


def launch(
    tree: DeviceTree,
    logits: Tensor,  # [rows, vocab]
    temperature: float,
    key: Key,
    *,
    leading: Tensor | None = None,  # [rows] best tokens, where they are known already
    hidden: Mapping[int, Tensor] | None = None,  # layer -> [rows, width]
    static: bool = False,  # all of these are static buffers: the step can be captured
) -> PendingWalk | None:
    """Launch the verification of a tree; None if it is not on the device or too deep."""
    round_use, round_buffer = tree.round_use, tree.round_use.round_buffer
    if (
        not round_use.live
        or round_use.depth >= STEPS
        or logits.shape[0] != len(tree)
        or len(tree) > ROWS
    ):
        return None
    if round_buffer.verifier is None:
        round_buffer.verifier = DeviceVerifier(round_buffer)
    known = hidden or {}
    states = (
        tuple(known[layer] for layer in round_buffer.layers)
        if all(layer in known for layer in round_buffer.layers)
        else ()
    )
    inputs = VerifyInputs(logits, leading, states, 0 if temperature == 0 else round_use.depth + 1)
    pending: PendingWalk = round_buffer.verifier.launch(
        tree, inputs, temperature, key, static=static
    )
    return pending


@torch.inference_mode()
def sample_rows(logits: Tensor, depths: Tensor, temperature: float, keys: list[int]) -> Tensor:
    """The keyed draw of each row of any pass, [rows]; keys by depth, from 0 on."""
    ops = kernels(logits.device)
    device = logits.device
    named = torch.tensor([signed(key) for key in keys], device=device)
    gumbel = torch.empty(len(keys), logits.shape[1], dtype=torch.float64, device=device)
    ops.noise(named, logits.shape[1], gumbel)
    target_tokens = torch.empty(len(logits), dtype=torch.int64, device=device)
    ops.keyed_draw(
        logits,
        gumbel,
        depths,
        torch.tensor([temperature], dtype=torch.float64, device=device),
        target_tokens,
    )
    return target_tokens
