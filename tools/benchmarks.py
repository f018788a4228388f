"""Write docs/benchmarks.md from the records under benchmarks/results, with their commands.

python -m tools.benchmarks              write the page
python -m tools.benchmarks --check      change nothing; exit with code 1 if the page differs
python -m tools.benchmarks --pictures   draw the report of a record in a browser, for docs/pictures
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools import evidence, figures, model_evidence

from sapwood.bench.groups import RunGroup
from sapwood.bench.journal import read_lines, read_run
from sapwood.bench.measure import BenchRun
from sapwood.bench.page.page import page as report_page
from sapwood.bench.recipe_set import PLAIN

ROOT = Path(__file__).parents[1]
PAGE = "docs/benchmarks.md"
RESULTS = "benchmarks/results"
PICTURE = "docs/pictures/report.png"
SHOWN = "peers.json"  # the record whose report is pictured
SIZE = "1280,2900"  # pixels of the picture
Record = dict[str, Any]

PREFACE = """\
<!-- written by tools/benchmarks.py from benchmarks/results: measure again, then run it -->

# Benchmarks

Every number on this page comes from a file in [benchmarks/results](../benchmarks/results), and
every file was written by the command below its table. The machines were shared, so ratios within a
run mean something and single times little. A recipe is that of the record's commit: `recycling` in
these records is the form that is now called `recycling-best`.

- **speedup**: seconds per token of plain decoding over those of the row, on the same prompts,
  without prefill; with a 95 % bootstrap interval over prompts.
- **tokens / pass**: tokens emitted per pass of the target, which would be the speedup if drafting
  and wide passes cost nothing.
- **waste**: share of the checked nodes that were not accepted.
- **same text**: outputs equal to plain decoding's. Other engines run in processes of their own with
  their own weight formats, so theirs may differ.
