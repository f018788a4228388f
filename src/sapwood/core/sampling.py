"""Sampling options, and the distribution that they make of logits along a path.

The order is: logit bias, banned tokens and the end of text before `min_tokens`; repetition
penalty (prompt and output), then frequency and presence penalties (output only); what the grammar
forbids; temperature; top-k; top-p; min-p. A node of a tree counts the tokens on its own path as
output, so the probs at a node are those of plain decoding after the same tokens.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.errors import SapwoodError
from sapwood.structured_output.grammar_matcher import GrammarMatcher, GrammarRules

# option -> (smallest, largest) value it may take
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "frequency_penalty": (-10.0, 10.0),
    "presence_penalty": (-10.0, 10.0),
    "max_tokens": (1, math.inf),
    "min_tokens": (0, math.inf),
}


@dataclass(frozen=True)
class Sampling:
    """Sampling and stop options of a request."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()
    max_tokens: int = 256
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    seed: int = 0
    logprobs: int | None = None  # alternatives reported beside each token's log-probability
    grammar: GrammarRules | None = None  # of the output, compiled for this model's tokens
    prediction: Sequence[int] = ()  # expected output tokens: they change its speed only

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            kind = "whole number" if isinstance(low, int) else "number"
            right = int if kind == "whole number" else int | float
            if isinstance(value, bool) or not isinstance(value, right) or not low <= value <= high:
                bounds = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
                raise SapwoodError(f"{name}={value!r} must be a {kind} {bounds}")
        if self.top_p == 0:
            raise SapwoodError("top_p=0 keeps no token; use temperature=0 for the best token")

    def check_tokens(self, vocab: int) -> None:
        """Refuse token ids that the model does not have."""
        for name in ("logit_bias", "banned", "stop_ids", "prediction"):
            strange = [token for token in getattr(self, name) if not 0 <= token < vocab]
            if strange:
                raise SapwoodError(
                    f"{name} names token {strange[0]}; this model has tokens 0 to {vocab - 1}"
                )

    @property
    def greedy(self) -> bool:
        """True when the best token is taken without randomness."""
        return self.temperature == 0

    @property
    def touches_logits(self) -> bool:
        """True when the best token may differ from the one with the largest raw logit."""
        return bool(
            self.logit_bias
            or self.banned
            or self.min_tokens
            or self.grammar is not None
            or self.repetition_penalty != 1
            or self.frequency_penalty
            or self.presence_penalty
        )

    @property
    def truncates(self) -> bool:
        """True when a draw may not come from the whole softmax; nothing is drawn when greedy."""
        return not self.greedy and bool(self.top_k or self.top_p < 1 or self.min_p)


class Sampler:
    """The sampling of one request, with the token counts of its text so far."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self._seen = set(prompt)  # tokens the repetition penalty counts
        self._counts: Counter[int] = Counter()  # output tokens
        self._counted = sampling.touches_logits  # tokens are counted for penalties and grammar
        self.guide = None if sampling.grammar is None else GrammarMatcher(sampling.grammar)
        self.emitted = 0

    def commit(self, tokens: Sequence[int]) -> None:
        """Count tokens that are now part of the output."""
        self.emitted += len(tokens)
        if not self._counted:
            return
        self._seen.update(tokens)
        self._counts.update(tokens)
        if self.guide is not None:
            self.guide.commit(tokens)

    def adjust(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        """Logits after bias, bans, penalties and grammar; `path` follows the committed text."""
        if not self.sampling.touches_logits:
            return logits
        options = self.sampling
        out = logits.astype(np.float64, copy=True)
        for token, bias in options.logit_bias.items():
            out[token] += bias
        if options.banned:
            out[list(options.banned)] = -math.inf
        place = None if self.guide is None else self.guide.state(path)
        if self.emitted + len(path) < options.min_tokens and not (place and place.done):
            out[list(options.stop_ids)] = -math.inf
        if options.repetition_penalty != 1:
            seen = list(self._seen.union(path))
            out[seen] *= np.where(
                out[seen] > 0, 1 / options.repetition_penalty, options.repetition_penalty
            )
        if options.frequency_penalty or options.presence_penalty:
            counts = self._counts + Counter(path)
            used = list(counts)
            times = np.array(list(counts.values()))
            out[used] -= options.frequency_penalty * times + options.presence_penalty
        return out if place is None else np.where(place.allowed(), out, -math.inf)

    def best(self, logits: FloatArray, path: Sequence[int]) -> int:
        """The most likely token; the lowest id wins a tie."""
        adjusted = self.adjust(logits, path)
        if np.isneginf(adjusted[token := int(np.argmax(adjusted))]):
            raise SapwoodError("every token is banned here; allow at least one")
        return token

    def probs(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        """Distribution of the next token after `path`, [vocab]; one-hot when greedy."""
        if self.sampling.greedy:
            probs = np.zeros(len(logits))
            probs[self.best(logits, path)] = 1.0
            return probs
        return truncate(
            softmax(self.adjust(logits, path), self.sampling.temperature), self.sampling
        )


def softmax(logits: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Probabilities in float64."""
    exact = logits.astype(np.float64)
    if np.isneginf(peak := exact.max()):
        raise SapwoodError("every token is banned here; allow at least one")
    with np.errstate(over="ignore"):  # near temperature 0 only the best tokens are left
        probs: FloatArray = np.exp((exact - peak) / temperature)
    probs /= probs.sum()
    return probs


def truncate(probs: FloatArray, sampling: Sampling) -> FloatArray:
    """Apply top-k, top-p and min-p, then renormalise."""
    if 0 < sampling.top_k < len(probs):
        probs = np.where(probs >= np.partition(probs, -sampling.top_k)[-sampling.top_k], probs, 0.0)
        probs = probs / probs.sum()
    if sampling.top_p < 1:
        probs = nucleus(probs, sampling.top_p)
    if sampling.min_p > 0:
        probs = np.where(probs >= sampling.min_p * probs.max(), probs, 0.0)
        probs = probs / probs.sum()
    return probs


def nucleus(probs: FloatArray, mass: float) -> FloatArray:
    """The fewest tokens that hold at least `mass`, renormalised."""
    # tokens below (1 - mass) / vocab sum to less than 1 - mass: they need no sorting
    likely = np.flatnonzero(probs >= (1 - mass) / len(probs))
    likely = likely[np.argsort(-probs[likely], kind="stable")]
    count = int(np.searchsorted(np.cumsum(probs[likely]), mass)) + 1
    kept: FloatArray = np.zeros_like(probs)
    kept[likely[:count]] = probs[likely[:count]]
    kept /= kept.sum()
    return kept


def without(probs: FloatArray, tokens: list[int]) -> FloatArray:
    """The distribution without these tokens, renormalised; all zeros when nothing is left."""
    rest = probs.copy()
    rest[tokens] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else np.zeros_like(rest)


def draft_probs(sampler: Sampler, logits: FloatArray, path: list[int]) -> FloatArray:
    """Draft probs q after the request's sampling along the path; the whole softmax when greedy."""
    if sampler.sampling.greedy:
        return softmax(sampler.adjust(logits, path))
    return sampler.probs(logits, path)
