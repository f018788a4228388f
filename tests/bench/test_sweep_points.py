"""Settings that are read from lists: every combination, each once, and what is refused at once."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.bench.sweep import MOST, SweepPoint, numbers, read_points
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 100.0]), max_size=3),
    st.lists(st.integers(2, 5000), max_size=3),
    st.lists(st.integers(1, MOST), max_size=3),
)
def test_every_combination_comes_once_the_last_list_fastest(
    hot: list[float], long: list[int], wide: list[int]
) -> None:
    found = read_points(*(",".join(map(str, some)) for some in (hot, long, wide)))
    once: list[list[Any]] = [list(dict.fromkeys(some)) for some in (hot, long, wide)]
    contexts: list[int | None] = [*once[1]] or [None]
    wanted = itertools.product(once[0] or [0.0], contexts, once[2] or [1])
    assert [(one.temperature, one.context, one.batch) for one in found] == list(wanted)


@given(st.floats(0, 100))
def test_every_temperature_that_is_read_can_be_sampled_at(heat: float) -> None:
    [point] = read_points(repr(heat), "", "")
    assert Sampling(temperature=point.temperature).temperature == heat


@pytest.mark.parametrize("heat", ["100.5", "1000", "inf", "-0.1", "nan", "hot"])
def test_a_temperature_that_cannot_be_sampled_at_is_refused_before_anything_runs(heat: str) -> None:
    with pytest.raises(SapwoodError) as caught:
        read_points(f"0,{heat}", "", "")
    assert str(caught.value) == (
        f"temperature={heat} must be at least 0 and at most 100; several are separated by commas"
    )


@pytest.mark.parametrize("batch", ["0", str(MOST + 1), "1.0", "four", "-1"])
def test_a_batch_is_a_whole_number_up_to_the_most(batch: str) -> None:
    with pytest.raises(
        SapwoodError, match=rf"batch={batch} must be a whole number from 1 to {MOST}"
    ):
        read_points("", "", f"2,{batch}")


@pytest.mark.parametrize("context", ["1", "0", "-5", "1e3"])
def test_a_context_holds_at_least_two_tokens(context: str) -> None:
    with pytest.raises(
        SapwoodError, match=f"context={context} must be a whole number of at least 2"
    ):
        read_points("", context, "")


def test_blanks_and_empty_places_do_not_count() -> None:
    assert read_points(" 0.5 ,, 1 ", " , ", "2,") == [
        SweepPoint(0.5, None, 2),
        SweepPoint(1.0, None, 2),
    ]
    assert numbers("", "x", int, lambda _: True, "") == []


def test_equal_values_are_run_once() -> None:
    assert read_points("0.5,.5,5e-1", "", "") == [SweepPoint(0.5)]


@pytest.mark.parametrize(
    ("point", "label"),
    [
        (SweepPoint(), "greedy, one at a time"),
        (SweepPoint(0.25), "temperature 0.25"),
        (SweepPoint(context=128), "context 128"),
        (SweepPoint(batch=8), "batch 8"),
        (SweepPoint(1.0, 64, 2), "temperature 1, context 64, batch 2"),
    ],
)
def test_a_setting_is_named_by_what_is_unusual_about_it(point: SweepPoint, label: str) -> None:
    assert point.label == label
