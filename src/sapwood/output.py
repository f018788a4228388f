"""Turns rounds into text: ends the request where a stop, a limit or the model says so."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.completion import Finish, Logprob, Piece, Step, Tally
from sapwood.engine import Engine
from sapwood.guide import Guide
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
        self._guide = None if sampling.grammar is None else Guide(sampling.grammar)
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
        elif self._whole(token):
            self.finish = "stop"
            text += self._rest()
        elif self._count >= self._sampling.max_tokens:
            self.finish = "length"
            text += self._rest()
        return text

    def _whole(self, token: int) -> bool:
        """True when nothing can follow this token under the grammar: the text need not say that it ends."""
        if self._guide is None:
            return False
        self._guide.commit([token])
        state = self._guide.state(())
        return state is not None and state.done

    def _rest(self) -> str:
        tail = self._detokenizer.flush() if self._detokenizer else ""
        return self._stops.push(tail) + self._stops.flush()


class Writer:
    """Turns the outcomes of one request into steps, and adds up its numbers."""

    def __init__(
        self, engine: Engine, prompt: Sequence[int], sampling: Sampling, text: Text | None, *, measured: bool
    ) -> None:
        self.output = Output(sampling, Detokenizer(text, prompt) if text else None)
        self.tally = Tally()
        self._cost, self._most, self._measured = engine.cost, sampling.logprobs, measured
        # a controller that prices its trees refines the curve itself; for the others it is followed here
        self._watched = measured and not getattr(engine.recipe.controller, "priced", False)

    def step(self, outcome: Outcome, start: float, *, reading: bool = False) -> Step:
        """The step of a round that began at `start`; `reading` says that it has read the prompt as well."""
        tally, times, cost = self.tally, outcome.times, self._cost
        pieces = self.output.push(outcome)
        if self._watched and outcome.joint is None:
            cost.observe(outcome.rows, outcome.context, times.verify)
        tally.count(outcome, pieces, cost.plain(outcome.rows, outcome.context, times.verify, outcome.trees))
        found = () if self._most is None else logprobs(outcome, len(pieces), self._most)
        spent = time.perf_counter() - start
        if reading:
            tally.prefill, spent = spent - times.total, times.total
        tally.rounds += spent
        stats = tally.stats(measured=self._measured) if self.output.finish else None
        return Step(pieces, outcome, found, self.output.finish, stats)


def within(sampling: Sampling, room: int) -> Sampling:
    """The same sampling, ended where there is no room for further tokens."""
    return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)


def steps(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, text: Text | None, *, measured: bool
) -> Iterator[Step]:
    """Decode one request; time that the caller spends between two steps is not counted."""
    writer, step = Writer(engine, prompt, sampling, text, measured=measured), None
    with closing(engine.rounds(prompt, sampling, Keyed(sampling.seed))) as rounds:
        while step is None or not step.done:
            start = time.perf_counter()
            step = writer.step(next(rounds), start, reading=step is None)  # the first round comes after the prompt
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