"""
QUOTED = """\
The records answer different questions, so their figures differ: other prompts, number formats, node
limits and states of the code. Each is against plain decoding in the same record.
"""
# records in the order of the page
TITLES = {
    "cpu-peers.json": "Engines side by side on a CPU",
    "cpu-serving.json": "Many requests at a time on a CPU",
    model_evidence.OWN_MODEL: "Models without a head",
    model_evidence.FOUR_BITS: "Four bits on a CPU",
    model_evidence.FOUR_BITS_AVX2: "Four bits without AVX-512",
    model_evidence.MEMORY: "Memory on a CPU",
    "deadline.json": "A deadline per token",
    "overlap.json": "Drafting beside the pass",
    evidence.GPU_OVERLAP: "Drafting beside the pass on a GPU",
    "gpu-h200.json": "Decoding on a GPU",
    "gpu-serving.json": "Many requests at a time on a GPU",
    evidence.GPU_ROUNDS: "Rounds on the device",
    "cpu-heads-60-nodes.json": "Sixty nodes for every recipe",
    "methods.json": "Every recipe",
    "gpu-methods.json": "Every recipe on a GPU",
    "gpu-temperature.json": "Lossless recipes by temperature on a GPU",
    "temperature.json": "Acceptance rules by temperature",
    "directions.json": "Adaptive rules on and off",
    "long-context.json": "Long texts",
    "cpu-pair.json": "A pair of models",
    "guest-vllm.json": "Inside vLLM",
    "heads.json": "Kinds of heads, trained for equal minutes",
    "distillation.json": "Ways of training a draft model",
    "cpu-remote.json": "Drafting elsewhere",
    "fleet.json": "Replicas that are killed",
    "peers.json": "Other engines in one run of `sapwood bench`",
    "cpu-auto-float32.json": "Recipes that need no training, float32",
    "cpu-built-in.json": "Built-in prompts, float32",
    "cpu-copy-heavy.json": "Texts that repeat the prompt, float32",
    "cpu-random-hot.json": "Texts that cannot be guessed, float32",
}
ABOUT = {
    "cpu-peers.json": "SmolLM2-135M, int8; **the figure that other pages quote for a CPU**",
    "cpu-serving.json": "SmolLM2-135M, int8, requests that share passes",
    model_evidence.OWN_MODEL: "int8 models without a trained head, by kind of prompt and by load",
    model_evidence.FOUR_BITS: "4-bit GGUF files as they are, beside int8 and llama.cpp",
    model_evidence.FOUR_BITS_AVX2: "the same as on a processor that has no AVX-512",
    model_evidence.MEMORY: "GGUF files: disk, memory and seconds to the first token",
    "deadline.json": "SmolLM2-135M, int8, requests that arrive at a rate that doubles",
    "overlap.json": "random models, int8: seconds per token of a draft beside the pass",
    evidence.GPU_OVERLAP: "the same in float16, on two streams of one device",
    "gpu-h200.json": "SmolLM2-135M, float16; **the figure that other pages quote for a GPU**",
    "gpu-serving.json": "SmolLM2-135M, float16, requests that share passes, prefill included",
    evidence.GPU_ROUNDS: "SmolLM2-135M, float16, rounds that need no host, by their shape",
    "cpu-heads-60-nodes.json": "sixty nodes in every round, whatever they cost: tokens per pass",
    "methods.json": "six short built-in prompts for each recipe",
    "gpu-methods.json": "short built-in prompts for each recipe, float16",
    "gpu-temperature.json": "one to three short answers of each lossless recipe, float16",
    "temperature.json": "expected tokens per pass of acceptance rules, exactly",
    "directions.json": "each adaptive rule beside the same recipe without it",
    "long-context.json": "texts of thousands of tokens: tokens per pass, and speed where timed",
    "cpu-pair.json": "TinyLlama-1.1B with a drafter of 15 million weights",
    "heads.json": "SmolLM2-135M: tokens per pass of every kind of head after a short training",
    "guest-vllm.json": "SmolLM2-135M, float32: vLLM's counts, without a cost file at first",
    "distillation.json": "a tiny random target: acceptance after equal steps of training",
    "cpu-remote.json": "drafters behind delayed and lossy links of one machine",
    "fleet.json": "a tiny random model behind a front: whole streams, and the time that it adds",
    "peers.json": "24 Spec-Bench prompts, before a tree grew in one compiled call",
    "cpu-auto-float32.json": "48 Spec-Bench prompts",
    "cpu-built-in.json": "9 built-in prompts, before there were trained heads",
    "cpu-copy-heavy.json": "12 prompts, before there were trained heads",
    "cpu-random-hot.json": "random tokens at temperature 1.5, before there were trained heads",
}
GPU_METHODS = "gpu-methods.json"
MOST = 16  # rows of a table
HEADS = [
    "recipe",
    "tokens / s",
    "speedup",
    "95 % interval",
    "tokens / pass",
    "nodes / pass",
    "waste",
    "same text",
]


def main(arguments: list[str]) -> int:
    """Write the page, compare it, or draw the picture; the exit code."""
    if "--pictures" in arguments:
        return draw()
    made = page()
    path = ROOT / PAGE
    if "--check" not in arguments:
        path.write_text(made, encoding="utf-8")
        return 0
    same = path.exists() and path.read_text(encoding="utf-8") == made
    if not same:
        sys.stderr.write(f"{PAGE} differs from {RESULTS}; run python -m tools.benchmarks\n")
    return 0 if same else 1


def page() -> str:
    """The whole page."""
    folder = ROOT / RESULTS
    found = {path.name: read(path) for path in folder.glob("*.json")}
    order = sorted(found, key=lambda name: ([*TITLES, name].index(name), name))
    sections = [PREFACE, overview({name: found[name] for name in order})]
    for name in order:
        record = found[name]
        if name in SCRIPTS:
            sections += SCRIPTS[name](record)
        elif {"suite", "rows", "command"} <= record.keys():
            title = TITLES.get(name, Path(name).stem.replace("-", " ").capitalize())
            sections.append(bench_section(title, name, record))
    sections += [journal_section(path) for path in sorted(folder.glob("*.jsonl"))]
    sections.append(picture_section())
    return "\n".join(filter(None, sections))


def overview(records: dict[str, Record]) -> str:
    """The speedup of `auto` in every record, with the measured commit."""
    rows = []
    for name, record in records.items():
        states = [figures.state(record)] if "runs" not in record else []
        states += [figures.state(run) for run in record.get("runs", [])[-1:]]
        title = TITLES.get(name, Path(name).stem)
        link = f"[{title}](#{anchor(title)})"
        commit = f"`{states[0].partition('-')[0][:7]}`"
        rows.append([link, ABOUT.get(name, ""), commit, gain(name, record)])
    heads = ["record", "what is measured", "commit", "`auto` against plain"]
    return f"## `auto` in every record\n\n{QUOTED}\n{table(heads, rows)}"


def anchor(title: str) -> str:
    """The link anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def gain(name: str, record: Record) -> str:
    """Speedup of `auto` over plain decoding in a record."""
    if name == figures.CPU:
        gains = figures.in_runs("sapwood:auto", figures.OVER)(record)
        return f"{gains[0]:.2f} (median of {len(gains)} runs, {min(gains):.2f} to {max(gains):.2f})"
    if name == figures.SERVING:
        levels = sorted({row["level"] for row in record["rows"]})
        cells = [f"{figures.served('auto', level)(record):.2f} with {level}" for level in levels]
        return ", ".join(cells) + " at a time"
    if name in (figures.GUEST, figures.HEADS) or "held_out" in record:  # counts, no seconds
        return ""
    if name == model_evidence.OWN_MODEL:
        rows = [row for row in record["rows"].values() if row["recipe"] == "auto"]
        speeds = [row["speedup"]["mean"] for row in rows]
        return f"{min(speeds):.2f} to {max(speeds):.2f} by group"
    if name in (model_evidence.FOUR_BITS, model_evidence.FOUR_BITS_AVX2):
        return model_evidence.four_bits_gain(record)
    if name in (
        "cpu-remote.json",
        "fleet.json",
        evidence.GPU_ROUNDS,
        model_evidence.MEMORY,
    ):  # no `auto` against plain in it
        return ""
    if "speedups" in record:
        runs = record["speedups"]["auto"]
        kinds = [f"{sum(run[it] for run in runs) / len(runs):.2f} on {it}" for it in runs[0]]
        return ", ".join(kinds)
    rows = record["decoding"]["greedy"] if "decoding" in record else record["rows"]
    found = [row for row in rows if (row.get("recipe"), row.get("category")) == ("auto", "all")]
    return f"{found[0]['speedup']:.2f}" if found else ""


