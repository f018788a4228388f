"""A toy target with five tokens, its greedy text, and the trees of a few rounds."""

from typing import Any

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe

PROMPT = [0, 3, 1, 4, 2]
GREEDY = Sampling(max_tokens=200)
TARGET = ToyBackend("wide", vocab=5)


def best(*context: int) -> int:
    """The target's best token after a context, by its definition."""
    return int(probs_after("wide", 5, context).argmax())


def played(
    recipe: Recipe, sampling: Sampling = GREEDY, rounds: int = 24
) -> list[tuple[Outcome, Any]]:
    """Rounds of a recipe, with the drafter's state after each."""
    found = []
    engine = Engine(TARGET, recipe)
    kept: list[Any] = []
    fresh = engine.recipe.fresh

    def watched(request: Any) -> Any:
        kept.append(fresh(request))
        return kept[-1]

    object.__setattr__(engine.recipe, "fresh", watched)
    running = engine.rounds(PROMPT, sampling, KeyedRng(3))
    for _ in range(rounds):
        outcome = next(running)
        drafter = kept[0][0]
        found.append(
            (outcome, {key: value for key, value in vars(drafter).items() if key.endswith("_")})
        )
    running.close()
    return found
