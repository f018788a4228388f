"""Lossy rules: what each accepts, against a slow reference; how far each departs; and what the benchmark says of it."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood import methods
from sapwood.api import LLM
from sapwood.arrays import FloatArray
from sapwood.backends.toy import Toy, ToyScores, law_after
from sapwood.bench.departure import strayed
from sapwood.bench.measure import decode
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.controllers.fixed import Fixed
from sapwood.doubt import certainty, distance
from sapwood.drafters.model import Model
from sapwood.engine import Engine
from sapwood.laws import PathLaws
from sapwood.policies.chain import Chain
from sapwood.policies.svip import Svip
from sapwood.protocols import Verifier
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.records import Draw, Guarantee, Outcome, Verdict
from sapwood.rng import Keyed, Place
from sapwood.sampling import Sampler, Sampling
from sapwood.testing import departure
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.adasd import AdaSd
from sapwood.verifiers.bild import Bild
from sapwood.verifiers.consultant import Consultant
from sapwood.verifiers.match import Match
from sapwood.verifiers.specdec import SpecDec
from sapwood.verifiers.speculative import Speculative
from sapwood.verifiers.threshold import Threshold
from sapwood.verifiers.typical import Typical
from tests.parts import lossless_names, plain_names, toy_recipes

VOCAB = 5
SEEDS = st.integers(0, 5_000)
LOSSY = [name for name in plain_names("verifier") if name not in lossless_names()]
AT_ONCE = [name for name in LOSSY if name != "adasd"]  # adasd excuses nothing before it has seen both verdicts
RULES: list[Verifier] = [
    Typical(),
    Bild(rollback=1.5),
    Consultant(limit=1.2),
    SpecDec(top=2, gap=1.5),
    Threshold(),
    AdaSd(),
]


def random_tree(seed: int) -> Tree:
    """A small tree of chosen tokens with draft laws."""
    random, tree = np.random.default_rng(seed), Tree(0)
    for node in range(4):
        if node < len(tree):
            law = random.dirichlet(np.full(VOCAB, 0.6))
            tree.laws[node, 0] = law
            best = np.argsort(-law, kind="stable")[: int(random.integers(1, 4))]
            tree.extend(node, best.tolist(), law[best].tolist())
    return tree


def target_laws(seed: int, tree: Tree) -> FloatArray:
    """A random target law at each node, [n, vocab]."""
    return np.random.default_rng([seed, 7]).dirichlet(np.full(VOCAB, 0.6), size=len(tree))


def judged(rule: Any, seed: int, temperature: float) -> tuple[Tree, FloatArray, Verdict, list[int]]:
    """A rule's verdict on a random tree, with the target's laws and its own tokens at each node."""
    tree = random_tree(seed)
    laws = target_laws(seed, tree)
    made = PathLaws(tree, ToyScores(np.log(laws)), Sampler(Sampling(temperature=temperature), [0]))
    own = [made.draw(node, 9 + int(tree.depths[node]) + 1, Keyed(seed)) for node in range(len(tree))]
    rule.reset(None)
    return tree, laws, rule.verify(tree, made, 9, Keyed(seed)), own


def lenient_path(tree: Tree, laws: FloatArray, own: list[int], passes: Any) -> tuple[list[int], int]:
    """The target's own token, or else the child it likes best, where that passes."""
    path = [ROOT]
    while True:
        node = path[-1]
        children = tree.children(node)
        mine = [child for child in children if tree.tokens[child] == own[node]]
        liked = sorted(children, key=lambda child: -laws[node, tree.tokens[child]])[:1]
        found = mine or [child for child in liked if passes(path, child)]
        if not found:
            return path, own[node]
        path.append(found[0])


