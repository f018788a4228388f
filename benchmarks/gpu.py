"""Speed of sapwood on a GPU: one table, one JSON file.

    python benchmarks/gpu.py --suite spec_bench.jsonl --json gpu.json --limit-seconds 300

Parts, in this order: (a) the device; (b) one pass by the number of nodes; (c) decoding, plain and
speculative, beside Hugging Face's generate on the same weights; (d) passes of larger models with
random weights. Needs torch, triton, transformers, safetensors, tokenizers and sapwood's sources.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_idle import idle_part
from gpu_shapes import shapes_part
from gpu_tools import Limit, Record, random_tree, seconds_of

from sapwood.bench import provenance
from sapwood.bench.measure import BenchRun, decode, rotated
from sapwood.bench.recipe_set import RecipeSet, assemble
from sapwood.bench.report import ALL, ReportRow, report
from sapwood.bench.suites import gather
from sapwood.core.protocols import TreeInput
from sapwood.core.sampling import Sampling
from sapwood.llm import LLM

RECIPES = {"plain": True, "eagle3": False, "auto": False}  # True if it must run
NODES = (1, 2, 4, 8, 16, 32, 64)
# requests that share a pass, and nodes of each tree: 64 to 512 rows
SHARED = ((8, 8), (8, 16), (32, 4), (32, 6), (64, 4), (64, 8))
CONTEXT = 512  # committed tokens of the passes by nodes
IDLE = 6  # further prompts on which the host's share is measured
HOT = 0.8  # temperature of the second run
HOT_RECIPES = ("plain", "auto")
# prompts, short to long, that every recipe decodes before those that count, which captures passes
WARM_UP = 12
GENERATE: dict[str, dict[str, Any]] = {  # Hugging Face's options
    "hf plain": {},
    "hf prompt lookup": {"prompt_lookup_num_tokens": 10},
    "hf static, compiled": {"cache_implementation": "static"},
}


# ------------------------------------------------------------------------------- (a) device
def device_part(device: torch.device, record: Record) -> float:
    """Name and copy bandwidth, bytes read and written a second."""
    cuda = device.type == "cuda"
    one = torch.zeros(1 << (30 if cuda else 22), dtype=torch.float16, device=device)
    other = torch.empty_like(one)
    rate = 2 * one.numel() * 2 / seconds_of(lambda: other.copy_(one), 10, cuda)
    name = torch.cuda.get_device_name(device) if cuda else "cpu"
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    record.say(f"(a) {name}, torch {torch.__version__}: copies {rate / 1e12:.2f} TB/s")
    record.keep("device", {"name": name, "copy_bytes_per_second": rate, **versions})
    return rate


# ----------------------------------------------------------------------------- (b) one pass
def pass_part(llm: LLM, record: Record, times: int) -> None:
    """Microseconds of a pass by nodes, and by trees that share it."""
    target: Any = llm.target
    rng = np.random.default_rng(0)
    room = min(CONTEXT, target.info.context - max(NODES) - 1)
    first = target.open(rng.integers(target.info.vocab, size=room).tolist())
    most = max(requests for requests, _ in SHARED)
    sessions = [first, *(first.fork() for _ in range(most - 1))]

    def timed(requests: int, nodes: int) -> dict[str, Any]:
        work = [
            TreeInput(session, random_tree(nodes, target.info.vocab, rng))
            for session in sessions[:requests]
        ]
        return {"nodes": nodes, **pass_times(target, work, times)}

    alone = [timed(1, nodes) for nodes in NODES]
    shared = [{"requests": requests, **timed(requests, nodes)} for requests, nodes in SHARED]
    for session in sessions:
        session.close()
    record.say(f"(b) one pass after {room} tokens, us by nodes: on the device | from the host")
    record.say("    " + "  ".join(f"{row['nodes']}: {both(row)}" for row in alone))
    record.say(
        "    " + "  ".join(f"{row['requests']} x {row['nodes']}: {both(row)}" for row in shared)
    )
    record.keep("pass", {"context": room, "rows": alone, "shared": shared})


def pass_times(target: Any, work: Sequence[TreeInput], times: int) -> dict[str, float | None]:
    """Microseconds of a pass over these trees: on the device alone, and from the host."""
    cuda = target.device.type == "cuda"

    def whole() -> None:
        target.score(work)[-1].argmax()

    around = seconds_of(whole, times, cuda=False)
    step = getattr(getattr(target, "fused", None), "last", None)
    inside = seconds_of(step, times, cuda) if cuda and step is not None else None
    return {"replay_us": inside and inside * 1e6, "host_us": around * 1e6}


def both(row: dict[str, Any]) -> str:
    """The two times of a pass as text."""
    return f"{us(row['replay_us'])} | {us(row['host_us'])}"


def us(number: float | None) -> str:
    """Microseconds as text."""
    return "-" if number is None else f"{number:.0f}"


# ----------------------------------------------------------------------------- (c) decoding
def interleaved(
    lineup: RecipeSet,
    warm: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    sampling: Sampling,
    limit: Limit,
) -> tuple[dict[str, list[BenchRun]], int]:
    """Runs of every recipe on every prompt, in turn; and the number of prompts within the time."""
    for name, text in [(name, text) for text in warm for name in lineup.engines]:
        if limit.left > 0:
            decode(lineup.engines[name], text, sampling)
    runs: dict[str, list[BenchRun]] = {name: [] for name in lineup.engines}
    for place, text in enumerate(texts):
        if limit.left <= 0 and place:
            return runs, place
        for name in rotated(list(lineup.engines), place):
            runs[name].append(decode(lineup.engines[name], text, sampling))
    return runs, len(texts)


def decoding_part(llm: LLM, ask: argparse.Namespace, limit: Limit, record: Record) -> None:
    """Recipes at temperature 0 and hot, and Hugging Face on some of the same prompts."""
    assert llm.text is not None, "decoding needs a tokenizer"
    every = gather(ask.suite, (), ask.prompts + WARM_UP + IDLE)
    whole = [prompt.tokens(llm.target.info, llm.text) for prompt in every]
    prompts = every[: ask.prompts]
    texts = whole[: ask.prompts]
    others = whole[ask.prompts : ask.prompts + WARM_UP]
    # no text twice: lookup drafters would know it
    warm = sorted([*others, max(texts, key=len)[::-1]], key=len)
    cold = Sampling(max_tokens=ask.tokens, stop_ids=llm.text.eos)
    lineup = assemble(llm, RECIPES)
    per_pass = {}
    kept = {}
    for name, sampling, part in (
        ("greedy", cold, 0.5),
        ("hot", replace(cold, temperature=HOT), 0.5),
    ):
        wanted = (
            lineup
            if name == "greedy"
            else RecipeSet({k: v for k, v in lineup.engines.items() if k in HOT_RECIPES})
        )
        runs, done = interleaved(wanted, warm, texts, sampling, limit.share(part))
        rows = report(llm.target, wanted, prompts[:done], texts[:done], runs, sampling)
        kept[name] = [asdict(row) for row in rows]
        record.say(
            f"(c) decoding, {done} of {len(texts)} prompts, {ask.tokens} tokens, "
            f"temperature {sampling.temperature}"
        )
        for row in rows:
            show(row, record)
        for recipe, engine_runs in runs.items():
            passes = sum(run.passes for run in engine_runs)
            per_pass[name, recipe] = sum(run.seconds for run in engine_runs) / passes
        record.keep("decoding", kept)
        if name == "greedy":
            plain = [run.tokens for run in runs["plain"]]
            if llm.target.info.name == "fused":
                idle_part(lineup, whole[ask.prompts + WARM_UP :], cold, record)
    for recipe in (r for r in HOT_RECIPES if ("hot", r) in per_pass):
        cost = per_pass["hot", recipe] / per_pass["greedy", recipe]
        record.say(f"    a pass of {recipe} at temperature {HOT} takes {cost:.3f} x one at 0")
        kept[f"{recipe} hot / greedy, per pass"] = cost
    record.keep("decoding", kept)
    if ask.hf_prompts:
        count = min(ask.hf_prompts, len(plain))
        generate_part(llm, texts[:count], plain[:count], ask, limit, record)


def show(row: ReportRow, record: Record) -> None:
    """Print one row of a table of recipes, and the gaps of outputs that differ from plain's."""
    label = f"    {row.recipe:8s} {row.category:16s}"
    if row.skipped is not None:
        record.say(f"{label} could not run: {row.skipped}")
        return
    shares = "/".join(
        f"{100 * (share or 0):.0f}"
        for share in (row.draft_share, row.verify_share, row.other_share)
    )
    same = "" if row.identical is None else f" same text {row.identical}/{row.prompts}"
    record.say(
        f"{label} {row.tokens_per_second:7.1f} tokens/s  {row.speedup:.2f}x ({row.speedup_low:.2f}-"
        f"{row.speedup_high:.2f})  {row.tokens_per_pass:.2f} tokens/pass  "
        f"{row.nodes_per_pass:.1f} nodes  draft/verify/host {shares} %{same}"
    )
    if row.category == ALL:
        for item in row.divergences:
            gap = "-" if item.gap is None else f"{item.gap:.4f}"
            record.say(
                f"      {item.prompt} parts at {item.position}, gap {gap}, "
                f"{'tie' if item.tie else 'NO TIE'}"
            )