def read(path: Path) -> Record:
    """A record."""
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def section(title: str, text: str, table: str, command: str) -> str:
    """A titled table with its source and its command."""
    return f"## {title}\n\n{text}\n\n{table}\nMade by:\n\n```\n{command}\n```\n"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    body = [
        heads,
        ["---"] * len(heads),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in body)


# ------------------------------------------------------------------------- records of bench
def bench_section(title: str, name: str, record: Record) -> str:
    """The rows over all prompts of a record, fastest first."""
    rows = [row for row in record["rows"] if row["category"] == "all" and not row.get("skipped")]
    rows.sort(key=lambda row: -row["speedup"])
    left = (
        f" The {MOST} fastest of {len(rows)}; all are in [methods.md](methods.md)."
        if len(rows) > MOST
        else ""
    )
    swept = len({place(row) for row in rows}) > 1
    cells = [[*([place(row)] if swept else []), *cells_of(row)] for row in rows[:MOST]]
    shown = table([*(["setting"] if swept else []), *HEADS], cells)
    notes = [
        f"`{row['recipe']}` was skipped: {row['skipped']}."
        for row in record["rows"]
        if row.get("peer") and row.get("skipped")
    ]
    notes += [f"`{row['recipe']}` ran {row['weights']}." for row in rows if row.get("weights")]
    text = f"{source(record)} File: [{name}](../{RESULTS}/{name}).{left}"
    command = again(record["command"], name)
    if "turns" not in record["suite"] and ".jsonl" in record["suite"]["name"]:
        command += " --turns 1"  # older records have the first turn of conversations alone
    return section(title, " ".join([text, *dict.fromkeys(notes)]), shown, command)


def cells_of(row: Record) -> list[str]:
    """The numbers of one row."""
    peer = row.get("peer")
    same = row.get("agreement") if row.get("peer") else row["identical"]
    kept = (
        f"departs {row['departure']:.1%}"
        if row.get("departure") is not None
        else f"{same}/{row['prompts']}"
    )
    return [
        f"`{row['recipe']}`" + (" (peer)" if peer else ""),
        number(row["tokens_per_second"], ".1f"),
        number(row["speedup"], ".2f"),
        f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}"
        if row["speedup_low"] is not None
        else "",
        number(row["tokens_per_pass"], ".2f"),
        number(row["nodes_per_pass"], ".1f"),
        number(row["waste"], ".0%"),
        "" if same is None and row.get("departure") is None else kept,
    ]