# ------------------------------------------------------------------------------------------- the rules
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_bild_lets_pass_what_is_no_great_surprise(seed: int, temperature: float) -> None:
    tree, laws, verdict, own = judged(Bild(rollback=1.5), seed, temperature)
    path, bonus = lenient_path(tree, laws, own, lambda path, child: -np.log(laws[path[-1], tree.tokens[child]]) <= 1.5)
    assert (list(verdict.path), verdict.bonus) == (path, bonus)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_consultant_averages_the_surprise_along_the_path(seed: int, temperature: float) -> None:
    def passes(path: list[int], child: int) -> bool:
        mean = None
        for parent, node in itertools.pairwise([*path, child]):
            nats = -math.log(laws[parent, tree.tokens[node]])
            mean = nats if mean is None else 0.2 * mean + 0.8 * nats
        assert mean is not None
        return mean <= 1.2

    tree, laws, verdict, own = judged(Consultant(limit=1.2), seed, temperature)
    assert (list(verdict.path), verdict.bonus) == lenient_path(tree, laws, own, passes)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_specdec_wants_a_rank_and_a_gap(seed: int, temperature: float) -> None:
    def passes(path: list[int], child: int) -> bool:
        law, token = laws[path[-1]], int(tree.tokens[child])
        best = sorted(range(VOCAB), key=lambda other: -law[other])[:2]
        return token in best and math.log(law[best[0]]) - math.log(law[token]) <= 1.5

    tree, laws, verdict, own = judged(SpecDec(top=2, gap=1.5), seed, temperature)
    assert (list(verdict.path), verdict.bonus) == lenient_path(tree, laws, own, passes)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_threshold_is_a_floor_that_rises_with_doubt(seed: int, temperature: float) -> None:
    def passes(path: list[int], child: int) -> bool:
        floor = 0.1 + 0.3 * (1 - certainty(tree.laws[path[-1], 0]))
        return bool(laws[path[-1], tree.tokens[child]] >= floor)

    tree, laws, verdict, own = judged(Threshold(), seed, temperature)
    assert (list(verdict.path), verdict.bonus) == lenient_path(tree, laws, own, passes)


def test_threshold_is_stricter_where_the_drafter_is_unsure() -> None:
    accepted = {}
    for name, draft in {"sure": [0.9, 0.1, 0.0], "unsure": [0.4, 0.35, 0.25]}.items():
        tree = Tree(0)
        tree.laws[ROOT, 0] = np.array(draft)
        tree.extend(ROOT, [0], [draft[0]])
        laws = PathLaws(tree, ToyScores(np.log([[0.25, 0.65, 0.1]] * 2)), Sampler(Sampling(), [0]))
        accepted[name] = Threshold().verify(tree, laws, 9, Keyed(0)).accepted
    assert accepted == {"sure": 1, "unsure": 0}


@given(seed=SEEDS, best=st.booleans())
def test_typical_takes_the_longest_typical_path(seed: int, best: bool) -> None:
    tree, laws, verdict, own = judged(Typical(best=best), seed, 1.0)

    def typical(node: int) -> bool:
        law = laws[tree.parents[node]]
        spread = -sum(chance * math.log(chance) for chance in law.tolist())
        return bool(law[tree.tokens[node]] > min(0.09, 0.3 * math.exp(-spread)))

    paths = [tree.path(node) for node in range(len(tree))]
    able = [path for path in paths if all(typical(node) for node in path[1:])]
    longest = [path for path in able if len(path) == max(map(len, able))]
    logs = [sum(math.log(laws[tree.parents[node], tree.tokens[node]]) for node in path[1:]) for path in longest]
    assert list(verdict.path) == longest[int(np.argmax(logs))]
    assert verdict.bonus == (int(np.argmax(laws[verdict.path[-1]])) if best else own[verdict.path[-1]])


@given(seed=SEEDS)
def test_typical_is_the_greedy_walk_at_temperature_zero(seed: int) -> None:
    tree, laws, verdict, own = judged(Typical(), seed, 0.0)
    path, bonus = lenient_path(tree, laws, own, lambda path, child: False)
    assert (list(verdict.path), verdict.bonus) == (path, bonus)


