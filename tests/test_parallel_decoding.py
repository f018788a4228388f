"""Jacobi and look-ahead decoding against slow references that know no trees."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.backends.toy import Toy, law_after
from sapwood.controllers.fixed import Fixed
from sapwood.drafters.answers import along, lay, strays
from sapwood.drafters.jacobi import Jacobi
from sapwood.drafters.lookahead import Lookahead
from sapwood.drafters.merge import Merge
from sapwood.drafters.model import Model
from sapwood.drafters.ngram import Ngram
from sapwood.drafters.phrases import Phrases, Pool, discarded
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.policies.whole import Whole
from sapwood.recipe import Recipe
from sapwood.records import Budget, Draw, Outcome
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.testing import law_error
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.match import Match

PROMPT = [0, 3, 1, 4, 2]
GREEDY = Sampling(max_tokens=200)
TARGET = Toy("wide", vocab=5)


def best(*context: int) -> int:
    """The target's best token after a context, by its definition."""
    return int(law_after("wide", 5, context).argmax())


def played(recipe: Recipe, sampling: Sampling = GREEDY, rounds: int = 24) -> list[tuple[Outcome, Any]]:
    """Rounds of a recipe, with the drafter's state after each."""
    found = []
    engine = Engine(TARGET, recipe)
    kept: list[Any] = []
    fresh = engine.recipe.fresh

    def watched(request: Any) -> Any:
        kept.append(fresh(request))
        return kept[-1]

    object.__setattr__(engine.recipe, "fresh", watched)
    running = engine.rounds(PROMPT, sampling, Keyed(3))
    for _ in range(rounds):
        outcome = next(running)
        drafter = kept[0][0]
        found.append((outcome, {key: value for key, value in vars(drafter).items() if key.endswith("_")}))
    running.close()
    return found


# ---------------------------------------------------------------------------------------- jacobi
@dataclass
class SlowJacobi:
    """Fixed-point iteration over a list: no tree, no session."""

    length: int
    shift: int = 0  # of the answers against their positions; anything but 0 is a mistake

    def rounds(self) -> Iterator[tuple[list[int], list[int]]]:
        """(emitted, next guesses) of each pass."""
        text, guesses = list(PROMPT), strays(PROMPT, len(PROMPT), self.length)
        while True:
            answers = [best(*text, *guesses[:place]) for place in range(self.length + 1)]
            right = 0
            while right < self.length and answers[right] == guesses[right]:
                right += 1
            text += answers[: right + 1]
            known = answers[right + 1 + self.shift :][: self.length]
            guesses = known + strays(PROMPT, len(text) + len(known), self.length - len(known))
            yield answers[: right + 1], guesses


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_jacobi_is_fixed_point_iteration(length: int) -> None:
    recipe = Recipe(Jacobi(length=length), Chain(), Match(), Fixed(nodes=length, depth=length, width=1))
    slow = SlowJacobi(length).rounds()
    for outcome, state in played(recipe):
        assert (outcome.tokens, state["guessed_"]) == next(slow)


@pytest.mark.parametrize("shift", [-1, 1])
def test_answers_at_other_positions_would_be_noticed(shift: int) -> None:
    recipe = Recipe(Jacobi(length=5), Chain(), Match(), Fixed(nodes=5, depth=5, width=1))
    slow = SlowJacobi(5, shift).rounds()
    assert any((outcome.tokens, state["guessed_"]) != next(slow) for outcome, state in played(recipe))


def test_jacobi_finds_the_fixed_point_of_a_target_that_repeats_itself() -> None:
    class Counter(Toy):
        """Says one more than the last token, whatever came before."""

        def scores(self, contexts: Any) -> Any:
            scores = super().scores(contexts)
            for row, context in zip(scores.rows, contexts, strict=True):
                row[:] = -9.0
                row[(context[-1] + 1) % self.vocab] = 0.0
            return scores

    recipe = Recipe(Jacobi(length=6), Chain(), Match(), Fixed(nodes=6, depth=6, width=1))
    running = Engine(Counter("wide", vocab=5), recipe).rounds(PROMPT, GREEDY, Keyed(0))
    sizes = [len(next(running).tokens) for _ in range(12)]
    running.close()
    assert sum(sizes) > 12  # answers to wrong guesses come right from the left, more than one in a pass


