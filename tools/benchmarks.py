"""Write docs/benchmarks.md from the records under benchmarks/results, with their commands.

python -m tools.benchmarks              write the page
python -m tools.benchmarks --check      change nothing; exit with code 1 if the page differs
python -m tools.benchmarks --pictures   draw the report of a record in a browser, for docs/pictures
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import evidence, figures, model_evidence
from tools import record_values as values
from tools.benchmark_scripts import SCRIPTS
from tools.benchmark_tables import (
    RESULTS,
    TITLES,
    Record,
    again,
    bench_section,
    number,
    place,
    read,
    section,
)
from tools.evidence import markdown

from sapwood.bench.groups import RunGroup
from sapwood.bench.journal import read_lines, read_run
from sapwood.bench.measure import BenchRun
from sapwood.bench.page.page import page as report_page
from sapwood.bench.recipe_set import PLAIN

ROOT = Path(__file__).parents[1]
PAGE = "docs/benchmarks.md"
PICTURE = "docs/pictures/report.png"
SHOWN = "peers.json"  # the record whose report is pictured
SIZE = "1280,2900"  # pixels of the picture

PREFACE = """\
<!-- written by tools/benchmarks.py from benchmarks/results: measure again, then run it -->

# Benchmarks

Every number on this page comes from a file in [benchmarks/results](../benchmarks/results), and
every file was written by the command below its table. The machines were shared, so ratios within a
run mean something and single times little. A recipe is that of the record's commit: in a record
without a row `recycling-best`, `recycling` is the form that now has this name.

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
        states = [values.state(record)] if "runs" not in record else []
        states += [values.state(run) for run in record.get("runs", [])[-1:]]
        title = TITLES.get(name, Path(name).stem)
        link = f"[{title}](#{anchor(title)})"
        commit = f"`{states[0].partition('-')[0][:7]}`"
        rows.append([link, ABOUT.get(name, ""), commit, gain(name, record)])
    heads = ["record", "what is measured", "commit", "`auto` against plain"]
    return f"## `auto` in every record\n\n{QUOTED}\n{markdown(heads, rows)}"


def anchor(title: str) -> str:
    """The link anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def gain(name: str, record: Record) -> str:
    """Speedup of `auto` over plain decoding in a record."""
    if name == figures.CPU:
        gains = values.in_runs("sapwood:auto", values.OVER)(record)
        return f"{gains[0]:.2f} (median of {len(gains)} runs, {min(gains):.2f} to {max(gains):.2f})"
    if name == figures.SERVING:
        levels = sorted({row["level"] for row in record["rows"]})
        cells = [f"{values.served('auto', level)(record):.2f} with {level}" for level in levels]
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
        markdown(heads, rows),
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
