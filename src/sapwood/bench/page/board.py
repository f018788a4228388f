"""The leaderboard: every recipe and peer over all prompts, with intervals; columns sort."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from sapwood.bench.page.axes import TIMES

Row = dict[str, Any]
Cell = tuple[float | str | None, str]  # sort key, text
FOREST = 150.0  # pixels of the picture of an interval


def number(key: str, form: str, unit: str = "") -> Callable[[Row], Cell]:
    """A cell of one number."""

    def cell(row: Row) -> Cell:
        value = row.get(key)
        return value, "" if value is None else f"{value:{form}}{unit}"

    return cell


def interval(row: Row) -> Cell:
    """Bounds of the speedup."""
    low, high = row["speedup_low"], row["speedup_high"]
    return low, "" if low is None else f"{low:.2f} to {high:.2f}"


def same_text(row: Row) -> Cell:
    """Number of outputs equal to plain decoding's."""
    if row.get("departure") is not None:
        return 1 - row["departure"], f"departs {row['departure']:.1%}"
    same = row.get("agreement") if row.get("peer") else row["identical"]
    return (None, "") if same is None else (same / row["prompts"], f"{same}/{row['prompts']}")


def regret_of(key: str) -> Callable[[Row], Cell]:
    """Regret against the best fixed recipe, or against the oracle."""
    return number(key, "+.0%")


def memory(row: Row) -> Cell:
    """Peak memory in mebibytes."""
    value = row.get("peak_memory")
    return value, "" if value is None else f"{value / 2**20:,.0f}"


def keeps(row: Row) -> Cell:
    """Guarantee of the recipe."""
    guarantee = "peer" if row.get("peer") else row["guarantee"]
    return guarantee, guarantee


COLUMNS: list[tuple[str, str, Callable[[Row], Cell]]] = [
    (
        "keeps",
        "text: the same text from the same seed; law: the same distribution; lossy: less",
        keeps,
    ),
    ("tokens / s", "of decoding, without prefill", number("tokens_per_second", ".1f")),
    (
        "speedup",
        "plain decoding's seconds per token over the recipe's",
        number("speedup", ".2f", TIMES),
    ),
    ("95 % interval", "bootstrap over prompts", interval),
    ("same text", "outputs equal to plain decoding's", same_text),
    (
        "tokens / pass",
        "the speedup if drafting and trees were free",
        number("tokens_per_pass", ".2f"),
    ),
    ("nodes / pass", "checked by the target", number("nodes_per_pass", ".1f")),
    ("waste", "share of checked nodes not accepted", number("waste", ".0%")),
    ("wasted s", "seconds of passes spent on them", number("wasted_seconds", ".2f")),
    ("ECE", "expected calibration error of the policy's estimates", number("ece", ".3f")),
    ("regret", "seconds per token beyond the best fixed recipe's", regret_of("regret")),
    (
        "oracle",
        "seconds per token beyond those of the best trees of its own drafter",
        regret_of("oracle_regret"),
    ),
    ("MiB", "memory at the peak, weights included", memory),
    ("J", "energy of the machine", number("joules", ".0f")),
]


def board(rows: Sequence[Row], slots: dict[str, int]) -> str:
    """The whole table, without columns that have no number."""
    ran = [row for row in rows if row["skipped"] is None]
    columns = [it for it in COLUMNS if any(it[2](row)[1] for row in ran)]
    heads = ['<th scope="col"><button type="button">recipe</button></th>']
    for name, title, _ in columns:
        button = f'<button type="button" title="{escape(title, quote=True)}">{name}</button>'
        heads.append(f'<th scope="col">{button}</th>')
    most = max((row["speedup_high"] or row["speedup"] or 0.0 for row in ran), default=1.0) or 1.0
    ordered = sorted(ran, key=lambda row: -(row["speedup"] or 0.0))
    body = [line(row, columns, slots[row["recipe"]], most) for row in ordered]
    body += [absent(row, len(columns)) for row in rows if row["skipped"] is not None]
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    lines = "\n".join(body)
    return f'<div class="scroll"><table class="sorts">{head}<tbody>{lines}</tbody></table></div>'


def line(
    row: Row, columns: Sequence[tuple[str, str, Callable[[Row], Cell]]], slot: int, most: float
) -> str:
    """Table row of one recipe."""
    name = escape(row["recipe"])
    spelled = escape(row.get("weights") or row["spelling"], quote=True)
    peer = '<span class="badge">peer</span>' if row.get("peer") else ""
    swatch = f'<span class="swatch b{slot}"></span>'
    cells = [f'<td data-value="{name}" title="{spelled}">{swatch}{name}{peer}</td>']
    for title, _, cell in columns:
        value, shown = cell(row)
        drawn = forest(row, most, slot) if title == "95 % interval" and shown else ""
        cells.append(
            f'<td data-value="{"" if value is None else value}">{drawn}{escape(shown)}</td>'
        )
    return f'<tr data-who="{escape(row["recipe"], quote=True)}">{"".join(cells)}</tr>'


def forest(row: Row, most: float, slot: int) -> str:
    """The interval as a line, plain decoding as a dashed line."""

    def at(value: float) -> float:
        return round(4 + (FOREST - 8) * value / most, 1)

    low, high, middle = (at(row[key]) for key in ("speedup_low", "speedup_high", "speedup"))
    return (
        f'<svg class="forest" viewBox="0 0 {FOREST:g} 18" aria-hidden="true">'
        f'<line class="one" x1="{at(1)}" x2="{at(1)}" y1="1" y2="17"/>'
        f'<line class="s{slot} thick" x1="{low}" x2="{high}" y1="9" y2="9"/>'
        f'<circle class="c{slot}" cx="{middle}" cy="9" r="4"/></svg>'
    )


def absent(row: Row, wide: int) -> str:
    """Table row of a recipe or peer that did not run, with the reason."""
    name = escape(row["recipe"])
    reason = escape(row["skipped"])
    peer = '<span class="badge">peer</span>' if row.get("peer") else ""
    cell = f'<td colspan="{wide}" data-value="">{reason}</td>'
    return f'<tr class="off"><td data-value="{name}">{name}{peer}</td>{cell}</tr>'
