"""The steps of a draft over static buffers, for one request or for several at once.

Rows of several requests lie one after the other, equally many of each request at every step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import RoundFields
from sapwood.backends.torch.cuda.draft.draft_buffers import DraftBuffers
from sapwood.backends.torch.cuda.draft.eagle_layer import EagleWeights, LevelSizes
from sapwood.backends.torch.cuda.draft.head_kv_pool import HeadKvPool
from sapwood.backends.torch.cuda.kernels.prenorm import PrenormRows


@dataclass(frozen=True, slots=True)
class DraftSpace:
    """Static buffers and arguments of a draft."""

    hidden_states: Tensor  # [rows, features] of the target for new text
    buffers: DraftBuffers
    scalars: Tensor  # [SCALARS] or [requests, SCALARS]
    tokens: Tensor  # [rows] after each row of new text
    roots: Tensor  # [requests] rows of the roots among those of new text
    table: Tensor  # [CELLS, 2] or [tables, CELLS, 2]
    round_fields: RoundFields


@dataclass(frozen=True, slots=True)
class DraftSteps:
    """Steps of a draft with one head."""

    layer: EagleWeights
    ops: Any  # the module with their operations
    angles: Tensor  # [positions, head width]
    pool: HeadKvPool
    space: DraftSpace

    def text(self) -> None:
        """Run the rows of the new text up to their keys and values; the roots' go on in `tree`."""
        space, layer, ops = self.space, self.layer, self.ops
        buffers = space.buffers
        rows = len(space.tokens)
        x = buffers.x[:rows]
        base = buffers.base[:rows]
        ops.project(space.hidden_states, layer.fuse, buffers.states[:rows])
        ops.pair(layer, space.tokens, buffers.states[:rows], x, base)
        self._project_heads(x, 0, 0)
        torch.index_select(base, 0, space.roots, out=buffers.root_base)
        torch.index_select(buffers.query[:rows], 0, space.roots, out=buffers.root_query)

    def tree(self, sizes: LevelSizes, depths: Tensor, ranks: Tensor) -> None:
        """Draft the trees behind the text, and prune them; depths and ranks [size] of all nodes."""
        space = self.space
        self._finish_layer(sizes, space.buffers.root_query, space.buffers.root_base, None, None, 0)
        for depth in range(1, sizes.depth):
            self._level(sizes, depth)
        self.ops.prune(space.round_fields, space.scalars, depths, ranks, sizes.depth)

    def _level(self, sizes: LevelSizes, depth: int) -> None:
        """Choose the best nodes at this depth, run the head on them and add their children."""
        space = self.space
        buffers, fields = space.buffers, space.round_fields
        requests = fields.requests
        each = sizes.rows(depth)
        rows = requests * each
        above = requests * sizes.rows(depth - 1)
        before = sizes.before(depth)
        first = sizes.first(depth)
        stop = sizes.first(depth + 1)
        opened = fields.field("opened")[..., before : before + each]
        sees = buffers.sees[depth % 2, :rows]
        self.ops.select(
            self.layer,
            fields.field("grown_reach")[..., first:stop],
            fields.field("grown_tokens")[..., first:stop],
            first,
            sizes.width,
            buffers.outputs[(depth - 1) % 2, :above],
            buffers.sees[(depth - 1) % 2, :above] if depth > 1 else None,
            before,
            buffers.x[:rows],
            buffers.base[:rows],
            opened,
            sees,
        )
        self._project_heads(buffers.x[:rows], depth, before)
        self._finish_layer(sizes, buffers.query[:rows], buffers.base[:rows], sees, opened, depth)

    def _project_heads(self, x: Tensor, depth: int, before: int) -> None:
        """Queries of the rows, and their keys and values in the pool."""
        self.ops.project_heads(
            self.layer,
            x,
            self.space.scalars,
            self.angles,
            self.pool.keys,
            self.pool.values,
            self.space.buffers.query,
            depth,
            before,
        )

    def _finish_layer(
        self,
        sizes: LevelSizes,
        query: Tensor,
        base: Tensor,
        sees: Tensor | None,
        owners: Tensor | None,
        depth: int,
    ) -> None:
        """Run the rest of the layer for rows at this depth, and add their children."""
        space, layer, ops = self.space, self.layer, self.ops
        buffers = space.buffers
        rows = len(query)
        gated = buffers.gated[:rows]
        attention_out = buffers.attention_out[:rows]
        logits = buffers.logits[:rows]
        middle = PrenormRows(buffers.middle[:rows], layer.mlp_norm, buffers.norm_buffers[0])
        outputs = PrenormRows(
            buffers.outputs[depth % 2, :rows], layer.norm, buffers.norm_buffers[1]
        )
        count = sizes.before(depth) + sizes.rows(depth) if depth else 0
        ops.attend(
            layer,
            query,
            space.scalars,
            self.pool.keys,
            self.pool.values,
            sees,
            attention_out,
            count,
        )
        ops.project(attention_out, layer.out, middle, residual=base)
        ops.project(middle, layer.gate_up, gated, gate=True)
        ops.project(gated, layer.down, outputs, residual=middle.x)
        ops.project(outputs, layer.head, logits)
        ops.leaders(
            layer,
            logits,
            space.scalars,
            space.table,
            owners,
            depth + 1,
            sizes.width,
            sizes.first(depth + 1),
            space.round_fields,
        )