def generate_part(
    llm: LLM,
    texts: Sequence[list[int]],
    plain: Sequence[list[int]],
    ask: argparse.Namespace,
    limit: Limit,
    record: Record,
) -> None:
    """Hugging Face's generate on the first prompts: seconds of all tokens but the first."""
    import transformers

    assert llm.text is not None
    target: Any = llm.target
    model = transformers.AutoModelForCausalLM.from_pretrained(
        target.model.config._name_or_path, dtype=target.dtype, attn_implementation="sdpa"
    ).to(target.device)
    kept = {}
    ends = sorted(llm.text.eos)
    for name, options in GENERATE.items():
        if limit.left <= 0 or (ask.no_compile and "compiled" in name):
            record.say(f"    {name}: left out")
            continue
        spent = tokens = same = done = 0
        for place, text in enumerate([max(texts, key=len), *texts]):  # the longest first, uncounted
            if done and limit.left <= 0:
                break
            first, _ = generate(model, text, 1, ends, options)
            rest, output = generate(model, text, ask.tokens, ends, options)
            if place:
                spent = spent + rest - first
                tokens = tokens + len(output) - 1
                done = done + 1
                same += output == plain[place - 1]
        rate = tokens / spent if spent > 0 else float("nan")
        record.say(
            f"    {name:20s} {rate:7.1f} tokens/s on {done} of the prompts, "
            f"same text as plain {same}/{done}"
        )
        kept[name] = {
            "tokens_per_second": rate,
            "prompts": done,
            "identical": same,
            "tokens": tokens,
            "seconds": spent,
        }
        record.keep("generate", kept)


