"""What became of a tree elsewhere is learned from the emitted tokens."""

from typing import Any

import pytest

from sapwood.core.protocols import EngineContext
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo, Budget, Outcome
from sapwood.engine.cost_model import flat
from sapwood.engine.draft_session import DetachedTarget, DraftSession, bind_detached, walk
from sapwood.engine.loop import no_loader
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe, parse

BUDGET = Budget(6, 4, 2)


@pytest.fixture
def recipe() -> Recipe:
    context = EngineContext(DetachedTarget(BackendInfo("there", "m", 9, 64)), flat(), no_loader)
    return bind_detached(parse("suffix + best(estimator=raw) + match + fixed"), context)


@pytest.mark.parametrize(
    ("tokens", "path", "bonus"),
    [
        ([5], (0,), 5),
        ([1], (0,), 1),  # a token alone is the bonus, also where it was drafted
        ([1, 2, 7], (0, 1, 3), 7),
        ([1, 3, 7], (0, 1), 3),  # the path ends where the tokens leave it
        ([2, 9], (0, 2), 9),
    ],
)
def test_emitted_tokens_walk_through_the_tree(
    tokens: list[int], path: tuple[int, ...], bonus: int
) -> None:
    tree = Tree(0)
    tree.add(0, 1, 0.5)
    tree.add(0, 2, 0.4)
    tree.add(1, 2, 0.3)
    found = walk(tree, tokens)
    assert (found.path, found.bonus) == (path, bonus)


def test_every_emitted_token_is_observed_once(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = DraftSession(recipe, [1, 2, 3, 1, 2])
    seen: list[Outcome] = []
    monkeypatch.setattr(session.controller, "observe", seen.append)
    session.grow(BUDGET)
    session.extend([3, 1, 8, 8, 4])
    session.extend([5])
    assert session.text == [1, 2, 3, 1, 2, 3, 1, 8, 8, 4, 5]
    assert [outcome.tokens for outcome in seen] == [[3, 1, 8], [8, 4], [5]]
    assert [outcome.asked for outcome in seen] == [True, False, True]
    assert [outcome.context for outcome in seen] == [4, 7, 9]


def test_growth_ends_with_its_time(recipe: Recipe) -> None:
    session = DraftSession(recipe, [1, 2, 3, 4, 1], now=iter(range(100)).__next__)
    assert session.grow(BUDGET, until=0).height == 1
    assert session.grow(BUDGET).height > 1
    assert len(session.grow(Budget(0, 0, 0))) == 1


def test_nothing_of_the_target_is_at_hand(recipe: Recipe) -> None:
    target = DetachedTarget(BackendInfo("there", "m", 9, 64))
    asks: list[Any] = [
        lambda: target.open([1]),
        lambda: target.start([1]),
        lambda: target.score([]),
        lambda: target.watch([1]),
        lambda: target.memory,
    ]
    for ask in asks:
        with pytest.raises(SapwoodError, match="runs elsewhere"):
            ask()
