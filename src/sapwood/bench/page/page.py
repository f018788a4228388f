"""The report as one HTML page, made from a benchmark's record alone; it loads nothing else.

Each recipe has one colour everywhere; hovering over it, or pressing its name, fades all others.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from sapwood.bench.page import charts
from sapwood.bench.page.axes import TIMES
from sapwood.bench.page.board import board
from sapwood.bench.rows import ReportRow

Record = dict[str, Any]
Rows = list[dict[str, Any]]
COLOURS = 12  # of recipes; the first is for plain decoding
SWEPT = ("temperature", "context", "batch")
EMPTY = asdict(ReportRow("", "", 0))  # records of earlier versions lack some keys


def page(record: Record) -> str:
    """The whole page."""
    style, script = (
        files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("style.css", "script.js")
    )
    rows = [{**EMPTY, **row} for row in record["rows"]]
    slots = colours(rows)
    body = [facts(rows), legend(slots), swept(rows, slots), settings(record, rows, slots)]
    body += [trees(record.get("samples") or []), notes(rows), origin(record)]
    title = f"sapwood bench: {record['model']['name']}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}{paint()}</style>
</head>
<body>
{head(record)}
<main>
{"".join(body)}
</main>
<script>
{script}</script>
</body>
</html>
"""


def colours(rows: Rows) -> dict[str, int]:
    """A colour for each recipe that ran; more recipes than colours share them."""
    names = dict.fromkeys(row["recipe"] for row in rows if row["skipped"] is None)
    others = [name for name in names if name != "plain"]
    return {"plain": 0, **{name: 1 + place % (COLOURS - 1) for place, name in enumerate(others)}}


def paint() -> str:
    """CSS classes of the colours: points, lines, swatches."""
    return "".join(
        f".c{slot}{{fill:var(--k{slot})}}"
        f".s{slot}{{stroke:var(--k{slot})}}"
        f".b{slot}{{background:var(--k{slot})}}\n"
        for slot in range(COLOURS)
    )


def head(record: Record) -> str:
    """Title of the page: model, prompts, machine."""
    model = record["model"]
    suite = record["suite"]
    machine = record["machine"]
    place = (
        machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    )
    turns = f" ({suite['turns']} turns)" if suite.get("turns", 0) > suite["prompts"] else ""
    measured = (
        f"{model['dtype']} on {model['device']} · {suite['prompts']} prompts{turns} of "
        f"{Path(suite['name']).name} · up to {suite['max_tokens']} tokens each · {place}"
    )
    return (
        f"<header><div><h1><em>{escape(model['name'])}</em>, side by side</h1>"
        f'<p class="soft">{escape(measured)}</p></div>'
        '<button class="theme" type="button">light / dark</button></header>'
    )


def facts(rows: Rows) -> str:
    """Cards with the main numbers."""
    ours = [row for row in overall(rows) if row["speedup"] is not None and not row["peer"]]
    best = max(
        (row for row in ours if row["departure"] is None),
        key=lambda row: row["speedup"],
        default=None,
    )
    plain = next((row for row in ours if row["recipe"] == "plain"), None)
    promised = [row for row in ours if row["identical"] is not None]
    cards = []
    if best is not None:
        spread = f"{best['speedup_low']:.2f} to {best['speedup_high']:.2f}"
        cards.append(
            (
                f"{best['speedup']:.2f}{TIMES}",
                f"fastest lossless recipe: {best['recipe']} ({spread})",
            )
        )
        if best is not plain:
            cards.append(
                (f"{best['tokens_per_second']:.1f}", f"tokens per second of {best['recipe']}")
            )
    if plain is not None:
        cards.append((f"{plain['tokens_per_second']:.1f}", "tokens per second of plain decoding"))
    if promised:
        same, whole = (sum(row[key] for row in promised) for key in ("identical", "prompts"))
        cards.append(
            (f"{same}/{whole}", "outputs equal to plain decoding's, where that is guaranteed")
        )
    made = "".join(
        f'<div class="fact"><b>{escape(value)}</b><span>{escape(caption)}</span></div>'
        for value, caption in cards
    )
    return f'<div class="facts">{made}</div>'


