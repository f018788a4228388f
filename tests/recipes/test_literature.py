"""Every lossless recipe of the later literature: its law, its greedy text, and a mutant that both notice.

Recipes that run on exact tables are enumerated here as they are named, with a draft model of its
own table where they look for a trained one. The others have heads, layers or a checkpoint of their
own: `test_literature_networks.py` asks the same of those that a tiny network is enough for, and
`ELSEWHERE` names the file that enumerates and breaks the rest.
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
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Guarantee, Verdict
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.recipe import Recipe
from sapwood.recipes import multi_token, pipelines, resolve
from sapwood.testing import law_error
from tests.helpers import letter_grammar
from tests.helpers.engine_rounds import make_text, rounds_until, same_on_24_prompts, tokens_of

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
NETWORKS = "recipes/test_literature_networks.py"
# recipe -> file of its enumeration and its mutants
ELSEWHERE = {
    "stand": "drafters/lookup/test_stand.py",
    "pass": "drafters/heads/test_mask_rows.py",
    "knows-the-future": "drafters/heads/test_gated_masks.py",
    "pard": "drafters/compose/test_pard.py",
    "mtp": "drafters/heads/test_mtp.py",
    "mtp-tree": "drafters/heads/test_mtp.py",
    "speculative-streaming": "drafters/heads/test_streams.py",
    "ppd": "drafters/heads/test_ppd.py",
    "diffuspec": "policies/test_causal_path.py",
    "falcon": "drafters/heads/test_falcon.py",
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


def test_stands_greedy_text_is_plain_decodings_on_24_prompts() -> None:
    # of two tokens, and long enough to repeat itself: it drafts what it has seen
    same_on_24_prompts(ToyBackend("a", vocab=2), resolve("stand"), count=14, vocab=2)


def test_constrained_text_is_plain_decodings_under_the_grammar_on_24_prompts() -> None:
    backend = ToyBackend("a", vocab=letter_grammar.SIZE)
    sampling = Sampling(max_tokens=6, grammar=letter_grammar.pattern("(abc|cab)+"))
    forced = 0
    for seed in range(24):
        prompt = make_text(3 + seed % 7, seed, letter_grammar.SIZE)
        rounds = rounds_until(backend, resolve("constrained"), prompt, 6, sampling)
        plain = rounds_until(backend, resolve("plain"), prompt, 6, sampling)
        assert tokens_of(rounds)[:6] == tokens_of(plain)[:6]
        forced += len(plain) - len(rounds)
    assert forced > 24  # tokens that the grammar leaves no choice of are drafted


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


# their greedy text on 24 prompts: every recipe of several tokens at once, and random heads
TEXTS = {
    "recipes/test_multi_token.py": {entry.name for entry in multi_token.ENTRIES},
    "recipes/test_drafters.py": {"falcon", "moa", "glide", "cerberus", "owl", "dvi"},
}


def test_each_has_its_greedy_text_on_24_prompts() -> None:
    here = {*ON_TABLES, "stand", "constrained"}
    assert set(ELSEWHERE) - here - set().union(*TEXTS.values()) == set()
    for file, names in TEXTS.items():
        text = (TESTS / file).read_text()
        assert "same_on_24_prompts(" in text
        assert "multi_token.ENTRIES" in text or all(f'"{name}"' in text for name in names)


def test_recipes_of_the_later_literature_are_in_one_list_or_the_other() -> None:
    text = (TESTS / NETWORKS).read_text()
    networks = set(re.findall(r'^    "([\w-]+)": "[\w-]*",$', text, re.MULTILINE))
    families = (multi_token, pipelines)
    names = {entry.name for family in families for entry in family.ENTRIES}
    assert names <= {*ON_TABLES, *ELSEWHERE, *networks}
    assert {"blockwise", "medusa2", "hass", "dvi"} <= networks
    assert 'resolve("free")' in text  # lossy: it promises neither
