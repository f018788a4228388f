"""The CUDA path with rounds on the device; without a GPU its drafts are steps in torch."""

from collections.abc import Sequence
from typing import Any

import torch

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.torch.cuda.rounds.round_launcher import CudaRoundLauncher
from sapwood.core.device_rounds import RoundBatch
from sapwood.core.protocols import PrefillChunk


class RoundTarget(CudaBackend):
    """A backend that runs rounds on the device, and counts them."""

    def tree_builder(self, head: Any, embedding: torch.Tensor) -> CudaTreeBuilder:
        builder = CudaTreeBuilder(head, embedding)
        builder.rounds = CountingLauncher(self, builder)
        return builder


class CountingLauncher(CudaRoundLauncher):
    """A launcher that keeps the batches it has launched."""

    def __init__(self, backend: CudaBackend, builder: CudaTreeBuilder) -> None:
        super().__init__(backend, builder)
        self.launched: list[RoundBatch] = []
        self.prompts = 0  # rows of prompts that ran beside trees

    def launch(self, batch: RoundBatch, chunks: Sequence[PrefillChunk] = ()) -> Any:
        self.launched.append(batch)
        self.prompts += sum(len(chunk.tokens) for chunk in chunks)
        return super().launch(batch, chunks)