def number(value: float | None, form: str) -> str:
    """A number as text; empty for None and nan."""
    return "" if value is None or value != value else f"{value:{form}}"


def place(row: Record) -> str:
    """The setting of a row as text."""
    words = [f"temperature {row.get('temperature', 0):g}"]
    words += [f"context {row['context']}"] if row.get("context") else []
    return ", ".join([*words, *([f"batch {row['batch']}"] if row.get("batch", 1) > 1 else [])])


def source(record: Record) -> str:
    """Model, prompts and machine of a record as text."""
    machine = record["machine"]
    model = record["model"]
    suite = record["suite"]
    where = (
        machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    )
    commit = f", commit {record['commit']}" if record.get("commit") else ""
    return (
        f"{model['name']}, {model['dtype']} on {model['device']}, {suite['prompts']} prompts of "
        f"{Path(suite['name']).name}, up to {suite['max_tokens']} tokens each at temperature "
        f"{suite['temperature']:g}; {where}{commit}."
    )


def again(command: str, name: str) -> str:
    """The command, with the file's place in the repository and the bare name of a suite."""
    words = shlex.split(command)
    made = []
    for before, word in zip(["", *words], words, strict=False):
        bare = before in ("--html", "--runs") or (before == "--suite" and "," not in word)
        made.append(
            f"{RESULTS}/{name}" if before == "--json" else Path(word).name if bare else word
        )
    return shlex.join(made)


# --------------------------------------------------------------------------------- journals
def journal_section(path: Path) -> str:
    """The table of a journal, computed from its lines."""
    lines = list(read_lines(path))
    if not lines:
        return ""
    series = [line for line in lines if line["series"] == lines[-1]["series"]]
    rows = list(journal_rows(series))
    heads = [
        "who",
        "setting",
        "turns",
        "tokens",
        "tokens / s",
        "speedup",
        "95 % interval",
        "same tokens",
    ]
    origin = series[-1]["origin"]
    machine = origin["machine"]
    commit = f", commit {origin['commit']}" if origin.get("commit") else ""
    text = (
        f"The table of [{path.name}](../{RESULTS}/{path.name}), one line for every run: "
        f"{len(series)} of them, on {machine['cpu']}, {machine['threads']} of "
        f"{machine['cores']} cores{commit}."
    )
    title = f"Run by run: {path.name.removesuffix('.jsonl').removesuffix('.runs')}"
    return section(
        title,
        text,
        table(heads, rows),
        again(origin["command"], path.name.replace(".runs.jsonl", ".json")),
    )


def journal_rows(series: Sequence[Record]) -> Iterator[list[str]]:
    """One row per contender and setting, on the turns that it and plain decoding have in common."""
    runs: dict[tuple[str, str], dict[str, BenchRun]] = {}
    for line in series:
        runs.setdefault((json.dumps(line["point"]), line["who"]), {})[line["prompt"]] = read_run(
            line["run"]
        )
    for (point, who), mine in runs.items():
        plain = runs.get((point, PLAIN), {})
        names = [name for name in mine if name in plain]
        if not names:
            continue
        group = RunGroup(
            [mine[it] for it in names],
            [plain[it] for it in names],
            [it.partition("#")[0] for it in names],
        )
        low, high = group.interval
        seconds = sum(run.seconds for run in group.runs)
        paced = sum(run.paced for run in group.runs)
        same = sum(mine[it].tokens == plain[it].tokens for it in names)
        has_tokens = any(run.tokens for run in group.runs)
        tokens = str(sum(run.length for run in group.runs))
        rate = number(paced / seconds if seconds else None, ".1f")
        spread = f"{low:.2f} to {high:.2f}" if low == low else ""  # nan without a peer's seconds
        kept = f"{same}/{len(names)}" if has_tokens else ""
        speedup = number(group.speedup, ".2f")
        yield [
            f"`{who}`",
            place(json.loads(point)),
            str(len(names)),
            tokens,
            rate,
            speedup,
            spread,
            kept,
        ]


