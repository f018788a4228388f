"""Made-up prompts are answered before the first request, until no step is slow."""

import pytest

from sapwood.engine import warmup
from tests.helpers.scheduler_harness import Stage, Timed

LEVELS = (1, 4)


def encode(text: str) -> list[int]:
    return [ord(letter) % 3 for letter in text[:40]]


def turns(calm: float, patch: pytest.MonkeyPatch) -> tuple[Stage, list[str]]:
    """A scheduler after warming up, whose steps take a second each; and what was reported."""
    patch.setattr(warmup, "CAPTURE_FREE_S", calm)
    patch.setattr(warmup, "TOKENS", 4)
    stage = Stage(Timed("target", context=4000))
    said: list[str] = []
    warmup.warm_up(stage.scheduler, encode, LEVELS, said.append)
    return stage, said


def test_turns_end_when_no_step_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = turns(1.5, monkeypatch)
    assert said == [f"warming up: {level} at a time, turn 1" for level in LEVELS]


def test_turns_end_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = turns(0.5, monkeypatch)
    assert len(said) == len(LEVELS) * warmup.TURNS


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, _ = turns(1.5, monkeypatch)
    target = stage.target
    assert isinstance(target, Timed)
    assert stage.pool.idle
    assert target.memory.used == 0
    assert (stage.scheduler.steps, stage.scheduler.tokens) == (0, 0)
    assert max(trees for trees, _, _ in target.shapes) == LEVELS[-1]


def test_an_error_is_not_swallowed() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        warmup.ignore(RuntimeError("broken"))
