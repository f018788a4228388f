"""Every lossless recipe of the later literature: its law, its greedy text, and a mutant that both notice.

Recipes that run on exact tables are enumerated here as they are named, with a draft model of its
own table where they look for a trained one. The others have heads, layers or a checkpoint of their
own; `ELSEWHERE` names the file that enumerates and breaks them.
"""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.overlap import OverlapGauge
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Guarantee, Verdict
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from tests.helpers.engine_rounds import same_on_24_prompts

TESTS = Path(__file__).parents[1]
PROMPT = (0, 1, 2, 0, 1)
ON_TABLES = [
    "pearl",
    "specbranch",
    "amusd",
    "pipeinfer",
    "pipedec",
    "distillspec",
    "skd",
    "fastdraft",
    "khisti",
    "radar",
    "spin",
    "specserve",
    "minions",
    "staged",
    "ngram-trie",
    "respec",
    "cllm",
]
# recipe -> file of its enumeration, its text on 24 prompts or more samplings, and its mutants
ELSEWHERE = {
    "three-model": "drafters/compose/test_cascade.py",
    "stand": "drafters/lookup/test_stand.py",
    "draft-on-the-fly": "drafters/self/test_draft_on_the_fly.py",
    "ppsd": "engine/test_pipeline.py",
    "predictive": "engine/test_pipeline.py",
    "pass": "drafters/heads/test_mask_rows.py",
    "knows-the-future": "drafters/heads/test_gated_masks.py",
    "pard": "drafters/compose/test_pard.py",
    "mtp": "drafters/heads/test_mtp.py",
    "mtp-tree": "drafters/heads/test_mtp.py",
    "speculative-streaming": "drafters/heads/test_streams.py",
    "ppd": "drafters/heads/test_ppd.py",
    "diffuspec": "policies/test_causal_path.py",
    "falcon": "drafters/heads/test_falcon.py",
    "amphista": "drafters/heads/test_text_layers.py",
    "clover": "drafters/heads/test_text_layers.py",
    "gumiho": "drafters/heads/test_text_layers.py",
    "ctc": "drafters/heads/test_ctc.py",
    "hidden-transfer": "drafters/heads/test_hidden_transfer.py",
    "moa": "drafters/heads/test_moa_glide.py",
    "glide": "drafters/heads/test_moa_glide.py",
    "cerberus": "drafters/heads/test_cerberus_owl.py",
    "owl": "drafters/heads/test_cerberus_owl.py",
    "constrained": "structured_output/test_grammar_law.py",
}
# their driver follows the target along the runs itself: engine/test_pipeline.py breaks that
PIPELINES = {"pipeinfer", "pipedec"}
EXACT = 1e-12


def on_tables(name: str, vocab: int = 3) -> Recipe:
    """The recipe of this name with a small budget, and a draft model of another table."""
    found = resolve(name)
    drafter: Any = found.drafter
    if isinstance(drafter, AutoDraftModel | AutoHead | DraftModel):
        drafter = DraftModel(model=ToyBackend("draft", vocab=vocab), draws=drafter.draws)
    controller: Any = copy.copy(found.controller)
    if isinstance(controller, Fixed):
        controller = Fixed(min(controller.nodes, 3), min(controller.depth, 2), controller.width)
    return Recipe(drafter, found.policy, found.verifier, controller)


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts run beside the pass in every round, whatever is measured."""
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)


def law_of(recipe: Recipe) -> float:
    """Departure from the target's law over two rounds."""
    return law_error(recipe, ToyBackend("a"), prompt=PROMPT, rounds=2, horizon=2)


@pytest.mark.parametrize("name", ON_TABLES)
def test_the_law_is_the_targets(name: str) -> None:
    assert resolve(name).guarantee in (Guarantee.TEXT, Guarantee.LAW)
    assert law_of(on_tables(name)) <= EXACT


@pytest.mark.parametrize("name", ON_TABLES)
def test_greedy_text_is_plain_decodings_on_24_prompts(name: str) -> None:
    same_on_24_prompts(ToyBackend("a", vocab=5), on_tables(name, 5), vocab=5)


@pytest.mark.parametrize("name", [name for name in ON_TABLES if name not in PIPELINES])
def test_a_verifier_that_takes_a_drafted_token_unseen_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = on_tables(name)
    kind = type(recipe.verifier)
    verify = kind.verify

    def unseen(self: Any, tree: Tree, probs: TargetProbs, position: int, rng: Rng) -> Verdict:
        first = tree.children(ROOT)
        found = verify(self, tree, probs, position, rng)
        if not first or len(found.path) > 1:
            return found
        return Verdict((ROOT, first[0]), found.bonus)

    monkeypatch.setattr(kind, "verify", unseen)
    assert law_of(recipe) > 1e-3


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_the_others_are_enumerated_and_broken_in_their_own_files(name: str, file: str) -> None:
    assert resolve(name).guarantee in (Guarantee.TEXT, Guarantee.LAW)
    text = (TESTS / file).read_text()
    assert re.search(r"<= (1e-12|EXACT)", text)
    assert re.search(r"> 1e-3|notice|mutant", text)