def generate(
    model: Any, text: list[int], tokens: int, ends: list[int], options: dict[str, Any]
) -> tuple[float, list[int]]:
    """Seconds of one call, and its output."""
    ids = torch.tensor([text], device=model.device)
    start = time.perf_counter()
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        **options,
    )
    output = made[0, len(text) :].tolist()  # waits for the device
    return time.perf_counter() - start, output


# ------------------------------------------------------------------------------------- main
def options() -> argparse.Namespace:
    """The command line's options."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    asked.add_argument("--model", default="smollm2")
    asked.add_argument("--device", default=None, help="cuda where there is one, else cpu")
    asked.add_argument("--dtype", default=None)
    asked.add_argument(
        "--suite", default="chat,copy", help="JSONL file of prompts, or built-in suites"
    )
    asked.add_argument("--prompts", type=int, default=48)
    asked.add_argument("--tokens", type=int, default=128)
    asked.add_argument(
        "--hf-prompts", type=int, default=6, help="of these, for Hugging Face; 0 for none"
    )
    asked.add_argument(
        "--no-compile", action="store_true", help="leave Hugging Face's compiled run out"
    )
    asked.add_argument("--parts", default="a,b,c,d")
    asked.add_argument("--shapes", default="1B,8B,32B", help="of part d")
    asked.add_argument("--times", type=int, default=30, help="runs of which a time is the median")
    asked.add_argument("--limit-seconds", type=float, default=float("inf"))
    asked.add_argument("--json", type=Path, default=None)
    return asked.parse_args()


def main() -> None:
    """Run the parts in order, as far as the time goes."""
    ask = options()
    limit = Limit(ask.limit_seconds)
    record = Record(ask.json)
    record.keep("command", provenance.command())
    record.keep("commit", provenance.commit())
    parts = ask.parts.split(",")
    device = torch.device(ask.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    rate = device_part(device, record)
    if {"b", "c"} & {*parts}:
        with LLM(ask.model, "plain", device=str(device), dtype=ask.dtype) as llm:
            if "b" in parts:
                pass_part(llm, record, ask.times)
            if "c" in parts:
                decoding_part(llm, ask, limit.share(0.7 if "d" in parts else 1.0), record)
            del llm
    if "d" in parts:
        shapes_part(ask.shapes.split(","), device, rate, ask.times, limit, record)
    sys.stdout.write("\n" + "\n".join(record.lines) + "\n")


if __name__ == "__main__":
    main()
