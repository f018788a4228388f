"""Detokenizes rounds into steps; ends a request at a stop, a limit or an end-of-text token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import (
    Finish,
    Logprob,
    Stats,
    Step,
    TokenText,
    log_probabilities,
    ratio,
)
from sapwood.structured_output.grammar_matcher import GrammarMatcher
from sapwood.tokenizer.detokenizer import Detokenizer, StopStrings
from sapwood.tokenizer.tokenizer import Tokenizer


class OutputProcessor:
    """The output of one request.

    Tokens are taken one by one, so that where it ends does not depend on the rounds.
    """

    def __init__(self, sampling: Sampling, detokenizer: Detokenizer | None) -> None:
        self._sampling = sampling
        self._ends = frozenset(sampling.stop_ids)
        self._detokenizer = detokenizer
        self._stops = StopStrings(sampling.stop)
        self._matcher = None if sampling.grammar is None else GrammarMatcher(sampling.grammar)
        self._count = 0
        self.finish: Finish | None = None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the request."""
        return self._stops.hit

    def push(self, outcome: Outcome) -> tuple[TokenText, ...]:
        """Take the round's tokens, up to the one that ends the request."""
        if len(outcome.verdict.path) == 1:  # most often: no drafted token
            token = outcome.verdict.bonus
            return (TokenText(token, self._take(token), drafted=False),)
        pieces = []
        for place, token in enumerate(outcome.tokens):
            pieces.append(
                TokenText(token, self._take(token), drafted=place < outcome.verdict.accepted)
            )
            if self.finish is not None:
                break
        return tuple(pieces)

    def replay(self, tokens: Sequence[int]) -> None:
        """Take tokens whose text has been sent already."""
        for token in tokens:
            self._take(token)

    def _take(self, token: int) -> str:
        self._count += 1
        if token in self._ends:
            self.finish = "stop"
            return self._rest()
        text = self._detokenizer.push_one(token) if self._detokenizer else ""
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
        """True when the grammar allows nothing after this token: no end-of-text is needed."""
        if self._matcher is None:
            return False
        self._matcher.commit([token])
        state = self._matcher.state(())
        return state is not None and state.done

    def _rest(self) -> str:
        tail = self._detokenizer.flush() if self._detokenizer else ""
        return self._stops.push(tail) + self._stops.flush()


@dataclass
class StatsCounter:
    """Counts the statistics of a request."""

    passes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    discarded: int = 0  # drafted beside a pass, and thrown away
    prefill: float = 0.0  # seconds, as are the next three
    draft: float = 0.0
    verify: float = 0.0
    rounds: float = 0.0
    plain: float = 0.0  # seconds of plain decoding for the same tokens, by the cost model
    cached_tokens: int = 0  # of the prompt

    def count(self, outcome: Outcome, pieces: tuple[TokenText, ...], plain: float) -> None:
        """Count one round; `plain` is the seconds that its pass would have taken over one row."""
        self.passes += outcome.passes
        self.tokens += len(pieces)
        self.drafted += len(outcome.tree) - 1
        if len(outcome.verdict.path) > 1:
            self.accepted += sum(piece.drafted for piece in pieces)
        self.discarded += outcome.discarded
        self.draft += outcome.times.draft
        self.verify += outcome.times.verify
        self.plain += len(pieces) * plain

    def stats(self, *, measured: bool) -> Stats:
        """The statistics so far; `measured` is True when the cost model was measured."""
        # parts learn from the first round in the second one's time, which began with the prompt
        rounds = max(self.rounds, self.draft + self.verify)
        seconds = self.prefill + rounds
        return Stats(
            passes=self.passes,
            tokens=self.tokens,
            tokens_per_pass=ratio(self.tokens, self.passes),
            drafted=self.drafted,
            accepted=self.accepted,
            waste=ratio(
                self.drafted + self.discarded - self.accepted, self.drafted + self.discarded
            ),
            discarded=self.discarded,
            prefill_s=self.prefill,
            draft_s=self.draft,
            verify_s=self.verify,
            other_s=rounds - self.draft - self.verify,
            seconds=seconds,
            tokens_per_second=ratio(self.tokens, seconds),
            speedup=ratio(self.plain, rounds) if measured else None,
            cached_tokens=self.cached_tokens,
        )


class StepBuilder:
    """Turns the outcomes of one request into steps, and counts its statistics."""

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        sampling: Sampling,
        text: Tokenizer | None,
        *,
        measured: bool,
        shown: frozenset[int] = frozenset(),  # special tokens that stand in the text
    ) -> None:
        detokenizer = Detokenizer(text, prompt, shown) if text else None
        self.output = OutputProcessor(sampling, detokenizer)
        self.stats = StatsCounter()
        self._cost = engine.cost
        self._now = engine.now
        self._most = sampling.logprobs
        self._measured = measured
        # a controller that prices its trees refines the cost model itself
        self._watched = measured and not engine.recipe.controller.priced

    def resume(self, tokens: Sequence[int], stats: StatsCounter) -> None:
        """Go on after tokens that another server has sent, with its statistics."""
        self.output.replay(tokens)
        self.stats = stats

    def step(self, outcome: Outcome, start: float, *, first: bool = False) -> Step:
        """The step of a round that began at `start`; the `first` one includes the prefill."""
        stats = self.stats
        times = outcome.times
        cost = self._cost
        pieces = self.output.push(outcome)
        if self._watched and outcome.shared is None:
            cost.observe(outcome.rows, outcome.context, times.verify)
        shared = outcome.shared
        context = outcome.context if shared is None else shared.context
        stats.count(outcome, pieces, cost.plain(outcome.rows, context, times.verify, outcome.trees))
        found = () if self._most is None else logprobs(outcome, len(pieces), self._most)
        spent = self._now() - start
        if first:
            stats.prefill = spent - times.total
            spent = times.total
        stats.rounds += spent
        total = stats.stats(measured=self._measured) if self.output.finish else None
        return Step(pieces, outcome, found, self.output.finish, total, self.output.stop)


def within(sampling: Sampling, room: int) -> Sampling:
    """The same sampling with `max_tokens` limited to this room."""
    return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)


def logprobs(outcome: Outcome, count: int, top: int) -> tuple[Logprob, ...]:
    """Log-probabilities of the first `count` tokens of a round, each at its parent node."""
    tokens = outcome.tokens[:count]
    return tuple(
        log_probabilities(outcome.scores.logits(node), token, top)
        for node, token in zip(outcome.verdict.path, tokens, strict=False)
    )
