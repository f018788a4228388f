"""Recipes that find nothing trained for a model say which drafter they use instead."""

import logging
from pathlib import Path

import pytest

from sapwood import recipe as recipe_module
from sapwood.backends.toy import ToyBackend
from sapwood.cli.methods import recipes
from sapwood.common import drafter_store
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.engine.loop import Engine
from sapwood.heads import files
from sapwood.recipes import RECIPES, resolve
from tests.helpers.foreign_heads import foreign_head, six_layer_target


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(recipe_module, "REPORTED", set())


def said(name: str) -> list[str]:
    return Engine(ToyBackend(), resolve(name)).recipe.substitutes


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("speculative", "there is no draft model for toy: recycling(draws=iid) drafts instead"),
        (
            "bild",
            "there is no EAGLE-3 head and no draft model for toy: recycling drafts instead",
        ),
        ("ddd", "there is no EAGLE-3 head for toy: recycling drafts instead"),
        ("cascade", "there is no draft model for toy: recycling drafts instead"),
        ("auto", "there is no EAGLE-3 head for toy: recycling(prompt=0) drafts instead"),
    ],
)
def test_the_drafter_in_place_is_named(name: str, sentence: str) -> None:
    assert said(name) == [sentence.replace("toy", ToyBackend().info.model)]


@pytest.mark.parametrize("name", ["plain", "pld", "suffix-decoding", "recycling"])
def test_recipes_that_look_for_nothing_say_nothing(name: str) -> None:
    assert said(name) == []
    assert resolve(name).substitutes == []


def test_a_head_without_another_drafter_says_that_nothing_is_drafted() -> None:
    engine = Engine(ToyBackend(), resolve("plain", drafter="auto-head"))
    assert engine.recipe.substitutes[0].endswith("nothing is drafted")


def test_where_a_head_was_trained_nothing_is_said() -> None:
    files.save(foreign_head(), drafter_store.home("eagle3", "tiny"))
    engine = Engine(six_layer_target(), resolve("ddd"))
    assert isinstance(engine.recipe.drafter, AutoHead)
    assert engine.recipe.substitutes == []


def test_it_is_said_once_and_on_standard_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "sapwood.recipe"):
        said("ddd")
        said("ddd")
        said("cast")
    assert len(caplog.messages) == 1
    assert caplog.records[0].levelno == logging.WARNING  # shown without any set-up
    assert not logging.getLogger("sapwood.recipe").handlers


def test_methods_name_them_beforehand() -> None:
    found = {row["name"]: row["stand_ins"] for row in recipes()}
    assert found["speculative"] == found["bild"] == found["auto"] == ["recycling"]
    assert found["eagle3"] == found["pld"] == []
    for name in RECIPES:
        spelled = str(resolve(name))
        assert bool(found[name]) == ("auto-" in spelled or name in DEFAULTS), name


# recipes whose drafter has such a part by default
DEFAULTS = {
    "auto",
    "cascade",
    "gsd",
    "hedge",
    "ouroboros",
    "rasd",
    "specserve",
    "respec",
    "staged",
    "spin",
    "minions",
}
