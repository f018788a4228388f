"""From runs to rows: each recipe against plain decoding on the same prompts, by category and over all."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.bench.departure import strayed
from sapwood.bench.lineup import PLAIN, Lineup
from sapwood.bench.measure import Run, Runs
from sapwood.bench.reliability import Bin, Reliability
from sapwood.bench.suites import Prompt
from sapwood.bench.ties import Divergence, explain
from sapwood.protocols import Backend
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.records import Guarantee
from sapwood.sampling import Sampling

ALL = "all"  # the category of every prompt
RESAMPLES, COVERS = 1000, 95  # of the bootstrap: how often it draws, per cent that the interval holds


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe on one category; numbers are None where it could not run."""

    recipe: str
    category: str
    prompts: int
    tokens: int | None
    seconds: float | None  # of decoding, prompts left out
    tokens_per_second: float | None
    tokens_per_pass: float | None  # the ceiling: the speedup if drafting were free and a tree cost one row
    passes: int | None
    nodes_per_pass: float | None  # roots not counted
    waste: float | None  # share of checked nodes thrown away
    speedup: float | None  # plain decoding's seconds per token / the recipe's, same prompts
    speedup_low: float | None
    speedup_high: float | None
    identical: int | None  # outputs equal to plain decoding's; None where equality is not promised
    guarantee: str
    spelling: str
    prefill_seconds: float | None
    draft_share: float | None  # of seconds, as are the next two
    verify_share: float | None
    other_share: float | None
    calibration: float | None  # accepted nodes / expected by the policy; None where it expects nothing
    reliability: list[Bin] | None  # chances of nodes put to the question beside how often they stood; None as above
    ece: float | None  # mean gap between the two
    departure: float | None  # share of tokens that plain decoding would not have said there; None unless lossy
    divergences: list[Divergence]
    skipped: str | None  # why the recipe could not run


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one recipe on some prompts, beside plain decoding's on the same."""

    runs: list[Run]
    plain: list[Run]

    @property
    def speedup(self) -> float:
        """Ratio of seconds per token, sums over prompts."""
        return float(ratios(self.runs, self.plain, np.arange(len(self.runs))[None])[0])

    @property
    def interval(self) -> tuple[float, float]:
        """Bootstrap interval of the speedup over prompts, always of the same draws."""
        count = len(self.runs)
        draws = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
        tail = (100 - COVERS) / 2
        low, high = np.percentile(ratios(self.runs, self.plain, draws), [tail, 100 - tail])
        return float(low), float(high)


def ratios(runs: Sequence[Run], plain: Sequence[Run], draws: IntArray) -> FloatArray:
    """Plain's seconds per token over the recipe's, for each row of prompts drawn, [draws]."""
    return pace(plain, draws) / pace(runs, draws)


def pace(runs: Sequence[Run], draws: IntArray) -> FloatArray:
    """Seconds per token of each row of prompts drawn, [draws]."""
    seconds, tokens = np.array([[run.seconds, len(run.tokens)] for run in runs]).T
    pace: FloatArray = seconds[draws].sum(1) / tokens[draws].sum(1)
    return pace


def report(
    target: Backend,
    lineup: Lineup,
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[int]],
    runs: Runs,
    sampling: Sampling,
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
        rows += rows_of(name, engine.recipe, prompts, runs, found)
    return rows + [absent(name, reason) for name, reason in lineup.skipped.items()]


def promised(recipe: Recipe, sampling: Sampling) -> bool:
    """True where the output should be plain decoding's own, token by token."""
    return sampling.greedy or recipe.guarantee is Guarantee.TEXT


def rows_of(
    name: str, recipe: Recipe, prompts: Sequence[Prompt], runs: Runs, found: Mapping[int, Divergence | None]
) -> list[Row]:
    """The rows of one recipe; `found` holds the divergence of each prompt where equality is promised."""
    rows = []
    for category in (*dict.fromkeys(prompt.category for prompt in prompts), ALL):
        places = [place for place, prompt in enumerate(prompts) if category in (prompt.category, ALL)]
        group = Group([runs[name][place] for place in places], [runs[PLAIN][place] for place in places])
        parted = [found[place] for place in places] if found else None
        rows.append(row(name, category, recipe, group, parted))
    return rows


def row(name: str, category: str, recipe: Recipe, group: Group, parted: Sequence[Divergence | None] | None) -> Row:
    """The numbers of one group."""

    def total(field: str) -> Any:
        return sum(getattr(run, field) for run in group.runs)

    tokens, passes, nodes, seconds = (
        sum(len(run.tokens) for run in group.runs),
        total("passes"),
        total("nodes"),
        total("seconds"),
    )
    low, high = group.interval
    reliability = sum((run.reliability for run in group.runs), Reliability())
    return Row(
        recipe=name,
        category=category,
        prompts=len(group.runs),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_pass=tokens / passes,
        passes=passes,
        nodes_per_pass=nodes / passes,
        waste=(nodes - total("accepted")) / nodes if nodes else 0.0,
        speedup=group.speedup,
        speedup_low=low,
        speedup_high=high,
        identical=None if parted is None else sum(item is None for item in parted),
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
        skipped=None,
    )


def calibration(accepted: int, expected: float) -> float | None:
    """Accepted nodes for each one that was expected: 1 is honest, less is too hopeful."""
    return accepted / expected if math.isfinite(expected) and expected > 0 else None


def absent(name: str, reason: str) -> Row:
    """The row of a recipe that could not run."""
    recipe = resolve(name)
    numbers = {field.name: None for field in dataclasses.fields(Row)}
    said = {"recipe": name, "category": ALL, "prompts": 0, "guarantee": recipe.guarantee.value, "spelling": str(recipe)}
    return Row(**{**numbers, **said, "divergences": [], "skipped": reason})  # type: ignore[arg-type]
