"""Outputs of a request: steps while it runs, a completion at the end, and statistics."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.types import Outcome

# stop: an end-of-text token or a stop string; length: max_tokens or the context was reached
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability under the model's own softmax, before any sampling option."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most likely tokens at this position, best first


@dataclass(frozen=True, slots=True)
class Stats:
    """Token counts and times of a request."""

    passes: int  # of the target, the prompt's not counted
    tokens: int  # emitted, the one that ended the text included
    tokens_per_pass: float
    drafted: int  # nodes the target checked, roots not counted
    accepted: int  # drafted tokens that became output
    waste: float  # share of drafted nodes that did not, discarded ones included
    prefill_s: float  # of the prompt
    draft_s: float
    verify_s: float
    other_s: float  # everything else between the prompt and the last token
    seconds: float  # all of the above
    tokens_per_second: float  # tokens / seconds
    # over plain decoding as the cost model predicts it, the prefill left out; None if unmeasured
    speedup: float | None
    discarded: int = 0  # nodes drafted beside a pass and thrown away unchecked
    cached_tokens: int = 0  # of the prompt, found in the prefix cache

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class TokenText:
    """The text that one token added; empty while it is held back."""

    token: int
    text: str
    drafted: bool  # True for an accepted draft token, False for the target's own token


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens and text that one round added to the output."""

    pieces: tuple[TokenText, ...]
    outcome: Outcome  # tree and verdict of the round
    logprobs: tuple[Logprob, ...] = ()  # one per token, when requested
    finish: Finish | None = None
    stats: Stats | None = None  # of the whole request, on the last step
    stop: str | None = None  # the stop string that ended it

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
    """A finished request; `tokens` includes the token that ended it, `text` does not."""

    text: str
    tokens: list[int]
    finish: Finish
    stats: Stats
    logprobs: list[Logprob] | None = None  # one per token, when requested


def collect(steps: Iterable[Step]) -> Completion:
    """Join all steps of a request into a completion."""
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


def ratio(part: float, whole: float) -> float:
    """The share `part` / `whole`; 0 when `whole` is 0."""
    return part / whole if whole else 0.0


def log_probabilities(logits: FloatArray, token: int, top: int) -> Logprob:
    """The log-probability of one token under the raw softmax of its position."""
    raw = logits.astype(np.float64)
    peak = raw.max()
    logs = raw - peak - np.log(np.exp(raw - peak).sum())
    best = best_tokens(logs, top)
    return Logprob(token, float(logs[token]), tuple((other, float(logs[other])) for other in best))


def best_tokens(logs: FloatArray, count: int) -> list[int]:
    """The most likely tokens, best first; the lowest id wins a tie."""
    if not count:
        return []
    least = np.partition(logs, -count)[-count] if count < len(logs) else logs.min()
    likely = np.flatnonzero(logs >= least)
    found: list[int] = likely[np.argsort(-logs[likely], kind="stable")[:count]].tolist()
    return found
