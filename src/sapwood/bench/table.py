"""The report in the terminal: recipes over all prompts, speedups by category, and notes."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text as Line

from sapwood.bench.recipe_set import PLAIN
from sapwood.bench.rows import ALL, ReportRow
from sapwood.bench.sweep import SweepPoint

BEST = "bold green"
FRAME: dict[str, Any] = {"box": None, "padding": (0, 1, 0, 0), "title_justify": "left"}
WIDE = 120  # characters of a line without a terminal
COLUMNS = (
    "tokens\nper s",
    "speedup",
    "95 %\ninterval",
    "ceiling",
    "nodes\n/pass",
    "waste",
    "time %\nd/v/o",
    "same\ntext",
)
LEGEND = (
    "speedup: plain decoding's seconds per token / the recipe's, on the same prompts, without "
    "prefill. ceiling: tokens per pass, the speedup if drafting were free and a pass over a tree "
    "cost that of one token. d/v/o: drafting, passes with verification, all else."
)


def show(rows: Sequence[ReportRow], title: str) -> None:
    """Print the report: its tables once for each setting."""
    console = Console(width=None if Console().is_terminal else WIDE)
    stages = settings(rows)
    for point, some in stages.items():
        console.print(overall(some, title if len(stages) == 1 else f"{title}; {point.label}"))
        if len(categories(some)) > 2:  # more than one besides all
            console.print("\n", by_category(some), sep="")
        console.print()
    console.print(Line(LEGEND, style="dim"))
    for note in dict.fromkeys(note for some in stages.values() for note in notes(some)):
        console.print(Line(note, style="yellow"))


def settings(rows: Sequence[ReportRow]) -> dict[SweepPoint, list[ReportRow]]:
    """The rows of each setting."""
    found: dict[SweepPoint, list[ReportRow]] = {}
    for row in rows:
        found.setdefault(SweepPoint(row.temperature, row.context, row.batch), []).append(row)
    return found


def categories(rows: Sequence[ReportRow]) -> list[str]:
    """The categories in the order of the rows."""
    return list(dict.fromkeys(row.category for row in rows))


def fastest(rows: Sequence[ReportRow], category: str) -> str | None:
    """The recipe with the largest speedup in a category, without peers; None if there is none."""
    ran = [
        row
        for row in rows
        if row.category == category
        and row.recipe != PLAIN
        and row.speedup is not None
        and not row.peer
    ]
    return max(ran, key=lambda row: row.speedup or 0.0).recipe if ran else None


def overall(rows: Sequence[ReportRow], title: str) -> Table:
    """One line per recipe and peer, over all prompts."""
    table = Table(
        Column("recipe", min_width=11, overflow="fold"),
        Column("keeps", no_wrap=True),
        title=title,
        **FRAME,
    )
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    departs = any(row.departure is not None for row in rows)
    if departs:
        table.add_column("departs", justify="right", no_wrap=True)
    best = fastest(rows, ALL)
    for row in rows:
        if row.category == ALL and row.skipped is None:
            last = ["" if row.departure is None else f"{row.departure:.1%}"] if departs else []
            style = BEST if row.recipe == best else None
            table.add_row(
                Line(row.recipe),
                "peer" if row.peer else row.guarantee,
                *cells(row),
                *last,
                style=style,
            )
    return table


def cells(row: ReportRow) -> list[str]:
    """The numbers of a row, in the order of COLUMNS."""
    same = row.agreement if row.peer else row.identical
    pace = [shown(row.tokens_per_second, ".1f"), shown(row.speedup, ".2f", "x")]
    pace.append(
        f"{row.speedup_low:.2f}-{row.speedup_high:.2f}" if row.speedup_low is not None else ""
    )
    if row.peer:
        return [*pace, "", "", "", "", f"{same}/{row.prompts}"]
    shares = (row.draft_share, row.verify_share, row.other_share)
    return [
        *pace,
        shown(row.tokens_per_pass, ".2f", "x"),
        shown(row.nodes_per_pass, ".1f"),
        shown(row.waste, ".0%"),
        "/".join(f"{100 * (share or 0.0):.0f}" for share in shares),
        "" if same is None else f"{same}/{row.prompts}",
    ]


def shown(value: float | None, form: str, unit: str = "") -> str:
    """A number with its unit; empty for None."""
    return "" if value is None else f"{value:{form}}{unit}"


def by_category(rows: Sequence[ReportRow]) -> Table:
    """Speedup and ceiling of each recipe in each category."""
    table = Table("recipe", title="speedup (ceiling) by category", **FRAME)
    shown = [category for category in categories(rows) if category != ALL]
    for category in shown:
        table.add_column(Line(category), justify="right")
    best = {category: fastest(rows, category) for category in shown}
    ran = [row for row in rows if row.skipped is None]
    for recipe in dict.fromkeys(row.recipe for row in ran):
        mine = {row.category: row for row in ran if row.recipe == recipe}
        table.add_row(Line(recipe), *(cell(mine[category], best[category]) for category in shown))
    return table


def cell(row: ReportRow, best: str | None) -> Line:
    """One recipe in one category."""
    ceiling = "" if row.tokens_per_pass is None else f" ({row.tokens_per_pass:.2f})"
    return Line(
        f"{shown(row.speedup, '.2f', 'x')}{ceiling}", style=BEST if row.recipe == best else ""
    )


def notes(rows: Sequence[ReportRow]) -> list[str]:
    """Recipes that could not run, and outputs that are not plain decoding's."""
    lines = [f"{row.recipe} skipped: {row.skipped}" for row in rows if row.skipped is not None]
    lines += [
        f"{row.recipe} runs {row.weights}; "
        f"{row.agreement_share:.0%} of its text agrees with plain decoding"
        for row in rows
        if row.peer and row.category == ALL and row.agreement_share is not None
    ]
    for row in rows:
        if row.category == ALL and row.departure is not None:
            lines.append(
                f"{row.recipe} is lossy: {row.departure:.1%} of its tokens differ from "
                "plain decoding's after the same text"
            )
        elif row.category == ALL and row.divergences:
            ties = sum(item.tie for item in row.divergences)
            faults = len(row.divergences) - ties
            lines.append(
                f"{row.recipe}: {len(row.divergences)} of {row.prompts} outputs differ from "
                f"plain decoding's, {ties} by a tie of the target's logits, {faults} not"
            )
    return lines