def adasd_rounds(fade: float) -> list[Outcome]:
    """Greedy rounds of adasd on toys."""
    recipe = Recipe(Model(model=Toy("draft")), Svip(threshold=9.0), AdaSd(fade=fade), Fixed(2, 2, 1))
    rounds = Engine(Toy(), recipe).rounds([0, 1, 2], Sampling(max_tokens=500), Keyed(3))
    return list(itertools.islice(rounds, 60))


@pytest.mark.parametrize("fade", [1.0, 0.8])
def test_adasd_excuses_below_the_middle_of_two_means(fade: float) -> None:
    """Greedy rounds judged again by hand: distances of accepted and refused tokens by the exact test alone."""
    means: dict[bool, list[float]] = {True: [], False: []}
    text, excused = [0, 1, 2], 0

    def mean(values: list[float]) -> float:
        weights = [fade**age for age in reversed(range(len(values)))]
        return float(np.average(values, weights=weights))

    for outcome in adasd_rounds(fade):
        limit = (mean(means[True]) + mean(means[False])) / 2 if all(means.values()) else 0.0
        path, seen = 0, list[tuple[bool, float]]()
        drafted = outcome.tree.tokens[1:].tolist()
        while path < len(drafted):
            before = (*text, *drafted[:path])
            p, q = law_after("target", 3, before), law_after("draft", 3, before)
            right, apart = int(np.argmax(p)) == drafted[path], distance(p, q)
            seen.append((right, apart))
            if not right and apart >= limit:
                break
            excused += not right
            path += 1
        assert outcome.verdict.accepted == path
        for right, apart in seen:
            means[right].append(apart)
        text += outcome.tokens
    assert excused > 2
    assert len(means[False]) > excused


def test_adasd_without_a_law_is_exact() -> None:
    recipe = Recipe(Model(model=Toy("draft")), Chain(), AdaSd(), Fixed(2, 2, 1))  # chosen tokens, and nobody reads laws
    assert departure(recipe, sampling=Sampling(max_tokens=41), horizon=40).max() == 0


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=SEEDS)
def test_nothing_passes_that_the_target_forbids(rule: Any, seed: int) -> None:
    tree = random_tree(seed)
    laws = PathLaws(
        tree, ToyScores(np.log(target_laws(seed, tree))), Sampler(Sampling(temperature=1.0, top_k=2, banned=[1]), [0])
    )
    rule.reset(None)
    path = rule.verify(tree, laws, 9, Keyed(seed)).path
    assert all(laws.law(parent)[tree.tokens[node]] > 0 for parent, node in itertools.pairwise(path))


# -------------------------------------------------------------------------------------------- departure
def chain(verifier: Any, draws: Draw = Draw.TOPK, depth: int = 1, vocab: int = 3) -> Recipe:
    """A short chain on a toy, whose laws are kept."""
    drafter = Model(model=Toy("draft", vocab=vocab), draws=draws)
    return Recipe(drafter, Svip(threshold=9.0), verifier, Fixed(nodes=depth, depth=depth, width=1))


@pytest.mark.parametrize(("draws", "verifier"), [(Draw.TOPK, Match()), (Draw.IID, Speculative())], ids=str)
def test_lossless_rules_depart_by_nothing(draws: Draw, verifier: Verifier) -> None:
    assert departure(chain(verifier, draws), horizon=2).max() <= 1e-12
    assert departure(chain(verifier, draws), sampling=Sampling(max_tokens=31), horizon=30).max() == 0


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("draws", [Draw.TOPK, Draw.IID])
def test_lossy_rules_depart(name: str, draws: Draw) -> None:
    rule: Any = methods.lookup("verifier", name)()
    assert rule.guarantee is Guarantee.LOSSY
    assert departure(chain(rule, draws), horizon=2).max() > 1e-3


def test_adasd_departs_once_it_has_seen_both_verdicts() -> None:
    found = departure(chain(AdaSd(), vocab=2), Toy("a", vocab=2), horizon=4)
    assert found[:2].max() <= 1e-12
    assert found.max() > 1e-3


