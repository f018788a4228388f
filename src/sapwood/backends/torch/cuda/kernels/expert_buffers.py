"""Static buffers of a mixture of experts, and the sizes of the groups that its rows form."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.tile_configs import row_tile

LARGEST_TILE = 64  # rows of a group at most


@dataclass(frozen=True, slots=True)
class ExpertBuffers:
    """Room for the experts of the rows of a pass; a choice is a row's expert, [row, rank]."""

    logits: Tensor  # [rows, experts] float32, of the router
    picks: Tensor  # [rows, chosen] int32 experts, best first; -1 in rows that nothing reads
    shares: Tensor  # [rows, chosen] float32
    members: Tensor  # choices of each group, one group behind the other, int32
    groups: Tensor  # expert and number of choices of each group, int32
    inner: Tensor  # [rows * chosen, inner]
    outputs: Tensor  # [rows * chosen, width]

    @classmethod
    def make(
        cls, like: Tensor, rows: int, experts: int, chosen: int, inner: int, width: int
    ) -> "ExpertBuffers":
        """Buffers for this many rows."""
        choices = rows * chosen
        most = group_count(choices, experts, row_tile(1))

        def whole(*shape: int) -> Tensor:
            return like.new_zeros(*shape, dtype=torch.int32)

        return cls(
            logits=like.new_zeros(rows, experts, dtype=torch.float32),
            picks=whole(rows, chosen),
            shares=like.new_zeros(rows, chosen, dtype=torch.float32),
            members=whole(most * LARGEST_TILE),
            groups=whole(2 * most),
            inner=like.new_zeros(choices, inner),
            outputs=like.new_zeros(choices, width),
        )

    def first(self, rows: int) -> "ExpertBuffers":
        """The same buffers, as long as a pass of this many rows needs them."""
        choices = rows * self.picks.shape[1]
        return replace(
            self,
            logits=self.logits[:rows],
            picks=self.picks[:rows],
            shares=self.shares[:rows],
            inner=self.inner[:choices],
            outputs=self.outputs[:choices],
        )


def group_count(choices: int, experts: int, tile: int) -> int:
    """Most groups of up to `tile` choices of one expert."""
    return min(choices, choices // tile + min(experts, choices))


def group_tile(choices: int, experts: int) -> int:
    """Rows of a group: as many as an expert has on average, in a tile."""
    return min(LARGEST_TILE, row_tile(-(-choices // experts)))
