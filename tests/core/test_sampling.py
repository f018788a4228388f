"""From logits to a law: each option against a slow, obvious reference."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.array_types import FloatArray
from sapwood.core.sampling import Sampler, Sampling, nucleus, softmax, truncate
from sapwood.errors import SapwoodError

TIED = st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8]), min_size=1, max_size=12).filter(any)
SMOOTH = st.lists(st.floats(1e-6, 1), min_size=1, max_size=12)
LAWS = st.one_of(TIED, SMOOTH).map(lambda weights: np.array(weights, float) / np.sum(weights))
LOGITS = st.lists(st.floats(-20, 20), min_size=6, max_size=6).map(np.array)
TOKENS = st.lists(st.integers(0, 5), max_size=6)


def law_of(
    logits: Any, path: list[int] | None = None, prompt: list[int] | None = None, **options: Any
) -> FloatArray:
    """The law of the next token under these options."""
    sampling = Sampling(**{"temperature": 1.0, **options})
    return Sampler(sampling, prompt or []).probs(np.array(logits, float), path or [])


def renormal(probs: list[float]) -> list[float]:
    return [value / math.fsum(probs) for value in probs]


# ------------------------------------------------------------------------------- references
def slow_softmax(logits: FloatArray, temperature: float) -> list[float]:
    best = max(logits.tolist())
    return renormal([math.exp((logit - best) / temperature) for logit in logits.tolist()])


def slow_top_k(probs: FloatArray, count: int) -> list[float]:
    """Everything at least as likely as the count-th best."""
    if count == 0 or count >= len(probs):
        return [float(value) for value in probs]
    least = sorted(probs.tolist(), reverse=True)[count - 1]
    return renormal([value if value >= least else 0.0 for value in probs.tolist()])


def slow_top_p(probs: FloatArray, mass: float) -> list[float]:
    """Sort all, take from the best down until the mass is reached; the lower id first in a tie."""
    kept = [0.0] * len(probs)
    total = 0.0
    for token in sorted(range(len(probs)), key=lambda token: (-probs[token], token)):
        if total >= mass:
            break
        kept[token] = float(probs[token])
        total += kept[token]
    return renormal(kept)


def slow_min_p(probs: FloatArray, share: float) -> list[float]:
    return renormal([value if value >= share * max(probs) else 0.0 for value in probs.tolist()])


def slow_adjust(
    logits: FloatArray, prompt: list[int], output: list[int], options: Sampling
) -> list[float]:
    """Bias, bans, stops before min_tokens, repetition, then frequency and presence."""
    out = []
    for token, logit in enumerate(logits.tolist()):
        value = logit + options.logit_bias.get(token, 0.0)
        if token in options.banned or (
            len(output) < options.min_tokens and token in options.stop_ids
        ):
            value = -math.inf
        if token in prompt or token in output:
            value = (
                value / options.repetition_penalty
                if value > 0
                else value * options.repetition_penalty
            )
        if token in output:
            value -= options.frequency_penalty * output.count(token) + options.presence_penalty
        out.append(value)
    return out


# ------------------------------------------------------------------------------- truncation
@given(LOGITS, st.floats(0.05, 5))
def test_temperature_divides_the_logits(logits: FloatArray, temperature: float) -> None:
    assert law_of(logits, temperature=temperature) == pytest.approx(
        slow_softmax(logits, temperature), abs=1e-12
    )
    assert softmax(logits).sum() == pytest.approx(1)


@given(LAWS, st.integers(0, 14))
def test_top_k_keeps_the_best_and_their_equals(probs: FloatArray, count: int) -> None:
    assert truncate(probs, Sampling(top_k=count)) == pytest.approx(
        slow_top_k(probs, count), abs=1e-12
    )


@given(LAWS, st.one_of(st.floats(0.01, 0.999), st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 0.95])))
def test_top_p_equals_the_plain_sort(probs: FloatArray, mass: float) -> None:
    sums = np.cumsum(np.sort(probs)[::-1])
    if np.abs(sums - mass).min() < 1e-12:  # the boundary itself is decided by rounding
        return
    assert nucleus(probs, mass) == pytest.approx(slow_top_p(probs, mass), abs=1e-12)


def test_top_p_equals_the_plain_sort_on_large_skewed_laws() -> None:
    random = np.random.default_rng(0)
    for sharpness in (0.01, 0.1, 1.0, 10.0):
        probs = random.dirichlet(np.full(500, sharpness))
        for mass in (0.05, 0.5, 0.9, 0.999):
            assert nucleus(probs, mass) == pytest.approx(slow_top_p(probs, mass), abs=1e-12)


def test_top_p_takes_the_lowest_ids_of_a_tie() -> None:
    assert nucleus(np.full(8, 0.125), 0.3).tolist() == pytest.approx([1 / 3] * 3 + [0.0] * 5)
    assert nucleus(np.array([0.5, 0.5]), 0.5).tolist() == [1.0, 0.0]


@given(LAWS, st.floats(0.001, 1))
def test_min_p_drops_what_is_far_below_the_best(probs: FloatArray, share: float) -> None:
    assert truncate(probs, Sampling(min_p=share)) == pytest.approx(
        slow_min_p(probs, share), abs=1e-12
    )


@given(LAWS, st.integers(0, 5), st.floats(0.05, 1), st.floats(0, 0.9))
def test_truncations_apply_in_order_and_leave_a_law(
    probs: FloatArray, count: int, mass: float, share: float
) -> None:
    ours = truncate(probs, Sampling(top_k=count, top_p=mass, min_p=share))
    one_by_one = probs
    for option in ({"top_k": count}, {"top_p": mass}, {"min_p": share}):
        one_by_one = truncate(one_by_one, Sampling(**option))
    assert ours == pytest.approx(one_by_one)
    assert ours.sum() == pytest.approx(1)
    assert ours[np.argmax(probs)] > 0
    assert (probs[ours > 0] > 0).all()


@given(LOGITS)
def test_greedy_is_one_hot_on_the_best(logits: FloatArray) -> None:
    probs = law_of(logits, temperature=0.0)
    assert probs.tolist() == [float(token == int(np.argmax(logits))) for token in range(6)]
    assert law_of([1.0, 3.0, 3.0], temperature=0.0).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "options", [{"top_k": 0}, {"top_k": 3}, {"top_k": 4}, {"top_p": 1.0}, {"min_p": 0.0}], ids=str
)
def test_a_law_that_nothing_cuts_is_passed_through(options: dict[str, Any]) -> None:
    probs = np.array([0.1, 0.3, 0.5])  # not even renormalised
    assert truncate(probs, Sampling(**options)) is probs


# -------------------------------------------------------------------------------- penalties
OPTIONS = st.builds(
    Sampling,
    temperature=st.just(1.0),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.4, 0.9]),
    presence_penalty=st.sampled_from([0.0, -0.6, 0.3]),
    logit_bias=st.dictionaries(st.integers(0, 5), st.floats(-5, 5), max_size=3),
    banned=st.lists(st.integers(0, 2), max_size=2),
    min_tokens=st.integers(0, 6),
    stop_ids=st.lists(st.integers(3, 4), max_size=2),
)


@given(LOGITS, OPTIONS, TOKENS, TOKENS, TOKENS)
def test_penalties_equal_the_reference_on_any_split_of_the_output(
    logits: FloatArray, options: Sampling, prompt: list[int], committed: list[int], path: list[int]
) -> None:
    sampler = Sampler(options, prompt)
    sampler.commit(committed)
    before = logits.copy()
    expected = slow_adjust(logits, prompt, committed + path, options)
    assert sampler.adjust(logits, path) == pytest.approx(expected, abs=1e-12)
    assert np.array_equal(logits, before)  # the backend's row is left alone
    later = Sampler(options, prompt)
    later.commit(committed + path)
    assert later.probs(logits, []) == pytest.approx(sampler.probs(logits, path), abs=1e-12)
    assert later.best(logits, []) == sampler.best(logits, path) == int(np.argmax(expected))


@given(LOGITS, TOKENS, TOKENS)
def test_untouched_logits_are_passed_through(
    logits: FloatArray, prompt: list[int], path: list[int]
) -> None:
    sampler = Sampler(Sampling(top_k=3, top_p=0.5, stop_ids=[1]), prompt)
    assert not sampler.sampling.touches_logits
    assert sampler.adjust(logits, path) is logits


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {1: 2.0}},
        {"banned": [1]},
        {"min_tokens": 1},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
    ],
    ids=str,
)
def test_options_that_move_the_best_token_say_so(options: dict[str, Any]) -> None:
    assert Sampling(**options).touches_logits


def test_min_tokens_holds_the_end_back_just_long_enough() -> None:
    sampler = Sampler(Sampling(temperature=1.0, min_tokens=3, stop_ids=[0]), [0])
    chances = []
    for token in (1, 2, 1, 2):
        chances.append(float(sampler.probs(np.zeros(3), [])[0]))
        sampler.commit([token])
    assert chances == pytest.approx([0.0, 0.0, 0.0, 1 / 3])
    fresh = Sampler(sampler.sampling, [0])
    assert [
        float(fresh.probs(np.zeros(3), [1] * length)[0]) for length in range(4)
    ] == pytest.approx(chances)


def test_penalties_count_the_prompt_for_repetition_only() -> None:
    logits = [1.0, 1.0, 1.0]
    assert law_of(logits, prompt=[0], repetition_penalty=2.0)[0] < 1 / 3
    assert law_of(logits, prompt=[0], presence_penalty=2.0) == pytest.approx([1 / 3] * 3)
    assert law_of(logits, path=[0], presence_penalty=2.0)[0] < 1 / 3


# ----------------------------------------------------------------------------------- ranges
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"temperature": True},
        {"top_k": -1},
        {"top_p": 1.5},
        {"top_p": -0.1},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"frequency_penalty": 11},
        {"presence_penalty": -11},
        {"max_tokens": 0},
        {"max_tokens": None},
        {"min_tokens": -1},
        {"top_k": 2.5},
        {"max_tokens": 10.0},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_in_one_sentence(options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(SapwoodError) as caught:
        Sampling(**options)
    message = str(caught.value)
    kind = "whole number" if name in ("top_k", "max_tokens", "min_tokens") else "number"
    assert message.startswith(f"{name}={value!r} must be a {kind} ")
    assert "\n" not in message


def test_top_p_of_zero_names_the_way_out() -> None:
    with pytest.raises(SapwoodError, match=r"top_p=0 keeps no token; use temperature=0"):
        Sampling(top_p=0)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_the_ends_of_the_ranges_are_allowed(name: str) -> None:
    assert getattr(Sampling(**{name: 1}), name) == 1  # type: ignore[arg-type]
    assert Sampling(top_k=0, min_p=0, min_tokens=0, max_tokens=1).greedy


def test_a_temperature_near_zero_leaves_the_best_token() -> None:
    probs = law_of(np.array([1.0, 40.0, 39.999, -math.inf]), temperature=1e-310)
    assert probs.tolist() == [0.0, 1.0, 0.0, 0.0]
