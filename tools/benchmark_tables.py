"""Tables of the page of benchmarks: a section for a record of `sapwood bench`, and its parts."""

import json
import shlex
from pathlib import Path
from typing import Any

from tools import evidence, model_evidence
from tools.evidence import markdown

RESULTS = "benchmarks/results"
Record = dict[str, Any]
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


def read(path: Path) -> Record:
    """A record."""
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def section(title: str, text: str, table: str, command: str) -> str:
    """A titled table with its source and its command."""
    return f"## {title}\n\n{text}\n\n{table}\nMade by:\n\n```\n{command}\n```\n"


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
    shown = markdown([*(["setting"] if swept else []), *HEADS], cells)
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
