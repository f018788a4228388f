"""Tables of the records that compare rules: by temperature, on and off, on long texts, by model.

`tools/figures.py`, `tools/tables.py` and `tools/benchmarks.py` put them into pages.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results"
TEMPERATURE = "temperature.json"
DIRECTIONS = "directions.json"
LONG = "long-context.json"
GPU_TEMPERATURE = "gpu-temperature.json"
DEADLINE = "deadline.json"
OVERLAP = "overlap.json"
GPU_OVERLAP = "gpu-overlap.json"
GPU_ROUNDS = "gpu-rounds.json"
TREES = {
    "two": "2 children",
    "four": "4 children",
    "chain": "chain of 6",
    "pairs": "2, 2, 2 children",
}
Record = dict[str, Any]

DIRECTIONS_TEXT = """\
## Directions

Each adaptive rule beside the same recipe without it: the same drafter, the same largest number of
nodes, the same prompts. The **gain** is that of the measure that the claim is about, with its 95 %
interval over prompts; the **sign** agrees when the whole interval is above zero. Where a paper
compares with a constant draft length, ours is five tokens. Counts need no particular machine;
modelled speed adds up the measured costs of passes and of EAGLE-3's levels on the machine that is
named. Any shorter draft raises what is accepted per drafted node: read that beside the tokens of a
pass. Claims are the papers' own, for larger models: compare signs, not sizes.
"""


def read(name: str) -> Record:
    """A record."""
    record: Record = json.loads((ROOT / RESULTS / name).read_text(encoding="utf-8"))
    return record


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    body = [heads, ["---"] * len(heads), *cells]
    return "".join(f"| {' | '.join(row)} |\n" for row in body)


def command_of(record: Record, name: str) -> str:
    """The command of a record, without how its time was cut into pieces."""
    kept = re.sub(r" --(seconds|threads|groups|at-once) \S+", "", record["command"])
    return re.sub(r"--json \S+", f"--json {RESULTS}/{name}", kept)


def place(record: Record) -> str:
    """Model, machine and commit as text."""
    model, machine = record["model"], record["machine"]
    return (
        f"{model['name']}, {model['dtype']} on {model['device']}; "
        f"{machine.get('gpu') or machine['cpu']}, commit "
        f"{record['commit']}"
    )


# ------------------------------------------------------------------------------ temperature
def rules_by_temperature() -> str:
    """Expected tokens per pass of every rule, a column for each temperature."""
    record = read(TEMPERATURE)
    rows = record["rows"]
    hot = [value for value in record["settings"]["temperatures"] if value]
    cells = []
    for tree, title in TREES.items():
        for draws, rule in dict.fromkeys(
            (row["draws"], row["rule"]) for row in rows if row["tree"] == tree
        ):
            found = {
                row["temperature"]: row
                for row in rows
                if (row["tree"], row["draws"], row["rule"]) == (tree, draws, rule)
            }
            if all(value in found for value in hot):
                cold = [row for row in rows if (row["tree"], row["temperature"]) == (tree, 0)]
                cells.append([title, draws, f"`{rule}`", *map(span, [*cold, *map(found.get, hot)])])
    heads = [f"T = {value:g}" for value in record["settings"]["temperatures"]]
    return markdown(["tree", "draws", "rule", *heads], cells)


def recipes_by_temperature(record: Record) -> str:
    """Tokens per pass and speedup of every recipe, a column for each temperature."""
    found: dict[str, dict[float, Record]] = {}
    for row in record["rows"]:
        if row["category"] == "all" and not row["skipped"] and row["departure"] is None:
            found.setdefault(row["recipe"], {})[row["temperature"]] = row
    heats = sorted({heat for rows in found.values() for heat in rows})
    order = sorted(found, key=lambda name: -max(row["speedup"] for row in found[name].values()))
    counts = {heat: row["prompts"] for heat, row in found.get("plain", {}).items()}
    rows = [
        [f"`{name}`", *(pace(found[name].get(heat), counts.get(heat, 0)) for heat in heats)]
        for name in order
    ]
    return markdown(["recipe", *(f"T = {heat:g}" for heat in heats)], rows)


def pace(row: Record | None, prompts: int) -> str:
    """Tokens per pass, speedup and tokens per second with their intervals, and fewer prompts."""
    if row is None:
        return ""
    count = row["prompts"]
    fewer = f"; {count} prompt{'s' * (count > 1)}" if count < prompts else ""
    cells = [
        f"{row['tokens_per_pass']:.2f}{between(row, 'tokens_per_pass', 2)}",
        f"**{row['speedup']:.2f}**{between(row, 'speedup', 2)}",
        f"{row['tokens_per_second']:.0f} / s{between(row, 'tokens_per_second', 0)}",
    ]
    return f"{'; '.join(cells)}{fewer}"


def between(row: Record, name: str, digits: int) -> str:
    """The bounds of a number of a row; none over a single prompt."""
    if row["prompts"] < 2:
        return ""
    return f" ({row[f'{name}_low']:.{digits}f} to {row[f'{name}_high']:.{digits}f})"


def recipe_temperature_section(record: Record, name: str = GPU_TEMPERATURE) -> Iterator[str]:
    """Lossless recipes at several temperatures, by benchmarks/methods.py."""
    machine, suite = record["machine"], record["suite"]
    counts = {
        row["temperature"]: row["prompts"]
        for row in record["rows"]
        if (row["recipe"], row["category"]) == ("plain", "all")
    }
    asked = ", ".join(f"{count} prompts at {heat:g}" for heat, count in sorted(counts.items()))
    text = (
        f"Tokens per pass; times as fast as plain decoding of the same prompts; tokens per second; "
        "each with its 95 % interval where it decoded several prompts. A recipe that took long "
        "decoded fewer: so few prompts tell recipes apart that differ much, and no others. "
        f"{asked} of {suite['name']}, up to {suite['max_tokens']} tokens each; "
        f"{record['model']['dtype']}, {machine.get('gpu') or machine['cpu']}, commit "
        f"{record['commit']}. File: [{name}](../{RESULTS}/{name})."
    )
    title = "Lossless recipes by temperature on a GPU"
    command = command_of(record, name)
    shown = recipes_by_temperature(record)
    yield f"## {title}\n\n{text}\n\n{shown}\nMade by:\n\n```\n{command}\n```\n"


def span(row: Record) -> str:
    """Tokens per pass with their interval."""
    return f"{row['tokens_per_pass']:.3f} ({row['low']:.2f} to {row['high']:.2f})"


def orders_by_temperature() -> str:
    """The pairs of rules that theory or a paper orders, and their difference here."""
    record = read(TEMPERATURE)
    hot = [value for value in record["settings"]["temperatures"] if value]
    found: dict[tuple[str, ...], dict[float, Record]] = {}
    for order in record["orders"]:
        key = order["tree"], order["better"], order["worse"], order["source"]
        found.setdefault(key, {})[order["temperature"]] = order
    rows = [
        [
            TREES[tree],
            f"{rule(better)} ≥ {rule(worse)}",
            source,
            *(gain_cell(each.get(value)) for value in hot),
        ]
        for (tree, better, worse, source), each in found.items()
    ]
    return markdown(["tree", "order", "by", *(f"T = {value:g}" for value in hot)], rows)


def rule(name: str) -> str:
    """A rule and its draws as text."""
    draws, _, own = name.partition(" ")
    return f"`{own}` ({draws})"


def gain_cell(row: Record | None) -> str:
    """A relative difference, its interval and whether it has the sign of the order."""
    if row is None:
        return ""
    mark = "holds" if row["low"] >= 0 else "opposite" if row["high"] < 0 else "within noise"
    return f"{row['mean']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%}), {mark}"


def temperature_section(record: Record) -> Iterator[str]:
    """The rules by temperature, for the page of benchmarks."""
    settings = record["settings"]
    count = max(row["prompts"] for row in record["rows"])
    text = (
        f"Expected tokens of a pass, from distributions recorded at {settings['places']} places of "
        f"each of {count} prompts of {settings['suite']}; drafter `{settings['drafter']}`, "
        f"{settings['draws']} trees a place, verdicts enumerated; {place(record)}. File: "
        f"[{TEMPERATURE}](../{RESULTS}/{TEMPERATURE}). What theory says of the order: "
        "[verifiers](families/verifiers.md#at-a-temperature)."
    )
    yield titled(
        "Acceptance rules by temperature", text, rules_by_temperature(), record, TEMPERATURE
    )


# ------------------------------------------------------------------------------- directions
def directions() -> str:
    """The section of docs/methods.md: claims, measurements and signs."""
    record = read(DIRECTIONS)
    absent = dict.fromkeys(record["missing"], "not measured yet") | record["elsewhere"]
    elsewhere = "".join(f"- `{name}`: {why}.\n" for name, why in absent.items())
    settings = record["settings"]
    counts = [row["prompts"] for row in record["rows"]]
    source = (
        f"Record: [{DIRECTIONS}](../{RESULTS}/{DIRECTIONS}), {max(counts)} prompts of "
        f"{settings['suite']}, {settings['tokens']} tokens each; {place(record)}. "
        f"{tally(record)}\n"
    )
    return "\n".join(
        [DIRECTIONS_TEXT, source, directions_table(record), "Not in this table:\n", elsewhere]
    )


def tally(record: Record) -> str:
    """How many signs agree."""
    signs = [row["sign"] for row in record["rows"]]
    counts = [f"{sign}: {signs.count(sign)}" for sign in ("agrees", "within noise", "opposite")]
    return f"Signs of {len(signs)} rules: {', '.join(counts)}."


def directions_table(record: Record) -> str:
    """A row for each rule."""
    rows = []
    for row in record["rows"]:
        on, off = row["means"][row["measure"]]
        form = ".0f" if on is not None and on > 20 else ".2f"
        values = " / ".join("" if value is None else f"{value:{form}}" for value in (on, off))
        per_pass = " / ".join(f"{value:.2f}" for value in row["means"]["tokens per pass"])
        nodes = " / ".join(f"{value:.1f}" for value in row["nodes_per_pass"])
        hot = f", T = {row['temperature']:g}" if row["temperature"] else ""
        gain = f"{row['gain']:+.0%} ({row['low']:+.0%} to {row['high']:+.0%})"
        rows.append(
            [
                f"`{row['recipe']}`",
                cited(row["paper"]),
                row["claim"],
                f"{row['measure']}{hot}",
                values,
                gain,
                row["sign"],
                per_pass,
                nodes,
            ]
        )
    heads = ["rule", "paper", "claim", "measure", "on / off", "gain", "sign"]
    return markdown([*heads, "tokens / pass", "nodes / pass"], rows)


def direction(record: Record, recipe: str, key: str) -> float:
    """A number of one rule: its measure on or off, the gain, tokens and nodes per pass."""
    row = next(row for row in record["rows"] if row["recipe"] == recipe)
    means = row["means"]
    found = {
        "on": means[row["measure"]][0],
        "off": means[row["measure"]][1],
        "gain": row["gain"],
        "per_pass": means["tokens per pass"][0],
        "per_pass_off": means["tokens per pass"][1],
        "nodes": row["nodes_per_pass"][0],
    }
    return float(found[key])


def cited(paper: str) -> str:
    """A paper as a link, if it is on arXiv."""
    if re.fullmatch(r"\d{4}\.\d{4,5}", paper):
        return f"[{paper}](https://arxiv.org/abs/{paper})"
    return paper


def directions_section(record: Record) -> Iterator[str]:
    """The count of signs, for the page of benchmarks."""
    text = (
        f"Every adaptive rule beside the same recipe without it. {tally(record)} All rows are in "
        f"[methods.md](methods.md#directions). {place(record)}. File: "
        f"[{DIRECTIONS}](../{RESULTS}/{DIRECTIONS})."
    )
    rows = [
        [sign, ", ".join(f"`{row['recipe']}`" for row in record["rows"] if row["sign"] == sign)]
        for sign in ("agrees", "within noise", "opposite")
    ]
    yield titled(
        "Adaptive rules on and off", text, markdown(["sign", "rules"], rows), record, DIRECTIONS
    )


def titled(title: str, text: str, table: str, record: Record, name: str) -> str:
    """A section of the page of benchmarks."""
    made = f"Made by:\n\n```\n{command_of(record, name)}\n```\n"
    return f"## {title}\n\n{text}\n\n{table}\n{made}"


# ----------------------------------------------------------------------------- long context
def long_context() -> str:
    """Tokens and nodes per pass, and speed where it was measured, by length of the text."""
    rows = [
        [
            f"{row['context']:,}",
            row["dtype"],
            row["recipe"] if " " in row["recipe"] else f"`{row['recipe']}`",
            f"{row['tokens_per_pass']:.2f}",
            "" if row["speedup"] is None else times_plain(row["speedup"]),
            f"{row['nodes_per_pass']:.1f}",
            "" if row["accepted_per_node"] is None else f"{row['accepted_per_node']:.0%}",
            f"{row['identical']}/{row['prompts']}",
        ]
        for row in read(LONG)["rows"]
    ]
    heads = ["tokens of text", "dtype", "recipe", "tokens / pass", "against plain"]
    return markdown([*heads, "nodes / pass", "accepted", "same text"], rows)


def times_plain(found: Record) -> str:
    """A speed over plain decoding's with its interval."""
    return f"{found['mean']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def long_section(record: Record) -> Iterator[str]:
    """Long texts, for the page of benchmarks."""
    places = " ".join(f"{place(origin)}." for origin in record["origins"].values())
    timed = any(row["speedup"] is not None for row in record["rows"])
    speed = (
        "behind the first round, in which a draft model reads the text" if timed else "not timed"
    )
    scaled = " Beyond the model's context its rotary embedding is scaled by YaRN." * timed
    tokens = record["settings"]["tokens"]
    text = (
        f"{tokens} greedy tokens after questions about a long ledger.{scaled} "
        f"Speed against plain decoding: {speed}. {places} File: [{LONG}](../{RESULTS}/{LONG})."
    )
    commands = "\n".join(command_of(origin, LONG) for origin in record["origins"].values())
    yield titled("Long texts", text, long_context(), {"command": commands}, LONG)


