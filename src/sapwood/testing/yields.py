"""The exact expected tokens of a round, to compare verifiers of the same guarantee."""

from collections.abc import Sequence

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import Backend
from sapwood.core.sampling import Sampling
from sapwood.recipe import Recipe
from sapwood.testing.exact import output_law


def expected_tokens(
    recipe: Recipe,
    target: Backend | None = None,
    sampling: Sampling | None = None,
    *,
    prompt: Sequence[int] = (0, 1, 2),
) -> float:
    """Mean tokens of a recipe's first round on a toy target, the bonus included, exactly."""
    options = sampling or Sampling(temperature=1.0)
    return sum(
        chance * len(text)
        for text, chance in output_law(target or ToyBackend(), recipe, prompt, options, 1).items()
    )