# ------------------------------------------------------------------ records of the scripts
def engines_section(record: Record) -> Iterator[str]:
    """Engines in processes of their own, by benchmarks/cpu.py: newest runs, and earlier ones."""
    runs = figures.latest(record)
    rows = []
    for place, run in enumerate(runs, 1):
        for row in run["rows"]:
            kind, _, rest = row["run"].partition(":")
            name = f"{kind} {Path(rest).name}".strip()
            rate = f"{row['tokens_per_second']:.1f}"
            ratio = f"{row['against_first']:.2f}"
            rows.append([str(place), name, rate, ratio, row["same_text_as_first"]])
    last = runs[-1]
    earlier = [run for run in record["runs"] if run not in runs]
    before = [f"{figures.best(run, 'sapwood:auto', figures.OVER):.2f}" for run in earlier]
    text = (
        f"{record['machine']['cpu']}, commit {figures.state(last)}; {last['prompts']} prompts of "
        f"{last['tokens']} tokens, greedy, prompts interleaved; tokens per second after the first "
        "token, and against `sapwood plain`. "
    )
    text += f"`auto` in runs of earlier states of the code: {', '.join(before)}. " if before else ""
    heads = ["run", "engine", "tokens / s", "against plain", "same text"]
    file = f"File: [cpu-peers.json](../{RESULTS}/cpu-peers.json)."
    yield section(TITLES["cpu-peers.json"], text + file, table(heads, rows), runs[0]["command"])


def pair_section(record: Record) -> Iterator[str]:
    """A larger target with a small drafter of its own, by benchmarks/pair.py."""
    kinds = ("stories", "news")
    rows = []
    for name, each in record["speedups"].items():
        rows.append([name, *(" / ".join(f"{run[kind]:.2f}" for run in each) for kind in kinds)])
    repeats = len(next(iter(record["speedups"].values())))
    text = (
        f"{record['target']} with {record['drafter']}, {record['dtype']}, "
        f"{record['machine']['cpu']}, commit {record['commit']}; speedups of {repeats} repetitions "
        f"by kind of text. File: [cpu-pair.json](../{RESULTS}/cpu-pair.json)."
    )
    options = f"--repeats {repeats} --tokens {record['tokens']}"
    options += f" --penalty {record['repetition_penalty']:g}"
    command = f"python benchmarks/pair.py {options} --json {RESULTS}/cpu-pair.json"
    yield section(TITLES["cpu-pair.json"], text, table(["recipe", *kinds], rows), command)


def serving_section(record: Record) -> Iterator[str]:
    """Many requests at a time, by benchmarks/serving.py."""
    names = list(dict.fromkeys(row["run"] for row in record["rows"]))
    found = {(row["level"], row["run"]): f"{row['against_first']:.2f}" for row in record["rows"]}
    levels = sorted({level for level, _ in found})
    rows = [[str(level), *(found.get((level, name), "") for name in names)] for level in levels]
    text = (
        f"Tokens per second of all requests together, against plain; {record['machine']['cpu']}, "
        f"commit {figures.state(record)}. "
        f"File: [cpu-serving.json](../{RESULTS}/cpu-serving.json)."
    )
    shown = table(["at a time", *names], rows)
    yield section(TITLES["cpu-serving.json"], text, shown, record["command"])


def heads_section(record: Record) -> Iterator[str]:
    """Kinds of heads at equal size and equal minutes, by benchmarks/heads.py."""
    machine = record["machine"]
    spent = [row["minutes"] for row in record["rows"]] or [0.0]
    text = (
        f"{record['model']['name']}, {machine.get('gpu') or machine['cpu']}, commit "
        f"{figures.state(record)}; {sum(spent) / len(spent):.2g} minutes of {record['clock']} time "
        f"for each head on {record['texts']['answer_tokens']:,} tokens of the model's own text, "
        f"scored on {record['prompts']['count']} other prompts. "
        f"File: [{figures.HEADS}](../{RESULTS}/{figures.HEADS}), with curves of the loss."
    )
    left = [f"`{kind}` ({reason})" for kind, reason in record.get("missing", {}).items()]
    text += f" Without a row: {', '.join(left)}." if left else ""
    text += later_runs(record)
    commands = [run["command"] for run in record.get("runs", [record])]
    yield section(TITLES[figures.HEADS], text, figures.head_kinds(), "\n".join(commands))


