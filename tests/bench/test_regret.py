"""Regret against the best fixed recipe of the same prompts and setting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.bench.regret import is_fixed, same_prompts, with_regret
from sapwood.recipe import parse
from sapwood.recipes import RECIPES, resolve
from tests.helpers.bench_records import row

FIXED = {name: resolve(name) for name in ("plain", "pld", "auto")}
LOSSY = "recycling + best + typical + fixed(nodes=8, depth=4, width=4)"


def test_only_lossless_recipes_with_one_budget_are_fixed() -> None:
    assert is_fixed(resolve("plain"))
    assert is_fixed(resolve("pld"))
    assert not is_fixed(resolve("auto"))
    assert not is_fixed(parse(LOSSY))
    assert is_fixed(parse(LOSSY.replace("typical", "match")))


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3))
def test_the_best_fixed_recipe_regrets_nothing_and_the_others_their_ratio(
    speeds: list[float],
) -> None:
    rows = [row(name, speedup=speed) for name, speed in zip(FIXED, speeds, strict=True)]
    best = max(speeds[:2])
    for made, speed in zip(with_regret(rows, FIXED), speeds, strict=True):
        assert made.regret == pytest.approx(best / speed - 1)
        assert made.best_fixed in ("plain", "pld")
        assert made.recipe == "auto" or (made.regret or 0.0) >= 0


def test_a_recipe_that_beats_all_fixed_ones_has_a_regret_below_zero() -> None:
    rows = [row("plain", speedup=1.0), row("pld", speedup=1.5), row("auto", speedup=2.0)]
    assert with_regret(rows, FIXED)[2].regret == pytest.approx(-0.25)
    assert with_regret(rows, FIXED)[2].best_fixed == "pld"


@pytest.mark.parametrize(
    ("key", "value"), [("temperature", 0.5), ("context", 128), ("batch", 4), ("category", "code")]
)
def test_rows_of_another_setting_are_no_rivals(key: str, value: object) -> None:
    here = row("auto", speedup=1.0)
    there = row("pld", **{"speedup": 3.0, key: value})  # type: ignore[arg-type]
    assert not same_prompts(here, there)
    assert with_regret([here, there], FIXED)[0].regret is None
    same = row("pld", speedup=3.0)
    assert same_prompts(here, same)
    assert with_regret([here, same], FIXED)[0].regret == pytest.approx(2.0)


def test_what_did_not_run_has_no_regret_and_is_no_rival() -> None:
    rows = [row("pld", speedup=None), row("auto", speedup=1.0), row("plain", speedup=0.5)]
    made = with_regret(rows, FIXED)
    assert made[0].regret is None
    assert made[0].best_fixed is None
    assert (made[1].regret, made[1].best_fixed) == (-0.5, "plain")


def test_rows_keep_their_order_and_everything_else() -> None:
    rows = [row("auto", speedup=2.0, waste=0.125), row("plain", speedup=1.0)]
    made = with_regret(rows, FIXED)
    assert [one.recipe for one in made] == ["auto", "plain"]
    assert made[0].waste == 0.125
    assert with_regret([], FIXED) == []


def test_every_named_recipe_is_either_fixed_or_not() -> None:
    fixed = {name for name in RECIPES if is_fixed(resolve(name))}
    assert {"plain", "pld"} <= fixed
    assert "auto" not in fixed
    assert len(fixed) < len(RECIPES)
