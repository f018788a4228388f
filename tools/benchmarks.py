"""Write docs/benchmarks.md from the records under benchmarks/results, each table with the command that makes it again.

python tools/benchmarks.py              write the page
python tools/benchmarks.py --check      change nothing; exit with code 1 if the page differs
python tools/benchmarks.py --pictures   draw the report of a record in a browser, for docs/pictures
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sapwood.bench.groups import Group
from sapwood.bench.journal import read_lines, read_run
from sapwood.bench.lineup import PLAIN
from sapwood.bench.measure import Run
from sapwood.bench.page.page import page as report_page

ROOT = Path(__file__).parents[1]
PAGE, RESULTS, PICTURE = "docs/benchmarks.md", "benchmarks/results", "docs/pictures/report.png"
SHOWN = "peers.json"  # the record whose report is pictured
SIZE = "1280,2900"  # pixels of the picture
Record = dict[str, Any]

PREFACE = """\
<!-- written by tools/benchmarks.py from the files in benchmarks/results: measure again, then run it -->

# Benchmarks

Every number on this page comes from a file in [benchmarks/results](../benchmarks/results) that a command on this page
wrote. Machines were shared and busy: ratios of interleaved runs mean something, single times little. **speedup** is
plain decoding's seconds per token over those of the row on the same prompts, reading them left out, with its 95 %
bootstrap interval over prompts; **tokens / pass** is the speedup if drafting were free and a tree cost one row; **same
text** counts outputs equal to plain decoding's. Peers run in processes of their own, on their own weight formats; of
them, *same text* is no promise.
"""
TITLES = {
    "peers.json": "Side by side with other engines",
    "cpu-auto-float32.json": "`auto` against recipes that need no training",
    "cpu-built-in.json": "Built-in prompts on a CPU",
    "cpu-copy-heavy.json": "Texts that repeat the prompt",
    "cpu-random-hot.json": "Where nothing can be guessed",
    "cpu-heads-60-nodes.json": "Sixty nodes for everybody",
    "methods.json": "Every recipe",
}
MOST = 16  # rows of a table
HEADS = ["recipe", "tokens / s", "speedup", "95 % interval", "tokens / pass", "nodes / pass", "waste", "same text"]


def main(arguments: list[str]) -> int:
    """Write the page, compare it, or draw the picture; the exit code."""
    if "--pictures" in arguments:
        return draw()
    made, path = page(), ROOT / PAGE
    if "--check" not in arguments:
        path.write_text(made, encoding="utf-8")
        return 0
    same = path.exists() and path.read_text(encoding="utf-8") == made
    if not same:
        sys.stderr.write(f"{PAGE} differs from {RESULTS}; run python tools/benchmarks.py\n")
    return 0 if same else 1


def page() -> str:
    """The whole page."""
    folder = ROOT / RESULTS
    sections = [PREFACE, picture_section()]
    names = [path.name for path in sorted(folder.glob("*.json"))]
    for name in sorted(names, key=lambda name: [*TITLES, name].index(name)):
        record = read(folder / name)
        if name in SCRIPTS:
            sections += SCRIPTS[name](record)
        elif {"suite", "rows", "command"} <= record.keys():
            title = TITLES.get(name, Path(name).stem.replace("-", " ").capitalize())
            sections.append(bench_section(title, name, record))
    sections += [journal_section(path) for path in sorted(folder.glob("*.jsonl"))]
    return "\n".join(filter(None, sections))


def read(path: Path) -> Record:
    """A record."""
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def section(title: str, said: str, table: str, command: str) -> str:
    """A titled table with its source and its command."""
    return f"## {title}\n\n{said}\n\n{table}\nMade by:\n\n```\n{command}\n```\n"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    body = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in body)


# ----------------------------------------------------------------------------- records of bench
def bench_section(title: str, name: str, record: Record) -> str:
    """The rows over all prompts of a record, fastest first."""
    rows = [row for row in record["rows"] if row["category"] == "all" and not row.get("skipped")]
    rows.sort(key=lambda row: -row["speedup"])
    left = f" The {MOST} fastest of {len(rows)}; all are in [methods.md](methods.md)." if len(rows) > MOST else ""
    swept = len({place(row) for row in rows}) > 1
    cells = [[*([place(row)] if swept else []), *cells_of(row)] for row in rows[:MOST]]
    shown = table([*(["setting"] if swept else []), *HEADS], cells)
    notes = [
        f"`{row['recipe']}` was skipped: {row['skipped']}."
        for row in record["rows"]
        if row.get("peer") and row.get("skipped")
    ]
    notes += [f"`{row['recipe']}` ran {row['weights']}." for row in rows if row.get("weights")]
    said = f"{source(record)} File: [{name}](../{RESULTS}/{name}).{left}"
    command = again(record["command"], name)
    if "turns" not in record["suite"] and ".jsonl" in record["suite"]["name"]:
        command += " --turns 1"  # of conversations the first turn alone was run then
    return section(title, " ".join([said, *dict.fromkeys(notes)]), shown, command)


def cells_of(row: Record) -> list[str]:
    """The numbers of one row."""
    peer, same = row.get("peer"), row.get("agreement") if row.get("peer") else row["identical"]
    kept = f"departs {row['departure']:.1%}" if row.get("departure") is not None else f"{same}/{row['prompts']}"
    return [
        f"`{row['recipe']}`" + (" (peer)" if peer else ""),
        number(row["tokens_per_second"], ".1f"),
        number(row["speedup"], ".2f"),
        f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}" if row["speedup_low"] is not None else "",
        number(row["tokens_per_pass"], ".2f"),
        number(row["nodes_per_pass"], ".1f"),
        number(row["waste"], ".0%"),
        "" if same is None and row.get("departure") is None else kept,
    ]


def number(value: float | None, form: str) -> str:
    """A number; nothing where there is none."""
    return "" if value is None or value != value else f"{value:{form}}"


def place(row: Record) -> str:
    """The setting of a row in words."""
    words = [f"temperature {row.get('temperature', 0):g}"]
    words += [f"context {row['context']}"] if row.get("context") else []
    return ", ".join([*words, *([f"batch {row['batch']}"] if row.get("batch", 1) > 1 else [])])


def source(record: Record) -> str:
    """Where a record was made, in words."""
    machine, model, suite = record["machine"], record["model"], record["suite"]
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    commit = f", commit {record['commit']}" if record.get("commit") else ""
    return (
        f"{model['name']}, {model['dtype']} on {model['device']}, {suite['prompts']} prompts of "
        f"{Path(suite['name']).name}, up to {suite['max_tokens']} tokens each at temperature {suite['temperature']:g}; "
        f"{where}{commit}."
    )


def again(command: str, name: str) -> str:
    """The command, writing to where the file is kept and reading a suite wherever that lies."""
    words, made = shlex.split(command), []
    for before, word in zip(["", *words], words, strict=False):
        bare = before in ("--html", "--runs") or (before == "--suite" and "," not in word)
        made.append(f"{RESULTS}/{name}" if before == "--json" else Path(word).name if bare else word)
    return shlex.join(made)


# ------------------------------------------------------------------------------------- journals
def journal_section(path: Path) -> str:
    """What the runs of a journal amount to, recomputed from its lines."""
    lines = list(read_lines(path))
    if not lines:
        return ""
    series = [line for line in lines if line["series"] == lines[-1]["series"]]
    rows = list(journal_rows(series))
    heads = ["who", "setting", "turns", "tokens", "tokens / s", "speedup", "95 % interval", "same tokens"]
    origin = series[-1]["origin"]
    machine, commit = origin["machine"], f", commit {origin['commit']}" if origin.get("commit") else ""
    said = (
        f"The table of [{path.name}](../{RESULTS}/{path.name}), one line for every run: {len(series)} of them, on "
        f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores{commit}."
    )
    title = f"Run by run: {path.name.removesuffix('.jsonl').removesuffix('.runs')}"
    return section(title, said, table(heads, rows), again(origin["command"], path.name.replace(".runs.jsonl", ".json")))


def journal_rows(series: Sequence[Record]) -> Iterator[list[str]]:
    """One row for each contender under each setting, on the turns that it and plain decoding have both answered."""
    runs: dict[tuple[str, str], dict[str, Run]] = {}
    for line in series:
        runs.setdefault((json.dumps(line["point"]), line["who"]), {})[line["prompt"]] = read_run(line["run"])
    for (point, who), mine in runs.items():
        plain = runs.get((point, PLAIN), {})
        names = [name for name in mine if name in plain]
        if not names:
            continue
        group = Group([mine[it] for it in names], [plain[it] for it in names], [it.partition("#")[0] for it in names])
        low, high = group.interval
        seconds, paced = sum(run.seconds for run in group.runs), sum(run.paced for run in group.runs)
        same = sum(mine[it].tokens == plain[it].tokens for it in names)
        told = any(run.tokens for run in group.runs)
        tokens = str(sum(run.length for run in group.runs))
        rate = number(paced / seconds if seconds else None, ".1f")
        spread = f"{low:.2f} to {high:.2f}" if low == low else ""  # nan where a peer told no seconds
        kept, speedup = f"{same}/{len(names)}" if told else "", number(group.speedup, ".2f")
        yield [f"`{who}`", place(json.loads(point)), str(len(names)), tokens, rate, speedup, spread, kept]


# ------------------------------------------------------------------------------ the scripts' own
def engines_section(record: Record) -> Iterator[str]:
    """Engines in processes of their own, by benchmarks/cpu.py."""
    rows, runs = [], record["runs"]
    for place, run in enumerate(runs, 1):
        for row in run["rows"]:
            kind, _, rest = row["run"].partition(":")
            name = f"{kind} {Path(rest).name}".strip()
            rate, ratio = f"{row['tokens_per_second']:.1f}", f"{row['against_first']:.2f}"
            rows.append([str(place), name, rate, ratio, row["same_text_as_first"]])
    first = runs[0]
    names = " ".join(row["run"] for row in first["rows"])
    command = f"python benchmarks/cpu.py spec-bench-dev.jsonl --prompts {first['prompts']} --tokens {first['tokens']}"
    said = f"{record['machine']}; {first['prompts']} prompts of {first['tokens']} tokens, greedy, prompts interleaved."
    heads = ["run", "engine", "tokens / s", "against the first", "same text"]
    file = f"File: [cpu-peers.json](../{RESULTS}/cpu-peers.json)."
    yield section("Engines by hand", f"{said} {file}", table(heads, rows), f"{command} --runs {names} --json FILE")


def pair_section(record: Record) -> Iterator[str]:
    """A larger target with a small drafter of its own, by benchmarks/pair.py."""
    kinds, rows = ("stories", "news"), []
    for name, each in record["speedups"].items():
        rows.append([name, *(" / ".join(f"{run[kind]:.2f}" for run in each) for kind in kinds)])
    repeats = len(next(iter(record["speedups"].values())))
    said = (
        f"{record['target']} with {record['drafter']}, {record['dtype']}, {record['machine']['cpu']}, commit "
        f"{record['commit']}; speedups of {repeats} repetitions by kind of text. "
        f"File: [cpu-pair.json](../{RESULTS}/cpu-pair.json)."
    )
    words = f"--repeats {repeats} --tokens {record['tokens']} --penalty {record['repetition_penalty']:g}"
    command = f"python benchmarks/pair.py {words} --json {RESULTS}/cpu-pair.json"
    yield section("A pair of models", said, table(["recipe", *kinds], rows), command)


def serving_section(record: Record) -> Iterator[str]:
    """Many requests at a time, by benchmarks/serving.py."""
    names = list(dict.fromkeys(row["run"] for row in record["rows"]))
    found = {(row["level"], row["run"]): f"{row['against_first']:.2f}" for row in record["rows"]}
    levels = sorted({level for level, _ in found})
    rows = [[str(level), *(found.get((level, name), "") for name in names)] for level in levels]
    said = "Tokens per second of all requests together, against plain. "
    said += f"File: [cpu-serving.json](../{RESULTS}/cpu-serving.json)."
    command = "python benchmarks/serving.py --suite spec-bench-dev.jsonl --levels 1,4,16 --tokens 64 --repeats 2"
    yield section("Serving", said, table(["at a time", *names], rows), f"{command} --json {RESULTS}/cpu-serving.json")


def gpu_sections(record: Record) -> Iterator[str]:
    """Passes and decoding on a GPU, by benchmarks/gpu.py."""
    file, device = f"File: [gpu-h200.json](../{RESULTS}/gpu-h200.json).", record["device"]
    command = f"python benchmarks/gpu.py --suite spec-bench-dev.jsonl --json {RESULTS}/gpu-h200.json"
    passes, sides = record["pass"], ("replay_us", "host_us")
    rows = [[str(row["nodes"]), *(number(row[side], ".0f") for side in sides)] for row in passes["rows"]]
    said = f"{device['name']}, torch {device['torch']}; microseconds of a pass after {passes['context']} tokens. {file}"
    yield section("A pass on a GPU", said, table(["nodes", "on the device", "from the host"], rows), command)
    heads, found = ["setting", *HEADS], []
    for setting, some in record["decoding"].items():
        if isinstance(some, list):
            found += [[setting, *cells_of(row)] for row in some if row["category"] == "all" and not row.get("skipped")]
    for name, row in record["generate"].items():
        same = f"{row['identical']}/{row['prompts']}"
        found.append(["greedy", name, f"{row['tokens_per_second']:.1f}", "", "", "", "", "", same])
    yield section("Decoding on a GPU", f"{device['name']}, float16. {file}", table(heads, found), command)
    if idle := record.get("idle"):
        rows = [[f"`{name}`", *shares(row)] for name, row in idle.items()]
        said = f"Microseconds of a round after the first, and those in which the device was at work. {file}"
        yield section("The host's share of a round", said, table(["recipe", "round", "device", "host"], rows), command)
    if shapes := record.get("shapes"):
        said = (
            "Random weights, bfloat16; milliseconds of a pass, and how many times those in which weights and keys can "
        )
        said += (
            f"be read once at copy speed, by sessions x nodes; with a star, or two, of a second and a third run. {file}"
        )
        yield section("Larger models on a GPU", said, shapes_table(shapes), f"{command} --parts a,d")


def shares(row: Record) -> list[str]:
    """A round, the device's part of it, and the host's share."""
    share = max(1 - row["device_us"] / row["round_us"], 0.0)
    return [f"{row['round_us']:.0f}", f"{row['device_us']:.0f}", f"{share:.0%}"]


def cell_of(row: Record) -> str:
    """Milliseconds and times the floor; a star for each run before the one it is of."""
    return f"{row['ms']:.2f} ({row['over']:.2f}){'*' * (row.get('run', 1) - 1)}"


def shapes_table(shapes: Record) -> str:
    """A row for each model and context, a column for each number of sessions and nodes."""
    columns = list(dict.fromkeys((row["batch"], row["nodes"]) for rows in shapes.values() for row in rows))
    found = []
    for name, rows in shapes.items():
        for context in dict.fromkeys(row["context"] for row in rows):
            cells = {(row["batch"], row["nodes"]): row for row in rows if row["context"] == context}
            found.append([name, str(context), *(cell_of(cells[at]) if at in cells else "" for at in columns)])
    return table(["model", "context", *(f"{batch} x {nodes}" for batch, nodes in columns)], found)


SCRIPTS: dict[str, Callable[[Record], Iterator[str]]] = {
    "cpu-peers.json": engines_section,
    "cpu-pair.json": pair_section,
    "cpu-serving.json": serving_section,
    "gpu-h200.json": gpu_sections,
}


# -------------------------------------------------------------------------------------- picture
def picture_section() -> str:
    """The report that `--html` writes."""
    if not (ROOT / PICTURE).exists():
        return ""
    said = f"What `--html` writes for [{SHOWN}](../{RESULTS}/{SHOWN}): one page that needs no network, and sorts."
    image = f"![the report of a benchmark](pictures/{Path(PICTURE).name})\n"
    return section("The report", said, image, "python tools/benchmarks.py --pictures")


def draw() -> int:
    """Have Chromium draw the report of a record."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.stderr.write("no chromium was found; install it with `apt-get install chromium`\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(report_page(read(ROOT / RESULTS / SHOWN)), encoding="utf-8")
        words = ["--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}"]
        target = f"--screenshot={ROOT / PICTURE}"
        subprocess.run([browser, *words, target, path.as_uri()], check=True, capture_output=True, timeout=120)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
