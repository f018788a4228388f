"""Lookahead decoding against the published loop: window, n-grams, verification."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sapwood.controllers.fixed import Fixed
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.lookup.lookahead import Lookahead
from sapwood.drafters.lookup.token_chains import add_chain, find_chain, random_tokens
from sapwood.policies.keep_all import KeepAll
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.decoded_trees import PROMPT, best, played


@dataclass
class SlowLookahead:
    """The published loop over lists: every token's context is written out."""

    window: int
    size: int
    ngrams: int
    follow: bool
    # levels that a column's context reaches too far to the right; anything but 0 is a mistake
    offset: int = 0

    def rounds(self) -> Iterator[tuple[list[int], list[list[int]]]]:
        """(emitted, window after) of each pass."""
        text = list(PROMPT)
        past = [random_tokens(PROMPT, len(PROMPT), self.window + self.size - 3)]
        pool: dict[int, list[tuple[int, ...]]] = {}
        while True:
            columns = [[level[i] for level in past[1:]] for i in range(len(past[0]) + 1)]
            new = [
                best(*text, *past[0][: i + self.offset], *column)
                for i, column in enumerate(columns)
            ]
            paths = [
                tuple(past[0]),
                *(tuple(past[0][:i] + column) for i, column in enumerate(columns)),
            ]
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
            fill = random_tokens(PROMPT, len(text) + len(columns), skip)
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
    recipe = Recipe(drafter, KeepAll(), Match(), Fixed(nodes=200, depth=40, width=40))
    slow = SlowLookahead(window, size, ngrams, follow).rounds()
    for outcome, state in played(recipe):
        assert (outcome.tokens, state["levels_"]) == next(slow)


def test_a_wrong_context_of_the_window_would_be_noticed() -> None:
    recipe = Recipe(Lookahead(), KeepAll(), Match(), Fixed(nodes=200, depth=40, width=40))
    slow = SlowLookahead(7, 5, 7, False, offset=1).rounds()
    assert any(
        (outcome.tokens, state["levels_"]) != next(slow) for outcome, state in played(recipe)
    )


def test_the_named_budget_holds_the_whole_window() -> None:
    small = Recipe(Lookahead(), KeepAll(), Match(), Fixed(nodes=55, depth=9, width=9))
    large = Recipe(Lookahead(), KeepAll(), Match(), Fixed(nodes=999, depth=99, width=99))
    for (ours, _), (all_, _) in zip(played(small), played(large), strict=True):
        assert ours.tree.tokens.tolist() == all_.tree.tokens.tolist()
        assert ours.tree.parents.tolist() == all_.tree.parents.tolist()


def test_a_window_that_was_cut_goes_on_with_strays() -> None:
    recipe = Recipe(Lookahead(), KeepAll(), Match(), Fixed(nodes=6, depth=3, width=3))
    for _, state in played(recipe):
        levels = state["levels_"]
        assert {len(level) for level in levels[1:]} <= {len(levels[0]) + 1}


def test_ngrams_may_come_from_the_text() -> None:
    for prompt, first in ((False, []), (True, [(3, 1, 4, 2)])):
        recipe = Recipe(
            Lookahead(prompt=prompt), KeepAll(), Match(), Fixed(nodes=55, depth=9, width=9)
        )
        [(outcome, state)] = played(recipe, rounds=1)
        assert state["pool_"].after(PROMPT[0]) == first
        assert state["pool_"].after(PROMPT[-1]) == ([tuple(outcome.tokens[:4])] if prompt else [])


def test_rows_are_laid_along_what_is_there_and_read_back() -> None:
    tree = Tree(0)
    first = add_chain(tree, ROOT, [1, 2, 3], 0.5)
    again = add_chain(tree, ROOT, [1, 2, 4], 0.5)
    assert first[:2] == again[:2]
    assert len(tree) == 5
    assert find_chain(tree, ROOT, [1, 2, 4, 4]) == [ROOT, *again]
    assert find_chain(tree, ROOT, [4]) == [ROOT]
