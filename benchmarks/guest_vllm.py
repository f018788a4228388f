"""Sapwood inside vLLM beside vLLM's own plain and n-gram decoding, on the same prompts.

python benchmarks/guest_vllm.py --python VLLM_PYTHON --model FOLDER --json FILE

VLLM_PYTHON is the interpreter of an environment with vLLM and sapwood, FOLDER a model in float32.
Every run is a process of its own. The prompts of a suite are given at once, of which `--requests`
run at a time. `copy` asks for text of the prompt; in `fresh`, a penalty keeps output tokens from
coming twice, so that a lookup finds nothing. `tokens_per_request_step` is that of decoding: one,
plus the accepted tokens of a request's share of a step. Two further runs have few KV blocks, so
that requests are preempted, and requests that are cancelled while others run. No seconds are
recorded: the counts are vLLM's own, and they do not depend on what else the machine does, except
that a guest decides by seconds when to rest.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sapwood.bench.prompts import ledger
from sapwood.bench.provenance import commit, cpu, load

MARK = "GUEST-RECORD "  # before the record on a child's standard output
SPECULATION: dict[str, dict[str, Any]] = {
    "plain": {},
    "ngram": {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 1},
    "sapwood": {"method": "custom_class", "model": "sapwood.guest.vllm.SapwoodProposer"},
}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
# options that the parent hands to every child
PASSED_ON = (
    "model", "prompts", "lines", "fresh", "requests", "tokens", "length", "context", "blocks",
)  # fmt: skip
TOPICS = ("rain", "rust", "bees", "tides", "salt", "glass", "maps", "bread", "wool", "clocks")


def suite(name: str, count: int, lines: int = 1) -> list[str]:
    """The prompts of a suite; those to copy have so many lines."""
    asks = ("Describe {}", "Tell a story about {}")
    if name == "fresh":
        return [asks[n % 2].format(TOPICS[n // 2 % len(TOPICS)]) for n in range(count)]
    return [f"Repeat the following text exactly:\n\n{ledger(600 + n, lines)}" for n in range(count)]


# ------------------------------------------------------------------------- inside vLLM's process
def open_engine(options: argparse.Namespace, blocks: int | None = None) -> Any:
    """VLLM with one way of decoding."""
    from vllm import LLM

    way = SPECULATION[options.child]
    more: dict[str, Any] = {}
    if way:
        more["speculative_config"] = {**way, "num_speculative_tokens": options.length}
    if blocks is not None:
        more |= {"num_gpu_blocks_override": blocks, "block_size": 32}
    return LLM(
        options.model,
        dtype="float32",
        max_model_len=options.context,
        max_num_seqs=options.requests,
        enable_prefix_caching=False,
        enforce_eager=True,
        disable_log_stats=False,
        **more,
    )


def counters(engine: Any) -> dict[str, int]:
    """VLLM's own counts of speculation and preemption."""
    wanted = {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "vllm:num_preemptions": "preemptions",
    }
    found = dict.fromkeys(wanted.values(), 0)
    for metric in engine.get_metrics():
        if metric.name in wanted:
            found[wanted[metric.name]] += int(metric.value)
    return found


def decode(engine: Any, prompts: list[str], options: argparse.Namespace, **more: Any) -> Any:
    """Decode prompts, all given at once; tokens of each, and counts."""
    from vllm import SamplingParams

    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    sampling = SamplingParams(temperature=0.0, max_tokens=options.tokens, **more)
    before = counters(engine)
    made = engine.chat(chats, sampling, use_tqdm=False)
    after = counters(engine)
    counts = {name: after[name] - before[name] for name in after}
    return {"texts": [list(one.outputs[0].token_ids) for one in made], **counts}


def decode_and_cancel(engine: Any, prompts: list[str], options: argparse.Namespace) -> Any:
    """Decode prompts and cancel every third after some steps; texts of the others by number."""
    from vllm import SamplingParams

    inner = engine.llm_engine
    tokenizer = engine.get_tokenizer()
    for number, prompt in enumerate(prompts):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        sampling = SamplingParams(temperature=0.0, max_tokens=options.tokens)
        inner.add_request(str(number), text, sampling)
    texts: dict[str, list[int]] = {}
    step = 0
    while inner.has_unfinished_requests():
        step += 1
        if step == 10:
            gone = [str(number) for number in range(0, len(prompts), 3)]
            inner.abort_request(gone)
        for output in inner.step():
            if output.finished and int(output.request_id) % 3:
                texts[output.request_id] = list(output.outputs[0].token_ids)
    return {"texts": texts, "cancelled": len(gone)}


def logged() -> int:
    """Steps in the guest's log so far."""
    path = Path(os.environ["SAPWOOD_GUEST_LOG"])
    return len(path.read_text().splitlines()) if path.is_file() else 0


