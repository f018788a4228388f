"""Every recipe says how it relates to the system it is named after."""

import json
import re
from operator import attrgetter
from typing import Any

import pytest
from tools import tables

from sapwood.cli.main import main
from sapwood.core.types import Draw
from sapwood.drafters.compose.auto_boosted_model import AutoBoostedModel
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.recipes import RECIPES, resolve
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


# what labels have to say: words of the notes of recipes that are less than their systems
SAID = {
    "specdec": "The acceptance rule alone",
    "propd": "fitted to the record",
    "dsbd": "not beam sampling's",
    "cascade": "One draft model above a lookup",
    "cas-spec": "sublayers are chosen while decoding",
    "eagle": "trained as HASS trains it",
    "eagle2": "trained as HASS trains it",
    "hass": "without the loss on the target's ten best tokens",
    "specinfer-merged": "none ships",
    "specdec++": "hardly better than a constant",
    "adaeagle": "worse than the best constant",
    "ltd": "trees of 60 nodes",
    "judge": "none of the mismatches",
    "blockwise": "heads are Medusa's",
}


@pytest.mark.parametrize("name", SAID)
def test_a_label_says_what_is_missing(name: str) -> None:
    assert SAID[name] in RECIPES[name].note
    assert RECIPES[name].fidelity in (Fidelity.SIMPLIFIED, Fidelity.RECONSTRUCTED)


def test_hass_has_a_row_of_its_own() -> None:
    assert RECIPES["hass"].paper == "2408.15766" != RECIPES["eagle2"].paper
    assert str(resolve("hass")) == str(resolve("eagle2"))  # the same head in the same tree


def test_the_second_model_of_specinfer_is_the_boosted_one() -> None:
    merged: Any = resolve("specinfer-merged").drafter
    assert [type(one) for one in merged.drafters] == [AutoDraftModel, AutoBoostedModel]
    assert merged.drafters[1].draws is Draw.IID


# constants of the papers' own code or text, by part and option
PUBLISHED: dict[str, dict[str, Any]] = {
    "specinfer": {"policy.shape": [1, 1, 3, 1, 1, 1, 1, 1]},
    "medusa": {"controller.nodes": 63, "controller.depth": 4},
    "medusa-typical": {"verifier.floor": 0.09, "verifier.share": 0.3},
    "eagle": {"controller.nodes": 25, "controller.depth": 5},
    "eagle2": {"controller.nodes": 59, "controller.depth": 8, "policy.beam": 10},
    "hass": {"controller.nodes": 59, "controller.depth": 8, "policy.beam": 10},
    "eagle3": {"controller.nodes": 59, "controller.depth": 8, "policy.beam": 10},
    "opt-tree": {"controller.nodes": 50, "controller.depth": 10, "policy.gain": 0.5},
    "dyspec": {"controller.nodes": 64},
    "specexec": {"policy.stride": 128, "policy.fade": 0.95, "policy.least": 4.54e-5},
    "ddd": {"policy.looks": [5, 7, 9], "policy.least": 0.7408, "controller.depth": 11},
    "c2t": {"controller.depth": 11, "policy.level": 15},
    "ltd": {"controller.nodes": 240, "controller.depth": 12, "policy.beam": 10},
    "recycling": {"drafter.count": 8, "controller.nodes": 80, "controller.depth": 6},
    "suffix-decoding": {"drafter.factor": 1.0, "drafter.floor": 0.1, "drafter.depth": 64},
    "sam": {
        "drafter.threshold": 5,
        "drafter.margin": 5,
        "drafter.pace": 4.0,
        "drafter.longest": 40,
    },
    "rest": {"drafter.hits": 5000, "drafter.ahead": 10, "controller.nodes": 64},
    "lookahead": {"drafter.window": 7, "drafter.size": 5, "drafter.ngrams": 7},
    "swift": {"policy.stop": 0.8, "controller.depth": 25, "drafter.share": 0.45},
    "early-exit": {"policy.confidence": 0.6, "controller.depth": 6},
    "svip": {"policy.threshold": 0.3, "policy.weight": 0.15, "controller.depth": 40},
    "adaedl": {"policy.weight": 0.2, "policy.target": 0.9, "policy.step": 0.01},
    "draft-verify": {"policy.target": 0.9, "policy.step": 0.01, "policy.inertia": 0.9},
    "hf-dynamic": {"policy.start": 0.4, "policy.regret": 3.0, "controller.depth": 20},
    "specdec++": {"policy.threshold": 0.7, "policy.most": 20},
    "bild": {"policy.confidence": 0.6, "verifier.rollback": 5.0, "controller.depth": 10},
    "consultant": {"verifier.limit": 2.0, "verifier.memory": 0.2},
    "pipeinfer": {"policy.accept": 0.001, "policy.split": 0.8, "policy.recovery": 0.4},
    "triforce": {"drafter.drafter.chunk": 8, "controller.depth": 6},
    "cas-spec": {"drafter.rounds": 20, "drafter.fade": 0.7},
    "smartspec": {"controller.bonus": 1.1, "controller.start": 0.7},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_constants_are_the_published_ones(name: str) -> None:
    recipe = resolve(name)
    assert {path: attrgetter(path)(recipe) for path in PUBLISHED[name]} == PUBLISHED[name]