@pytest.mark.parametrize("name", [name for name in LOSSY if name != "typical"])
def test_lossy_rules_depart_at_temperature_zero(name: str) -> None:
    rule: Any = methods.lookup("verifier", name)()
    found = departure(chain(rule), sampling=Sampling(max_tokens=61), horizon=60)
    assert set(found.tolist()) == {0.0, 1.0}  # one text: a place is the target's best token or is not


@pytest.mark.parametrize(
    "strict",
    [SpecDec(top=1), SpecDec(gap=0.0), Bild(rollback=0.0), Consultant(limit=0.0), Threshold(base=1.0)],
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

        def excuses(self, tree: Tree, child: int, belief: Any) -> bool:
            return True

    found = departure(chain(Anything(), Draw.TOPK), horizon=1)
    p, q = law_after("target", 3, (0, 1, 2)), law_after("draft", 3, (0, 1, 2))
    liked = int(np.argmax(q))
    assert found[0] == pytest.approx(1 - p[liked])


NAMED = toy_recipes()


@pytest.mark.parametrize("name", [name for name, made in NAMED.items() if made.guarantee is Guarantee.LOSSY])
def test_named_recipes_that_are_lossy_depart(name: str) -> None:
    found = departure(NAMED[name], sampling=Sampling(max_tokens=81), prompt=(0, 1, 2, 0, 1), horizon=80)
    assert found.max() == 1.0


# -------------------------------------------------------------------------------------------- benchmark
TARGET: Any = Toy(vocab=5, context=200)
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]
LOOSE = "recycling + static(shape=[2, 1]) + bild + fixed"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=90),
        Sampling(temperature=0.8, seed=4, max_tokens=90),
        Sampling(temperature=0.8, seed=4, repetition_penalty=1.3, frequency_penalty=0.2, max_tokens=90),
    ],
    ids=range(3),
)
def test_plain_text_does_not_stray_and_every_other_token_does(sampling: Sampling) -> None:
    said = decode(Engine(TARGET, resolve("plain")), PROMPT, sampling).tokens
    assert strayed(TARGET, PROMPT, said, sampling) == 0  # over more than one pass
    other = [*said[:40], (said[40] + 1) % 5]
    assert strayed(TARGET, PROMPT, other, sampling) == 1
    assert strayed(TARGET, PROMPT, [*other, 3, 3, 3], sampling) <= 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_strays_is_counted_after_the_same_text(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=2, max_tokens=50)
    said = decode(Engine(TARGET, resolve(LOOSE)), PROMPT, sampling).tokens
    count = 0
    for place, token in enumerate(said):
        law = law_after("target", 5, (*PROMPT, *said[:place]))
        best = int(np.argmax(law))
        if temperature:
            best = Keyed(2).pick(Sampler(sampling, PROMPT).law(np.log(law), []), Place(len(PROMPT) + place))
        count += token != best
    assert count > 5
    assert strayed(TARGET, PROMPT, said, sampling) == count


def test_the_benchmark_says_how_far_a_lossy_recipe_departs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(options.Choice, "open", lambda self, progress: LLM(TARGET, "plain"))
    path = tmp_path / "bench.json"
    arguments = ["--suite", "random", "--limit", "2", "--max-tokens", "24", "--json", str(path)]
    assert main(["bench", "--recipes", f"recycling;{LOOSE}", *arguments]) == 0
    found = {(row["recipe"], row["category"]): row["departure"] for row in json.loads(path.read_text())["rows"]}
    assert found["plain", "all"] is None
    assert found["recycling", "all"] is None
    assert 0 < found[LOOSE, "all"] < 1
    said = capsys.readouterr().out
    assert "departs" in said
    assert "is lossy" in said
    assert main(["bench", "--recipes", "recycling", *arguments]) == 0
    assert "departs" not in capsys.readouterr().out
