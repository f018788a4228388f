"""A Llama-like model as five kernels a layer, one captured graph per shape of a pass.

All buffers stay where they are, so that a pass is an ordinary function that is either called or
replayed. The inputs of watched layers are written to buffers of their own by the layers themselves.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor, nn

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Layout
from sapwood.backends.torch.fused.answers import Answer, Desk, join
from sapwood.backends.torch.fused.attention import WORD, attend
from sapwood.backends.torch.fused.capture import Captured, Memory
from sapwood.backends.torch.fused.facts import Facts, Moved
from sapwood.backends.torch.fused.fetch import following
from sapwood.backends.torch.fused.graphs import MOST, Inbox, Load, Lone, Shape, loads, shape_of_one
from sapwood.backends.torch.fused.kernels import project
from sapwood.backends.torch.fused.place import place
from sapwood.backends.torch.fused.pointwise import best_tokens, enter, normalise
from sapwood.backends.torch.fused.pool import Pool
from sapwood.backends.torch.fused.qkv import Heads, project_heads
from sapwood.backends.torch.fused.sayer import Sayer
from sapwood.backends.torch.fused.stream import Scale, Stream
from sapwood.backends.torch.fused.tree import Rows as TreeRows
from sapwood.backends.torch.llama import Layer, Llama
from sapwood.backends.torch.network import Kept, Rows

SLOTS = {"cuda": 4096, "cpu": 64}  # of a seat at first
OFTEN = 16  # passes over the trees of one place after which they are captured with all that goes before


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
        self.desks = [Desk(model)]  # a second one takes the answers of passes that are queued behind another
        self.desk, self.inbox = self.desks[0], Inbox(len(self.windows), self.device)
        self.facts = Facts(self.device)
        self._passes: dict[tuple[Shape, int, int], Captured] = {}
        self._used: Counter[tuple[Shape, int]] = Counter()  # passes over trees of each place
        self.last: Captured | None = None  # the pass that ran last
        self.count = 0  # of passes
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
        shape, self.desk = load.shape(head, self.heads), self.desks[0]
        self.ready(shape, watched)
        self.inbox.send(load, shape)
        self.launch((shape, 0, 0), lambda: self.step(shape))
        return self.desk.answer(len(load.tokens), watched, head)

    def follow(
        self, tree: TreeRows, path: Tensor, nodes: int, first: int, length: int, moved: Moved, watched: Collection[int]
    ) -> Answer:
        """Run a tree that lies on the device, on a seat that begins at slot `first`; put the path before in place."""
        shape, self.desk = self._shape(nodes, length), self.desks[0]
        self.ready(shape, watched)
        self.facts.tell(first, length, nodes, moved)
        place, send = path.data_ptr(), self.facts.send
        self._used[shape, place] += 1
        if self._used[shape, place] > OFTEN:
            self.launch((shape, place, 0), lambda: self._arrive(shape, tree, path, send, self.step), known=True)
        else:
            self._arrive(
                shape, tree, path, send, lambda shape: self.launch((shape, 0, 0), lambda: self.step(shape))
            )  # fmt: skip
        self.facts.mark()
        return self.desk.answer(nodes, watched, head=True)

    def often(self, nodes: int, length: int, path: Tensor) -> bool:
        """True where passes like this one have become frequent, so that all they need is there."""
        return self._used[self._shape(nodes, length), path.data_ptr()] > OFTEN and self._age == self.pool.age

    def queue(self, tree: TreeRows, path: Tensor, nodes: int, length: int, tell: Callable[[], None]) -> int:
        """Run a tree when it lies on the device, behind a text of at most so many tokens; the desk of its answer."""
        if len(self.desks) == 1:
            self.desks.append(self.desk.twin(self.model))
        shape, before = self._shape(nodes, length), self.desk
        desk = 1 - self.desks.index(before)
        self.desk = self.desks[desk]
        name = shape, path.data_ptr(), 1 + desk
        self.launch(name, lambda: self._arrive(shape, tree, path, tell, self.step), known=True)
        self.desk = before
        return desk

    def take_up(self, desk: int, rows: int, watched: Collection[int]) -> Answer:
        """The answer of a pass that was queued."""
        self.desk = self.desks[desk]
        return self.desk.answer(rows, watched, head=True)

    def _shape(self, nodes: int, length: int) -> Shape:
        return shape_of_one(nodes, length, -(-nodes // WORD), True, self.heads)

    def _arrive(
        self, shape: Shape, tree: TreeRows, path: Tensor, tell: Callable[[], None], step: Callable[[Shape], None]
    ) -> None:
        """The pass over a tree on the device; nothing comes from the host but what `tell` brings."""
        tell()
        self.pool.keep(path, self.facts.there)
        place(tree, self.facts.there, self.inbox, shape)
        step(shape)

    # ------------------------------------------------------------------------------------- passes
    def ready(self, shape: Shape, watched: Collection[int]) -> None:
        """Make room for a pass; what was captured for buffers that are gone is forgotten."""
        moved = False
        for desk in self.desks:
            moved |= desk.watch(watched)
            moved |= shape.head and desk.reserve(shape.rows)
        if self._age != self.pool.age:
            self.angles = angles_of(self.model, self.pool.slots)
            self._age, moved = self.pool.age, True
        if moved:
            self._passes.clear()
            self._used.clear()

    def launch(self, name: tuple[Shape, int, int], body: Callable[[], None], *, known: bool = False) -> None:
        """Run a pass of this shape; where they are not 0, of the trees of this place, and queued for this desk."""
        step = self._passes.get(name)
        if step is None:
            step = self._passes[name] = Captured(body, self.device, self._room, ready=known)
        self.last, self.count = step, self.count + 1
        step()

    def told(self) -> IntArray:
        """The best token of each row of the last pass, once it is done, in a buffer that the next one overwrites."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return self.desk.heard

    @property
    def sayer(self) -> Sayer:
        """Draws tokens from the logits of the last pass."""
        if self.desk.sayer is None:
            self.desk.sayer = Sayer(self.desk.logits)
        return self.desk.sayer

    def step(self, shape: Shape) -> None:
        """All kernels of a pass, over buffers that stay where they are."""
        model, desk, m, depth = self.model, self.desk, shape.rows, len(self.model.layers)
        x = self._input(0, m)
        tokens, positions = self.inbox.parts(shape)[:2]
        enter(x, model.embedding, tokens, self.angles, positions, desk.turns)
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
            x, layer.qkv, queries, planes, heads=self.heads, angles=desk.turns, slots=slots,
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
