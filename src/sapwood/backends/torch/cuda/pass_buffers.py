"""Static buffers of CUDA-graph passes, and results as views of them; valid until the next pass."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.expert_buffers import ExpertBuffers
from sapwood.backends.torch.cuda.kernels.prenorm import NormBuffers
from sapwood.backends.torch.cuda.pass_inputs import MAX_ROWS
from sapwood.backends.torch.cuda.verify.device_sampler import DeviceSampler
from sapwood.backends.torch.llama import LlamaModel
from sapwood.backends.torch.network import Kept
from sapwood.core.array_types import IntArray

LOGITS = 128  # rows of logits at first


@dataclass(frozen=True, slots=True)
class PassResult:
    """Results of a pass, in buffers that the next pass overwrites."""

    logits: Tensor | None  # [rows, vocab]
    best: Tensor | None  # [rows]
    states: Tensor | None  # [rows, width] inputs of the output head, from passes without it
    kept: Kept

    def copy(self) -> "PassResult":
        """A copy in memory of its own."""
        logits, best, states = (
            None if part is None else part.clone() for part in (self.logits, self.best, self.states)
        )
        return PassResult(
            logits, best, states, {layer: states.clone() for layer, states in self.kept.items()}
        )


class PassBuffers:
    """Static buffers of a pass: activations, logits, best tokens."""

    def __init__(self, model: LlamaModel) -> None:
        like = model.embedding
        heads = model.heads * model.head_width
        self.like = like
        self.vocab = model.vocab
        self.width = model.width
        self.streams = like.new_zeros(2, MAX_ROWS, model.width)  # inputs of layers, in turn
        # residual stream between attention and MLP
        self.middle = like.new_zeros(MAX_ROWS, model.width)
        # of layers' inputs, and of `middle`
        self.norm_buffers = [NormBuffers.make(like, MAX_ROWS, model.width) for _ in range(2)]
        # rotary angles of the rows' positions, of each kind of layer
        angles = len(model.angles), MAX_ROWS, model.head_width
        self.row_angles = like.new_zeros(angles, dtype=torch.float32)
        self.queries = like.new_zeros(MAX_ROWS, model.heads, model.head_width)
        self.attention_out = like.new_zeros(MAX_ROWS, heads)
        self.inner = like.new_zeros(MAX_ROWS, model.inner)
        self.final = like.new_zeros(MAX_ROWS, model.width)
        self.best = torch.zeros(MAX_ROWS, dtype=torch.int64, device=like.device)
        self.host_best = torch.zeros(MAX_ROWS, dtype=torch.int64, pin_memory=like.is_cuda)
        self.host_best_array: IntArray = self.host_best.numpy()
        self.logits = like.new_zeros(LOGITS, model.vocab)
        self.watched: dict[int, Tensor] = {}
        self.sampler: DeviceSampler | None = None
        self._results: dict[tuple[int, bool, frozenset[int]], PassResult] = {}

    def reserve(self, rows: int) -> bool:
        """Make room for this many rows of logits; True if the buffer was replaced."""
        if rows <= len(self.logits):
            return False
        self.logits = self.like.new_zeros(MAX_ROWS, self.vocab)
        self.sampler = None
        self._results.clear()
        return True

    def twin(self, model: LlamaModel) -> "PassBuffers":
        """Another set of buffers of the same size."""
        twin = PassBuffers(model)
        twin.reserve(len(self.logits))
        twin.watch(self.watched)
        return twin

    def watch(self, layers: Collection[int]) -> bool:
        """Make buffers for the inputs of these layers; True if some are new."""
        new = [layer for layer in layers if layer not in self.watched]
        for layer in new:
            self.watched[layer] = self.like.new_zeros(MAX_ROWS, self.width)
        return bool(new)

    def result(self, rows: int, watched: Collection[int], head: bool) -> PassResult:
        """Views of the results of a pass over this many rows."""
        name = rows, head, frozenset(watched)
        if name not in self._results:
            kept = {layer: self.watched[layer][:rows] for layer in sorted(watched)}
            self._results[name] = (
                PassResult(self.logits[:rows], self.best[:rows], None, kept)
                if head
                else PassResult(None, None, self.final[:rows], kept)
            )
        return self._results[name]

    def mixed_result(self, rows: int, trees: int, watched: Collection[int]) -> PassResult:
        """Views of a pass over rows of trees and of prompts: logits of the trees, states of all."""
        kept = {layer: self.watched[layer][:rows] for layer in sorted(watched)}
        return PassResult(self.logits[:trees], self.best[:trees], self.final[:rows], kept)


class LayerScratch:
    """Buffers inside a layer that is more than a Llama's; each pass overwrites them."""

    def __init__(self, model: LlamaModel) -> None:
        like = model.embedding
        extras = [layer.extras for layer in model.layers if layer.extras is not None]
        heads = model.heads + 2 * model.kv_heads if any(one.row_norms for one in extras) else 0
        width = model.width if any(one.post_norms for one in extras) else 0
        self.qkv = like.new_zeros(MAX_ROWS, heads * model.head_width)
        self.outputs = like.new_zeros(MAX_ROWS, width)  # of attention or MLP, before their norm
        self.experts = (
            ExpertBuffers.make(
                like, MAX_ROWS, model.experts, model.chosen, model.inner, model.width
            )
            if model.experts
            else None
        )


def join(results: list[PassResult]) -> PassResult:
    """Results of several passes as one."""
    if len(results) == 1:
        return results[0]

    def cat(parts: list[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return torch.cat(there) if there else None

    return PassResult(
        cat([result.logits for result in results]),
        cat([result.best for result in results]),
        cat([result.states for result in results]),
        {layer: torch.cat([result.kept[layer] for result in results]) for layer in results[0].kept},
    )
