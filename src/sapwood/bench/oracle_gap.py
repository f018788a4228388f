"""Regret of a recipe against the best trees of its own drafter, chosen with the text known.

Plain decoding is recorded once more; each recipe's drafter is replayed on that text by an oracle
that verifies the true path alone, in trees of several sizes. The speedup of the oracle's best size
over a replay of plain decoding is compared with the recipe's speedup in the benchmark.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.bench.conversations import ConversationTurn
from sapwood.bench.recipe_set import PLAIN
from sapwood.bench.rows import ALL, ReportRow
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import option_value
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe
from sapwood.trace.oracle import oracle
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.replay import ReplayRun, TracePlayer

if TYPE_CHECKING:
    from sapwood.llm import LLM

Gains = dict[str, float]  # the oracle's speedup over plain decoding, by category


def with_oracle(
    rows: Sequence[ReportRow],
    llm: "LLM",
    recipes: Mapping[str, Recipe],
    asked: Sequence[ConversationTurn],
    sampling: Sampling,
    progress: Callable[[str], None] = lambda _: None,
) -> list[ReportRow]:
    """The rows of these turns, decoded greedily one at a time, with regret against the oracle."""
    progress("recording plain decoding for the oracle")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.jsonl"
        options = {"max_tokens": sampling.max_tokens, "temperature": 0.0}
        plain_llm = llm.with_recipe(PLAIN)
        with opened(path, plain_llm, PLAIN, llm.target.info.model, options) as recorder:
            for item in asked:
                for _ in traced(plain_llm, item.tokens, recorder, item.name, **options):
                    pass
        player = TracePlayer(read(path), llm)
    plain = player.play(PLAIN)
    gains = dict[str, Gains]()
    for name, recipe in recipes.items():
        progress(f"replaying {name} with an oracle")
        with suppress(SapwoodError):  # a recipe that cannot be replayed has no oracle
            gains[name] = best(plain, oracle(player, recipe, width_of(recipe)), asked)
    return [with_oracle_regret(row, gains.get(row.recipe, {})) for row in rows]


def width_of(recipe: Recipe) -> int:
    """Children per node that the recipe's drafter proposes."""
    width: int = option_value(recipe.controller, "width", Fixed.width)
    return width


def best(plain: ReplayRun, runs: Sequence[ReplayRun], asked: Sequence[ConversationTurn]) -> Gains:
    """The largest speedup of any tree size by category, at least plain decoding's 1."""
    return {
        category: max([1.0, *(pace(plain, places) / pace(run, places) for run in runs)])
        for category, places in grouped(asked)
    }


def grouped(asked: Sequence[ConversationTurn]) -> Iterator[tuple[str, list[int]]]:
    """Indices of the turns of each category, and of all."""
    for category in (*dict.fromkeys(item.prompt.category for item in asked), ALL):
        yield (
            category,
            [place for place, item in enumerate(asked) if category in (item.prompt.category, ALL)],
        )


def pace(run: ReplayRun, places: Sequence[int]) -> float:
    """Seconds per token on these turns."""
    seconds = [one.times.total for place in places for one in run.outcomes[place]]
    return sum(seconds) / sum(run.kept[place] for place in places)


def with_oracle_regret(row: ReportRow, gains: Gains) -> ReportRow:
    """The row with its regret; unchanged without an oracle, or in a row of another setting."""
    gain = gains.get(row.category)
    usual = row.temperature == 0 and row.batch == 1 and not row.peer
    return (
        replace(row, oracle_regret=gain / row.speedup - 1)
        if gain and row.speedup and usual
        else row
    )
