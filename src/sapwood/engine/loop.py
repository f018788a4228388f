"""The round loop: budget, draft, prune, score, verify, commit, observe.

Plain decoding is this loop with a budget of no nodes, and a chain is a tree of width one, so a
baseline and a method share every line that is timed.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from sapwood.controllers.throughput_stats import ThroughputStats, stats_of
from sapwood.core.protocols import (
    Backend,
    EngineContext,
    TokenizerLike,
    no_tokenizer,
    no_words,
)
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.cost_model import CostModel, flat
from sapwood.engine.overlap import can_overlap, overlapped_rounds
from sapwood.engine.pipeline import can_pipeline, pipelined_rounds
from sapwood.engine.prelaunch import prepare_device
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe


def no_loader(name: str) -> Backend:
    """Refuse to load a model: the default of `Engine.load`."""
    raise SapwoodError(f"model {name!r} cannot be loaded here; hand the drafter a backend")


@dataclass
class Engine:
    """A target and a recipe: decodes any number of requests."""

    target: Backend
    recipe: Recipe
    cost: CostModel = field(default_factory=flat)
    load: Callable[[str], Backend] = no_loader
    now: Callable[[], float] = time.perf_counter  # seconds; replaced when runs must be reproducible
    encode: Callable[[str], list[int]] = no_tokenizer  # for drafters that use a text file
    words: Callable[[str], TokenizerLike] = no_words  # for drafters with a tokenizer of their own

    def __post_init__(self) -> None:
        self.recipe = self.recipe.bind(
            EngineContext(self.target, self.cost, self.load, self.encode, self.words, now=self.now)
        )
        # of its controllers, shared by all requests
        self.throughput: list[ThroughputStats] = list(stats_of(self.recipe.parts()[-1]))
        prepare_device(self.recipe)

    def decodes_alone(self, sampling: Sampling) -> bool:
        """True when a request has a driver of its own: it shares no pass with others."""
        return can_overlap(self.recipe, sampling) or can_pipeline(self, self.recipe, sampling)

    def rounds(self, prompt: Sequence[int], sampling: Sampling, rng: Rng) -> Generator[Outcome]:
        """Decode one request, round by round, until the caller stops or the context is full."""
        if can_overlap(self.recipe, sampling):
            yield from overlapped_rounds(self, prompt, sampling, rng)
            return
        if can_pipeline(self, self.recipe, sampling):
            yield from pipelined_rounds(self, prompt, sampling, rng)
            return
        decoding = RequestDecoder(self, prompt, sampling, rng)
        try:
            while not decoding.full:
                [scores] = self.target.score([decoding.draft()])
                yield decoding.finish_round(scores)
        finally:
            decoding.close()
