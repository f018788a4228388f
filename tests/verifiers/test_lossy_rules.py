"""All lossy verifiers: they depart, the strictest setting does not, nothing forbidden passes."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from sapwood import registry
from sapwood.backends.toy import ToyBackend, ToyOutput, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Verifier
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.policies.svip import Svip
from sapwood.recipe import Recipe
from sapwood.testing import departure
from sapwood.verifiers.adasd import AdaSd
from sapwood.verifiers.bild import Bild
from sapwood.verifiers.cascades import Cascades, Deferral
from sapwood.verifiers.consultant import Consultant
from sapwood.verifiers.match import Match
from sapwood.verifiers.mtad import Mtad
from sapwood.verifiers.specdec import SpecDec
from sapwood.verifiers.speculative import Speculative
from sapwood.verifiers.threshold import Threshold
from sapwood.verifiers.typical import Typical
from tests.helpers.lossy_rules import LOSSY, SEEDS, random_tree, target_laws
from tests.helpers.part_factory import toy_recipes

AT_ONCE = [
    name for name in LOSSY if name != "adasd"
]  # adasd excuses nothing before it has seen both verdicts
RULES: list[Verifier] = [
    Typical(),
    Bild(rollback=1.5),
    Consultant(limit=1.2),
    SpecDec(top=2, gap=1.5),
    Threshold(),
    AdaSd(),
    Cascades(),
    Cascades(deferral=Deferral.TOKEN),
    Mtad(),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=SEEDS)
def test_nothing_passes_that_the_target_forbids(rule: Any, seed: int) -> None:
    tree = random_tree(seed)
    all_probs = PathProbs(
        tree,
        ToyOutput(np.log(target_laws(seed, tree))),
        Sampler(Sampling(temperature=1.0, top_k=2, banned=[1]), [0]),
    )
    rule.reset(None)
    path = rule.verify(tree, all_probs, 9, KeyedRng(seed)).path
    assert all(
        all_probs.probs(parent)[tree.tokens[node]] > 0 for parent, node in itertools.pairwise(path)
    )


# departure
def chain(verifier: Any, draws: Draw = Draw.TOPK, depth: int = 1, vocab: int = 3) -> Recipe:
    """A short chain on a toy, whose laws are kept."""
    drafter = DraftModel(model=ToyBackend("draft", vocab=vocab), draws=draws)
    return Recipe(drafter, Svip(threshold=9.0), verifier, Fixed(nodes=depth, depth=depth, width=1))


@pytest.mark.parametrize(
    ("draws", "verifier"), [(Draw.TOPK, Match()), (Draw.IID, Speculative())], ids=str
)
def test_lossless_rules_depart_by_nothing(draws: Draw, verifier: Verifier) -> None:
    assert departure(chain(verifier, draws), horizon=2).max() <= 1e-12
    assert (
        departure(chain(verifier, draws), sampling=Sampling(max_tokens=31), horizon=30).max() == 0
    )


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("draws", [Draw.TOPK, Draw.IID])
def test_lossy_rules_depart(name: str, draws: Draw) -> None:
    rule: Any = registry.lookup("verifier", name)()
    assert rule.guarantee is Guarantee.LOSSY
    assert departure(chain(rule, draws), horizon=2).max() > 1e-3


def test_adasd_departs_once_it_has_seen_both_verdicts() -> None:
    found = departure(chain(AdaSd(), vocab=2), ToyBackend("a", vocab=2), horizon=4)
    assert found[:2].max() <= 1e-12
    assert found.max() > 1e-3


@pytest.mark.parametrize("name", [name for name in LOSSY if name != "typical"])
def test_lossy_rules_depart_at_temperature_zero(name: str) -> None:
    rule: Any = registry.lookup("verifier", name)()
    found = departure(chain(rule), sampling=Sampling(max_tokens=61), horizon=60)
    assert set(found.tolist()) == {
        0.0,
        1.0,
    }  # one text: a place is the target's best token or is not


@pytest.mark.parametrize(
    "strict",
    [
        SpecDec(top=1),
        SpecDec(gap=0.0),
        Bild(rollback=0.0),
        Consultant(limit=0.0),
        Threshold(base=1.0),
    ],
    ids=str,
)
def test_the_strictest_setting_is_the_greedy_walk(strict: Verifier) -> None:
    assert departure(chain(strict), sampling=Sampling(max_tokens=31), horizon=30).max() == 0


def test_a_looser_setting_departs_further() -> None:
    def mean(rule: Any) -> float:
        return float(departure(chain(rule), sampling=Sampling(max_tokens=61), horizon=60).mean())

    assert mean(Bild(rollback=0.8)) < mean(Bild(rollback=5.0))
    assert mean(SpecDec(gap=0.3)) < mean(SpecDec(gap=3.0))
    assert mean(Threshold(base=0.4)) < mean(Threshold(base=0.05))


def test_departure_is_the_total_variation_of_each_step() -> None:
    """A rule that takes every draft: what is said is the drafter's law, then the target's."""

    class Anything(Bild):
        name = "bild"

        def accepts_instead(self, tree: Tree, child: int, belief: Any) -> bool:
            return True

    found = departure(chain(Anything(), Draw.TOPK), horizon=1)
    p = probs_after("target", 3, (0, 1, 2))
    q = probs_after("draft", 3, (0, 1, 2))
    liked = int(np.argmax(q))
    assert found[0] == pytest.approx(1 - p[liked])


NAMED = toy_recipes()


@pytest.mark.parametrize(
    "name", [name for name, made in NAMED.items() if made.guarantee is Guarantee.LOSSY]
)
def test_named_recipes_that_are_lossy_depart(name: str) -> None:
    found = departure(
        NAMED[name], sampling=Sampling(max_tokens=81), prompt=(0, 1, 2, 0, 1), horizon=80
    )
    assert found.max() == 1.0
