"""Phrases: the newest are kept, and refused answers become phrases."""

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.types import Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.phrases import PhrasePool, Phrases, discarded
from sapwood.engine.loop import Engine
from sapwood.policies.keep_all import KeepAll
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.decoded_trees import GREEDY, PROMPT, TARGET, best, played


def test_the_pool_keeps_the_newest_and_lets_phrases_grow() -> None:
    pool = PhrasePool(2)
    for phrase in ((1, 2), (3,), (1, 2)):
        pool.add(9, phrase)
    assert pool.after(9) == [(1, 2), (3,)]
    pool.add(9, (3, 4))  # goes on from what was known
    assert pool.after(9) == [(3, 4), (1, 2)]
    pool.add(9, (5,))
    assert pool.after(9) == [(5,), (3, 4)]
    assert pool.after(8) == []


def test_discarded_answers_are_read_off_each_refused_branch() -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft", vocab=5)),
        KeepAll(),
        Match(),
        Fixed(nodes=12, depth=3, width=2),
    )
    for outcome, _ in played(recipe):
        tree = outcome.tree
        path = outcome.verdict.path
        context = text_before(outcome)
        rows = []
        for leaf in set(range(len(tree))) - set(tree.parents.tolist()) - set(path):
            line = tree.path(leaf)
            fork = max(place for place, node in enumerate(line) if node in path)
            rows.append([best(*context, *tree.spell(node)) for node in line[fork:]])
        assert sorted(rows) == sorted(discarded(outcome))
        assert all(row[0] == outcome.tokens[0] for row in rows if len(path) == 1)


def text_before(outcome: Outcome) -> list[int]:
    """The committed text of a greedy run before this round."""
    text = list(PROMPT)
    while len(text) < outcome.context + 1:
        text.append(best(*text))
    return text[: outcome.context]


def test_phrases_are_followed_and_end() -> None:
    drafter = Phrases(size=3)
    recipe = Recipe(Merge(drafters=[drafter]), KeepAll(), Match(), Fixed(nodes=9, depth=9, width=1))
    engine = Engine(TARGET, recipe)
    engine.recipe.drafter.drafters[0].pool.add(2, (0, 0, 1, 0))  # type: ignore[attr-defined]
    outcome = next(engine.rounds(PROMPT, GREEDY, KeyedRng(0)))
    assert outcome.grown.tokens.tolist()[:5] == [2, 0, 0, 1, 0]
