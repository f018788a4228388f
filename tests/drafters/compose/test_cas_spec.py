"""CAS-Spec: the worth of a stretch, acceptance and costs learned, the cheapest drafter of equals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.cas_spec import CasSpec, DrafterAcceptance, DrafterCosts, best_stretch
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.self.quantized_self import QuantizedSelf
from sapwood.drafters.self.self_skip import SelfSkip
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from tests.helpers import self_draft_targets as deep
from tests.helpers.cascade_rounds import EXACT, GREEDY, PROMPT, TARGET, play, toy
from tests.helpers.engine_rounds import rounds_until, tokens_of


def test_the_worth_of_a_stretch_is_the_papers_formula() -> None:
    acceptance = [0.8, 0.5, 0.3]
    costs = [0.4, 0.1, 0.01]
    most = 6
    worths = {}
    for drafter, (a, c) in enumerate(zip(acceptance, costs, strict=True)):
        for k in range(1, most + 1):
            gain = a * (1 - a**k) / (1 - a) + a**k * acceptance[-1]
            worths[drafter, k] = gain / (c * k + costs[-1])
    worth, drafter, length = best_stretch(acceptance, costs, most)
    assert worths[drafter, length] == max(worths.values()) == pytest.approx(worth)


def test_a_dear_drafter_is_chosen_only_for_its_acceptance() -> None:
    assert best_stretch([0.9, 0.1], [0.05, 0.05], 5)[1] == 0
    assert best_stretch([0.9, 0.5], [5.0, 0.01], 5)[1] == 1


def test_acceptance_is_kept_over_tested_and_fades() -> None:
    record = DrafterAcceptance(rounds=3, fade=0.5)
    assert record.acceptance == pytest.approx(0.6)
    for kept, tested in ((9, 9), (0, 1), (2, 3), (1, 2)):  # the first is forgotten
        record.rounds.appendleft((kept, tested))
    assert record.acceptance == pytest.approx(
        (0.6 + 1 + 0.5 * 2 + 0.25 * 0) / (1 + 2 + 0.5 * 3 + 0.25 * 1)
    )


def test_costs_are_learned_from_whole_rounds() -> None:
    costs = DrafterCosts(2)
    random = np.random.default_rng(0)
    assert costs.estimate() == pytest.approx([0.1, 0.1])
    for _ in range(400):
        calls = random.integers(0, 5, 2).astype(float)
        costs.observe(calls, float(calls @ [0.5, 0.02]) * random.uniform(0.9, 1.1))
    assert costs.estimate() == pytest.approx([0.5, 0.02], abs=0.03)


@pytest.mark.parametrize(("costs", "chosen"), [([0.01, 0.5], 0), ([0.5, 0.01], 1)])
def test_the_cheap_one_of_equals_drafts(costs: list[float], chosen: int) -> None:
    drafter = CasSpec(drafters=[toy("a"), toy("b")], costs=costs)
    for outcome in play(drafter, Best(stride=1), rounds=1):
        assert outcome.grown.sources[1:].tolist() == [1 << chosen] * (len(outcome.grown) - 1)


def test_the_better_one_of_equally_dear_ones_is_found_out() -> None:
    perfect = toy("wide")
    drafter = CasSpec(drafters=[toy("other"), perfect, toy("third")], costs=[0.1, 0.1, 0.1])
    outcomes = play(drafter, Chain(), rounds=40)
    assert all(len(outcome.tokens) == outcome.tree.height + 1 for outcome in outcomes[-10:])
    assert all((outcome.grown.sources[1:] == 0b10).all() for outcome in outcomes[-10:])


def test_only_tested_groups_count() -> None:
    drafter = CasSpec(drafters=[toy("other"), toy("third")], costs=[0.1, 0.1])
    recipe = Recipe(drafter, Static(shape=[2, 1, 1]), Match(), Fixed(nodes=6, depth=3, width=2))
    engine = Engine(TARGET, recipe)
    running = engine.rounds(PROMPT, GREEDY, KeyedRng(1))
    counted = [[0, 0], [0, 0]]
    for _ in range(6):
        outcome = next(running)
        tree, path = outcome.tree, outcome.verdict.path
        for place, node in enumerate(path):
            children = tree.children(node)
            if children:
                maker = int(tree.sources[children[0]]).bit_length() - 1
                counted[maker][0] += place + 1 < len(path)
                counted[maker][1] += 1
    running.close()
    records = engine.recipe.drafter.records  # type: ignore[attr-defined]
    assert [
        [sum(pair[i] for pair in record.rounds) for i in (0, 1)] for record in records
    ] == counted
    assert sum(tested for _, tested in counted) > 6


def test_nodes_that_cannot_keep_the_pace_are_left_alone() -> None:
    dear = CasSpec(drafters=[toy("other"), toy("third")], costs=[40.0, 40.0])
    assert all(outcome.grown.height == 1 for outcome in play(dear, Best(stride=1), nodes=9)[-4:])


@pytest.mark.parametrize(
    ("kinds", "verifier"),
    [
        ((Draw.TOPK, Draw.TOPK), Match()),
        ((Draw.IID, Draw.IID), Mss()),
        ((Draw.SWOR, Draw.TOPK), Mixed()),
    ],
    ids=str,
)
def test_choosing_keeps_the_law(kinds: tuple[Draw, Draw], verifier: Any) -> None:
    drafters: list[Any] = [toy(f"draft {index}", kind, vocab=3) for index, kind in enumerate(kinds)]
    drafter = CasSpec(drafters=drafters, costs=[0.2, 0.1])
    recipe = Recipe(drafter, Chain(), verifier, Fixed(nodes=2, depth=2, width=1))
    assert law_error(recipe, ToyBackend("a"), rounds=2, horizon=2) <= EXACT


def test_costs_name_every_drafter() -> None:
    with pytest.raises(
        SapwoodError, match=r"costs=\[0.1\] must name a positive cost for each of 2 drafters"
    ):
        CasSpec(costs=[0.1])
    with pytest.raises(SapwoodError, match="positive cost"):
        CasSpec(costs=[0.1, 0.0])


# ------------------------------------------------------------------------------- the recipe
def test_the_recipe_cascades_variants_of_the_target_over_lookup() -> None:
    drafter = resolve("cas-spec").drafter
    assert isinstance(drafter, CasSpec)
    assert [type(one) for one in drafter.drafters] == [SelfSkip, SelfSkip, QuantizedSelf, Ngram]
    assert "variants" in drafter.needs
    assert not drafter.stand_ins


@pytest.mark.parametrize("kind", ["stock", "packed"])
def test_the_recipe_writes_plain_text_and_uses_its_variants(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    target = deep.target(kind)
    sampling = Sampling(max_tokens=40, temperature=0)
    found = rounds_until(target, resolve("cas-spec"), deep.TEXT, 24, sampling)
    plain = rounds_until(target, deep.PLAIN, deep.TEXT, 24, sampling)
    assert tokens_of(found)[:24] == tokens_of(plain)[:24]
    used = {source for one in found for source in one.grown.sources[1:].tolist()}
    assert len(used) > 1  # more than one variant drafted