def child(options: argparse.Namespace) -> int:
    """One run of one way, in the environment of vLLM."""
    prompts = suite("copy", options.prompts, options.lines)
    if options.trial == "preempt":
        engine = open_engine(options, options.blocks)
        record = decode(engine, prompts, options)
    elif options.trial == "cancel":
        record = decode_and_cancel(open_engine(options), prompts, options)
    else:
        engine = open_engine(options)
        record = {"copy": decode(engine, prompts, options), "logged": logged()}
        record["fresh"] = decode(
            engine,
            suite("fresh", options.fresh),
            options,
            frequency_penalty=2.0,
            presence_penalty=2.0,
            ignore_eos=True,
        )
    sys.stdout.write("\n" + MARK + json.dumps(record) + "\n")
    return 0


# ------------------------------------------------------------------------------ the measurement
def run_child(options: argparse.Namespace, folder: Path, way: str, trial: str = "") -> Any:
    """The record of one run in a process of its own; its log and cost file are in the folder."""
    command = [options.python, "-m", "benchmarks.guest_vllm", "--child", way, "--trial", trial]
    for name in PASSED_ON:
        command += [f"--{name}", str(vars(options)[name])]
    environment = {**os.environ, **QUIET}
    environment["SAPWOOD_GUEST_LOG"] = str(folder / f"steps-{way}{trial}.jsonl")
    environment["SAPWOOD_CACHE"] = str(folder / "cache")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise RuntimeError(f"the run of {way} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(lines[-1].removeprefix(MARK))


def summary(run: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Counts of one way and suite, and how many texts are those of plain decoding."""
    tokens = sum(map(len, run["texts"]))
    accepted = run["accepted"]
    return {
        **same(run["texts"], plain["texts"]),
        "tokens": tokens,
        "drafted": run["drafted"],
        "accepted": accepted,
        "tokens_per_request_step": tokens / (tokens - accepted),
    }


def same(texts: list[list[int]], plain: list[list[int]]) -> dict[str, int]:
    """Number of texts, and of those that are plain decoding's."""
    pairs = zip(texts, plain, strict=True)
    return {"texts": len(texts), "same_as_plain": sum(one == other for one, other in pairs)}


def lengths(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Draft lengths in logged steps: those that occur, and steps in which requests differ."""
    drafts = [step["drafted"] for step in steps]
    return {
        "steps": len(steps),
        "lengths": sorted({length for draft in drafts for length in draft}),
        "steps_with_different_lengths": sum(len(set(draft)) > 1 for draft in drafts),
        "steps_without_drafts": sum(not any(draft) for draft in drafts),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All runs, and the record of them. The first run of the guest begins without a cost file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = [
            *((way, "") for way in SPECULATION),
            ("sapwood", "preempt"),
            ("sapwood", "cancel"),
        ]
        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(lambda each: run_child(options, folder, *each), wanted))
        *first, preempted, cancelled = found
        runs = dict(zip(SPECULATION, first, strict=True))
        lines = (folder / "steps-sapwood.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    copied = runs["sapwood"]["logged"]
    drafts = {"copy": lengths(steps[:copied]), "fresh": lengths(steps[copied:])}
    plain = runs["plain"]["copy"]["texts"]
    rest = {int(number): text for number, text in cancelled["texts"].items()}
    return {
        "ways": {
            name: {way: summary(run[name], runs["plain"][name]) for way, run in runs.items()}
            for name in ("copy", "fresh")
        },
        "draft_lengths": drafts,
        "preemption": {
            "preemptions": preempted["preemptions"],
            **same(preempted["texts"], plain),
        },
        "cancellation": {
            "cancelled": cancelled["cancelled"],
            **same(list(rest.values()), [plain[number] for number in rest]),
        },
    }


def main(arguments: list[str]) -> int:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--lines", type=int, default=1, help="of the text to copy")
    parser.add_argument("--fresh", type=int, default=8, help="prompts of the suite fresh")
    parser.add_argument("--requests", type=int, default=8, help="that run at a time")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--length", type=int, default=8, help="most drafted tokens of a request")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument(
        "--blocks", type=int, default=16, help="of 32 tokens, where memory is short"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=list(SPECULATION), help=argparse.SUPPRESS)
    parser.add_argument("--trial", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return child(options)
    before = load()
    version = subprocess.run(
        [options.python, "-c", "from importlib.metadata import version as v, packages_distributions"
         " as p; print(v(p()['vllm'][0]))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    record = {
        "command": "python benchmarks/guest_vllm.py --python VLLM_PYTHON --model SmolLM2-135M"
        f" --prompts {options.prompts} --lines {options.lines} --tokens {options.tokens}"
        f" --length {options.length} --blocks {options.blocks} --jobs {options.jobs}",
        "commit": commit(),
        "machine": {"cpu": cpu(), "cores": os.cpu_count(), "load": before},
        "vllm": version,
        "model": {"name": Path(options.model).name, "dtype": "float32", "device": "cpu"},
        "prompts": options.prompts,
        "lines": options.lines,
        "requests_at_a_time": options.requests,
        "max_tokens": options.tokens,
        "most_drafted": options.length,
        **measure(options),
    }
    print(json.dumps(record, indent=1))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
