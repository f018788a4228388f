"""Recipes that can run on a model, and the one name of each drafter."""

import dataclasses

import pytest

from sapwood.core.types import BackendInfo
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.recipes import FAMILIES, RECIPES, available, drafter_names, resolve
from sapwood.recipes.available import FAMILY_OF, can_run
from sapwood.trace.part_names import parts

BARE = BackendInfo("toy", "a-model", 16, 64)
ABLE = dataclasses.replace(BARE, provides=frozenset({"hidden", "layers", "variants"}))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Kinds of parts that were trained; a test adds some."""
    kinds: set[str] = set()
    monkeypatch.setattr(available, "has", lambda kind, *_: kind in kinds)
    monkeypatch.setattr("sapwood.drafters.heads.auto_head.has", lambda kind, *_: kind in kinds)
    return kinds


def test_every_recipe_has_a_family() -> None:
    assert list(FAMILY_OF) == list(RECIPES)
    assert set(FAMILY_OF.values()) == set(FAMILIES)


def test_a_recipe_runs_where_its_needs_are_met(trained: set[str]) -> None:
    def running(info: BackendInfo) -> set[str]:
        return {name for name in RECIPES if can_run(name, info)}

    plain = running(BARE)
    assert {"auto", "plain", "pld", "suffix"} <= plain
    assert not plain & {"eagle3", "medusa", "swift", "judge", "c2t"}
    assert running(ABLE) - plain >= {"swift", "self-skip"}
    trained.add("eagle3")
    assert "eagle3" in running(ABLE)
    assert "eagle3" not in running(BARE)
    assert "c2t" not in running(ABLE)  # its predictor was not trained
    trained.add("c2t")
    assert "c2t" in running(ABLE)
    trained.remove("eagle3")
    assert "c2t" not in running(ABLE)  # its head was not


def test_all_kinds_of_heads_are_known() -> None:
    kinds = {part.trained for name in RECIPES for part in parts(resolve(name)) if part.trained}
    assert kinds >= {"eagle3", "eagle", "medusa", "hydra", "early-exit"}


def test_a_drafter_has_one_name_bound_or_not(trained: set[str]) -> None:
    drafter = resolve("auto").drafter
    without = drafter_names.drafter_names(drafter, ABLE)
    trained.add("eagle3")
    found = drafter_names.drafter_names(drafter, ABLE)
    assert "eagle3" in found
    assert "auto-head" not in found
    assert len(found) == len(without)
    assert drafter_names.drafter_names(AutoHead(), BARE) == ["auto-head"]  # it drafts nothing