def later_runs(record: Record) -> str:
    """Sentences about the runs after the first one of a record of heads, and what both scored."""
    largest = list(record["trees"])[-1]
    first = {row["kind"]: row["tokens_per_pass"][largest] for row in record["rows"]}
    made = ""
    for number, run in enumerate(record.get("runs", [])[1:], 2):
        made += (
            f" Run {number}: commit {run['commit']}, {run['texts']['answer_tokens']:,} tokens, "
            f"{run['prompts']['count']} prompts of {run['settings']['max_tokens']} tokens"
        )
        again = [row for row in record["repeated"] if row["run"] == number - 1]
        both = [
            f"`{row['kind']}` makes {row['tokens_per_pass'][largest]:.2f} tokens per pass there, "
            f"{first[row['kind']]:.2f} in the first run"
            for row in again
        ]
        made += f"; {', '.join(both)}." if both else "."
    return made


def gpu_methods_section(record: Record) -> Iterator[str]:
    """Every recipe on a GPU: greedy, and the lossless ones by temperature if there are several."""
    cold = [row for row in record["rows"] if not row["temperature"]]
    yield bench_section(TITLES[GPU_METHODS], GPU_METHODS, {**record, "rows": cold})
    if len(cold) < len(record["rows"]):
        yield from evidence.recipe_temperature_section(record, GPU_METHODS)


def training_section(record: Record) -> Iterator[str]:
    """Ways of training a draft model, by benchmarks/distillation.py."""
    text = (
        f"Target: {record['target']}; {record['steps']} steps each on {record['texts']} texts, "
        f"replayed on {record['held_out']} others ({record['held_out_tokens']:,} tokens); "
        f"{record['machine']['cpu']}, commit {figures.state(record)}. "
        f"File: [distillation.json](../{RESULTS}/distillation.json)."
    )
    shown = figures.training_ways()
    command = again(record["command"], "distillation.json")
    yield section(TITLES["distillation.json"], text, shown, command)


def interval_cell(found: Record | float | None) -> str:
    """A ratio with its interval; an earlier record has one figure, and none by the clock."""
    if not isinstance(found, dict):
        return "" if found is None else f"{found:.2f}"
    return f"{found['mean']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def remote_section(record: Record) -> Iterator[str]:
    """Drafters on another machine, by benchmarks/remote.py."""
    rows = [
        [
            f"`{row['recipe']}`" if row["calls"] else row["recipe"],
            f"{row['delay_ms']:.0f} ms",
            f"{row['loss']:.0%}",
            interval_cell(row["against_plain"]),
            interval_cell(row.get("by_clock")),
            f"{row['tokens'] / row['passes']:.2f}",
            f"{row['late']} of {row['calls']}",
            f"{row['same_text']} of {row.get('prompts') or len(row['by_prompt'])}",
        ]
        for row in record["rows"]
        if row["recipe"] != PLAIN
    ]
    head = ["recipe", "delay", "lost", "against plain", "by the clock"]
    head += ["tokens / pass", "late", "same text"]
    timed = (
        "Tokens per second against plain decoding, by processor time and waits for replies, and by "
        "the clock, with 95 % bootstrap intervals over prompts; `plain again` is what noise alone "
        "does. "
    )
    text = (
        "One thread for the target, the drafters in another process behind links that delay and "
        f"drop messages. {timed if 'by_clock' in record['rows'][-1] else ''}"
        f"{record['machine']['cpu']}, commit {figures.state(record)}. "
        f"File: [cpu-remote.json](../{RESULTS}/cpu-remote.json)."
    )
    shown = figures.markdown(head, rows)
    yield section(TITLES["cpu-remote.json"], text, shown, record["command"])


def fleet_section(record: Record) -> Iterator[str]:
    """Replicas that are killed under load, by benchmarks/fleet.py."""
    low, high = record["added_range_ms"]
    kinds = record["complete_by_kind"]
    rows = [
        ["replicas killed", f"{record['kills']} in {record['seconds']:.0f} s"],
        ["streams resumed, each time counted", f"{record['resumed']:,}"],
        ["requests sent again before their first token", f"{record['repeated']:,}"],
        [
            "streams with the text and the one id of an unbroken run",
            f"{record['complete']:,} of {record['requests']:,}",
        ],
        *([f"of these, {kind}", f"{count:,}"] for kind, count in sorted(kinds.items())),
        ["restart of a replica, median", f"{record['restart_s']['50 %']:.1f} s"],
        [
            "added to a request of one token: median of differences, quartiles",
            f"{record['added_ms']:.1f} ms ({low:.1f} to {high:.1f})",
        ],
        ["processor time of the front for such a request", f"{record['front_cpu_ms']:.1f} ms"],
    ]
    text = (
        f"{record['clients']} clients, {record['replicas']} replicas with `{record['recipe']}` on "
        f"{record['machine']['cores']} cores; {record['machine']['cpu']}, commit "
        f"{figures.state(record)}. File: [fleet.json](../{RESULTS}/fleet.json)."
    )
    yield section(TITLES["fleet.json"], text, table(["", ""], rows), record["command"])


