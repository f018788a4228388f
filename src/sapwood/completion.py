"""What a request gives back: steps while it runs, a completion at the end, and its numbers."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from sapwood.records import Outcome

Finish = Literal["stop", "length"]  # ended by itself or by a stop string; or cut by max_tokens or the context


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability under the model's own softmax, before any sampling option."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most likely tokens at this place, best first


@dataclass(frozen=True, slots=True)
class Stats:
    """What a request cost and what speculation brought."""

    passes: int  # of the target, the prompt's not counted
    tokens: int  # emitted, the one that ended the text included
    tokens_per_pass: float
    drafted: int  # nodes the target checked, roots not counted
    accepted: int  # drafted tokens that became output
    waste: float  # share of drafted nodes that did not
    prefill_s: float  # reading the prompt
    draft_s: float
    verify_s: float
    other_s: float  # everything else between the prompt and the last token
    seconds: float  # all of the above
    tokens_per_second: float  # tokens / seconds
    speedup: float | None  # over plain decoding as the cost curve predicts it, prompt left out; None if unmeasured

    def to_json(self) -> dict[str, Any]:
        """The numbers by name."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one token let out; empty while it is held back."""

    token: int
    text: str
    drafted: bool  # True for an accepted guess, False for the target's own token


@dataclass(frozen=True, slots=True)
class Step:
    """What one round added to the output."""

    pieces: tuple[Piece, ...]
    outcome: Outcome  # tree and verdict of the round
    logprobs: tuple[Logprob, ...] = ()  # one per token, where asked for
    finish: Finish | None = None
    stats: Stats | None = None  # of the whole request, on the last step

    @property
    def text(self) -> str:
        """New text."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> list[int]:
        """New tokens."""
        return [piece.token for piece in self.pieces]

    @property
    def done(self) -> bool:
        """True on the last step."""
        return self.finish is not None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request; `tokens` keeps the token that ended it, `text` stops before what ended it."""

    text: str
    tokens: list[int]
    finish: Finish
    stats: Stats
    logprobs: list[Logprob] | None = None  # one per token, where asked for


def collect(steps: Iterable[Step]) -> Completion:
    """All steps of a request as one."""
    text: list[str] = []
    tokens: list[int] = []
    logs: list[Logprob] = []
    for step in steps:
        text.append(step.text)
        tokens += step.tokens
        logs += step.logprobs
    assert step.finish is not None
    assert step.stats is not None
    return Completion("".join(text), tokens, step.finish, step.stats, logs or None)


@dataclass
class Tally:
    """Adds up the numbers of a request."""

    passes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill: float = 0.0  # seconds, as are the next three
    draft: float = 0.0
    verify: float = 0.0
    rounds: float = 0.0
    plain: float = 0.0  # what plain decoding would have spent on the same tokens

    def count(self, outcome: Outcome, pieces: tuple[Piece, ...], plain: float) -> None:
        """Book one round; `plain` is what its pass would have taken over one row."""
        self.passes += 1
        self.tokens += len(pieces)
        self.drafted += len(outcome.tree) - 1
        self.accepted += sum(piece.drafted for piece in pieces)
        self.draft += outcome.times.draft
        self.verify += outcome.times.verify
        self.plain += len(pieces) * plain

    def stats(self, *, measured: bool) -> Stats:
        """The numbers so far; `measured` says whether plain decoding's seconds mean anything."""
        # what parts learn from the first round is booked with the second, and was timed with the prompt
        rounds = max(self.rounds, self.draft + self.verify)
        seconds = self.prefill + rounds
        return Stats(
            passes=self.passes,
            tokens=self.tokens,
            tokens_per_pass=ratio(self.tokens, self.passes),
            drafted=self.drafted,
            accepted=self.accepted,
            waste=ratio(self.drafted - self.accepted, self.drafted),
            prefill_s=self.prefill,
            draft_s=self.draft,
            verify_s=self.verify,
            other_s=rounds - self.draft - self.verify,
            seconds=seconds,
            tokens_per_second=ratio(self.tokens, seconds),
            speedup=ratio(self.plain, rounds) if measured else None,
        )


def ratio(part: float, whole: float) -> float:
    """The share `part` / `whole`, 0 of nothing."""
    return part / whole if whole else 0.0
