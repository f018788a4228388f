"""Sections of the page of benchmarks for records of the scripts in benchmarks/."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tools import evidence, figures, model_evidence
from tools import record_values as values
from tools.benchmark_tables import (
    GPU_METHODS,
    HEADS,
    RESULTS,
    TITLES,
    Record,
    again,
    bench_section,
    cells_of,
    number,
    section,
)
from tools.evidence import markdown

from sapwood.bench.recipe_set import PLAIN


def engines_section(record: Record) -> Iterator[str]:
    """Engines in processes of their own, by benchmarks/cpu.py: newest runs, and earlier ones."""
    runs = values.latest(record)
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
    before = [f"{values.best(run, 'sapwood:auto', values.OVER):.2f}" for run in earlier]
    text = (
        f"{record['machine']['cpu']}, commit {values.state(last)}; {last['prompts']} prompts of "
        f"{last['tokens']} tokens, greedy, prompts interleaved; tokens per second after the first "
        "token, and against `sapwood plain`. "
    )
    text += f"`auto` in runs of earlier states of the code: {', '.join(before)}. " if before else ""
    heads = ["run", "engine", "tokens / s", "against plain", "same text"]
    file = f"File: [cpu-peers.json](../{RESULTS}/cpu-peers.json)."
    yield section(TITLES["cpu-peers.json"], text + file, markdown(heads, rows), runs[0]["command"])


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
    yield section(TITLES["cpu-pair.json"], text, markdown(["recipe", *kinds], rows), command)


def serving_section(record: Record) -> Iterator[str]:
    """Many requests at a time, by benchmarks/serving.py."""
    names = list(dict.fromkeys(row["run"] for row in record["rows"]))
    found = {(row["level"], row["run"]): f"{row['against_first']:.2f}" for row in record["rows"]}
    levels = sorted({level for level, _ in found})
    rows = [[str(level), *(found.get((level, name), "") for name in names)] for level in levels]
    text = (
        f"Tokens per second of all requests together, against plain; {record['machine']['cpu']}, "
        f"commit {values.state(record)}. "
        f"File: [cpu-serving.json](../{RESULTS}/cpu-serving.json)."
    )
    shown = markdown(["at a time", *names], rows)
    yield section(TITLES["cpu-serving.json"], text, shown, record["command"])


def heads_section(record: Record) -> Iterator[str]:
    """Kinds of heads at equal size and equal minutes, by benchmarks/heads.py."""
    machine = record["machine"]
    spent = [row["minutes"] for row in record["rows"]] or [0.0]
    text = (
        f"{record['model']['name']}, {machine.get('gpu') or machine['cpu']}, commit "
        f"{values.state(record)}; {sum(spent) / len(spent):.2g} minutes of {record['clock']} time "
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
    for count, run in enumerate(record.get("runs", [])[1:], 2):
        made += (
            f" Run {count}: commit {run['commit']}, {run['texts']['answer_tokens']:,} tokens, "
            f"{run['prompts']['count']} prompts of {run['settings']['max_tokens']} tokens"
        )
        repeats = [row for row in record["repeated"] if row["run"] == count - 1]
        both = [
            f"`{row['kind']}` makes {row['tokens_per_pass'][largest]:.2f} tokens per pass there, "
            f"{first[row['kind']]:.2f} in the first run"
            for row in repeats
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
        f"{record['machine']['cpu']}, commit {values.state(record)}. "
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
        f"{record['machine']['cpu']}, commit {values.state(record)}. "
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
        f"{values.state(record)}. File: [fleet.json](../{RESULTS}/fleet.json)."
    )
    yield section(TITLES["fleet.json"], text, markdown(["", ""], rows), record["command"])


def guest_section(record: Record) -> Iterator[str]:
    """Sapwood inside vLLM, by benchmarks/guest_vllm.py."""
    rows = [
        [suite, way, *(str(run[key]) for key in ("tokens", "drafted", "accepted")),
         f"{run['tokens_per_request_step']:.2f}", f"{run['same_as_plain']} of {run['texts']}"]
        for suite, ways in record["ways"].items()
        for way, run in ways.items()
    ]  # fmt: skip
    text = (
        f"vLLM {record['vllm']}, {record['machine']['cpu']}, commit {values.state(record)}; "
        f"{record['requests_at_a_time']} requests at a time. "
        f"File: [guest-vllm.json](../{RESULTS}/guest-vllm.json)."
    )
    heads = ["suite", "way", "tokens", "drafted", "accepted", "tokens / step", "same as plain"]
    yield section(TITLES["guest-vllm.json"], text, markdown(heads, rows), record["command"])


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
        "A pass on a GPU",
        text,
        markdown(["nodes", "on the device", "from the host"], rows),
        command,
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
        f"{device['name']}, float16, commit {values.state(record)}. {file}",
        markdown(heads, found),
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
            markdown(["recipe", "round", "device", "host"], rows),
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
        f"{record['machine']['gpu']}, commit {values.state(record)}. Seconds from the first "
        "submission to the last token, prefill included; texts are compared with those of plain "
        f"decoding alone. {record['note']} File: "
        f"[gpu-serving.json](../{RESULTS}/gpu-serving.json)."
    )
    yield section(TITLES["gpu-serving.json"], text, markdown(heads, rows), record["command"])


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
    return markdown(
        ["model", "context", *(f"{batch} x {nodes}" for batch, nodes in columns)], found
    )


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