# ------------------------------------------------------------------------------------- lookahead
@dataclass
class SlowLookahead:
    """The published loop over lists: every token's context is written out."""

    window: int
    size: int
    ngrams: int
    follow: bool
    offset: int = 0  # levels that a column's context reaches too far to the right; anything but 0 is a mistake

    def rounds(self) -> Iterator[tuple[list[int], list[list[int]]]]:
        """(emitted, window after) of each pass."""
        text = list(PROMPT)
        past = [strays(PROMPT, len(PROMPT), self.window + self.size - 3)]
        pool: dict[int, list[tuple[int, ...]]] = {}
        while True:
            columns = [[level[i] for level in past[1:]] for i in range(len(past[0]) + 1)]
            new = [best(*text, *past[0][: i + self.offset], *column) for i, column in enumerate(columns)]
            paths = [tuple(past[0]), *(tuple(past[0][:i] + column) for i, column in enumerate(columns))]
            emitted = self.emit(text, [*paths, *pool.get(text[-1], [])])
            if len(past) == self.size - 1:
                for i, column in enumerate(columns):
                    first = text[-1] if i == 0 else past[0][i - 1]
                    grams = [gram for gram in pool.get(first, []) if gram != (*column, new[i])]
                    pool[first] = [*grams, (*column, new[i])][-self.ngrams :]
                past = [past[1][1:], *past[2:], new]
            else:
                past = [level[1:] for level in [*past, new]]
            skip = len(emitted) - 1 if self.follow else 0
            fill = strays(PROMPT, len(text) + len(columns), skip)
            past = [[[*level, *fill][i + skip] for i in range(len(level))] for level in past]
            text += emitted
            yield emitted, past

    def emit(self, text: list[int], paths: list[tuple[int, ...]]) -> list[int]:
        """Follow the target's own tokens while some path goes on with them."""
        emitted: list[int] = []
        while True:
            emitted.append(best(*text, *emitted))
            if not any(path[: len(emitted)] == tuple(emitted) for path in paths):
                return emitted


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(("window", "size", "ngrams"), [(7, 5, 7), (3, 3, 2), (1, 4, 3), (4, 6, 1)])
def test_lookahead_is_the_published_loop(window: int, size: int, ngrams: int, follow: bool) -> None:
    drafter = Lookahead(window=window, size=size, ngrams=ngrams, follow=follow)
    recipe = Recipe(drafter, Whole(), Match(), Fixed(nodes=200, depth=40, width=40))
    slow = SlowLookahead(window, size, ngrams, follow).rounds()
    for outcome, state in played(recipe):
        assert (outcome.tokens, state["levels_"]) == next(slow)


def test_a_wrong_context_of_the_window_would_be_noticed() -> None:
    recipe = Recipe(Lookahead(), Whole(), Match(), Fixed(nodes=200, depth=40, width=40))
    slow = SlowLookahead(7, 5, 7, False, offset=1).rounds()
    assert any((outcome.tokens, state["levels_"]) != next(slow) for outcome, state in played(recipe))


def test_the_named_budget_holds_the_whole_window() -> None:
    small = Recipe(Lookahead(), Whole(), Match(), Fixed(nodes=55, depth=9, width=9))
    large = Recipe(Lookahead(), Whole(), Match(), Fixed(nodes=999, depth=99, width=99))
    for (ours, _), (all_, _) in zip(played(small), played(large), strict=True):
        assert ours.tree.tokens.tolist() == all_.tree.tokens.tolist()
        assert ours.tree.parents.tolist() == all_.tree.parents.tolist()


def test_a_window_that_was_cut_goes_on_with_strays() -> None:
    recipe = Recipe(Lookahead(), Whole(), Match(), Fixed(nodes=6, depth=3, width=3))
    for _, state in played(recipe):
        levels = state["levels_"]
        assert {len(level) for level in levels[1:]} <= {len(levels[0]) + 1}


def test_ngrams_may_come_from_the_text() -> None:
    for prompt, first in ((False, []), (True, [(3, 1, 4, 2)])):
        recipe = Recipe(Lookahead(prompt=prompt), Whole(), Match(), Fixed(nodes=55, depth=9, width=9))
        [(outcome, state)] = played(recipe, rounds=1)
        assert state["pool_"].after(PROMPT[0]) == first
        assert state["pool_"].after(PROMPT[-1]) == ([tuple(outcome.tokens[:4])] if prompt else [])


# ----------------------------------------------------------------------------------------- whole
def test_whole_keeps_what_came_first() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3], [0.1, 0.2, 0.9])
    tree.extend(1, [4], [0.9])
    assert Whole().prune(tree, Budget(9, 9, 9)) is tree
    assert Whole().prune(tree, Budget(2, 9, 9)).tokens.tolist() == [0, 1, 2]


