"""Rows from runs: each recipe against plain decoding on the same prompts, by category and all."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sapwood.bench.divergence import count_departures
from sapwood.bench.groups import RunGroup
from sapwood.bench.measure import BenchRun, Runs
from sapwood.bench.recipe_set import PLAIN, RecipeSet
from sapwood.bench.regret import with_regret
from sapwood.bench.rows import ALL, ReportRow
from sapwood.bench.suites import BenchPrompt
from sapwood.bench.sweep import SweepPoint
from sapwood.bench.ties import Divergence, explain
from sapwood.common.calibration import CalibrationCurve
from sapwood.core.protocols import Backend
from sapwood.core.sampling import Sampling
from sapwood.core.types import Guarantee
from sapwood.recipe import Recipe
from sapwood.recipes import resolve

__all__ = ["ALL", "ReportRow", "RunGroup", "report"]

# by index of the run; None if the outputs need not be equal
Parted = Sequence[Divergence | None] | None


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Setting of a report, and how its runs are grouped and priced."""

    point: SweepPoint = SweepPoint()
    talks: Sequence[object] | None = None  # conversation of each run; None: each is its own
    priced: bool = False  # a measured cost model gives the cost of nodes
    energy_note: str | None = None  # why no energy is measured


DEFAULT_OPTIONS = ReportOptions()


def report(
    target: Backend,
    recipe_set: RecipeSet,
    prompts: Sequence[BenchPrompt],
    texts: Sequence[Sequence[int]],
    runs: Runs,
    sampling: Sampling,
    view: ReportOptions = DEFAULT_OPTIONS,
) -> list[ReportRow]:
    """A row for each recipe and category, and one for each recipe over all."""
    rows = []
    for name, engine in recipe_set.engines.items():
        found = {}
        if promised(engine.recipe, sampling):
            for place, (ours, theirs) in enumerate(zip(runs[PLAIN], runs[name], strict=True)):
                given = prompts[place].name, texts[place], ours.tokens, theirs.tokens
                found[place] = explain(target, *given, sampling)
        if engine.recipe.guarantee is Guarantee.LOSSY:
            for text, run in zip(texts, runs[name], strict=True):
                run.strayed = count_departures(target, text, run.tokens, sampling)

        def made(
            category: str,
            group: RunGroup,
            places: list[int],
            engine: Any = engine,
            found: Any = found,
        ) -> ReportRow:
            return row(
                category,
                engine.recipe,
                group,
                [found[place] for place in places] if found else None,
                view,
            )

        rows += by_category(name, prompts, runs, view, made)
    recipes = {name: engine.recipe for name, engine in recipe_set.engines.items()}
    return with_regret(rows, recipes) + [
        absent(name, reason, view) for name, reason in recipe_set.skipped.items()
    ]


def promised(recipe: Recipe, sampling: Sampling) -> bool:
    """True if the output must equal plain decoding's, token by token."""
    return sampling.greedy or recipe.guarantee is Guarantee.TEXT


def by_category(
    name: str,
    prompts: Sequence[BenchPrompt],
    runs: Runs,
    view: ReportOptions,
    made: Callable[[str, RunGroup, list[int]], ReportRow],
) -> list[ReportRow]:
    """The rows of one contender: one for each category, and one for all."""
    rows = []
    for category in (*dict.fromkeys(prompt.category for prompt in prompts), ALL):
        places = [
            place for place, prompt in enumerate(prompts) if category in (prompt.category, ALL)
        ]
        talks = None if view.talks is None else [view.talks[place] for place in places]
        ours, plain = ([runs[who][place] for place in places] for who in (name, PLAIN))
        rows.append(named(name, made(category, RunGroup(ours, plain, talks), places), view))
    return rows


def named(name: str, row: ReportRow, view: ReportOptions) -> ReportRow:
    """The row with its name and setting."""
    return replace(row, recipe=name, energy_note=view.energy_note, **asdict(view.point))


def row(
    category: str, recipe: Recipe, group: RunGroup, parted: Parted, view: ReportOptions
) -> ReportRow:
    """The numbers of a recipe on one group."""
    runs = group.runs

    def total(field: str) -> Any:
        return sum(getattr(run, field) for run in runs)

    tokens = total("length")
    passes = total("passes")
    nodes = total("nodes")
    drafted = nodes + total("discarded")
    seconds = total("seconds")
    reliability = sum((run.reliability for run in runs), CalibrationCurve())
    return ReportRow(
        recipe="",
        category=category,
        prompts=group.prompts,
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_pass=tokens / passes,
        passes=passes,
        nodes_per_pass=nodes / passes,
        waste=1 - total("accepted") / drafted if drafted else 0.0,
        identical=None if parted is None else equal(group, parted),
        guarantee=recipe.guarantee.value,
        spelling=str(recipe),
        prefill_seconds=total("prefill"),
        draft_share=total("draft") / seconds,
        verify_share=total("verify") / seconds,
        other_share=total("other") / seconds,
        calibration=calibration(total("accepted"), total("expected")),
        reliability=reliability.bins(),
        ece=reliability.error(),
        departure=total("strayed") / tokens if recipe.guarantee is Guarantee.LOSSY else None,
        divergences=[item for item in parted or () if item is not None],
        turns=len(runs),
        wasted_seconds=total("thrown") if view.priced else None,
        tokens_per_pass_low=group.yield_interval[0],
        tokens_per_pass_high=group.yield_interval[1],
        **intervals(group),
        **taken(runs),
    )


def intervals(group: RunGroup) -> dict[str, Any]:
    """Speedup and tokens per second with their bounds; None without timings."""
    numbers = {
        "speedup": group.speedup,
        **dict(zip(("speedup_low", "speedup_high"), group.interval, strict=True)),
        **dict(
            zip(
                ("tokens_per_second_low", "tokens_per_second_high"),
                group.rate_interval,
                strict=True,
            )
        ),
    }
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def taken(runs: Sequence[BenchRun]) -> dict[str, Any]:
    """Peak memory and total energy."""
    peaks = [run.memory for run in runs if run.memory]
    joules = [run.joules for run in runs]
    spent = None if None in joules else sum(value for value in joules if value is not None)
    return {"peak_memory": max(peaks, default=None), "joules": spent}


def equal(group: RunGroup, parted: Sequence[Divergence | None]) -> int:
    """Number of conversations whose outputs all equal plain decoding's."""
    if group.talks is None:
        return sum(item is None for item in parted)
    return len(
        {*group.talks}
        - {talk for talk, item in zip(group.talks, parted, strict=True) if item is not None}
    )


def calibration(accepted: int, expected: float) -> float | None:
    """Accepted over expected nodes: 1 is calibrated, less is optimistic."""
    return accepted / expected if math.isfinite(expected) and expected > 0 else None


def absent(name: str, reason: str, view: ReportOptions = DEFAULT_OPTIONS) -> ReportRow:
    """The row of a recipe that could not run."""
    recipe = resolve(name)
    made = ReportRow(
        name,
        ALL,
        0,
        guarantee=recipe.guarantee.value,
        spelling=str(recipe),
        divergences=[],
        skipped=reason,
    )
    return named(name, made, view)
