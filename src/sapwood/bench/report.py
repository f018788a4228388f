"""From runs to rows: each recipe against plain decoding on the same prompts, by category and over all."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sapwood.bench.departure import strayed
from sapwood.bench.groups import Group
from sapwood.bench.lineup import PLAIN, Lineup
from sapwood.bench.measure import Run, Runs
from sapwood.bench.regret import with_regret
from sapwood.bench.rows import ALL, Row
from sapwood.bench.suites import Prompt
from sapwood.bench.sweep import Point
from sapwood.bench.ties import Divergence, explain
from sapwood.protocols import Backend
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.records import Guarantee
from sapwood.reliability import Reliability
from sapwood.sampling import Sampling

__all__ = ["ALL", "Group", "Row", "report"]

Parted = Sequence[Divergence | None] | None  # by place; None where equality is not promised


@dataclass(frozen=True, slots=True)
class View:
    """How runs are to be read."""

    point: Point = Point()
    talks: Sequence[object] | None = None  # the conversation of each run; None: each is its own
    priced: bool = False  # a measured cost curve says what nodes cost
    energy_note: str | None = None  # why the machine does not tell its energy


PLAINLY = View()


def report(
    target: Backend,
    lineup: Lineup,
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[int]],
    runs: Runs,
    sampling: Sampling,
    view: View = PLAINLY,
) -> list[Row]:
    """A row for each recipe and category, and one for each recipe over all."""
    rows = []
    for name, engine in lineup.engines.items():
        found = {}
        if promised(engine.recipe, sampling):
            for place, (ours, theirs) in enumerate(zip(runs[PLAIN], runs[name], strict=True)):
                given = prompts[place].name, texts[place], ours.tokens, theirs.tokens
                found[place] = explain(target, *given, sampling)
        if engine.recipe.guarantee is Guarantee.LOSSY:
            for text, run in zip(texts, runs[name], strict=True):
                run.strayed = strayed(target, text, run.tokens, sampling)

        def made(category: str, group: Group, places: list[int], engine: Any = engine, found: Any = found) -> Row:
            return row(category, engine.recipe, group, [found[place] for place in places] if found else None, view)

        rows += by_category(name, prompts, runs, view, made)
    recipes = {name: engine.recipe for name, engine in lineup.engines.items()}
    return with_regret(rows, recipes) + [absent(name, reason, view) for name, reason in lineup.skipped.items()]


def promised(recipe: Recipe, sampling: Sampling) -> bool:
    """True where the output should be plain decoding's own, token by token."""
    return sampling.greedy or recipe.guarantee is Guarantee.TEXT


def by_category(
    name: str, prompts: Sequence[Prompt], runs: Runs, view: View, made: Callable[[str, Group, list[int]], Row]
) -> list[Row]:
    """The rows of one contender: one for each category, and one for all."""
    rows = []
    for category in (*dict.fromkeys(prompt.category for prompt in prompts), ALL):
        places = [place for place, prompt in enumerate(prompts) if category in (prompt.category, ALL)]
        talks = None if view.talks is None else [view.talks[place] for place in places]
        ours, plain = ([runs[who][place] for place in places] for who in (name, PLAIN))
        rows.append(named(name, made(category, Group(ours, plain, talks), places), view))
    return rows


def named(name: str, row: Row, view: View) -> Row:
    """The row under its name and setting."""
    return replace(row, recipe=name, energy_note=view.energy_note, **asdict(view.point))


def row(category: str, recipe: Recipe, group: Group, parted: Parted, view: View) -> Row:
    """The numbers of a recipe on one group."""
    runs = group.runs

    def total(field: str) -> Any:
        return sum(getattr(run, field) for run in runs)

    tokens, passes, nodes, seconds = total("length"), total("passes"), total("nodes"), total("seconds")
    reliability = sum((run.reliability for run in runs), Reliability())
    return Row(
        recipe="",
        category=category,
        prompts=group.prompts,
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_pass=tokens / passes,
        passes=passes,
        nodes_per_pass=nodes / passes,
        waste=(nodes - total("accepted")) / nodes if nodes else 0.0,
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


def intervals(group: Group) -> dict[str, Any]:
    """Speedup and tokens per second with their bounds; None where no seconds were told."""
    numbers = {
        "speedup": group.speedup,
        **dict(zip(("speedup_low", "speedup_high"), group.interval, strict=True)),
        **dict(zip(("tokens_per_second_low", "tokens_per_second_high"), group.rate_interval, strict=True)),
    }
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def taken(runs: Sequence[Run]) -> dict[str, Any]:
    """Memory at the peak and energy in all."""
    peaks, joules = [run.memory for run in runs if run.memory], [run.joules for run in runs]
    spent = None if None in joules else sum(value for value in joules if value is not None)
    return {"peak_memory": max(peaks, default=None), "joules": spent}


def equal(group: Group, parted: Sequence[Divergence | None]) -> int:
    """Conversations all of whose outputs are plain decoding's."""
    if group.talks is None:
        return sum(item is None for item in parted)
    return len({*group.talks} - {talk for talk, item in zip(group.talks, parted, strict=True) if item is not None})


def calibration(accepted: int, expected: float) -> float | None:
    """Accepted nodes for each one that was expected: 1 is honest, less is too hopeful."""
    return accepted / expected if math.isfinite(expected) and expected > 0 else None


def absent(name: str, reason: str, view: View = PLAINLY) -> Row:
    """The row of a recipe that could not run."""
    recipe = resolve(name)
    made = Row(name, ALL, 0, guarantee=recipe.guarantee.value, spelling=str(recipe), divergences=[], skipped=reason)
    return named(name, made, view)
