"""Recipes under examination: every one that promises passes, those that break a promise fail."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.certify.recipe import RecipeUnderTest, exact_check, examine, sampled_check
from sapwood.certify.report import FAIL, PASS, UNTESTED, CertifyReport, Check, as_text
from sapwood.cli.main import main
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.llm import LLM
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.recipes import RECIPES, resolve
from sapwood.verifiers.match import follow

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8, 9]]
SOUND = [name for name in RECIPES if resolve(name).guarantee is not Guarantee.LOSSY]
LOSSY = [name for name in RECIPES if resolve(name).guarantee is Guarantee.LOSSY]


CHECKS: dict[tuple[Any, ...], Check] = {}


def checked(recipe: Recipe) -> Check:
    """The exact check, made once for recipes that are one on a toy: drafter and budget are its own."""
    same = (str(recipe.policy), str(recipe.verifier), recipe.drafter.draws, recipe.guarantee)
    if same not in CHECKS:
        CHECKS[same] = exact_check(recipe)
    return CHECKS[same]


@pytest.mark.parametrize("name", SOUND)
def test_every_recipe_that_promises_something_keeps_it_on_toys(name: str) -> None:
    check = checked(resolve(name))
    if (
        check.status == UNTESTED
    ):  # a part with trained weights; its own tests hold it to its promise
        assert "cannot run on a toy" in check.found
        assert RECIPES[name].training != "none" or any(
            getattr(part, "needs", ()) for part in resolve(name).parts()
        )
    else:
        assert check.status == PASS, check.found
        assert max(check.facts["errors"]) <= 1e-12


def test_most_recipes_are_proved_and_not_skipped() -> None:
    states = [
        exact_check(resolve(name)).status
        for name in ("auto", "pld", "eagle3", "specinfer", "rsd-c", "traversal")
    ]
    assert states == [PASS] * 6


@pytest.mark.parametrize("name", LOSSY[:3])
def test_a_lossy_recipe_is_told_by_how_much_it_departs(name: str) -> None:
    check = exact_check(resolve(name))
    assert check.status == FAIL
    assert "departs by design" in check.found
    assert max(check.facts["departure"]) > 0


# ----------------------------------------------------------------------------------- planted faults
@dataclass
class Careless(Part):
    """Promises the law, and replaces a refused token by a draw from p."""

    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        if target.greedy:
            return follow(tree, target, position, rng)
        path = [ROOT]
        while True:
            p = target.probs(path[-1])
            at = position + len(path)
            for child in tree.children(path[-1]):
                token = int(tree.tokens[child])
                q = tree.proposal(path[-1], child)
                if rng.flip(min(1.0, p[token] / q[token]), NoiseKey(at, NoiseUse.ACCEPT)):
                    path.append(child)
                    break
            else:
                return Verdict(tuple(path), rng.pick(p, NoiseKey(at)))


@dataclass
class Greedy(Part):
    """Promises the text, and takes the best token whatever the temperature."""

    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.TEXT
    reads_q: ClassVar[bool] = False

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        path = [ROOT]
        while (child := tree.child(path[-1], int(np.argmax(target.probs(path[-1]))))) is not None:
            path.append(child)
        return Verdict(tuple(path), int(np.argmax(target.probs(path[-1]))))


def recipe(verifier: Any, draws: Draw) -> Recipe:
    drafter = DraftModel(model=ToyBackend("draft", vocab=12), draws=draws)
    return Recipe(drafter, Chain(), verifier, Fixed(nodes=3, depth=3, width=1))


def trial(made: Recipe, samples: int) -> RecipeUnderTest:
    return RecipeUnderTest(
        LLM(ToyBackend(vocab=12), "plain"), made, PROMPTS, samples=samples, length=8, longer=24
    )


def states(report: CertifyReport) -> dict[str, str]:
    return {check.name: check.status for check in report.checks}


def test_a_fault_is_found_on_toys_and_by_samples() -> None:
    made = recipe(Careless(), Draw.IID)
    report = examine("careless", trial(made, samples=240), made)
    assert states(report) == {"exact law": FAIL, "greedy": PASS, "sampled": FAIL}, as_text(report)
    assert report.verdict == FAIL


def test_a_text_that_is_another_is_found() -> None:
    made = recipe(Greedy(), Draw.TOPK)
    report = examine("greedy", trial(made, samples=16), made)
    assert states(report) == {"exact law": FAIL, "greedy": PASS, "seeded": FAIL}, as_text(report)
    assert "parts at token" in report.checks[2].found


@pytest.mark.parametrize(("spelling", "draws"), [("speculative", Draw.IID), ("match", Draw.TOPK)])
def test_an_honest_recipe_passes_on_a_model(spelling: str, draws: Draw) -> None:
    from sapwood.recipe import build
    from sapwood.spec_parser import read

    made = recipe(build("verifier", read(spelling)), draws)
    report = examine(spelling, trial(made, samples=100), made)
    assert set(states(report).values()) == {PASS}, as_text(report)
    assert "would have been caught" in report.checks[-1].power


def test_samples_of_a_real_network_pass() -> None:
    from sapwood.backends.torch.backend import TorchBackend
    from tests.helpers import tiny_models

    target = TorchBackend(tiny_models.make("llama"), "tiny")
    made = resolve("recycling(draws=iid) + chain + speculative + fixed(nodes=3, depth=3, width=1)")
    check = sampled_check(RecipeUnderTest(LLM(target, "plain"), made, PROMPTS[:1], samples=16))
    report = CertifyReport("tiny", {}, [check]).decide()
    assert report.verdict == PASS, as_text(report)
    assert check.tests["tokens by rank"].observations == 16 * 8


# -------------------------------------------------------------------------------------- the command
def test_the_command_on_toys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "pld", "--toy", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["verdict"] == "pass"
    assert record["guarantee"] == "text"
    assert main(["certify", "bild", "--toy"]) == 1
    assert "departs by design" in capsys.readouterr().out
    assert main(["certify", "nothing", "--toy"]) == 2
    assert "unknown recipe 'nothing'" in capsys.readouterr().err


def test_the_command_on_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.helpers import byte_tokenizer as tokens
    from tests.helpers import tiny_models

    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    folder = tmp_path / "model"
    tiny_models.make("llama", vocab_size=tokens.SIZE, eos_token_id=tokens.EOS).save_pretrained(
        folder
    )
    tokens.save(folder)
    assert (
        main(
            [
                "certify",
                "suffix",
                "--model",
                str(folder),
                "--prompts",
                "2",
                "--samples",
                "16",
                "--json",
            ]
        )
        == 0
    )
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [check["name"] for check in record["checks"]] == ["exact law", "greedy", "seeded"]
    assert {check["status"] for check in record["checks"]} == {"pass"}
    assert record["model"]
