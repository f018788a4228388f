"""What a round brings, exactly: the yardstick by which rules that all keep the law are told apart."""

from collections.abc import Sequence

from sapwood.backends.toy import Toy
from sapwood.protocols import Backend
from sapwood.recipe import Recipe
from sapwood.sampling import Sampling
from sapwood.testing.exact import output_law


def expected_tokens(
    recipe: Recipe,
    target: Backend | None = None,
    sampling: Sampling | None = None,
    *,
    prompt: Sequence[int] = (0, 1, 2),
) -> float:
    """Mean tokens of a recipe's first round on a toy target, the bonus included, over all that may happen."""
    options = sampling or Sampling(temperature=1.0)
    return sum(chance * len(text) for text, chance in output_law(target or Toy(), recipe, prompt, options, 1).items())
