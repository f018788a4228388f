"""Drafters that draft for drafters, and the choice among several of them."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.drafters.cas_spec import CasSpec, Costs, Record, best_stretch
from sapwood.drafters.cascade import Cascade
from sapwood.drafters.merge import Merge
from sapwood.drafters.model import Model
from sapwood.drafters.ngram import Ngram
from sapwood.drafters.phrases import Phrases
from sapwood.drafters.recycling import Recycling
from sapwood.engine import Engine
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.policies.whole import Whole
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.records import Draw, Outcome
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.testing import check_part, law_error
from sapwood.tree import Tree
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative

PROMPT = [0, 3, 1, 4, 2]
TARGET = Toy("wide", vocab=5)
GREEDY = Sampling(max_tokens=200)
EXACT = 1e-12


def toy(salt: str = "draft", draws: Draw = Draw.TOPK, vocab: int = 5) -> Model:
    """A draft model with its own count of passes."""
    return Model(model=Toy(salt, vocab=vocab), draws=draws)


def play(drafter: Any, policy: Any, nodes: int = 12, rounds: int = 8, sampling: Sampling = GREEDY) -> list[Outcome]:
    """The first rounds of a recipe on the toy target."""
    recipe = Recipe(drafter, policy, Match(), Fixed(nodes=nodes, depth=6, width=3))
    running = Engine(TARGET, recipe).rounds(PROMPT, sampling, Keyed(1))
    found = list(itertools.islice(running, rounds))
    running.close()
    return found


def shapes(outcomes: list[Outcome]) -> list[Any]:
    """What was drafted: tokens, parents and chances."""
    return [
        (outcome.tree.tokens.tolist(), outcome.tree.parents.tolist(), outcome.tree.probs.round(12).tolist())
        for outcome in outcomes
    ]


# ------------------------------------------------------------------------------------- vertical
@pytest.mark.parametrize(
    "guesser", [toy(), toy("other"), Ngram(), Phrases(), Recycling()], ids=["same", "other", *"npr"]
)
@pytest.mark.parametrize("policy", [Chain(), Static(shape=[2, 1, 3]), Beam(beam=2), Best(stride=2)], ids=str)
@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_guesses_do_not_change_what_is_drafted(guesser: Any, policy: Any, ahead: int) -> None:
    cascade = Cascade(drafter=toy(), guesser=guesser, ahead=ahead)
    assert shapes(play(cascade, policy)) == shapes(play(toy(), policy))


@pytest.mark.parametrize(("guesser", "passes"), [(toy(), 8), (toy("other"), None)], ids=["right", "wrong"])
def test_right_guesses_save_passes_of_the_drafter(guesser: Any, passes: int | None) -> None:
    drafter, alone = toy(), toy()
    play(alone, Chain())
    play(Cascade(drafter=drafter, guesser=guesser, ahead=5), Chain())
    assert alone.model.passes >= 6 * 8  # type: ignore[union-attr]
    if passes is None:
        assert drafter.model.passes < alone.model.passes  # type: ignore[union-attr]
    else:
        assert drafter.model.passes == passes  # type: ignore[union-attr] # one a round


@pytest.mark.parametrize(
    ("draws", "shape", "verifier"),
    [
        (Draw.IID, [1, 1], Speculative()),
        (Draw.IID, [2, 1], Mss()),  # twins draw their children apart
        (Draw.IID, [1, 2], Mss()),  # a node that was asked ahead for one child is asked again for two
        (Draw.SWOR, [2, 1], Rrs()),
        (Draw.MIXED, [2, 1], Mixed()),
        (Draw.SWOR, [2, 1], Match()),
    ],
    ids=str,
)
@pytest.mark.parametrize("guesser", ["draft", "other"])
def test_drawn_drafts_keep_the_law(draws: Draw, shape: list[int], verifier: Any, guesser: str) -> None:
    vocab = 3 if max(shape) == 1 else 2  # small enough to enumerate what is drawn at guesses, too
    cascade = Cascade(drafter=toy(draws=draws, vocab=vocab), guesser=toy(guesser, vocab=vocab), ahead=1)
    assert cascade.draws is draws
    recipe = Recipe(cascade, Static(shape=shape), verifier, Fixed(nodes=4, depth=2, width=2))
    assert law_error(recipe, Toy("a", vocab=vocab), prompt=(0, 1, 1)) <= EXACT


def test_drawn_drafts_share_a_tree_with_others() -> None:
    cascade = Cascade(drafter=toy(draws=Draw.SWOR, vocab=2), guesser=toy("draft", vocab=2), ahead=1)
    merged = Merge(drafters=[toy("other", vocab=2), cascade])
    recipe = Recipe(merged, Static(shape=[1, 1]), Mixed(), Fixed(nodes=6, depth=2, width=1))
    assert law_error(recipe, Toy("a", vocab=2), prompt=(0, 1, 1)) <= EXACT


@dataclass
class Pleaser(Cascade):
    """Keeps only the drafts that were guessed, which looks at what was drawn."""

    name = "cascade"

    def _copy(self, tree: Tree, node: int, twin: int, width: int) -> None:
        agreed = {token for parent, token in self.guessed_ if parent == twin}
        drawn = [int(self.draft_.tokens[child]) for child in self.draft_.children(twin) if child not in self.guesses_]
        if set(drawn) & agreed:
            super()._copy(tree, node, twin, width)


@dataclass
class Forgetful(Cascade):
    """Hands out draws with the law of another node."""

    name = "cascade"

    def _copy(self, tree: Tree, node: int, twin: int, width: int) -> None:
        super()._copy(tree, node, twin, width)
        if node and (node, self.source) in tree.laws:
            tree.laws[node, self.source] = tree.laws[0, self.source]


@pytest.mark.parametrize("wrong", [Pleaser, Forgetful])
def test_cascades_that_look_or_forget_would_be_noticed(wrong: type[Cascade]) -> None:
    cascade = wrong(drafter=toy(draws=Draw.IID, vocab=3), guesser=toy("other", vocab=3), ahead=1)
    recipe = Recipe(cascade, Chain(), Speculative(), Fixed(nodes=2, depth=2, width=1))
    assert law_error(recipe, Toy("a")) > 1e-3


# ----------------------------------------------------------------------------------- horizontal
def test_deep_nodes_are_the_guessers() -> None:
    for outcome in play(Cascade(drafter=toy(), guesser=toy("other"), first=2), Chain()):
        spelled = outcome.tree.tokens.tolist()
        both = play_on(PROMPT, outcome)
        expected: list[int] = []
        for depth in range(6):
            model = Toy("draft" if depth < 2 else "other", vocab=5)
            expected.append(int(model.scores([(*both, *expected)]).argmax()[0]))
        assert spelled[1:] == expected


def play_on(prompt: list[int], outcome: Outcome) -> list[int]:
    """The greedy text up to and including the root of this round."""
    text = list(prompt)
    while len(text) < outcome.context + 1:
        text.append(int(TARGET.scores([tuple(text)]).argmax()[0]))
    return text


@pytest.mark.parametrize(("draws", "kind"), [(Draw.TOPK, Draw.TOPK), (Draw.SWOR, Draw.MIXED), (Draw.MIXED, Draw.MIXED)])
def test_chosen_tokens_below_drawn_ones_keep_the_law(draws: Draw, kind: Draw) -> None:
    cascade = Cascade(drafter=toy(draws=draws, vocab=3), guesser=toy("other", vocab=3), ahead=1, first=1)
    assert cascade.draws is kind
    recipe = Recipe(cascade, Static(shape=[1, 2]), Mixed(), Fixed(nodes=6, depth=2, width=2))
    assert law_error(recipe, Toy("a")) <= EXACT


def test_what_cannot_be_judged_cannot_be_built() -> None:
    with pytest.raises(Unsound, match="are drawn, a cascade needs chosen ones"):
        Cascade(guesser=Model(draws=Draw.SWOR))
    with pytest.raises(Unsound, match="mixes iid draws with others"):
        _ = Cascade(drafter=toy(draws=Draw.IID), first=2).draws
    with pytest.raises(SapwoodError, match="share=2 must be from 0 to 1"):
        Cascade(share=2)
    with pytest.raises(SapwoodError, match="ahead=-1 must be at least 0"):
        Cascade(ahead=-1)


def test_ladders_may_be_longer_than_two() -> None:
    inner = Cascade(drafter=toy("other"), guesser=Ngram(), ahead=2)
    cascade = Cascade(drafter=toy(), guesser=inner, ahead=3)
    assert shapes(play(cascade, Chain())) == shapes(play(toy(), Chain()))
    check_part("drafter", Cascade(drafter=toy(vocab=3), guesser=Cascade(drafter=toy("x", vocab=3), first=1)))


# ------------------------------------------------------------------------------------- lenience
def test_a_lenient_drafter_takes_over_likely_guesses() -> None:
    def drafted(share: float) -> list[Any]:
        return shapes(play(Cascade(drafter=toy(), guesser=toy("other"), share=share), Chain()))

    alone, theirs = shapes(play(toy(), Chain())), shapes(play(toy("other"), Chain()))
    assert drafted(1.0) == alone
    assert [tokens for tokens, _, _ in drafted(0.0)] == [tokens for tokens, _, _ in theirs]
    some = drafted(0.5)
    assert some not in (alone, drafted(0.0))


def test_lenience_leaves_what_is_drawn_alone() -> None:
    cascade = Cascade(drafter=toy(draws=Draw.IID, vocab=2), guesser=toy("other", vocab=2), ahead=1, share=0.1)
    recipe = Recipe(cascade, Chain(), Mss(), Fixed(nodes=2, depth=2, width=1))
    assert law_error(recipe, Toy("a", vocab=2), prompt=(0, 1, 1)) <= EXACT


def test_large_trees_stay_within_what_a_tree_holds() -> None:
    cascade = Cascade(drafter=toy(vocab=40), guesser=toy("draft", vocab=40), ahead=20)
    recipe = Recipe(cascade, Whole(), Match(), Fixed(nodes=900, depth=24, width=30))
    outcome = next(Engine(Toy("wide", vocab=40), recipe).rounds(PROMPT, GREEDY, Keyed(1)))
    assert 100 < len(outcome.tree) <= 901


# -------------------------------------------------------------------------------------- cas-spec
def test_the_worth_of_a_stretch_is_the_papers_formula() -> None:
    acceptance, costs, most = [0.8, 0.5, 0.3], [0.4, 0.1, 0.01], 6
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
    record = Record(rounds=3, fade=0.5)
    assert record.acceptance == pytest.approx(0.6)
    for kept, tested in ((9, 9), (0, 1), (2, 3), (1, 2)):  # the first is forgotten
        record.rounds.appendleft((kept, tested))
    assert record.acceptance == pytest.approx((0.6 + 1 + 0.5 * 2 + 0.25 * 0) / (1 + 2 + 0.5 * 3 + 0.25 * 1))


def test_costs_are_learned_from_whole_rounds() -> None:
    costs, random = Costs(2), np.random.default_rng(0)
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
    running = engine.rounds(PROMPT, GREEDY, Keyed(1))
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
    assert [[sum(pair[i] for pair in record.rounds) for i in (0, 1)] for record in records] == counted
    assert sum(tested for _, tested in counted) > 6


def test_nodes_that_cannot_keep_the_pace_are_left_alone() -> None:
    dear = CasSpec(drafters=[toy("other"), toy("third")], costs=[40.0, 40.0])
    assert all(outcome.grown.height == 1 for outcome in play(dear, Best(stride=1), nodes=9)[-4:])


@pytest.mark.parametrize(
    ("kinds", "verifier"),
    [((Draw.TOPK, Draw.TOPK), Match()), ((Draw.IID, Draw.IID), Mss()), ((Draw.SWOR, Draw.TOPK), Mixed())],
    ids=str,
)
def test_choosing_keeps_the_law(kinds: tuple[Draw, Draw], verifier: Any) -> None:
    drafters: list[Any] = [toy(f"draft {index}", kind, vocab=3) for index, kind in enumerate(kinds)]
    drafter = CasSpec(drafters=drafters, costs=[0.2, 0.1])
    recipe = Recipe(drafter, Chain(), verifier, Fixed(nodes=2, depth=2, width=1))
    assert law_error(recipe, Toy("a"), rounds=2, horizon=2) <= EXACT


def test_costs_name_every_drafter() -> None:
    with pytest.raises(SapwoodError, match=r"costs=\[0.1\] must name a positive cost for each of 2 drafters"):
        CasSpec(costs=[0.1])
    with pytest.raises(SapwoodError, match="positive cost"):
        CasSpec(costs=[0.1, 0.0])


# ---------------------------------------------------------------------------------- named recipes
@pytest.mark.parametrize("name", ["jacobi", "lookahead", "ouroboros", "cascade", "cas-spec"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_named_recipes_say_what_plain_decoding_says(name: str, temperature: float) -> None:
    texts = []
    for recipe in (resolve(name), resolve("plain")):
        sampling = Sampling(temperature=temperature, max_tokens=50)
        running = Engine(TARGET, recipe).rounds(PROMPT, sampling, Keyed(4))
        texts.append(list(itertools.islice((token for outcome in running for token in outcome.tokens), 40)))
        running.close()
    assert texts[0] == texts[1]


def test_ouroboros_hangs_phrases_below_its_draft() -> None:
    outcomes = []
    running = Engine(TARGET, resolve("ouroboros")).rounds(PROMPT, GREEDY, Keyed(4))
    outcomes = list(itertools.islice(running, 12))
    running.close()
    widths = [[len(outcome.tree.level(depth)) for depth in range(outcome.tree.height + 1)] for outcome in outcomes]
    assert [1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3] in widths
