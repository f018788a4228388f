"""A described model as kernels in one CUDA graph per shape of a pass; a Llama has five a layer.

All buffers are static, so that a pass is an ordinary function that is either called or replayed.
The inputs of watched layers are written to buffers of their own by the layers themselves.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep, GraphMemory
from sapwood.backends.torch.cuda.draft.device_tree import DeviceRows as TreeRows
from sapwood.backends.torch.cuda.kernels.attention import attend
from sapwood.backends.torch.cuda.kernels.attention_tiles import WORD, HeadSizes
from sapwood.backends.torch.cuda.kernels.experts import add_experts
from sapwood.backends.torch.cuda.kernels.linear import Workspace, project, using_workspace
from sapwood.backends.torch.cuda.kernels.open_paths import open_paths
from sapwood.backends.torch.cuda.kernels.pointwise import (
    add_normed,
    best_tokens,
    embed_rows,
    normalise,
)
from sapwood.backends.torch.cuda.kernels.prenorm import NormScale, PrenormRows
from sapwood.backends.torch.cuda.kernels.qkv import project_heads
from sapwood.backends.torch.cuda.kernels.row_norms import turn_rows
from sapwood.backends.torch.cuda.kernels.weight_prefetch import following
from sapwood.backends.torch.cuda.kv_pool import CudaKvPool
from sapwood.backends.torch.cuda.pass_buffers import (
    LayerScratch,
    PassBuffers,
    PassResult,
    join,
)
from sapwood.backends.torch.cuda.pass_inputs import (
    MAX_ROWS,
    NOTHING,
    PassArgs,
    PassInputs,
    PassRows,
    PassShape,
    PendingMove,
    RootRows,
    SingleTree,
    WritableRows,
    shape_of_one,
    split_passes,
)
from sapwood.backends.torch.cuda.pass_setup import place
from sapwood.backends.torch.cuda.tree_rows import ManyTrees
from sapwood.backends.torch.cuda.verify.device_sampler import DeviceSampler
from sapwood.backends.torch.kv_slots import KvLayout
from sapwood.backends.torch.llama import LayerExtras, LlamaLayer, LlamaModel
from sapwood.backends.torch.network import Kept, PassInput
from sapwood.core.array_types import IntArray

SLOTS = {"cuda": 4096, "cpu": 64}  # of a KV sequence at first
# passes over trees of one round buffer after which one graph holds the pass and its preparation
CAPTURE_AFTER = 16


NO_EXTRAS = LayerExtras()

AnyRows = PassRows | RootRows | SingleTree | ManyTrees


class CudaNetwork:
    """Runs passes of a described model on a CUDA device; the network of a `CudaBackend`."""

    def __init__(self, model: LlamaModel, slots: int = 0, weights: str = "") -> None:
        """`weights` is the number format of quantised projections."""
        self.model = model
        self.device = model.embedding.device
        self.precision = weights or str(model.embedding.dtype).removeprefix("torch.")
        self.heads = HeadSizes(model.heads, model.kv_heads, model.head_width)
        self.scales = [
            NormScale.of(norm, model.eps)
            for norm in (*(layer.norm for layer in model.layers), model.norm)
        ]
        self.mlp_scales = [NormScale.of(layer.mlp_norm, model.eps) for layer in model.layers]
        # as transformers has it, in the model's number format
        scale = torch.tensor(model.embedding_scale, dtype=model.embedding.dtype)
        self.embedding_scale = float(scale)
        self.ahead = [None] * len(model.layers) if weights else following(model)
        self.layout = KvLayout()
        self.pool = CudaKvPool(
            len(model.layers), self.heads, model.embedding, slots or SLOTS[self.device.type]
        )
        # a second set takes the results of prelaunched passes
        self.buffer_sets = [PassBuffers(model)]
        self.buffers = self.buffer_sets[0]
        self.scratch = LayerScratch(model)
        self.inputs = PassInputs(self.device)
        self.pass_args = PassArgs(self.device)
        # its own: a draft model's passes may run beside the target's
        self.workspace = Workspace(self.device)
        self._passes: dict[tuple[PassShape, int, int], CapturedStep] = {}
        self._used: Counter[tuple[PassShape, int]] = Counter()  # passes by shape and round buffer
        self.last: CapturedStep | None = None  # the pass that ran last
        self.count = 0  # of passes
        self._waited = 0  # count of passes when the host last waited for one
        self._room = GraphMemory()
        # both made for this version of the pool
        self.angles = angles_of(model, self.pool.slots)
        self._version = self.pool.version
        # shape, watched layers and pool's version of the last pass that there is room for
        self._ready_for: tuple[object, ...] = ()

    # ---------------------------------------------------------------------------------- a network
    def read(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers."""
        result = self._joined(rows, watched, head=False)
        assert result.states is not None
        return result.states, result.kept

    def compute_logits(self, states: Tensor) -> Tensor:
        """Logits by the output head."""
        logits = states.new_empty(len(states), self.model.vocab)
        with using_workspace(self.workspace):
            for start in range(0, len(states), MAX_ROWS):
                project(
                    states[start : start + MAX_ROWS].contiguous(),
                    self.model.head,
                    logits[start : start + MAX_ROWS],
                    cap=self.model.logit_cap,
                )
        return logits

    def convert_head(self, net: nn.Module) -> nn.Module:
        """The head itself: it was loaded in the model's number format."""
        return net

    def score(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the whole model."""
        result = self._joined(rows, watched, head=True)
        assert result.logits is not None
        return result.logits, result.kept

    def _joined(self, rows: PassInput, watched: Collection[int], head: bool) -> PassResult:
        return join([result.copy() for result in self.run(rows, watched, head)])

    def run(self, rows: PassInput, watched: Collection[int], head: bool) -> Iterator[PassResult]:
        """Run rows in as many passes as needed; each result is overwritten by the next."""
        for rows_of_pass in split_passes(rows):
            yield self.run_pass(rows_of_pass, watched, head)

    def run_pass(self, rows: AnyRows, watched: Collection[int], head: bool) -> PassResult:
        """Run one pass."""
        self.run_shape(rows, rows.shape(head, self.heads), watched)
        return self.buffers.result(len(rows.tokens), watched, head)

    def run_mixed(
        self, rows: WritableRows, shape: PassShape, watched: Collection[int], trees: int
    ) -> PassResult:
        """Run `trees` rows of trees and those of prompts behind them in one pass.

        The result has logits of the former, and states of all.
        """
        self.run_shape(rows, shape, watched)
        return self.buffers.mixed_result(len(rows.tokens), trees, watched)

    def run_shape(
        self,
        rows: WritableRows,
        shape: PassShape,
        watched: Collection[int],
        *,
        at_once: bool = False,
    ) -> None:
        """Run one pass of this shape; its results are in the buffers.

        `at_once` captures it in its first run, which compiles and loads its kernels meanwhile.
        """
        self.buffers = self.buffer_sets[0]
        self.ready(shape, watched)
        self.pool.run_moves()
        self.inputs.send(rows, shape)
        self._launch_step(shape, known=at_once)

    def run_device_tree(
        self,
        tree: TreeRows,
        path: Tensor,
        nodes: int,
        first: int,
        length: int,
        moved: PendingMove,
        watched: Collection[int],
    ) -> PassResult:
        """Run a tree on the device over the KV sequence at slot `first`, after the pending move."""
        shape = self._shape(nodes, length)
        self.buffers = self.buffer_sets[0]
        self.ready(shape, watched)
        self.pool.run_moves()
        self.pass_args.write(first, length, nodes, moved)
        address = path.data_ptr()
        send = self.pass_args.send
        self._used[shape, address] += 1
        if self._used[shape, address] > CAPTURE_AFTER:
            self.launch(
                (shape, address, 0),
                lambda: self._device_tree_pass(shape, tree, path, send, self.step),
                known=True,
            )
        else:
            self._device_tree_pass(shape, tree, path, send, self._launch_step)
        self.pass_args.record_sent()
        return self.buffers.result(nodes, watched, head=True)

    def is_frequent(self, nodes: int, length: int, path: Tensor) -> bool:
        """True when passes like this one are frequent, so that all their buffers exist."""
        return (
            self._used[self._shape(nodes, length), path.data_ptr()] > CAPTURE_AFTER
            and self._version == self.pool.version
        )

    def prelaunch(
        self, tree: TreeRows, path: Tensor, nodes: int, length: int, write_args: Callable[[], None]
    ) -> int:
        """Launch the pass over a tree behind its draft; the index of the buffers of its result.

        The text before the tree has at most `length` tokens.
        """
        if len(self.buffer_sets) == 1:
            self.buffer_sets.append(self.buffers.twin(self.model))
        shape = self._shape(nodes, length)
        before = self.buffers
        index = 1 - self.buffer_sets.index(before)
        self.buffers = self.buffer_sets[index]
        name = shape, path.data_ptr(), 1 + index
        self.launch(
            name,
            lambda: self._device_tree_pass(shape, tree, path, write_args, self.step),
            known=True,
        )
        self.buffers = before
        return index

    def capture_tree_pass(
        self,
        tree: TreeRows,
        path: Tensor,
        nodes: int,
        first: int,
        length: int,
        watched: Collection[int],
        write_args: Callable[[], None],
    ) -> None:
        """Capture the passes over trees of so many nodes, prelaunched ones too."""
        self.run_device_tree(tree, path, nodes, first, length, NOTHING, watched)  # loads kernels
        if len(self.buffer_sets) == 1:
            self.buffer_sets.append(self.buffers.twin(self.model))
        shape = self._shape(nodes, length)
        address = path.data_ptr()
        self._used[shape, address] = CAPTURE_AFTER + 1
        sides = [(0, 0, self.pass_args.send), *((1 + at, at, write_args) for at in range(2))]
        for number, index, write in sides:
            self.buffers = self.buffer_sets[index]
            body = partial(self._device_tree_pass, shape, tree, path, write, self.step)
            step = CapturedStep(body, self.device, self._room, ready=True)
            step.capture()
            self._passes[shape, address, number] = step
        self.buffers = self.buffer_sets[0]

    def prelaunched_result(self, index: int, rows: int, watched: Collection[int]) -> PassResult:
        """The result of a prelaunched pass, in the buffers of this index."""
        self.buffers = self.buffer_sets[index]
        return self.buffers.result(rows, watched, head=True)

    def _shape(self, nodes: int, length: int) -> PassShape:
        return shape_of_one(nodes, length, -(-nodes // WORD), True, self.heads, nodes > 1)

    def _device_tree_pass(
        self,
        shape: PassShape,
        tree: TreeRows,
        path: Tensor,
        write_args: Callable[[], None],
        step: Callable[[PassShape], None],
    ) -> None:
        """The pass over a tree on the device; `write_args` writes or transfers its arguments."""
        write_args()
        self.pool.keep(path, self.pass_args.on_device)
        place(tree, self.pass_args.on_device, self.inputs, shape)
        step(shape)

    # ------------------------------------------------------------------------------------- passes
    def ready(self, shape: PassShape, watched: Collection[int]) -> None:
        """Make room for a pass; drop graphs that were captured for replaced buffers."""
        asked = shape, watched, self.pool.version
        if asked == self._ready_for:
            return
        self._ready_for = shape, frozenset(watched), self.pool.version
        moved = False
        for buffers in self.buffer_sets:
            moved |= buffers.watch(watched)
            moved |= buffers.reserve(shape.logit_rows)
        if self._version != self.pool.version:
            self.angles = angles_of(self.model, self.pool.slots)
            self._version = self.pool.version
            moved = True
        if moved:
            self._passes.clear()
            self._used.clear()

    def is_captured(self, shape: PassShape) -> bool:
        """True when a pass of this shape captures and compiles nothing."""
        step = self._passes.get((shape, 0, 0))
        return self.device.type != "cuda" or (step is not None and step.steady)

    def _launch_step(self, shape: PassShape, *, known: bool = False) -> None:
        self.launch((shape, 0, 0), lambda: self.step(shape), known=known)

    def launch(
        self, name: tuple[PassShape, int, int], body: Callable[[], None], *, known: bool = False
    ) -> None:
        """Run the pass of this name, capturing it if it is new.

        A name is a shape, the address of a round buffer's path or 0, and 1 + the index of the
        buffers of a prelaunched pass or 0.
        """
        step = self._passes.get(name)
        if step is None:
            step = self._passes[name] = CapturedStep(body, self.device, self._room, ready=known)
        self.last = step
        self.count = self.count + 1
        step()

    def best_on_host(self) -> IntArray:
        """Wait for the last pass; its best token of each row, in a buffer that is overwritten."""
        if self.device.type == "cuda" and self._waited != self.count:
            torch.cuda.current_stream(self.device).synchronize()
            self._waited = self.count
        return self.buffers.host_best_array

    @property
    def sampler(self) -> DeviceSampler:
        """Samples tokens from the logits of the last pass."""
        if self.buffers.sampler is None:
            self.buffers.sampler = DeviceSampler(self.buffers.logits)
        return self.buffers.sampler

    def step(self, shape: PassShape) -> None:
        """All kernels of a pass, over static buffers."""
        with using_workspace(self.workspace):
            self._launch_kernels(shape)

    def _launch_kernels(self, shape: PassShape) -> None:
        model = self.model
        buffers = self.buffers
        m = shape.rows
        depth = len(self.model.layers)
        x = self._input(0, m)
        tokens, positions, _, blocks, words = self.inputs.parts(shape)
        paths = open_paths(words, positions, blocks, shape.tiles)
        embed_rows(
            x, model.embedding, tokens, buffers.best, self.angles, positions, buffers.row_angles,
            self.embedding_scale,
        )  # fmt: skip
        for index in range(depth):
            x = self._layer(index, x, shape, paths)
        if depth in buffers.watched or shape.keeps_states:
            final = buffers.watched.get(depth, buffers.final)
            normalise(x.x, x.scale, final[:m])
            if shape.keeps_states and final is not buffers.final:
                buffers.final[:m] = final[:m]
        if shape.head:
            asked = shape.logit_rows
            logits = buffers.logits[:asked]
            project(x.first(asked), model.head, logits, cap=model.logit_cap)
            best_tokens(logits, buffers.best[:asked])
            buffers.host_best[:asked].copy_(buffers.best[:asked], non_blocking=True)

    def _input(self, layer: int, rows: int) -> PrenormRows:
        """The buffer of a layer's input, or of the output head's."""
        watched = self.buffers.watched if layer < len(self.model.layers) else {}
        buffer = watched[layer] if layer in watched else self.buffers.streams[layer % 2]
        return PrenormRows(buffer[:rows], self.scales[layer], self.buffers.norm_buffers[0])

    def _layer(self, index: int, x: PrenormRows, shape: PassShape, paths: Tensor) -> PrenormRows:
        """One decoder layer; its output [rows, width]."""
        model = self.model
        buffers = self.buffers
        m = shape.rows
        layer = model.layers[index]
        extras = layer.extras or NO_EXTRAS
        after_attention, after_mlp = extras.post_norms or (None, None)
        _, positions, slots, blocks, _ = self.inputs.parts(shape)
        planes = self.pool.planes(index)
        queries = buffers.queries[:m]
        attention_out = buffers.attention_out[:m]
        self._project_heads(layer, x, queries, planes, slots)
        attend(
            queries, planes, attention_out, heads=self.heads, blocks=blocks, positions=positions,
            paths=paths, scale=model.scale,
            tiles=shape.tiles, window=layer.window, cap=model.attention_cap,
        )  # fmt: skip
        middle = PrenormRows(buffers.middle[:m], self.mlp_scales[index], buffers.norm_buffers[1])
        self._add(
            attention_out, layer.out, extras.out_bias, after_attention, x.x, middle,
            extras.pre_norms,
        )  # fmt: skip
        after = self._input(index + 1, m)
        if extras.router is not None:
            assert self.scratch.experts is not None
            add_experts(
                middle, extras.router, layer.gate_up, layer.down, after,
                self.scratch.experts.first(m), slots,
                normalised=model.normalised, activation=model.activation,
            )  # fmt: skip
            return after
        project(
            middle if extras.pre_norms else middle.x, layer.gate_up, buffers.inner[:m], gate=True,
            activation=model.activation, bias=extras.gate_up_bias, ahead=self.ahead[index],
        )  # fmt: skip
        self._add(
            buffers.inner[:m], layer.down, extras.down_bias, after_mlp, middle.x, after,
            extras.pre_norms or index + 1 == len(model.layers),
        )  # fmt: skip
        return after

    def _project_heads(
        self, layer: LlamaLayer, x: PrenormRows, queries: Tensor, planes: Tensor, slots: Tensor
    ) -> None:
        """Queries of rows, and their keys and values in their slots."""
        angles = self.buffers.row_angles[layer.rotary]
        extras = layer.extras or NO_EXTRAS
        if extras.row_norms is None:
            project_heads(
                x, layer.qkv, queries, planes, heads=self.heads, angles=angles, slots=slots,
                bias=layer.qkv_bias, query_norm=layer.query_norm, key_norm=layer.key_norm,
            )  # fmt: skip
            return
        made = self.scratch.qkv[: len(x.x)]
        project(x if extras.pre_norms else x.x, layer.qkv, made, bias=layer.qkv_bias)
        turn_rows(
            made, queries, planes, heads=self.heads, norms=extras.row_norms, eps=self.model.eps,
            angles=angles, slots=slots,
        )  # fmt: skip

    def _add(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm: Tensor | None,
        residual: Tensor,
        out: PrenormRows,
        leaves: bool,
    ) -> None:
        """The residual with a projection added, through its norm if there is one."""
        if norm is None:
            project(rows, weight, out, bias=bias, residual=residual)
            return
        made = self.scratch.outputs[: len(rows)]
        project(rows, weight, made, bias=bias)
        add_normed(made, norm, residual, out, leaves=leaves)


def angles_of(model: LlamaModel, positions: int) -> Tensor:
    """Cosines and sines of the rotation by position, [positions, tables * head width] float32."""
    places = torch.arange(positions, device=model.rates.device)[:, None]
    tables = []
    for one in model.angles:
        turns = places * one.rates
        amplitude = torch.where(one.rates > 0, one.amplitude, 1.0)  # 1 where nothing is rotated
        tables += [turns.cos() * amplitude, turns.sin() * amplitude]
    return torch.cat(tables, -1)
