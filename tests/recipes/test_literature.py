"""Every lossless recipe: its law, its greedy text, and a mutant that both notice.

Recipes that run on exact tables are enumerated here as they are named, with a draft model of its
own table where they look for a trained one. The others have heads, layers or a checkpoint of their
own: `test_literature_networks.py` asks the same of those that a tiny network is enough for, and
`ELSEWHERE` names the file that enumerates and breaks the rest.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.overlap import OverlapGauge
from sapwood.core.sampling import Sampling
from sapwood.core.types import Guarantee
from sapwood.recipe import Recipe
from sapwood.recipes import RECIPES, multi_token, resolve
from tests.helpers import letter_grammar
from tests.helpers.engine_rounds import make_text, rounds_until, same_on_24_prompts, tokens_of
from tests.helpers.remote_servers import LOOKUP, draft_server
from tests.helpers.table_recipes import EXACT, law_on_tables, on_tables, unseen

TESTS = Path(__file__).parents[1]
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
    "auto",
    "speculative",
    "draft-model",
    "adaedl",
    "svip",
    "hf-dynamic",
    "on-the-fly",
    "cm-asd",
    "specinfer",
    "specinfer-merged",
    "ddd",
    "cast",
    "opt-tree",
    "dyspec",
    "dyspec-threshold",
    "sequoia",
    "rsd-c",
    "rsd-s",
    "specexec",
    "dsbd",
    "pld",
    "llma",
    "anpd",
    "n-grammys",
    "suffix-decoding",
    "suffix",
    "sam",
    "rest",
    "rasd",
    "aded",
    "recycling",
    "recycling-best",
    "gsd",
    "jacobi",
    "lookahead",
    "ouroboros",
    "cascade",
    "naive",
    "spectr",
    "spechub",
    "mixed",
    "block",
    "traversal",
    "optimal",
    "heuristic",
    "ema",
    "tapout",
    "tapout-token",
    "banditspec",
    "banditspec-exp3",
    "hedge",
    "smartspec",
    "posterior",
]


class Scale(NamedTuple):
    """Size of an enumeration: large enough that something is drafted, and refused."""

    vocab: int = 3
    nodes: int = 3  # of a tree
    rounds: int = 2
    accepted: int = 0  # nodes of the paths that the faulty verifier still replaces


SCALES = {
    "mixed": Scale(vocab=6, nodes=6, accepted=1),  # its first level is hardly ever refused
    "spechub": Scale(vocab=4),
    "rsd-s": Scale(vocab=4, nodes=2),
    "dyspec-threshold": Scale(nodes=2),
    # they know nothing before the third round
    "sam": Scale(nodes=2, rounds=3),
    "recycling": Scale(nodes=2, rounds=3),
    "recycling-best": Scale(nodes=2, rounds=3),
}
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
    "specdec++": "policies/test_trained_law.py",
    "c2t": "policies/test_trained_law.py",
    "ltd": "policies/test_trained_law.py",
    "adaeagle": "policies/test_trained_law.py",
}
REMOTES = ("sled", "dsd", "edgellm")
# their driver follows the target along the runs itself: engine/test_pipeline.py breaks that
PIPELINES = {"pipeinfer", "pipedec"}


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts run beside the pass in every round, whatever is measured."""
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)


def made(name: str, vocab: int = 0) -> Recipe:
    """The recipe of this name with a small budget, for this vocabulary or that of its scale."""
    scale = SCALES.get(name, Scale())
    return on_tables(name, vocab or scale.vocab, scale.nodes)


def law_of(name: str) -> float:
    """Departure from the target's law, enumerated."""
    scale = SCALES.get(name, Scale())
    return law_on_tables(made(name), scale.vocab, scale.rounds)


@pytest.mark.parametrize("name", ON_TABLES)
def test_the_law_is_the_targets(name: str) -> None:
    assert resolve(name).guarantee in (Guarantee.TEXT, Guarantee.LAW)
    assert law_of(name) <= EXACT


@pytest.mark.parametrize("name", ON_TABLES)
def test_greedy_text_is_plain_decodings_on_24_prompts(name: str) -> None:
    same_on_24_prompts(ToyBackend("a", vocab=5), made(name, 5), vocab=5)


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
    kind = type(resolve(name).verifier)
    accepted = SCALES.get(name, Scale()).accepted
    monkeypatch.setattr(kind, "verify", unseen(kind.verify, accepted))
    assert law_of(name) > 1e-3


@pytest.mark.parametrize("name", REMOTES)
def test_drafts_from_elsewhere_leave_law_and_text(name: str) -> None:
    recipe = resolve(name)
    drafter: Any = recipe.drafter
    with draft_server(LOOKUP) as url:
        near = dataclasses.replace(drafter, url=url, deadline_ms=5000.0)
        recipe = dataclasses.replace(recipe, drafter=near)
        assert law_on_tables(recipe) <= EXACT
        same_on_24_prompts(ToyBackend("a", vocab=5), recipe, vocab=5)


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_the_others_are_enumerated_and_broken_in_their_own_files(name: str, file: str) -> None:
    assert resolve(name).guarantee in (Guarantee.TEXT, Guarantee.LAW)
    text = (TESTS / file).read_text()
    assert re.search(r"<= (1e-12|EXACT)", text)
    assert re.search(r"> 1e-3|notice|mutant", text)


# their greedy text on 24 prompts: every recipe of several tokens at once, random heads and predictors
TEXTS = {
    "recipes/test_multi_token.py": {entry.name for entry in multi_token.ENTRIES},
    "recipes/test_drafters.py": {"falcon", "moa", "glide", "cerberus", "owl"},
    NETWORKS: {"specdec++", "c2t", "ltd", "adaeagle"},
}


def test_each_has_its_greedy_text_on_24_prompts() -> None:
    here = {*ON_TABLES, "stand", "constrained"}
    assert set(ELSEWHERE) - here - set().union(*TEXTS.values()) == set()
    for file, names in TEXTS.items():
        text = (TESTS / file).read_text()
        assert "same_on_24_prompts(" in text
        assert "multi_token.ENTRIES" in text or all(f'"{name}"' in text for name in names)


def test_every_lossless_recipe_is_in_one_list_or_the_other() -> None:
    text = (TESTS / NETWORKS).read_text()
    networks = set(re.findall(r'^    "([\w+-]+)": "[\w-]*",$', text, re.MULTILINE))
    lossless = {name for name in RECIPES if resolve(name).guarantee is not Guarantee.LOSSY}
    assert lossless - {"plain"} == {*ON_TABLES, *ELSEWHERE, *REMOTES, *networks}