def guest_section(record: Record) -> Iterator[str]:
    """Sapwood inside vLLM, by benchmarks/guest_vllm.py."""
    rows = [
        [suite, way, *(str(run[key]) for key in ("tokens", "drafted", "accepted")),
         f"{run['tokens_per_request_step']:.2f}", f"{run['same_as_plain']} of {run['texts']}"]
        for suite, ways in record["ways"].items()
        for way, run in ways.items()
    ]  # fmt: skip
    text = (
        f"vLLM {record['vllm']}, {record['machine']['cpu']}, commit {figures.state(record)}; "
        f"{record['requests_at_a_time']} requests at a time. "
        f"File: [guest-vllm.json](../{RESULTS}/guest-vllm.json)."
    )
    heads = ["suite", "way", "tokens", "drafted", "accepted", "tokens / step", "same as plain"]
    yield section(TITLES["guest-vllm.json"], text, table(heads, rows), record["command"])


def gpu_sections(record: Record) -> Iterator[str]:
    """Passes and decoding on a GPU, by benchmarks/gpu.py."""
    file = f"File: [gpu-h200.json](../{RESULTS}/gpu-h200.json)."
    device = record["device"]
    command = record["command"]
    passes = record["pass"]
    sides = ("replay_us", "host_us")
    rows = [
        [str(row["nodes"]), *(number(row[side], ".0f") for side in sides)] for row in passes["rows"]
    ]
    text = (
        f"{device['name']}, torch {device['torch']}; microseconds of a pass after "
        f"{passes['context']} tokens. {file}"
    )
    rows += [
        [f"{row['requests']} x {row['nodes']}", *(number(row[side], ".0f") for side in sides)]
        for row in passes.get("shared", [])  # trees of several requests
    ]
    yield section(
        "A pass on a GPU", text, table(["nodes", "on the device", "from the host"], rows), command
    )
    heads = ["setting", *HEADS]
    found = []
    for setting, some in record["decoding"].items():
        if isinstance(some, list):
            found += [
                [setting, *cells_of(row)]
                for row in some
                if row["category"] == "all" and not row.get("skipped")
            ]
    for name, row in record["generate"].items():
        same = f"{row['identical']}/{row['prompts']}"
        found.append(["greedy", name, f"{row['tokens_per_second']:.1f}", "", "", "", "", "", same])
    yield section(
        TITLES["gpu-h200.json"],
        f"{device['name']}, float16, commit {figures.state(record)}. {file}",
        table(heads, found),
        command,
    )
    if idle := record.get("idle"):
        rows = [[f"`{name}`", *shares(row)] for name, row in idle.items()]
        text = (
            "Microseconds of a round after the first, those in which the device works, and the "
            f"rest. {file}"
        )
        yield section(
            "The host's share of a round",
            text,
            table(["recipe", "round", "device", "host"], rows),
            command,
        )
    if shapes := record.get("shapes"):
        text = (
            "Random weights, bfloat16; milliseconds of a pass, and how many times those in which "
            "weights and keys can be read once at copy speed, by sessions x nodes; with a star, or "
            f"two, of a second and a third run. {file}"
        )
        yield section(
            "Larger models on a GPU", text, shapes_table(shapes), f"{command} --parts a,d"
        )


