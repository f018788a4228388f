"""Systems of the surveys: each has a recipe, or a sentence that says why it has none."""

import json
import re
from pathlib import Path

import pytest

from sapwood.cli.main import main
from sapwood.errors import SapwoodError
from sapwood.recipes import RECIPES, resolve
from sapwood.recipes.without import SYSTEMS, WITHOUT

# what the surveys of the field name, by the names that recipes have
SURVEYED = """
specdec speculative draft-model distillspec skd fastdraft online staged cascade three-model pearl
amusd specbranch early-exit eesd specdec++ adaeagle adaedl svip hf-dynamic on-the-fly cm-asd bild
adasd consultant specinfer medusa medusa2 hydra eagle eagle2 eagle3 hass c2t ltd radar ddd cast
opt-tree dyspec sequoia rsd-c rsd-s specexec dsbd pld llma anpd n-grammys stand ngram-trie
constrained suffix sam rest rasd respec aded recycling gsd parallel recurrent clover amphista
hidden-transfer gumiho ctc falcon moa glide cerberus owl mtp blockwise cllm pass pard ppd
knows-the-future speculative-streaming diffuspec jacobi lookahead ouroboros cas-spec ppsd predictive
pipeinfer pipedec sled dsd edgellm self-skip swift draft-verify draft-on-the-fly free sparse-kv
triforce dvi propd spectr spechub traversal block khisti cascades mtad judge tapout banditspec hedge
smartspec specserve spin minions posterior
ssd seed fold speed space best-of-n speculative-beam training-wheels specpim speculative-rag
"""


def test_every_surveyed_system_has_a_recipe_or_a_reason() -> None:
    names = SURVEYED.split()
    assert sorted(name for name in names if (name in RECIPES) == (name in WITHOUT)) == []
    assert set(WITHOUT) <= set(names)


def test_recipes_that_a_reason_names_exist() -> None:
    known = {*RECIPES, "generate", "n", "sapwood.engine.diffusion"}
    for system in SYSTEMS:
        assert set(system.why.split("`")[1::2]) <= known, system.name
        assert system.why.endswith("."), system.name


def test_asking_for_one_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SapwoodError, match="SPACE has no recipe"):
        resolve("space")
    assert main(["run", "hello", "--recipe", "seed"]) == 2
    assert "SEED has no recipe" in capsys.readouterr().err


def test_methods_list_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["without_recipe"]
    assert [row["name"] for row in found] == [system.name for system in SYSTEMS]


def test_no_page_claims_every_method() -> None:
    root = Path(__file__).parents[2]
    for name in ("CHANGELOG.md", "README.md", "docs/index.md"):
        text = (root / name).read_text()
        assert not re.search(r"(every|all) ([\w-]+ )?methods? of the literature", text), name
    assert "which methods are missing and why" in (root / "CHANGELOG.md").read_text()
