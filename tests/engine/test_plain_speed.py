"""The speedup that is printed: two estimates that agree, or none."""

from collections.abc import Iterator
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.engine import plain_speed
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Completion, Stats
from sapwood.engine.plain_speed import measured_speedup
from sapwood.recipes import resolve


def completion(tokens: int, *, predicted: float | None, drafted: int = 9) -> Completion:
    """An answer of this many tokens in 10 s, after a prefill of 5 s."""
    stats = Stats(9, tokens, 1, drafted, 1, 0, 5.0, 0, 10.0, 0, 15.0, 1, predicted)
    return Completion("", [1] * tokens, "length", stats)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose plain decoding takes 0.3 s a token, and 9 s in the first round."""

    class FakeStep:
        def __init__(self, seconds: float) -> None:
            times = type("Times", (), {"total": seconds})
            self.outcome = type("Outcome", (), {"times": times})

    def stream(engine: Engine, text: list[int], sampling: Any, **_: Any) -> Iterator[Any]:
        yield FakeStep(9.0)
        yield from (FakeStep(0.3) for _ in range(sampling.max_tokens - 1))

    monkeypatch.setattr(plain_speed, "stream", stream)
    return Engine(ToyBackend(), resolve("plain"), flat())


def test_two_estimates_that_agree_give_their_mean(plain: Engine) -> None:
    # 100 tokens in 10 s: plain decoding would take 30 s
    assert measured_speedup(plain, [1], completion(100, predicted=2.8)) == pytest.approx(2.9)


@pytest.mark.parametrize("predicted", [1.5, 2.6, 3.5, None])
def test_a_prediction_that_is_not_confirmed_is_not_told(
    plain: Engine, predicted: float | None
) -> None:
    assert measured_speedup(plain, [1], completion(100, predicted=predicted)) is None


def test_short_answers_and_plain_ones_have_no_speedup(plain: Engine) -> None:
    assert measured_speedup(plain, [1], completion(20, predicted=0.6)) is None
    assert measured_speedup(plain, [1], completion(100, predicted=3.0, drafted=0)) is None
