"""How much slower a recipe was than the best trees of its own drafter could have been, for one who knew the text.

Plain decoding is recorded once more; each recipe's drafter is replayed on that text by an oracle that sends the true
path alone, in trees of several sizes. What the oracle's best size gains over a replay of plain decoding is set against
what the recipe has gained over plain decoding in the benchmark.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.bench.lineup import PLAIN
from sapwood.bench.rows import ALL, Row
from sapwood.bench.talks import Asked
from sapwood.controllers.fixed import Fixed
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe
from sapwood.sampling import Sampling
from sapwood.trace.oracle import oracle
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.replay import Player, Run

if TYPE_CHECKING:
    from sapwood.api import LLM

Gains = dict[str, float]  # the oracle's speedup over plain decoding, by category


def with_oracle(
    rows: Sequence[Row],
    llm: "LLM",
    recipes: Mapping[str, Recipe],
    asked: Sequence[Asked],
    sampling: Sampling,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """The rows of these turns, greedily decoded one at a time, with their regret against the oracle."""
    progress("recording plain decoding for the oracle")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.jsonl"
        options = {"max_tokens": sampling.max_tokens, "temperature": 0.0}
        plainly = llm.with_recipe(PLAIN)
        with opened(path, plainly, PLAIN, llm.target.info.model, options) as book:
            for item in asked:
                for _ in traced(plainly, item.tokens, book, item.name, **options):
                    pass
        player = Player(read(path), llm)
    plain, gains = player.play(PLAIN), dict[str, Gains]()
    for name, recipe in recipes.items():
        progress(f"asking the oracle about {name}")
        with suppress(SapwoodError):  # one whose text a replay cannot know has no oracle
            gains[name] = best(plain, oracle(player, recipe, width_of(recipe)), asked)
    return [regretful(row, gains.get(row.recipe, {})) for row in rows]


def width_of(recipe: Recipe) -> int:
    """Children that the recipe's drafter is asked for."""
    width: int = getattr(recipe.controller, "width", Fixed.width)
    return width


def best(plain: Run, runs: Sequence[Run], asked: Sequence[Asked]) -> Gains:
    """The largest gain of any size of tree, plain decoding's own 1 included."""
    return {
        category: max([1.0, *(pace(plain, places) / pace(run, places) for run in runs)])
        for category, places in grouped(asked)
    }


def grouped(asked: Sequence[Asked]) -> Iterator[tuple[str, list[int]]]:
    """Places of the turns of each category, and of all."""
    for category in (*dict.fromkeys(item.prompt.category for item in asked), ALL):
        yield category, [place for place, item in enumerate(asked) if category in (item.prompt.category, ALL)]


def pace(run: Run, places: Sequence[int]) -> float:
    """Seconds per token on these turns."""
    seconds = [one.times.total for place in places for one in run.outcomes[place]]
    return sum(seconds) / sum(run.said[place] for place in places)


def regretful(row: Row, gains: Gains) -> Row:
    """The row with its regret; none where nobody knows better, or where the row is of another setting."""
    gain = gains.get(row.category)
    usual = row.temperature == 0 and row.batch == 1 and not row.peer
    return replace(row, oracle_regret=gain / row.speedup - 1) if gain and row.speedup and usual else row
