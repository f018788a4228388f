"""Where two outputs part, and whether rounding explains it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend, ToyOutput, probs_after
from sapwood.bench.measure import decode
from sapwood.bench.ties import (
    SLACK,
    TRIED,
    explain,
    first_difference,
    largest_logit_change,
    logits_after,
    noisy,
    slack_of,
)
from sapwood.core.protocols import TreeInput
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.engine.loop import Engine
from sapwood.recipes import resolve

TOY: Any = ToyBackend(vocab=6, context=80)
words = st.lists(st.integers(0, 2), max_size=7)


@dataclass
class Rounding(ToyBackend):
    """A toy whose logits move a little where a pass has several rows; its number format is unknown."""

    dtype: str = "int4"
    moves: float = 0.25
    opened: int = 0

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, dtype=self.dtype)

    def open(self, tokens: Sequence[int], **options: Any) -> Any:
        self.opened += 1
        return super().open(tokens, **options)

    def _score(self, work: TreeInput) -> ToyOutput:
        found = super()._score(work)
        if len(work.tree) > 1:
            found.rows[:, 2] += self.moves
        return found


# ------------------------------------------------------------------------------------------ where
@given(words, words)
def test_outputs_part_at_the_first_place_that_differs(one: list[int], other: list[int]) -> None:
    place = first_difference(one, other)
    if place is None:
        assert one == other
        return
    assert one[:place] == other[:place]
    assert one[place : place + 1] != other[place : place + 1]
    assert first_difference(other, one) == place


def test_equal_outputs_need_no_explanation() -> None:
    assert explain(TOY, "p", [0, 1], [2, 3], [2, 3], Sampling()) is None
    assert explain(TOY, "p", [0, 1], [], [], Sampling()) is None


@pytest.mark.parametrize(
    ("plain", "other", "tokens"), [([1, 2], [1], (2, None)), ([1], [1, 2], (None, 2))]
)
def test_an_output_that_goes_on_is_never_a_tie(
    plain: list[int], other: list[int], tokens: tuple[int | None, int | None]
) -> None:
    found = explain(TOY, "p", [0], plain, other, Sampling())
    assert found is not None
    assert (found.plain_token, found.recipe_token) == tokens
    assert (found.position, found.tie, found.gap, found.plain_logit) == (1, False, None, None)


# ---------------------------------------------------------------------------------------- the gap
def test_the_logits_are_the_targets_own_after_the_common_text() -> None:
    prompt = [0, 3, 1]
    said = decode(Engine(TOY, resolve("plain")), prompt, Sampling(max_tokens=6)).tokens
    for place, token in enumerate(said):
        wrong = (token + 1) % 6
        found = explain(TOY, "name", prompt, said, [*said[:place], wrong], Sampling())
        assert found is not None
        probs = probs_after(TOY.salt, 6, (*prompt, *said[:place]))
        assert found.prompt == "name"
        assert found.position == place
        assert found.plain_logit == pytest.approx(np.log(probs[token]))
        assert found.recipe_logit == pytest.approx(np.log(probs[wrong]))
        assert found.gap == pytest.approx(np.log(probs[token] / probs[wrong]))
        assert not found.tie


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_noise_makes_the_token_that_was_drawn_the_best(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=4)
    for position in range(5):
        logits = np.random.default_rng(position).normal(size=9)
        probs = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
        drawn = KeyedRng(4).pick(probs, NoiseKey(position))
        assert int(np.argmax(noisy(logits, sampling, position))) == drawn


def test_greedy_decoding_has_no_noise() -> None:
    logits = np.array([1.0, 2.0])
    assert noisy(logits, Sampling(seed=9), 3) is logits


def test_one_row_is_read_and_its_session_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    whole = type(TOY.open([0])).close

    def close(self: Any) -> None:
        closed.append(1)
        whole(self)

    monkeypatch.setattr(type(TOY.open([0])), "close", close)
    found = logits_after(TOY, [0, 1, 2])
    assert found == pytest.approx(np.log(probs_after(TOY.salt, 6, (0, 1, 2))))
    assert found.dtype == np.float64
    assert closed == [1]


# ------------------------------------------------------------------------------------- how far
def test_known_formats_have_their_own_slack() -> None:
    for name, slack in SLACK.items():
        target: Any = Rounding(vocab=6, context=80, dtype=name)
        assert slack_of(target, [0, 1, 2]) == slack
        assert target.opened == 0
    assert sorted(SLACK, key=lambda name: SLACK[name]) == [
        "float64",
        "float32",
        "float16",
        "bfloat16",
    ]


@pytest.mark.parametrize("length", [1, 2, TRIED, TRIED + 1, 3 * TRIED])
def test_rounding_of_other_formats_is_measured_on_the_text(length: int) -> None:
    target: Any = Rounding(vocab=6, context=80)
    text = [at % 6 for at in range(length)]
    moved = 0.25 if length > 1 else 0.0
    assert largest_logit_change(target, text) == pytest.approx(moved)
    assert slack_of(target, text) == pytest.approx(2 * moved)


def test_a_gap_within_the_measured_rounding_is_a_tie() -> None:
    text = [0, 1, 2, 3]
    logits = logits_after(TOY, text)
    best, second = np.argsort(-logits)[:2].tolist()
    gap = float(logits[best] - logits[second])
    for moves, tie in ((gap / 2 + 0.01, True), (gap / 2 - 0.01, False)):
        target: Any = Rounding(vocab=6, context=80, moves=moves)
        found = explain(target, "p", text, [best], [second], Sampling())
        assert found is not None
        assert found.gap == pytest.approx(gap)
        assert found.tie is tie


def test_passes_of_any_size_agree_on_an_exact_target() -> None:
    exact: Any = Rounding(vocab=6, context=80, moves=0.0)
    assert largest_logit_change(exact, [0, 1, 2, 3, 4]) == 0.0
