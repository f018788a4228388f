"""Measured figures in the documents, each taken from a record under benchmarks/results.

python -m tools.figures            fill the marks of README.md and of all pages under docs
python -m tools.figures --check    change nothing; exit with code 1 if a page differs
python -m tools.figures --list     every name with its value and its record

A figure stands between two marks, in a sentence or in the cell of a table, not at the beginning of
a line:

    `auto` is <!-- fig:cpu.auto_over_plain -->1.50<!-- /fig --> times as fast

A table stands between two marks on lines of their own:

    <!-- table:cpu.engines -->
    <!-- /table -->

To add a figure, add a line to FIGURES: its name, its record, how it is read from the record, and
its format (a number that is counted in the code has the record CODE). Rows of `sapwood bench` need
no line, they are named by themselves (see BENCH): `equal.auto.tokens_per_pass` is the row over all
prompts, `equal.auto.qa.tokens_per_pass` that of a category. To add a table, add a function to
TABLES. Then write the marks with nothing between them and run `make tables`. A measurement that is
made again changes every page that quotes it.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from tools import evidence
from tools.record_values import (
    COMPILED,
    OVER,
    RATE,
    Record,
    Value,
    bench_row,
    decoded,
    decoded_in_host,
    guests,
    highest,
    in_runs,
    latest,
    lowest,
    mean_speedup,
    median_run,
    pass_ms,
    served,
    shared_rate,
    shared_speedup,
)

from sapwood.recipes import RECIPES

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results"
PAGES = ("*.md", "docs/**/*.md")  # documents that may quote a figure
FIGURE = re.compile(r"(<!-- fig:(?P<name>[\w.+-]+) -->)[^<]*(<!-- /fig -->)")
TABLE = re.compile(r"(<!-- table:(?P<name>[\w.+-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)
OPEN = re.compile(r"<!-- (?:fig|table):")

CPU = "cpu-peers.json"  # engines beside each other: the record of quoted CPU speeds
GPU = "gpu-h200.json"
SERVING = "cpu-serving.json"
GPU_SERVING = "gpu-serving.json"
GPU_ROUNDS = "gpu-rounds.json"
GUEST = "guest-vllm.json"
HEADS = "heads.json"
NO_RECORD = "The record of this command is not there yet.\n"


class Figure(NamedTuple):
    """A number: its record, how it is read and how it is formatted."""

    record: str
    value: Callable[[Record], Value]
    form: str = ".2f"


FIGURES: dict[str, Figure] = {
    # two CPU cores, SmolLM2-135M, int8, greedy, engines in processes of their own
    "cpu.runs": Figure(CPU, lambda record: len(latest(record)), "d"),
    "cpu.prompts": Figure(CPU, lambda record: latest(record)[0]["prompts"], "d"),
    "cpu.tokens": Figure(CPU, lambda record: latest(record)[0]["tokens"], "d"),
    "cpu.plain_rate": Figure(CPU, median_run("sapwood:plain", RATE), ".0f"),
    "cpu.auto_rate": Figure(CPU, median_run("sapwood:auto", RATE), ".0f"),
    "cpu.auto_over_plain": Figure(CPU, median_run("sapwood:auto", OVER)),
    "cpu.auto_over_plain_low": Figure(CPU, lowest("sapwood:auto", OVER)),
    "cpu.auto_over_plain_high": Figure(CPU, highest("sapwood:auto", OVER)),
    "cpu.llamacpp_over_plain": Figure(CPU, median_run("llamacpp", OVER)),
    "cpu.auto_over_llamacpp": Figure(CPU, median_run("sapwood:auto", RATE, "llamacpp")),
    "cpu.auto_over_llamacpp_low": Figure(CPU, lowest("sapwood:auto", RATE, "llamacpp")),
    "cpu.auto_over_llamacpp_high": Figure(CPU, highest("sapwood:auto", RATE, "llamacpp")),
    "cpu.hf_over_plain": Figure(CPU, median_run("hf", OVER)),
    "cpu.auto_over_hf": Figure(CPU, median_run("sapwood:auto", RATE, "hf"), ".0f"),
    # one H200, SmolLM2-135M, float16, greedy
    "gpu.served_plain_32": Figure(GPU_SERVING, shared_rate(32), ",.0f"),
    "gpu.served_plain_8_over_1": Figure(GPU_SERVING, shared_rate(8, 1), ".1f"),
    "gpu.served_plain_32_over_1": Figure(GPU_SERVING, shared_rate(32, 1), ".1f"),
    "gpu.served_plain_128_over_1": Figure(GPU_SERVING, shared_rate(128, 1), ".1f"),
    **{
        f"gpu.served_auto_{level}": Figure(GPU_SERVING, shared_speedup(level))
        for level in (1, 8, 32, 128)
    },
    **{
        f"gpu.rounds_{recipe}_{level}": Figure(GPU_ROUNDS, shared_speedup(level, recipe))
        for recipe in ("auto", "eagle3")
        for level in (8, 32, 128)
    },
    "gpu.pass_1_ms": Figure(GPU, pass_ms(1)),
    "gpu.pass_64_ms": Figure(GPU, pass_ms(64)),
    "gpu.prompts": Figure(GPU, decoded("auto", "prompts"), "d"),
    "gpu.hf_prompts": Figure(GPU, lambda record: record["generate"][COMPILED]["prompts"], "d"),
    "gpu.plain_rate": Figure(GPU, decoded("plain", RATE), ",.0f"),
    "gpu.auto_rate": Figure(GPU, decoded("auto", RATE), ",.0f"),
    "gpu.eagle3_rate": Figure(GPU, decoded("eagle3", RATE), ",.0f"),
    "gpu.hf_rate": Figure(GPU, lambda record: record["generate"][COMPILED][RATE], ",.0f"),
    "gpu.auto_over_plain": Figure(GPU, decoded("auto", "speedup")),
    "gpu.auto_over_plain_math": Figure(GPU, decoded("auto", "speedup", "math_reasoning")),
    "gpu.eagle3_over_plain": Figure(GPU, decoded("eagle3", "speedup")),
    "gpu.eagle3_over_plain_math": Figure(GPU, decoded("eagle3", "speedup", "math_reasoning")),
    "gpu.auto_tokens_per_pass": Figure(GPU, decoded("auto", "tokens_per_pass")),
    "gpu.auto_device_share": Figure(
        GPU,
        lambda record: record["idle"]["auto"]["device_us"] / record["idle"]["auto"]["round_us"],
        ".0%",
    ),
    # two CPU cores, many requests at a time, tokens per second against plain decoding
    **{
        f"serving.{run}_{level}": Figure(SERVING, served(run, level))
        for run in ("auto", "pld", "suffix", "eagle3")
        for level in (1, 4, 16)
    },
    # TinyLlama with a small drafter, two kinds of text: means of the repetitions
    **{
        f"pair.{kind}": Figure(
            "cpu-pair.json",
            partial(mean_speedup, kind),
        )
        for kind in ("stories", "news")
    },
    # sapwood inside vLLM, SmolLM2-135M in float32 on a CPU
    "guest.texts": Figure(GUEST, lambda record: sum(run["texts"] for run in guests(record)), "d"),
    "guest.same": Figure(
        GUEST, lambda record: sum(run["same_as_plain"] for run in guests(record)), "d"
    ),
    "guest.preemptions": Figure(GUEST, lambda record: record["preemption"]["preemptions"], "d"),
    "guest.cancelled": Figure(GUEST, lambda record: record["cancellation"]["cancelled"], "d"),
    "guest.prompts": Figure(GUEST, lambda record: record["prompts"], "d"),
    "guest.requests": Figure(GUEST, lambda record: record["requests_at_a_time"], "d"),
    "guest.length": Figure(GUEST, lambda record: record["most_drafted"], "d"),
    **{
        f"guest.{suite}.{way}": Figure(
            GUEST, decoded_in_host(suite, way, "tokens_per_request_step")
        )
        for suite in ("copy", "fresh")
        for way in ("ngram", "sapwood")
    },
    **{
        f"guest.fresh.drafted_{way}": Figure(GUEST, decoded_in_host("fresh", way, "drafted"), "d")
        for way in ("ngram", "sapwood")
    },
}

CODE = ""  # the record of figures that are counted in the code
FIGURES["code.recipes"] = Figure(CODE, lambda _: len(RECIPES), "d")

# records of `sapwood bench` by the name that begins their figures
BENCH = {
    "equal": "cpu-heads-60-nodes.json",  # sixty nodes a round for every recipe
    "methods": "methods.json",  # all recipes, a few prompts
    "peers": "peers.json",  # beside other engines, with the bench command
    "float32": "cpu-auto-float32.json",  # recipes that need no training, in float32
}
FORMS = {
    "speedup": ".2f",
    "tokens_per_pass": ".2f",
    "nodes_per_pass": ".1f",
    "tokens_per_second": ".0f",
    "waste": ".0%",
    "prompts": "d",
}


@cache
def read(name: str, root: Path) -> Record:
    """A record."""
    record: Record = json.loads((root / RESULTS / name).read_text(encoding="utf-8"))
    return record


def find(name: str) -> Figure:
    """The figure of a name, rows of a benchmark included; an unknown name is an error."""
    if name in FIGURES:
        return FIGURES[name]
    start, _, rest = name.partition(".")
    recipe, *category, key = rest.split(".") if rest.count(".") else ("", "")
    if start == "directions":
        return direction(recipe, key)
    if start not in BENCH or key not in FORMS or len(category) > 1:
        raise SystemExit(f"no figure is called {name}; see python -m tools.figures --list")
    group = category[0] if category else "all"
    return Figure(
        BENCH[start], lambda record: bench_row(record["rows"], recipe, group)[key], FORMS[key]
    )


def direction(recipe: str, key: str) -> Figure:
    """A figure of an adaptive rule on and off: `directions.swift.on`, `.off`, `.gain`."""
    forms = {"gain": "+.0%", "nodes": ".1f"}
    return Figure(
        evidence.DIRECTIONS,
        lambda record: evidence.direction(record, recipe, key),
        forms.get(key, ".2f"),
    )


def written(name: str) -> str:
    """A figure as text."""
    figure = find(name)
    record = {} if figure.record == CODE else read(figure.record, ROOT)
    return format(figure.value(record), figure.form)


# ----------------------------------------------------------------------------------- tables
def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    body = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in body)


def cpu_rows() -> Iterator[list[str]]:
    """Engines on the CPU: tokens per second of the median run, against plain, and in all runs."""
    record = read(CPU, ROOT)
    named = {
        "sapwood:auto": "**sapwood `auto`**, int8",
        "sapwood:plain": "sapwood `plain`, int8",
        "llamacpp:smol-Q4_0": "llama.cpp, Q4_0",
        "llamacpp:smol-Q8_0": "llama.cpp, Q8_0",
        "hf": "transformers `generate`, float32",
    }
    for start, title in named.items():
        rate, *_ = in_runs(start, RATE)(record)
        over = in_runs(start, OVER)(record)
        span = f"{min(over):.2f} to {max(over):.2f}" if min(over) < max(over) else ""
        yield [title, f"{rate:.0f}", f"{over[0]:.2f}", span]


def gpu_rows() -> Iterator[list[str]]:
    """Engines on the GPU: tokens per second, and against our plain decoding."""
    record = read(GPU, ROOT)
    plain = float(decoded("plain", RATE)(record))
    named = {
        "**sapwood `auto`**, float16": decoded("auto", RATE)(record),
        "sapwood `plain`, float16": plain,
        "transformers, static cache, compiled": record["generate"][COMPILED][RATE],
    }
    for title, rate in named.items():
        yield [title, f"{rate:,.0f}", f"{float(rate) / plain:.2f}"]


def results() -> str:
    """Both machines in one table, for the first page."""
    rows = [["", *row[:3]] for row in cpu_rows()]
    rows[0][0] = "two CPU cores"
    more = [["", *row] for row in gpu_rows()]
    more[0][0] = "one H200"
    return markdown(["", "", "tokens / s", "against `plain`"], rows + more)


def cpu_engines() -> str:
    """Engines on the CPU, with the range of all runs."""
    return markdown(
        ["two CPU cores", "tokens / s", "against `plain`", "in all runs"], [*cpu_rows()]
    )


def gpu_engines() -> str:
    """Engines on the GPU."""
    return markdown(["one H200", "tokens / s", "against `plain`"], [*gpu_rows()])


def serving_load() -> str:
    """Tokens per second of all requests together, by load."""
    runs = ("auto", "pld", "suffix", "eagle3")
    rows = [
        [str(level), *(written(f"serving.{run}_{level}") for run in runs)] for level in (1, 4, 16)
    ]
    return markdown(["requests at a time", *(f"`{run}`" for run in runs)], rows)


def equal_groups() -> str:
    """Tokens per pass with sixty nodes a round, by group of prompts."""
    record = read(BENCH["equal"], ROOT)["rows"]
    groups = list(dict.fromkeys(row["category"] for row in record if row["category"] != "all"))
    recipes = [
        row["recipe"] for row in record if row["category"] == "all" and row["recipe"] != "plain"
    ]
    rows = [
        [
            f"`{name}`",
            *(f"{bench_row(record, name, it)['tokens_per_pass']:.2f}" for it in ["all", *groups]),
        ]
        for name in recipes
    ]
    return markdown(["recipe", "all", *(name.replace("_", " ") for name in groups)], rows)


def pair_kinds() -> str:
    """Speedups of a pair of models by kind of text, tokens per pass in brackets."""
    record = read("cpu-pair.json", ROOT)
    rows = []
    for name, runs in record["speedups"].items():
        cells = []
        for kind in ("stories", "news"):
            speedup = statistics.mean(run[kind] for run in runs)
            per_pass = bench_row(record["rows"], name, kind)["tokens_per_pass"]
            cells.append(f"{speedup:.2f} ({per_pass:.2f})")
        rows.append([name, *cells])
    return markdown(["recipe", "stories", "news"], rows)


def predictors() -> str:
    """Shipped small predictors on held-out prompts, beside the best constant."""
    rows = []
    for kind, (unit, better) in PREDICTORS.items():
        record = json.loads((ROOT / SHIPPED / kind / "training.json").read_text(encoding="utf-8"))
        report, scores = record["report"], record["report"]["scores"]
        heads = ", ".join(record["facts"]["heads"])
        speeds = (scores.get("best constant"), scores.get("tokens per second"))
        constant, fitted = speeds if better > 0 else (report["before"], report["after"])
        ranking = f"{scores['ranking']:.2f}" if "ranking" in scores else ""
        ahead = "yes" if better * (fitted - constant) > CLEARLY * abs(constant) else "no"
        ahead = ahead if report["held"] >= FEW else "too few rows to tell"
        cells = [f"{report['rows']:,}", f"{report['held']:,}", unit, f"{constant:.4g}"]
        rows.append([f"`{kind}`", heads, *cells, f"{fitted:.4g}", ranking, ahead])
    names = ["kind", "head", "rows", "held out", "measure", "constant", "fitted", "ranking"]
    return markdown([*names, "better"], rows)


def head_kinds() -> str:
    """Kinds of heads at equal size and equal minutes, by tokens per pass in the largest tree."""
    if not (ROOT / RESULTS / HEADS).is_file():
        return NO_RECORD
    record = read(HEADS, ROOT)
    trees = list(record["trees"])
    rows = []
    for row in sorted(record["rows"], key=lambda row: -row["tokens_per_pass"][trees[-1]]):
        extra = f" + {row['output_parameters'] / 1e6:.1f}" if row["output_parameters"] else ""
        cells = [f"{row['parameters'] / 1e6:.1f}{extra}", f"{row['bytes'] / 1e6:.1f}"]
        cells += [f"{row['minutes']:.2f}", f"{row['steps']:,}"]
        cells += [f"{row['tokens_per_pass'][tree]:.2f}" for tree in trees]
        cells += [str(1 + row["run"])] if "runs" in record else []
        rows.append([f"`{row['kind']}`", *cells])
    run = ["run"] if "runs" in record else []
    made = markdown(["kind", "million weights", "MB", "minutes", "steps", *trees, *run], rows)
    if not (ROOT / "docs/pictures/head-curves.svg").is_file():
        return made
    return f"{made}\n![how the kinds of heads learn](pictures/head-curves.svg)\n"


def training_ways() -> str:
    """Ways of training a draft model at equal steps, on held-out texts."""
    record = read("distillation.json", ROOT)
    rows = [
        [row["way"], f"{row['accepted']:.3f}", f"{row['tokens_per_pass']:.2f}"]
        for row in record["rows"]
    ]
    return markdown(["way", "accepted", "tokens / pass"], rows)


SHIPPED = "src/sapwood/shipped/smollm2"
CLEARLY = 0.02  # of the constant's measure: a difference below this is none
FEW = 50  # held-out rows below which nothing is said
# measure of each predictor, and 1 if more of it is better, -1 if less
PREDICTORS = {
    "c2t": ("loss", -1),
    "ltd": ("tokens / s, replayed", 1),
    "specdec++": ("loss", -1),
    "ldlp": ("tokens / s, replayed", 1),
    "judge": ("loss", -1),
}
TABLES: dict[str, Callable[[], str]] = {
    "temperature.rules": evidence.rules_by_temperature,
    "temperature.orders": evidence.orders_by_temperature,
    "long.context": evidence.long_context,
    "predictors": predictors,
    "results": results,
    "cpu.engines": cpu_engines,
    "gpu.engines": gpu_engines,
    "serving.load": serving_load,
    "equal.groups": equal_groups,
    "pair.kinds": pair_kinds,
    "training.ways": training_ways,
    "heads": head_kinds,
}


# -------------------------------------------------------------------------------- documents
def filled(text: str) -> str:
    """A document with its figures and tables written anew."""
    text = FIGURE.sub(lambda match: f"{match[1]}{written(match['name'])}{match[3]}", text)
    return TABLE.sub(lambda match: f"{match[1]}{table(match['name'])}{match[3]}", text)


def table(name: str) -> str:
    """A table by its name; an unknown name is an error."""
    if name not in TABLES:
        raise SystemExit(f"no table is called {name}; see tools/figures.py")
    return TABLES[name]()


def faults(text: str) -> Iterator[str]:
    """Errors in the use of marks."""
    if len(OPEN.findall(text)) > len(FIGURE.findall(text)) + len(TABLE.findall(text)):
        yield "a mark is not closed"
    if re.search(r"^<!-- fig:", text, re.MULTILINE):
        yield "a figure begins a line, which ends the paragraph in Markdown"


def pages() -> Iterator[Path]:
    """All documents that may quote a figure."""
    for pattern in PAGES:
        yield from sorted(ROOT.glob(pattern))


def main(arguments: list[str]) -> int:
    """Fill the documents, compare them, or list the figures; the exit code."""
    if "--list" in arguments:
        for name, figure in FIGURES.items():
            sys.stdout.write(f"{name:32} {written(name):>8}  {figure.record}\n")
        return 0
    failed = 0
    for path in pages():
        old = path.read_text(encoding="utf-8")
        new = filled(old)
        for fault in faults(old):
            sys.stderr.write(f"{path.relative_to(ROOT)}: {fault}\n")
            failed = 1
        if new != old and "--check" in arguments:
            sys.stderr.write(f"{path.relative_to(ROOT)} differs from {RESULTS}; run make tables\n")
            failed = 1
        elif new != old:
            path.write_text(new, encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
