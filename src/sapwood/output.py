"""Turns rounds into text: ends the request where a stop, a limit or the model says so."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.completion import Finish, Logprob, Piece, Step, Tally
from sapwood.engine import Engine
from sapwood.records import Outcome
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.text import Detokenizer, StopStrings, Text


class Output:
    """The output of one request, token by token, so that where it ends does not depend on the rounds."""

    def __init__(self, sampling: Sampling, detokenizer: Detokenizer | None) -> None:
        self._sampling = sampling
        self._ends = frozenset(sampling.stop_ids)
        self._detokenizer, self._stops = detokenizer, StopStrings(sampling.stop)
        self._count = 0
        self.finish: Finish | None = None

    def push(self, outcome: Outcome) -> tuple[Piece, ...]:
        """Take the round's tokens, up to the one that ends the request."""
        pieces = []
        for place, token in enumerate(outcome.tokens):
            pieces.append(Piece(token, self._take(token), drafted=place < outcome.verdict.accepted))
            if self.finish is not None:
                break
        return tuple(pieces)

    def _take(self, token: int) -> str:
        self._count += 1
        if token in self._ends:
            self.finish = "stop"
            return self._rest()
        text = self._detokenizer.push([token]) if self._detokenizer else ""
        if self._count > self._sampling.min_tokens:
            text = self._stops.push(text)
        if self._stops.hit is not None:
            self.finish = "stop"
        elif self._count >= self._sampling.max_tokens:
            self.finish = "length"
            text += self._rest()
        return text

    def _rest(self) -> str:
        tail = self._detokenizer.flush() if self._detokenizer else ""
        return self._stops.push(tail) + self._stops.flush()


def steps(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, text: Text | None, *, measured: bool
) -> Iterator[Step]:
    """Decode one request; time that the caller spends between two steps is not counted."""
    output = Output(sampling, Detokenizer(text, prompt) if text else None)
    tally, step = Tally(), None
    # a controller that prices its trees refines the curve itself; for the others it is followed here
    watched = measured and not getattr(engine.recipe.controller, "priced", False)
    with closing(engine.rounds(prompt, sampling, Keyed(sampling.seed))) as rounds:
        while step is None or not step.done:
            start = time.perf_counter()
            outcome: Outcome = next(rounds)
            pieces = output.push(outcome)
            if watched:
                engine.cost.observe(len(outcome.tree), outcome.context, outcome.times.verify)
            plain = engine.cost.plain(len(outcome.tree), outcome.context, outcome.times.verify)
            tally.count(outcome, pieces, plain)
            found = () if sampling.logprobs is None else logprobs(outcome, len(pieces), sampling.logprobs)
            spent = time.perf_counter() - start
            if step is None:  # the first round comes after the prompt
                tally.prefill = spent - outcome.times.total
                spent = outcome.times.total
            tally.rounds += spent
            stats = tally.stats(measured=measured) if output.finish else None
            step = Step(pieces, outcome, found, output.finish, stats)
            yield step


def logprobs(outcome: Outcome, count: int, top: int) -> tuple[Logprob, ...]:
    """What the model itself gave the first `count` tokens of a round, each at the node it came from."""
    tokens = outcome.tokens[:count]
    return tuple(
        describe(outcome.scores.logits(node), token, top)
        for node, token in zip(outcome.verdict.path, tokens, strict=False)
    )


def describe(logits: FloatArray, token: int, top: int) -> Logprob:
    """One token against the raw softmax of its place."""
    raw = logits.astype(np.float64)
    peak = raw.max()
    logs = raw - peak - np.log(np.exp(raw - peak).sum())
    best: list[int] = np.argsort(-logs, kind="stable")[:top].tolist()
    return Logprob(token, float(logs[token]), tuple((other, float(logs[other])) for other in best))
