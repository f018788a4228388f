"""Cascades: guesses save passes, change nothing, keep the law; lenience; the named recipes."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.cascade import Cascade
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.phrases import Phrases
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.keep_all import KeepAll
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import check_part, law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers.cascade_rounds import EXACT, GREEDY, PROMPT, TARGET, play, shapes, toy


@pytest.mark.parametrize(
    "guesser", [toy(), toy("other"), Ngram(), Phrases(), Recycling()], ids=["same", "other", *"npr"]
)
@pytest.mark.parametrize(
    "policy", [Chain(), Static(shape=[2, 1, 3]), Beam(beam=2), Best(stride=2)], ids=str
)
@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_guesses_do_not_change_what_is_drafted(guesser: Any, policy: Any, ahead: int) -> None:
    cascade = Cascade(drafter=toy(), guesser=guesser, ahead=ahead)
    assert shapes(play(cascade, policy)) == shapes(play(toy(), policy))


@pytest.mark.parametrize(
    ("guesser", "passes"), [(toy(), 8), (toy("other"), None)], ids=["right", "wrong"]
)
def test_right_guesses_save_passes_of_the_drafter(guesser: Any, passes: int | None) -> None:
    drafter = toy()
    alone = toy()
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
        (
            Draw.IID,
            [1, 2],
            Mss(),
        ),  # a node that was asked ahead for one child is asked again for two
        (Draw.SWOR, [2, 1], Rrs()),
        (Draw.MIXED, [2, 1], Mixed()),
        (Draw.SWOR, [2, 1], Match()),
    ],
    ids=str,
)
@pytest.mark.parametrize("guesser", ["draft", "other"])
def test_drawn_drafts_keep_the_law(
    draws: Draw, shape: list[int], verifier: Any, guesser: str
) -> None:
    vocab = 3 if max(shape) == 1 else 2  # small enough to enumerate what is drawn at guesses, too
    cascade = Cascade(
        drafter=toy(draws=draws, vocab=vocab), guesser=toy(guesser, vocab=vocab), ahead=1
    )
    assert cascade.draws is draws
    recipe = Recipe(cascade, Static(shape=shape), verifier, Fixed(nodes=4, depth=2, width=2))
    assert law_error(recipe, ToyBackend("a", vocab=vocab), prompt=(0, 1, 1)) <= EXACT


def test_drawn_drafts_share_a_tree_with_others() -> None:
    cascade = Cascade(drafter=toy(draws=Draw.SWOR, vocab=2), guesser=toy("draft", vocab=2), ahead=1)
    merged = Merge(drafters=[toy("other", vocab=2), cascade])
    recipe = Recipe(merged, Static(shape=[1, 1]), Mixed(), Fixed(nodes=6, depth=2, width=1))
    assert law_error(recipe, ToyBackend("a", vocab=2), prompt=(0, 1, 1)) <= EXACT


@dataclass
class Pleaser(Cascade):
    """Keeps only the drafts that were guessed, which looks at what was drawn."""

    name = "cascade"

    def _copy(self, tree: Tree, node: int, twin: int, width: int) -> None:
        agreed = {token for parent, token in self.guessed_ if parent == twin}
        drawn = [
            int(self.draft_.tokens[child])
            for child in self.draft_.children(twin)
            if child not in self.guesses_
        ]
        if set(drawn) & agreed:
            super()._copy(tree, node, twin, width)


@dataclass
class Forgetful(Cascade):
    """Hands out draws with the law of another node."""

    name = "cascade"

    def _copy(self, tree: Tree, node: int, twin: int, width: int) -> None:
        super()._copy(tree, node, twin, width)
        if node and (node, self.source) in tree.proposals:
            tree.proposals[node, self.source] = tree.proposals[0, self.source]


@pytest.mark.parametrize("wrong", [Pleaser, Forgetful])
def test_cascades_that_look_or_forget_would_be_noticed(wrong: type[Cascade]) -> None:
    cascade = wrong(drafter=toy(draws=Draw.IID, vocab=3), guesser=toy("other", vocab=3), ahead=1)
    recipe = Recipe(cascade, Chain(), Speculative(), Fixed(nodes=2, depth=2, width=1))
    assert law_error(recipe, ToyBackend("a")) > 1e-3


def test_deep_nodes_are_the_guessers() -> None:
    for outcome in play(Cascade(drafter=toy(), guesser=toy("other"), first=2), Chain()):
        spelled = outcome.tree.tokens.tolist()
        both = play_on(PROMPT, outcome)
        expected: list[int] = []
        for depth in range(6):
            model = ToyBackend("draft" if depth < 2 else "other", vocab=5)
            expected.append(int(model.scores([(*both, *expected)]).argmax()[0]))
        assert spelled[1:] == expected


def play_on(prompt: list[int], outcome: Outcome) -> list[int]:
    """The greedy text up to and including the root of this round."""
    text = list(prompt)
    while len(text) < outcome.context + 1:
        text.append(int(TARGET.scores([tuple(text)]).argmax()[0]))
    return text


@pytest.mark.parametrize(
    ("draws", "kind"), [(Draw.TOPK, Draw.TOPK), (Draw.SWOR, Draw.MIXED), (Draw.MIXED, Draw.MIXED)]
)
def test_chosen_tokens_below_drawn_ones_keep_the_law(draws: Draw, kind: Draw) -> None:
    cascade = Cascade(
        drafter=toy(draws=draws, vocab=3), guesser=toy("other", vocab=3), ahead=1, first=1
    )
    assert cascade.draws is kind
    recipe = Recipe(cascade, Static(shape=[1, 2]), Mixed(), Fixed(nodes=6, depth=2, width=2))
    assert law_error(recipe, ToyBackend("a")) <= EXACT


def test_what_cannot_be_judged_cannot_be_built() -> None:
    with pytest.raises(Unsound, match="are drawn, a cascade needs chosen ones"):
        Cascade(guesser=DraftModel(draws=Draw.SWOR))
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
    check_part(
        "drafter",
        Cascade(drafter=toy(vocab=3), guesser=Cascade(drafter=toy("x", vocab=3), first=1)),
    )


def test_a_lenient_drafter_takes_over_likely_guesses() -> None:
    def drafted(share: float) -> list[Any]:
        return shapes(play(Cascade(drafter=toy(), guesser=toy("other"), share=share), Chain()))

    alone = shapes(play(toy(), Chain()))
    theirs = shapes(play(toy("other"), Chain()))
    assert drafted(1.0) == alone
    assert [tokens for tokens, _, _ in drafted(0.0)] == [tokens for tokens, _, _ in theirs]
    some = drafted(0.5)
    assert some not in (alone, drafted(0.0))


def test_lenience_leaves_what_is_drawn_alone() -> None:
    cascade = Cascade(
        drafter=toy(draws=Draw.IID, vocab=2), guesser=toy("other", vocab=2), ahead=1, share=0.1
    )
    recipe = Recipe(cascade, Chain(), Mss(), Fixed(nodes=2, depth=2, width=1))
    assert law_error(recipe, ToyBackend("a", vocab=2), prompt=(0, 1, 1)) <= EXACT


def test_large_trees_stay_within_what_a_tree_holds() -> None:
    cascade = Cascade(drafter=toy(vocab=40), guesser=toy("draft", vocab=40), ahead=20)
    recipe = Recipe(cascade, KeepAll(), Match(), Fixed(nodes=900, depth=24, width=30))
    outcome = next(Engine(ToyBackend("wide", vocab=40), recipe).rounds(PROMPT, GREEDY, KeyedRng(1)))
    assert 100 < len(outcome.tree) <= 901


@pytest.mark.parametrize("name", ["jacobi", "lookahead", "ouroboros", "cascade"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_named_recipes_say_what_plain_decoding_says(name: str, temperature: float) -> None:
    texts = []
    for recipe in (resolve(name), resolve("plain")):
        sampling = Sampling(temperature=temperature, max_tokens=50)
        running = Engine(TARGET, recipe).rounds(PROMPT, sampling, KeyedRng(4))
        texts.append(
            list(itertools.islice((token for outcome in running for token in outcome.tokens), 40))
        )
        running.close()
    assert texts[0] == texts[1]


def test_ouroboros_hangs_phrases_below_its_draft() -> None:
    outcomes = []
    running = Engine(TARGET, resolve("ouroboros")).rounds(PROMPT, GREEDY, KeyedRng(4))
    outcomes = list(itertools.islice(running, 12))
    running.close()
    widths = [
        [len(outcome.tree.level(depth)) for depth in range(outcome.tree.height + 1)]
        for outcome in outcomes
    ]
    assert [1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3] in widths


def test_the_recipe_is_lenient_and_drafts_one_path() -> None:
    recipe = resolve("cascade")
    cascade: Any = recipe.drafter
    assert cascade.share == 0.5  # a lenience of 2
    running = Engine(TARGET, recipe).rounds(PROMPT, GREEDY, KeyedRng(4))
    trees = [outcome.tree for outcome in itertools.islice(running, 12)]
    running.close()
    assert all(tree.height == len(tree) - 1 for tree in trees)