# ------------------------------------------------------------------------- deadline and overlap
def deadline_section(record: Record) -> Iterator[str]:
    """Arrivals that double, for the page of benchmarks."""
    bound = record["deadline_ms"]
    runs = ["plain", "auto", "specserve"]
    rows = []
    for phase in sorted({row["phase"] for row in record["rows"]}):
        mine = [row for row in record["rows"] if row["phase"] == phase]
        cells = {name: [row for row in mine if row["run"] == name] for name in runs}
        rates = {name: mean_of(cells[name], "tokens_per_second") for name in runs}
        rows.append(
            [
                f"{mine[0]['arrivals_per_second']:g}",
                *(span_of(cells[name], "per_token_p99_ms", bound) for name in runs),
                *(f"{rates[name]:.0f}" for name in runs),
                f"{rates['specserve'] / rates['auto']:.2f}",
            ]
        )
    text = (
        f"A deadline of {bound:g} ms per token while arrivals double every "
        f"{record['phase_seconds']:g} seconds: requests of {record['tokens']} tokens, greedy, "
        "recipes in turns with the same arrivals. For each recipe the 99th percentile over the "
        "requests that ended in a phase of their ms per token after the first, of each repeat, "
        f"**bold** where it misses the deadline, and tokens per second while there was something "
        f"to decode. {place(record)}. File: [{DEADLINE}](../{RESULTS}/{DEADLINE}).\n\n"
        "![time per token and tokens per second by arrivals](pictures/deadline.svg)"
    )
    heads = [
        "arrivals / s",
        *(f"`{name}`, ms / token" for name in runs),
        *(f"`{name}`, tokens / s" for name in runs),
        "`specserve` over `auto`",
    ]
    yield titled("A deadline per token", text, markdown(heads, rows), record, DEADLINE)