def gpu_serving_section(record: Record) -> Iterator[str]:
    """Requests that share passes on a GPU, by benchmarks/gpu_serving.py."""
    heads = ["at a time", "recipe", "tokens / s", "first token, ms", "a token, ms", "its p99"]
    heads += ["longest pause, ms", "nodes / pass", "same text"]
    times = "first_token_ms", "token_ms", "token_ms_p99", "pause_ms"
    rows = [
        [
            str(row["level"]),
            f"`{row['recipe']}`",
            f"{row['tokens_per_second']:,.0f}",
            *(f"{row[name]:.1f}" for name in times),
            f"{row['nodes_per_pass']:.1f}",
            f"{row['same_text']}/{row['compared'] or '?'}",
        ]
        for row in record["rows"]
    ]
    text = (
        f"{record['machine']['gpu']}, commit {figures.state(record)}. Seconds from the first "
        "submission to the last token, prefill included; texts are compared with those of plain "
        f"decoding alone. {record['note']} File: "
        f"[gpu-serving.json](../{RESULTS}/gpu-serving.json)."
    )
    yield section(TITLES["gpu-serving.json"], text, table(heads, rows), record["command"])


def shares(row: Record) -> list[str]:
    """Microseconds of a round and of the device, and the host's share."""
    share = max(1 - row["device_us"] / row["round_us"], 0.0)
    return [f"{row['round_us']:.0f}", f"{row['device_us']:.0f}", f"{share:.0%}"]


def cell_of(row: Record) -> str:
    """Milliseconds and their ratio to the floor; a star for each earlier run."""
    return f"{row['ms']:.2f} ({row['over']:.2f}){'*' * (row.get('run', 1) - 1)}"


def shapes_table(shapes: Record) -> str:
    """A row for each model and context, a column for each number of sessions and nodes."""
    columns = list(
        dict.fromkeys((row["batch"], row["nodes"]) for rows in shapes.values() for row in rows)
    )
    found = []
    for name, rows in shapes.items():
        for context in dict.fromkeys(row["context"] for row in rows):
            cells = {(row["batch"], row["nodes"]): row for row in rows if row["context"] == context}
            found.append(
                [name, str(context), *(cell_of(cells[at]) if at in cells else "" for at in columns)]
            )
    return table(["model", "context", *(f"{batch} x {nodes}" for batch, nodes in columns)], found)


SCRIPTS: dict[str, Callable[[Record], Iterator[str]]] = {
    evidence.TEMPERATURE: evidence.temperature_section,
    evidence.DIRECTIONS: evidence.directions_section,
    evidence.LONG: evidence.long_section,
    model_evidence.OWN_MODEL: model_evidence.own_model_section,
    model_evidence.FOUR_BITS: model_evidence.four_bits_section,
    model_evidence.FOUR_BITS_AVX2: partial(
        model_evidence.four_bits_section, name=model_evidence.FOUR_BITS_AVX2
    ),
    model_evidence.MEMORY: model_evidence.memory_section,
    evidence.DEADLINE: evidence.deadline_section,
    evidence.OVERLAP: evidence.overlap_section,
    evidence.GPU_ROUNDS: evidence.rounds_section,
    evidence.GPU_OVERLAP: partial(evidence.overlap_section, name=evidence.GPU_OVERLAP),
    "cpu-peers.json": engines_section,
    "cpu-pair.json": pair_section,
    "guest-vllm.json": guest_section,
    "heads.json": heads_section,
    GPU_METHODS: gpu_methods_section,
    evidence.GPU_TEMPERATURE: evidence.recipe_temperature_section,
    "distillation.json": training_section,
    "cpu-remote.json": remote_section,
    "fleet.json": fleet_section,
    "cpu-serving.json": serving_section,
    "gpu-h200.json": gpu_sections,
    "gpu-serving.json": gpu_serving_section,
}


# ---------------------------------------------------------------------------------- picture
def picture_section() -> str:
    """The report that `--html` writes."""
    if not (ROOT / PICTURE).exists():
        return ""
    text = (
        f"What `--html` writes for [{SHOWN}](../{RESULTS}/{SHOWN}): one page that needs no "
        "network, and sorts."
    )
    image = f"![the report of a benchmark](pictures/{Path(PICTURE).name})\n"
    return section("The report", text, image, "python -m tools.benchmarks --pictures")


def draw() -> int:
    """Let Chromium draw the report of a record."""
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        sys.stderr.write("no chromium was found; install it with `apt-get install chromium`\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(report_page(read(ROOT / RESULTS / SHOWN)), encoding="utf-8")
        words = ["--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}"]
        target = f"--screenshot={ROOT / PICTURE}"
        subprocess.run(
            [browser, *words, target, path.as_uri()], check=True, capture_output=True, timeout=120
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
