"""Every recipe says how it relates to the system it is named after."""

import json
import re

import pytest
from tools import tables

from sapwood.cli.main import main
from sapwood.recipes import RECIPES
from sapwood.recipes.entry import Fidelity, NamedRecipe

SENTENCE = re.compile(r"[A-Z][^.]*\.")


@pytest.mark.parametrize("entry", RECIPES.values(), ids=lambda entry: entry.name)
def test_a_recipe_that_departs_from_its_paper_says_how(entry: NamedRecipe) -> None:
    departs = entry.fidelity in (Fidelity.SIMPLIFIED, Fidelity.RECONSTRUCTED)
    assert entry.note or not departs
    assert not entry.note or SENTENCE.fullmatch(entry.note)
    assert entry.fidelity is not Fidelity.FAITHFUL or entry.paper or entry.name in UNPUBLISHED


# systems without a paper: software, or no method at all
UNPUBLISHED = {"plain", "heuristic", "ema"}


def test_methods_say_it_in_json_and_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert found["recycling"]["fidelity"] == "faithful"
    assert (found["auto"]["fidelity"], found["auto"]["note"]) == ("own", "")
    assert found["dsbd"]["fidelity"] == "simplified"
    assert "not beam sampling's" in found["dsbd"]["note"]
    assert found["tapout"]["fidelity"] == "reconstructed"
    [row] = [line for line in tables.page().splitlines() if line.startswith("| `dsbd` | DSBD")]
    assert f"| simplified: {found['dsbd']['note']} |" in row