def test_whole_asks_no_more_nodes_than_can_fill_the_budget() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4, 5], [0.1] * 5)
    tree.close(ROOT)
    assert Whole().frontier(tree, Budget(8, 9, 2)) == [(1, 2), (2, 2)]  # three nodes are left: two groups
    assert Whole().frontier(tree, Budget(5, 9, 2)) == []
    assert Whole().frontier(tree, Budget(8, 1, 2)) == []


# --------------------------------------------------------------------------------------- phrases
def test_the_pool_keeps_the_newest_and_lets_phrases_grow() -> None:
    pool = Pool(2)
    for phrase in ((1, 2), (3,), (1, 2)):
        pool.add(9, phrase)
    assert pool.after(9) == [(1, 2), (3,)]
    pool.add(9, (3, 4))  # goes on from what was known
    assert pool.after(9) == [(3, 4), (1, 2)]
    pool.add(9, (5,))
    assert pool.after(9) == [(5,), (3, 4)]
    assert pool.after(8) == []


def test_discarded_answers_are_read_off_each_refused_branch() -> None:
    recipe = Recipe(Model(model=Toy("draft", vocab=5)), Whole(), Match(), Fixed(nodes=12, depth=3, width=2))
    for outcome, _ in played(recipe):
        tree, path, context = outcome.tree, outcome.verdict.path, text_before(outcome)
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
    recipe = Recipe(Merge(drafters=[drafter]), Whole(), Match(), Fixed(nodes=9, depth=9, width=1))
    engine = Engine(TARGET, recipe)
    engine.recipe.drafter.drafters[0].pool.add(2, (0, 0, 1, 0))  # type: ignore[attr-defined]
    outcome = next(engine.rounds(PROMPT, GREEDY, Keyed(0)))
    assert outcome.grown.tokens.tolist()[:5] == [2, 0, 0, 1, 0]


# ------------------------------------------------------------------------------------ guarantees
@pytest.mark.parametrize("drafter", [Jacobi(length=2), Lookahead(window=2, size=3, ngrams=2), Phrases()], ids=str)
@pytest.mark.parametrize("policy", [Whole(), Chain()], ids=str)
def test_the_law_is_the_targets(drafter: Any, policy: Any) -> None:
    recipe = Recipe(drafter, policy, Match(), Fixed(nodes=6, depth=3, width=3))
    assert law_error(recipe, Toy("a"), rounds=2) <= 1e-12


@pytest.mark.parametrize("drafter", [Jacobi(), Lookahead(), Lookahead(follow=True, prompt=True), Phrases()], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_plain_decodings(drafter: Any, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, max_tokens=60)
    texts = []
    for one, nodes in ((drafter, 0), (drafter, 30), (Merge(drafters=[Ngram(), drafter]), 30)):
        recipe = Recipe(one, Whole(), Match(), Fixed(nodes=nodes, depth=9, width=9))
        running = Engine(TARGET, recipe).rounds(PROMPT, sampling, Keyed(7))
        text: list[int] = []
        while len(text) < 40:
            text += next(running).tokens
        running.close()
        texts.append(text[:40])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("draws", Draw, ids=lambda draws: draws.value)
def test_whole_cuts_no_draw_by_its_token(draws: Draw) -> None:
    from sapwood.verifiers.mixed import Mixed
    from sapwood.verifiers.mss import Mss

    drafter = Model(model=Toy("draft"), draws=draws)
    recipe = Recipe(drafter, Whole(), Mss() if draws is Draw.IID else Mixed(), Fixed(nodes=3, depth=2, width=2))
    assert law_error(recipe, Toy("a")) <= 1e-12


def test_rows_are_laid_along_what_is_there_and_read_back() -> None:
    tree = Tree(0)
    first = lay(tree, ROOT, [1, 2, 3], 0.5)
    again = lay(tree, ROOT, [1, 2, 4], 0.5)
    assert first[:2] == again[:2]
    assert len(tree) == 5
    assert along(tree, ROOT, [1, 2, 4, 4]) == [ROOT, *again]
    assert along(tree, ROOT, [4]) == [ROOT]


@pytest.mark.parametrize(
    "make", [lambda: Jacobi(length=0), lambda: Lookahead(size=2), lambda: Lookahead(window=0), lambda: Phrases(size=0)]
)
def test_wrong_options_are_refused(make: Any) -> None:
    with pytest.raises(SapwoodError, match="must be at least"):
        make()
