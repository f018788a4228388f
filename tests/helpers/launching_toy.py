"""A toy that launches passes over roots ahead, and gives their tokens when they are read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sapwood.core.array_types import IntArray
from sapwood.core.protocols import Capabilities, PrefillChunk, TargetOutput, TreeInput
from sapwood.core.rng import pick_by_key
from sapwood.core.root_batch import RootBatch
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from tests.helpers.scheduler_harness import Timed


@dataclass
class ToyRoots:
    """A launched pass; its tokens count as unknown until they are read."""

    tokens: list[int]
    scores: list[TargetOutput]
    read: bool = False

    def next_tokens(self) -> IntArray:
        self.read = True
        return np.array(self.tokens)

    def outputs(self) -> Sequence[TargetOutput]:
        return self.scores


@dataclass
class LaunchingToy(Timed):
    """A toy with the capability to launch passes over roots."""

    rows: int = 64
    launched: list[ToyRoots] = field(default_factory=list, compare=False)
    failing: set[int] = field(default_factory=set, compare=False)  # launches that raise

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, launch_roots=self.launch, root_rows=self.rows)

    def launch(self, batch: RootBatch, chunks: Sequence[PrefillChunk]) -> ToyRoots:
        if len(self.launched) in self.failing:
            self.failing.remove(len(self.launched))
            raise RuntimeError("a launch failed")
        assert len(batch) + sum(len(chunk.tokens) for chunk in chunks) <= self.rows
        assert all(one.read for one in self.launched[:-1]), "two passes were not read yet"
        roots = [
            token if token >= 0 else self.launched[-1].tokens[-1 - token] for token in batch.tokens
        ]
        work = [
            TreeInput(session, Tree.of_root(root))
            for session, root in zip(batch.sessions, roots, strict=True)
        ]
        outputs = self.score(work, chunks)
        drawn = []
        for output, session, temperature, key in zip(
            outputs, batch.sessions, batch.temperatures, batch.keys, strict=True
        ):
            session.commit((ROOT,))
            sampler = Sampler(Sampling(temperature=temperature), ())
            logits = output.logits(0)
            drawn.append(
                pick_by_key(sampler.probs(logits, ()), key)
                if temperature
                else int(output.argmax()[0])
            )
        self.launched.append(ToyRoots(drawn, outputs))
        return self.launched[-1]
