"""A Llama-like model as five kernels a layer, one captured graph per shape of a pass.

All buffers stay where they are, so that a pass is an ordinary function that is either called or
replayed. The inputs of watched layers are written to buffers of their own by the layers themselves.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Layout
from sapwood.backends.torch.fused.attention import WORD, attend
from sapwood.backends.torch.fused.capture import Captured, Memory
from sapwood.backends.torch.fused.facts import Facts, Moved
from sapwood.backends.torch.fused.fetch import following
from sapwood.backends.torch.fused.graphs import MOST, Inbox, Load, Lone, Shape, loads, shape_of_one
from sapwood.backends.torch.fused.kernels import project
from sapwood.backends.torch.fused.place import place
from sapwood.backends.torch.fused.pointwise import best_tokens, normalise, prepare
from sapwood.backends.torch.fused.pool import Pool
from sapwood.backends.torch.fused.qkv import Heads, project_heads
from sapwood.backends.torch.fused.sayer import Sayer
from sapwood.backends.torch.fused.stream import Margin, Scale, Stream
from sapwood.backends.torch.fused.tree import Rows as TreeRows
from sapwood.backends.torch.llama import Layer, Llama
from sapwood.backends.torch.network import Kept, Rows

SLOTS = {"cuda": 4096, "cpu": 64}  # of a seat at first
LOGITS = 128  # rows of logits at first
OFTEN = 16  # passes over the trees of one place after which they are captured with all that goes before


@dataclass(frozen=True, slots=True)
class Answer:
    """What a pass leaves in buffers that the next pass overwrites."""

    logits: Tensor | None  # [rows, vocab]
    best: Tensor | None  # [rows]
    states: Tensor | None  # [rows, width], what the output head reads, of passes without it
    kept: Kept

    def copy(self) -> "Answer":
        """The same in memory of its own."""
        logits, best, states = (
            None if part is None else part.clone() for part in (self.logits, self.best, self.states)
        )
        return Answer(logits, best, states, {layer: states.clone() for layer, states in self.kept.items()})


class Desk:
    """Buffers of a pass."""

    def __init__(self, model: Llama) -> None:
        like, heads = model.embedding, model.heads * model.head_width
        self.like, self.vocab, self.width = like, model.vocab, model.width
        self.streams = like.new_zeros(2, MOST, model.width)  # inputs of layers, in turn
        self.middle = like.new_zeros(MOST, model.width)
        self.margins = [Margin.make(like, MOST, model.width) for _ in range(2)]  # of layers' inputs, and of the middle
        self.queries = like.new_zeros(MOST, model.heads, model.head_width)
        self.read = like.new_zeros(MOST, heads)
        self.inner = like.new_zeros(MOST, model.inner)
        self.final = like.new_zeros(MOST, model.width)
        self.best = torch.zeros(MOST, dtype=torch.int64, device=like.device)
        self.told = torch.zeros(MOST, dtype=torch.int64, pin_memory=like.is_cuda)  # the same on the host
        self.heard: IntArray = self.told.numpy()
        self.logits = like.new_zeros(LOGITS, model.vocab)
        self.watched: dict[int, Tensor] = {}

    def reserve(self, rows: int) -> bool:
        """Room for so many rows of logits; True where it was not there."""
        if rows <= len(self.logits):
            return False
        self.logits = self.like.new_zeros(MOST, self.vocab)
        return True

    def watch(self, layers: Collection[int]) -> bool:
        """Buffers for the inputs of these layers; True where some are new."""
        new = [layer for layer in layers if layer not in self.watched]
        for layer in new:
            self.watched[layer] = self.like.new_zeros(MOST, self.width)
        return bool(new)


class Fused:
    """Runs passes of a described model; the network of a backend on a CUDA device."""

    def __init__(self, model: Llama, slots: int = 0) -> None:
        self.model, self.device = model, model.embedding.device
        self.precision = str(model.embedding.dtype).removeprefix("torch.")
        self.heads = Heads(model.heads, model.kv_heads, model.head_width)
        self.windows = sorted({layer.window for layer in model.layers})  # kinds of ancestor words
        self.scales = [Scale.of(norm, model.eps) for norm in (*(layer.norm for layer in model.layers), model.norm)]
        self.mlp_scales = [Scale.of(layer.mlp_norm, model.eps) for layer in model.layers]
        self.ahead = following(model)
        self.layout = Layout()
        self.pool = Pool(len(model.layers), self.heads, model.embedding, slots or SLOTS[self.device.type])
        self.desk, self.inbox = Desk(model), Inbox(len(self.windows), self.device)
        self.facts = Facts(self.device)
        self._passes: dict[tuple[Shape, int], Captured] = {}
        self._used: Counter[tuple[Shape, int]] = Counter()  # passes over trees of each place
        self.last: Captured | None = None  # the pass that ran last
        self._sayer: Sayer | None = None
        self._room = Memory()
        self.angles, self._age = angles_of(model, self.pool.slots), self.pool.age  # made for this age of the pool

    # ---------------------------------------------------------------------------------- a network
    def read(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers."""
        answer = self._joined(rows, watched, head=False)
        assert answer.states is not None
        return answer.states, answer.kept

    def speak(self, states: Tensor) -> Tensor:
        """Logits by the output head."""
        logits = states.new_empty(len(states), self.model.vocab)
        for start in range(0, len(states), MOST):
            project(states[start : start + MOST].contiguous(), self.model.head, logits[start : start + MOST])
        return logits

    def adopt(self, net: nn.Module) -> nn.Module:
        """The head itself: it was read in the model's number format."""
        return net

    def score(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the whole model."""
        answer = self._joined(rows, watched, head=True)
        assert answer.logits is not None
        return answer.logits, answer.kept

    def _joined(self, rows: Rows, watched: Collection[int], head: bool) -> Answer:
        return join([answer.copy() for answer in self.run(rows, watched, head)])

    def run(self, rows: Rows, watched: Collection[int], head: bool) -> Iterator[Answer]:
        """Run rows in as many passes as it takes; each answer is overwritten by the next."""
        for load in loads(rows, self.windows):
            yield self.run_load(load, watched, head)

    def run_load(self, load: Load | Lone, watched: Collection[int], head: bool) -> Answer:
        """Run one pass."""
        shape = load.shape(head, self.heads)
        self.ready(shape, watched)
        self.inbox.send(load, shape)
        self.launch((shape, 0), lambda: self.step(shape))
        return self.answer(len(load.tokens), watched, head)

    def follow(
        self, tree: TreeRows, path: Tensor, nodes: int, first: int, length: int, moved: Moved, watched: Collection[int]
    ) -> Answer:
        """Run a tree that lies on the device, on a seat that begins at slot `first`; put the path before in place."""
        shape = shape_of_one(nodes, length, -(-nodes // WORD), True, self.heads)
        self.ready(shape, watched)
        self.facts.tell(first, length, nodes, moved)
        name = shape, path.data_ptr()
        self._used[name] += 1
        if self._used[name] > OFTEN:
            self.launch(name, lambda: self._arrive(shape, tree, path, self.step), known=True)
        else:
            self._arrive(shape, tree, path, lambda shape: self.launch((shape, 0), lambda: self.step(shape)))
        self.facts.mark()
        return self.answer(nodes, watched, head=True)

    def _arrive(self, shape: Shape, tree: TreeRows, path: Tensor, step: Callable[[Shape], None]) -> None:
        """The pass over a tree on the device; nothing but its facts comes from the host."""
        self.facts.send()
        self.pool.keep(path, self.facts.there)
        place(tree, self.facts.there, self.inbox, shape)
        step(shape)

    # ------------------------------------------------------------------------------------- passes
    def ready(self, shape: Shape, watched: Collection[int]) -> None:
        """Make room for a pass; what was captured for buffers that are gone is forgotten."""
        moved = self.desk.watch(watched)
        moved |= shape.head and self.desk.reserve(shape.rows)
        if self._age != self.pool.age:
            self.angles = angles_of(self.model, self.pool.slots)
            self._age, moved = self.pool.age, True
        if moved:
            self._passes.clear()
            self._used.clear()

    def launch(self, name: tuple[Shape, int], body: Callable[[], None], *, known: bool = False) -> None:
        """Run a pass of this shape, and of the trees of this place where it is not 0, as the body does it."""
        step = self._passes.get(name)
        if step is None:
            step = self._passes[name] = Captured(body, self.device, self._room, ready=known)
        self.last = step
        step()

    def told(self) -> IntArray:
        """The best token of each row of the last pass, once it is done, in a buffer that the next one overwrites."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return self.desk.heard

    @property
    def sayer(self) -> Sayer:
        """Draws tokens from the logits of the last pass."""
        if self._sayer is None or self._sayer.logits is not self.desk.logits:
            self._sayer = Sayer(self.desk.logits)
        return self._sayer

    def answer(self, rows: int, watched: Collection[int], head: bool) -> Answer:
        """Where the pass leaves what it found."""
        desk = self.desk
        kept = {layer: desk.watched[layer][:rows] for layer in sorted(watched)}
        if head:
            return Answer(desk.logits[:rows], desk.best[:rows], None, kept)
        return Answer(None, None, desk.final[:rows], kept)

    def step(self, shape: Shape) -> None:
        """All kernels of a pass, over buffers that stay where they are."""
        model, desk, m, depth = self.model, self.desk, shape.rows, len(self.model.layers)
        x = self._input(0, m)
        prepare(x, model.embedding, self.inbox.parts(shape)[0])
        for index in range(depth):
            x = self._layer(index, x, shape)
        if depth in desk.watched or not shape.head:
            final = desk.watched.get(depth, desk.final)
            normalise(x.x, x.scale, final[:m])
            if not shape.head and final is not desk.final:
                desk.final[:m] = final[:m]
        if shape.head:
            logits = desk.logits[:m]
            project(x, model.head, logits)
            best_tokens(logits, desk.best[:m])
            desk.told[:m].copy_(desk.best[:m], non_blocking=True)

    def _input(self, layer: int, rows: int) -> Stream:
        """Where the input of a layer goes, or that of the output head."""
        watched = self.desk.watched if layer < len(self.model.layers) else {}
        buffer = watched[layer] if layer in watched else self.desk.streams[layer % 2]
        return Stream(buffer[:rows], self.scales[layer], self.desk.margins[0])

    def _layer(self, index: int, x: Stream, shape: Shape) -> Stream:
        """One decoder layer; its output [rows, width]."""
        model, desk, m = self.model, self.desk, shape.rows
        layer: Layer = model.layers[index]
        _, positions, slots, blocks, words = self.inbox.parts(shape)
        planes, queries, read = self.pool.planes(index), desk.queries[:m], desk.read[:m]
        project_heads(
            x, layer.qkv, queries, planes, heads=self.heads, angles=self.angles, positions=positions, slots=slots,
            bias=layer.qkv_bias, query_norm=layer.query_norm, key_norm=layer.key_norm,
        )  # fmt: skip
        attend(
            queries, planes, read, heads=self.heads, blocks=blocks, positions=positions,
            words=words[self.windows.index(layer.window)], scale=model.scale, cut=shape.cut, window=layer.window,
        )  # fmt: skip
        middle = Stream(desk.middle[:m], self.mlp_scales[index], desk.margins[1])
        project(read, layer.out, middle, residual=x.x)
        project(middle, layer.gate_up, desk.inner[:m], gate=True, ahead=self.ahead[index])
        after = self._input(index + 1, m)
        project(desk.inner[:m], layer.down, after, residual=middle.x)
        return after


def angles_of(model: Llama, positions: int) -> Tensor:
    """Cosines and sines of the rotation by position, [positions, head width] float32."""
    places = torch.arange(positions, device=model.rates.device)[:, None] * model.rates
    return torch.cat((places.cos(), places.sin()), -1) * model.amplitude


def join(answers: list[Answer]) -> Answer:
    """Answers of several passes as one."""
    if len(answers) == 1:
        return answers[0]

    def cat(parts: list[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return torch.cat(there) if there else None

    return Answer(
        cat([answer.logits for answer in answers]),
        cat([answer.best for answer in answers]),
        cat([answer.states for answer in answers]),
        {layer: torch.cat([answer.kept[layer] for answer in answers]) for layer in answers[0].kept},
    )