def overall(rows: Rows) -> Rows:
    """The rows over all prompts in the first setting."""
    first = place_of(rows[0])
    return [row for row in rows if row["category"] == "all" and place_of(row) == first]


def place_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The setting of a row."""
    return tuple(row[key] for key in SWEPT)


def legend(slots: dict[str, int]) -> str:
    """A button for each recipe."""
    made = "".join(
        f'<button type="button" aria-pressed="false" data-who="{escape(name, quote=True)}">'
        f'<span class="swatch b{slot}"></span>{escape(charts.shortened(name, 40))}</button>'
        for name, slot in slots.items()
    )
    return f'<div class="legend" aria-label="highlight a recipe">{made}</div>'


def card(title: str, caption: str, content: str, kind: str = "") -> str:
    """A titled box."""
    return f'<section class="card {kind}"><h2>{title}</h2><p>{caption}</p>{content}</section>'


# --------------------------------------------------------------------------------- settings
def settings(record: Record, rows: Rows, slots: dict[str, int]) -> str:
    """The charts of each setting, as tabs."""
    places = list(dict.fromkeys(place_of(row) for row in rows))
    panels = []
    tabs = []
    for number, place in enumerate(places):
        some = [row for row in rows if place_of(row) == place]
        hidden = " hidden" if number else ""
        panels.append(
            f'<div id="setting{number}" role="tabpanel"{hidden}>{panel(record, some, slots)}</div>'
        )
        chosen, order = ("true", 0) if not number else ("false", -1)
        tabs.append(
            f'<button type="button" role="tab" aria-selected="{chosen}" tabindex="{order}" '
            f'aria-controls="setting{number}">{escape(label(place, places))}</button>'
        )
    bar = f'<div class="tabs" role="tablist">{"".join(tabs)}</div>' if len(places) > 1 else ""
    return bar + "".join(panels)


def label(place: tuple[Any, ...], places: Sequence[tuple[Any, ...]]) -> str:
    """The values of a setting that differ from other settings."""
    return ", ".join(
        f"{key} {'as it is' if value is None else f'{value:g}'}"
        for at, (key, value) in enumerate(zip(SWEPT, place, strict=True))
        if len({other[at] for other in places}) > 1
    )


def panel(record: Record, rows: Rows, slots: dict[str, int]) -> str:
    """Leaderboard and charts of one setting."""
    whole = [row for row in rows if row["category"] == "all"]
    ran = [row for row in whole if row["skipped"] is None]
    ours = [row for row in ran if not row["peer"]]
    made = [
        card(
            "Leaderboard",
            "Speedup over plain decoding on the same prompts. Press a heading to sort.",
            board(whole, slots),
        )
    ]
    made.append('<div class="grid2">')
    made.append(
        card(
            "Speedup by category",
            "With 95 % intervals; dashed is plain decoding.",
            charts.by_category(rows, slots),
        )
    )
    caption = "Tokens that a tree brings, by its size."
    made.append(card("Tokens per pass against nodes", caption, charts.per_pass(ours, slots)))
    if record.get("cost"):
        caption = (
            "Time of a pass on this machine by its rows. "
            "Points: mean pass of each recipe, verification included."
        )
        made.append(card("Cost of a pass", caption, charts.cost(record["cost"], ours, slots)))
    if any(row["reliability"] for row in ours):
        caption = (
            "On the diagonal, nodes accepted with estimated probability c are accepted c of the "
            "time; larger points hold more nodes."
        )
        made.append(card("Calibration", caption, charts.calibration(ours, slots)))
    key = "".join(
        f'<span><span class="swatch" style="background:var(--{stage})"></span>{words}</span>'
        for stage, words in charts.STAGES
    )
    made.append(
        card("Where the time goes", f'<span class="key">{key}</span>', charts.time_split(ours))
    )
    made.append("</div>")
    return "".join(made)


def swept(rows: Rows, slots: dict[str, int]) -> str:
    """One chart for each option that takes several values."""
    whole = [row for row in rows if row["category"] == "all" and row["skipped"] is None]
    made = []
    for key in SWEPT:
        others = [other for other in SWEPT if other != key]
        first = whole[0] if whole else {}
        some = [
            row
            for row in whole
            if all(row[other] == first[other] for other in others) and row[key] is not None
        ]
        if len({row[key] for row in some}) > 1:
            made.append(
                card(
                    f"Speedup by {key}",
                    "Over plain decoding in the same setting.",
                    charts.sweep(some, key, slots),
                )
            )
    return f'<div class="grid2">{"".join(made)}</div><br>' if made else ""


# ----------------------------------------------------------------- trees, notes, provenance
def trees(samples: Sequence[dict[str, Any]]) -> str:
    """Sample trees of each recipe."""
    if not samples:
        return ""
    figures = []
    for number, sample in enumerate(samples):
        caption = (
            f"{sample['recipe']} on {sample['prompt']}: "
            f"{sample['nodes']} nodes checked, {sample['accepted']} accepted"
        )
        drawn = f'<div class="tree" tabindex="0">{scoped(sample["svg"], number)}</div>'
        figures.append(f"<figure><figcaption>{escape(caption)}</figcaption>{drawn}</figure>")
    caption = (
        "Green nodes were accepted, the last is the bonus token; pale nodes were rejected. "
        "Thicker lines: higher estimated probability."
    )
    return card("Sample trees", caption, f'<div class="trees">{"".join(figures)}</div>', "sampled")


def scoped(svg: str, number: int) -> str:
    """An SVG whose style applies to itself alone."""
    name = f"tree{number}"

    def within(match: re.Match[str]) -> str:
        rules = re.findall(r"([^{}]+)\{([^}]*)\}", match[1])
        return (
            "<style>"
            + "".join(
                f"{','.join(f'.{name} {one.strip()}' for one in select.split(','))}{{{rule}}}"
                for select, rule in rules
            )
            + "</style>"
        )

    return re.sub(r"<style>(.*?)</style>", within, svg, flags=re.DOTALL).replace(
        "<svg ", f'<svg class="{name}" ', 1
    )


def notes(rows: Rows) -> str:
    """Weights of the peers, and the reason for missing energy."""
    items = [
        f"<b>{escape(row['recipe'])}</b> runs {escape(row['weights'])}; "
        f"{row['agreement_share']:.0%} of its text agrees with plain decoding"
        for row in overall(rows)
        if row["peer"] and row["weights"] and row.get("agreement_share") is not None
    ]
    if energy := next((row["energy_note"] for row in rows if row.get("energy_note")), None):
        items.append(f"No energy: {escape(energy)}")
    listed = "".join(f"<li>{item}</li>" for item in items)
    return f'<section class="card"><h2>Notes</h2><ul>{listed}</ul></section>' if items else ""


def origin(record: Record) -> str:
    """Command, commit, model and machine of the record."""
    facts = {
        "commit": record.get("commit"),
        "model": f"{record['model']['name']} {record['model'].get('fingerprint') or ''}".strip(),
        **{key: value for key, value in record["machine"].items() if value is not None},
        "prompts": f"{Path(record['suite']['name']).name}, digest {record['suite']['digest']}",
    }
    listed = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>"
        for key, value in facts.items()
        if value
    )
    made = f"<pre><code>{escape(record['command'])}</code></pre><dl>{listed}</dl>"
    data = json.dumps(
        {key: record[key] for key in ("machine", "model", "suite", "command", "commit", "rows")}
    )
    safe = data.replace("<", "\\u003c")
    whole = f'<script type="application/json" id="record">{safe}</script>'
    return (
        card("Made by", "The command that makes this report again, and where it ran.", made) + whole
    )
