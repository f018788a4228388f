"""A drafter per request: only the chosen one begins, and speed decides over later requests."""

from collections.abc import Callable

from sapwood.backends.toy import ToyBackend
from sapwood.common.bandits import BanditRule
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.spin import Spin
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match


def stepping() -> Callable[[], float]:
    """A clock that goes on by one second a look."""
    seconds = iter(range(10**9))
    return lambda: float(next(seconds))


def engine_of(drafter: Spin) -> Engine:
    recipe = Recipe(drafter, Chain(), Match(), Fixed(nodes=4, depth=4, width=1))
    return Engine(ToyBackend("a"), recipe, now=stepping())


def test_requests_come_to_the_drafter_that_is_accepted() -> None:
    models = [ToyBackend("b"), ToyBackend("a"), ToyBackend("c")]
    drafter = Spin(drafters=[DraftModel(model=model) for model in models], bandit=BanditRule.UCB)
    engine = engine_of(drafter)
    bound = engine.recipe.drafter
    assert isinstance(bound, Spin)
    arms = list[int]()
    for request in range(30):
        rounds = engine.rounds([0, 1, 2, request % 3], Sampling(max_tokens=40), KeyedRng(request))
        for _ in zip(range(12), rounds, strict=False):
            pass
        rounds.close()
        arms.append(int(bound.learner.counts.sum()))  # type: ignore[attr-defined]
    counts = bound.learner.counts  # type: ignore[attr-defined]
    assert arms[-1] > 20
    assert counts[1] > counts[0]
    assert counts[1] > counts[2]


def test_only_the_chosen_drafter_reads_the_prompt() -> None:
    models = [ToyBackend("b"), ToyBackend("c")]
    engine = engine_of(Spin(drafters=[DraftModel(model=model) for model in models]))
    next(engine.rounds([0, 1, 2], Sampling(max_tokens=9), KeyedRng(0)))
    assert sorted(model.passes > 0 for model in models) == [False, True]


def test_a_short_request_teaches_nothing() -> None:
    engine = engine_of(Spin(drafters=[DraftModel(model=ToyBackend("b"))], rounds=5))
    rounds = engine.rounds([0, 1, 2], Sampling(max_tokens=9), KeyedRng(0))
    next(rounds)
    rounds.close()
    bound = engine.recipe.drafter
    assert isinstance(bound, Spin)
    assert bound.learner.counts.sum() == 0  # type: ignore[attr-defined]


def test_the_choice_keeps_the_law() -> None:
    drafter = Spin(drafters=[DraftModel(model=ToyBackend(salt)) for salt in "bc"])
    recipe = Recipe(drafter, Chain(), Match(), Fixed(nodes=2, depth=2, width=1))
    assert law_error(recipe, ToyBackend("a")) <= 1e-12
