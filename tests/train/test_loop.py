"""The training loop: its schedule, its plan, its curve, and going on after a stop."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import SapwoodError
from sapwood.train import checkpoint
from sapwood.train.loop import (
    FLOOR,
    WARMUP,
    RunState,
    TrainingStopped,
    detached,
    mean,
    pace,
    pairs,
    remembered,
)
from sapwood.train.multi_objective import MultiObjective
from sapwood.train.objective import LossResult
from tests.helpers.toy_training import ToyHead, ToyObjective, ToyTeacher, corpus, loop, weights

torch.set_num_threads(1)


# --------------------------------------------------------------------------------------- schedule
@given(st.integers(2, 1500))
def test_rates_rise_to_their_peak_and_fall_to_the_floor(plan: int) -> None:
    factors = [pace(step, plan) for step in range(plan)]
    top = max(1, min(WARMUP, plan // 10))
    assert max(factors) == 1.0
    assert factors[:top] == sorted(factors[:top])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert min(factors[top:], default=1.0) >= FLOOR
    assert pace(plan, plan) == pytest.approx(FLOOR)
    assert pace(plan + 99, plan) == pytest.approx(FLOOR)


def test_the_middle_of_the_fall_is_the_middle_of_the_rates() -> None:
    assert pace(1050, 2000) == pytest.approx((1 + FLOOR) / 2)
    assert pace(0, 1000) == pytest.approx(1 / 100)
    assert pace(49, 1000) == pytest.approx(0.5)


def test_before_there_is_a_plan_rates_stay_at_their_peak() -> None:
    assert [pace(step, None) for step in (0, 99, 100, 10_000)] == [0.01, 1.0, 1.0, 1.0]


# ------------------------------------------------------------------------------------------- runs
def test_a_run_takes_its_steps_and_lowers_the_loss(tmp_path: Path) -> None:
    head, notes = loop(tmp_path / "state", steps=60).run()
    assert notes.step == notes.plan == 60
    assert notes.curve[-1].loss < 0.7 * notes.curve[0].loss
    assert not head.training
    assert (tmp_path / "state").is_file()


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    made = [
        weights(loop(tmp_path / f"state{number}", seed=seed).run()[0])
        for number, seed in enumerate((1, 1, 2))
    ]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("stop", [1, 5, 11])
def test_a_run_that_was_stopped_ends_with_the_same_weights(stop: int, tmp_path: Path) -> None:
    whole = ToyTeacher()
    alone, notes = loop(tmp_path / "whole", teacher=whole).run()
    asked = itertools.count(1)
    first = ToyTeacher()
    with pytest.raises(TrainingStopped, match=f"stopped after step {stop} of 12"):
        loop(tmp_path / "state", teacher=first, asked_to_stop=lambda: next(asked) == stop).run()
    second = ToyTeacher()
    again, later = loop(tmp_path / "state", teacher=second).run()
    assert weights(again) == weights(alone)
    assert first.read_tokens + second.read_tokens == whole.read_tokens
    assert later.tokens == notes.tokens
    assert [point.step for point in later.curve] == [point.step for point in notes.curve]
    assert [point.loss for point in later.curve] == [point.loss for point in notes.curve]


def test_a_state_is_kept_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    whole = checkpoint.save

    def save(path: Path, head: Any, optimizers: Any, notes: dict[str, Any]) -> None:
        saved.append(notes["step"])
        whole(path, head, optimizers, notes)

    monkeypatch.setattr(checkpoint, "save", save)
    clock = itertools.count()
    loop(tmp_path / "state", now=lambda: float(next(clock)), save=12.0).run()
    assert saved[-1] == 12
    assert 2 < len(saved) < 12
    saved.clear()
    loop(tmp_path / "other", save=1e9).run()
    assert saved == [12]


def test_answer_tokens_are_counted(tmp_path: Path) -> None:
    texts = corpus()
    epoch = sum(len(texts.sequence(at)) - 2 for at in range(len(texts)))
    _, notes = loop(tmp_path / "state", corpus=texts, tokens=10**6, steps=3).run()
    assert notes.tokens == 3 * epoch  # one batch holds all of them


def test_texts_are_cut_where_the_model_ends(tmp_path: Path) -> None:
    teacher = ToyTeacher()
    teacher.backend.info.context = 6
    loop(tmp_path / "state", teacher=teacher, steps=4).run()
    assert {len(row) for batch in teacher.read_tokens for row in batch} == {6}


# ------------------------------------------------------------------------------------------- plan
def test_seconds_are_turned_into_steps_once_a_step_is_known(tmp_path: Path) -> None:
    teacher = ToyTeacher()
    # a clock that moves with the steps: each takes half a second
    made = loop(
        tmp_path / "state",
        teacher=teacher,
        steps=None,
        seconds=25.0,
        now=lambda: 0.5 * len(teacher.read_tokens),
    )
    _, notes = made.run()
    assert notes.plan == notes.step == 50
    assert notes.spent == pytest.approx(25.0)


def test_slow_steps_are_planned_after_a_few(tmp_path: Path) -> None:
    teacher = ToyTeacher()
    clock = lambda: 10.0 * len(teacher.read_tokens)  # noqa: E731
    _, notes = loop(tmp_path / "state", teacher=teacher, steps=None, seconds=60.0, now=clock).run()
    assert notes.step == 6
    assert notes.spent == pytest.approx(60.0)


def test_a_machine_that_becomes_slower_takes_fewer_steps(tmp_path: Path) -> None:
    teacher = ToyTeacher()

    def clock() -> float:  # half a second a step, then two
        steps = len(teacher.read_tokens)
        return 0.5 * steps + 1.5 * max(0, steps - 100)

    _, notes = loop(tmp_path / "state", teacher=teacher, steps=None, seconds=100.0, now=clock).run()
    assert notes.step == notes.plan
    assert 100 < notes.step < 150  # 200 were planned at first
    assert notes.spent <= 1.05 * 100


def test_fewer_steps_than_are_behind_it_are_refused(tmp_path: Path) -> None:
    loop(tmp_path / "state", steps=8).run()
    with pytest.raises(SapwoodError, match="has 8 steps behind it, more than the 5 asked for"):
        loop(tmp_path / "state", steps=5).run()


def test_more_steps_go_on(tmp_path: Path) -> None:
    loop(tmp_path / "state", steps=8).run()
    _, notes = loop(tmp_path / "state", steps=10).run()
    assert notes.step == 10


# ------------------------------------------------------------------------------------- other runs
@pytest.mark.parametrize(
    "change",
    [
        {"seed": 3},
        {"tokens": 128},
        {"corpus": corpus(seed=5)},
        {"objective": ToyObjective(rate=0.5)},
        {"teacher": ToyTeacher("another model")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_state_of_another_run_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    loop(tmp_path / "state").run()
    with pytest.raises(SapwoodError, match=r"holds another run \(.*\); give another --out") as it:
        loop(tmp_path / "state", **change).run()
    assert "24 texts of toy" in str(it.value)


def test_what_was_asked_for_is_kept_with_the_state(tmp_path: Path) -> None:
    loop(tmp_path / "state", asked={"tokens": 5, "prompts": None}).run()
    assert remembered(tmp_path / "state").asked == {"tokens": 5, "prompts": None}


def test_notes_of_another_version_are_refused(tmp_path: Path) -> None:
    for notes in ({}, {"run": "x", "curve": [{"unknown": 1}]}, {"run": "x", "curve": [], "odd": 1}):
        checkpoint.save(tmp_path / "state", ToyHead(), [], notes)
        with pytest.raises(SapwoodError, match="is of another version of sapwood"):
            remembered(tmp_path / "state")


# ------------------------------------------------------------------------------------------ curve
def test_points_of_a_curve_are_means_since_the_one_before(tmp_path: Path) -> None:
    told: list[RunState] = []
    _, notes = loop(tmp_path / "state", steps=40, report=told.append, log=5).run()
    assert [point.step for point in notes.curve] == list(range(2, 41, 2))  # twenty points
    assert len(told) == 20
    _, few = loop(tmp_path / "few", steps=100, log=3).run()
    assert [point.step for point in few.curve] == [*range(3, 100, 3), 100]
    for point in notes.curve:
        assert point.agreement == pytest.approx([point.loss / 10, point.loss / 20])


def test_slow_steps_are_told_between_points(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    clock = itertools.count()
    loop(
        tmp_path / "state",
        steps=None,
        seconds=300.0,
        now=lambda: float(next(clock)),
        tell=8.0,
        report=lambda notes: told.append((notes.step, len(notes.curve))),
        log=50,
    ).run()
    between = [step for step, _ in told if step % 50]
    assert between
    assert all(count >= 1 for _, count in told)


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    broken = ToyObjective(blow_up=5)
    with pytest.raises(SapwoodError, match="the loss is not finite at step 6; lower the"):
        loop(tmp_path / "state", broken).run()
    assert not (tmp_path / "state").exists()


# ------------------------------------------------------------------------------------------ parts
def result(loss: float, *agreement: float, parts: tuple[LossResult, ...] = ()) -> LossResult:
    return LossResult(torch.tensor(loss, requires_grad=True), torch.tensor(agreement), parts)


def test_means_are_over_lessons() -> None:
    found = mean([detached(one) for one in (result(1.0, 0.5, 0.25), result(3.0, 1.0, 0.75))])
    assert found == (2.0, [0.75, 0.5])


def test_a_detached_lesson_holds_numbers_alone() -> None:
    found = detached(result(1.0, 0.5, parts=(result(2.0, 0.25),)))
    assert not found.loss.requires_grad
    assert not found.parts[0].loss.requires_grad
    assert math.isclose(float(found.parts[0].loss), 2.0)


def test_one_course_has_one_head_and_several_have_theirs() -> None:
    one, two = ToyObjective(), ToyObjective(rate=0.5)
    heads: list[Any] = [ToyHead(), ToyHead()]
    assert pairs(one, heads[0]) == [(one, heads[0])]
    assert pairs(MultiObjective((one, two)), heads) == [(one, heads[0]), (two, heads[1])]


def test_a_few_batches_are_those_of_the_first_epoch(tmp_path: Path) -> None:
    teacher = ToyTeacher()
    made = loop(tmp_path / "state", teacher=teacher, steps=2)
    made.run()
    teacher.read_tokens.clear()
    assert len(list(made.some(3))) == 3
    first = list(teacher.read_tokens)
    teacher.read_tokens.clear()
    list(made.some(3))
    assert teacher.read_tokens == first