def mean_of(rows: Sequence[Record], key: str) -> float:
    """The mean over repeats."""
    return float(sum(row[key] for row in rows) / len(rows))


def span_of(rows: Sequence[Record], key: str, bound: float) -> str:
    """The values of all repeats; bold above the bound."""
    return ", ".join(
        f"**{row[key]:.0f}**" if row[key] >= bound else f"{row[key]:.0f}" for row in rows
    )


def served_speeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence of what each recipe made at each load, prompts included, and of its texts."""
    levels = dict.fromkeys(row["level"] for row in rows)
    parts = []
    for level in levels:
        here = [row for row in rows if row["level"] == level]
        speeds = ", ".join(f"`{row['recipe']}` {row['tokens_per_second']:,.0f}" for row in here)
        parts.append(f"with {level} at a time {speeds}")
    same, compared = (sum(row[name] for row in rows) for name in ("same_text", "compared"))
    return (
        f"Whole runs, prompts included, made in tokens a second: {'; '.join(parts)}. "
        f"Of {compared:,} texts {same:,} were plain decoding's of the same prompt alone."
    )


def rounds_section(record: Record) -> Iterator[str]:
    """Rounds that run on the device, for the page of benchmarks."""
    columns = ("round_ms", "launch_ms", "wait_ms", "draft_ms")
    rows = [
        [
            f"{row['requests']:.1f}",
            str(row["nodes"]),
            str(row["depth"]),
            f"{row['prefill']:.0f}",
            f"{row['tokens']:.2f}",
            *(f"{row[name]:.2f}" for name in columns),
            f"{1e3 * row['requests'] * row['tokens'] / row['round_ms']:,.0f}",
        ]
        for row in record["rounds"]
    ]
    text = (
        "Rounds of several requests that the device runs by itself, by shape: means over all of a "
        "shape in the run, those of its warm-up too. `launch` is the host's time to launch a round,"
        " `wait` that until its verdicts are there, `draft` the device's time for the trees. The "
        f"last column is what such rounds alone would make. {served_speeds(record['rows'])} "
        f"{record['note']} {place(record)}. File: [{GPU_ROUNDS}](../{RESULTS}/{GPU_ROUNDS})."
    )
    heads = ["requests", "nodes", "depth", "prompt rows", "tokens / request", "round, ms"]
    shown = markdown([*heads, "launch, ms", "wait, ms", "draft, ms", "tokens / s"], rows)
    yield titled("Rounds on the device", text, shown, record, GPU_ROUNDS)


def overlap_section(record: Record, name: str = OVERLAP) -> Iterator[str]:
    """Drafts beside the target's pass, for the page of benchmarks."""
    rows = [
        [
            str(row.get("width", record.get("width"))),
            f"{row['draft_pass_over_target_pass']:.2f}",
            f"`{row['way']}`",
            f"{row['over_chain']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{row['tokens_per_pass']:.2f}",
            f"{row['waste']:.0%}",
            f"{row['same_text']}/{row.get('prompts', record['prompts'])}",
        ]
        for row in record["rows"]
    ]
    on_gpu = name == GPU_OVERLAP
    apart = "on a stream of its own" if on_gpu else "in a thread"
    each = "two streams of one device" if on_gpu else "one thread each"
    text = (
        f"A draft model {apart} beside the target's pass, {each}: seconds per token "
        f"over those of the same chain of {record['length']} tokens drafted first, mean and 95 % "
        f"interval over {record['prompts']} prompts of {record['tokens']} tokens at most, in turns."
        f" The target has {record['layers']} random layers, the draft model "
        "is its first layers; `pearl, measured` is the recipe, which rests where overlap does not "
        f"pay. {place(record)}. File: [{name}](../{RESULTS}/{name})."
    )
    heads = ["width", "draft pass / pass", "way", "over the chain", "tokens / pass", "waste"]
    title = "Drafting beside the pass on a GPU" if on_gpu else "Drafting beside the pass"
    yield titled(title, text, markdown([*heads, "same text"], rows), record, name)
