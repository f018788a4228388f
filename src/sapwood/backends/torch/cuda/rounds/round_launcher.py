"""Rounds of a backend's requests on the device, for the engine."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from sapwood.backends.torch.cuda.draft.batch_draft import BATCHES
from sapwood.backends.torch.cuda.pass_inputs import SHORT
from sapwood.backends.torch.cuda.rounds.device_rounds import DeviceRounds
from sapwood.backends.torch.cuda.rounds.launched_round import CudaRound
from sapwood.backends.torch.cuda.rounds.prompt_rows import PromptRows
from sapwood.backends.torch.cuda.rounds.round_seconds import RoundSeconds
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.core.array_types import IntArray
from sapwood.core.device_rounds import RoundBatch
from sapwood.core.protocols import PrefillChunk
from sapwood.core.types import TreeShape

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.backend import CudaBackend
    from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder


class CudaRoundLauncher:
    """Launches rounds of one trained head over the sessions of one backend."""

    def __init__(self, backend: "CudaBackend", builder: "CudaTreeBuilder") -> None:
        self.backend = backend
        self.rounds = DeviceRounds(backend.fused, builder)
        self.captured = RoundSeconds(self.rounds)

    def fits(self, batch: RoundBatch) -> bool:
        """True when context and buffers have room for this round, and all of it was captured."""
        most = self.backend.info.context
        reach = batch.shape.depth + 1
        ends = (one.session.length + 2 * reach for one in batch.requests)
        return max(ends) <= most and self.rounds.fits(batch)

    def seconds(self, shape: TreeShape, requests: int, longest: int) -> float | None:
        """Seconds of the device for a round, measured when it was captured."""
        return self.captured.of(shape, requests, longest)

    @torch.inference_mode()
    def launch(self, batch: RoundBatch, chunks: Sequence[PrefillChunk] = ()) -> CudaRound:
        """Launch a round behind the one launched before, with chunks of prompts in its pass.

        Where they do not fit its rows, or such a pass was not captured, they have a pass of their
        own before it.
        """
        backend, rounds = self.backend, self.rounds
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        sessions = [own(one.session) for one in batch.requests]
        if not chunks:
            backend.detach_outputs()
            return rounds.launch(batch, sessions, backend.watched)
        if not rounds.takes_prompts(batch, [len(chunk.tokens) for chunk in chunks]):
            backend.score([], chunks)
            backend.detach_outputs()
            return rounds.launch(batch, sessions, backend.watched)
        backend.make_room([], chunks)
        backend.detach_outputs()
        trees = rounds.rows(batch)
        prompts = PromptRows([prompt_of(chunk) for chunk in chunks])
        launched = rounds.launch(batch, sessions, backend.watched, prompts)
        result = backend.fused.buffers.mixed_result(trees + len(prompts), trees, backend.watched)
        backend.commit_chunks(result, trees, chunks)
        return launched

    def capture(
        self, shapes: Sequence[TreeShape], requests: int, progress: Callable[[str], None]
    ) -> None:
        """Capture the rounds over trees of these shapes that up to so many requests may share."""
        longest = SHORT
        while longest <= self.backend.fused.pool.slots:
            for count in BATCHES:
                if count <= requests:
                    progress(f"capturing rounds of {count} requests behind up to {longest} tokens")
                    for shape in shapes:
                        self.captured.capture(shape, count, longest, self.backend.watched)
            longest *= 2


def prompt_of(chunk: PrefillChunk) -> tuple[IntArray, int, int]:
    """Tokens of a chunk, first slot and length of its KV sequence; makes room for them."""
    session = own(chunk.session)
    session.extend(len(chunk.tokens))
    return np.asarray(chunk.tokens, np.int64), session.sequence.first, session.length


def own(session: object) -> CudaSession:
    """A session of this backend."""
    assert isinstance(session, CudaSession)
    return session
