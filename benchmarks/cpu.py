"""Decoding on a CPU, beside other engines on the same prompts.

    python benchmarks/cpu.py SUITE.jsonl --prompts 12 --tokens 128 --json FILE \
        --runs sapwood:plain sapwood:auto hf llamacpp:FILE.gguf

Each run is a process of its own that waits while the others work; prompts are interleaved, so that
a busy minute hits all of them alike. Prefill is not counted: the clock runs from the first new
token to the last. Ratios are of summed seconds per token on the same prompts; greedy
throughout. A run is added to FILE with the commit and the command that made it.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# prompt, most tokens -> tokens, seconds after the first
Decode = Callable[[list[int], int], tuple[list[int], float]]


# ---------------------------------------------------------------------------------------- workers
def sapwood_worker(name: str, threads: int) -> Decode:
    """A recipe of ours, in a precision if named: `auto`, `plain:float32`."""
    from sapwood import LLM

    recipe, _, dtype = name.partition(":")
    llm = LLM("smollm2", recipe, dtype=dtype or None, threads=threads)

    def decode(prompt: list[int], most: int) -> tuple[list[int], float]:
        tokens: list[int] = []
        first, began = 0, 0.0
        for step in llm.stream(prompt, max_tokens=most):
            if not tokens:
                first = len(step.tokens)
                began = time.perf_counter()
            tokens += step.tokens
        # scaled to all tokens but the first: a first round of several tokens is not free
        return tokens, (time.perf_counter() - began) * (len(tokens) - 1) / max(
            len(tokens) - first, 1
        )

    return decode


def hf_worker(_: str, threads: int) -> Decode:
    """Transformers' own generate in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    from sapwood.backends.torch.resolve_model import find_folder

    torch.set_num_threads(threads)
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(find_folder("smollm2", lambda _: None), dtype=torch.float32).eval()

    def run(prompt: list[int], most: int) -> tuple[list[int], float]:
        began = time.perf_counter()
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most,
            do_sample=False,
            pad_token_id=2,
        )
        return out[0, len(prompt) :].tolist(), time.perf_counter() - began

    def decode(prompt: list[int], most: int) -> tuple[list[int], float]:
        _, prefill = run(prompt, 1)
        tokens, whole = run(prompt, most)
        return tokens, whole - prefill

    return decode


def llamacpp_worker(path: str, threads: int) -> Decode:
    """Plain decoding by llama.cpp, through its C interface."""
    import llama_cpp
    import numpy as np

    model = llama_cpp.Llama(
        path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
    )
    end = model.token_eos()

    def decode(prompt: list[int], most: int) -> tuple[list[int], float]:
        model.reset()
        model.eval(prompt)
        tokens = [best(model)]
        began = time.perf_counter()
        while len(tokens) < most and tokens[-1] != end:
            model.eval(tokens[-1:])
            tokens.append(best(model))
        return tokens, time.perf_counter() - began

    def best(model: Any) -> int:
        row = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
        return int(np.argmax(np.ctypeslib.as_array(row, shape=(model.n_vocab(),))))

    return decode


WORKERS = {"sapwood": sapwood_worker, "hf": hf_worker, "llamacpp": llamacpp_worker}


def serve(run: str, threads: int) -> None:
    """Answer prompts from standard input until it ends."""
    kind, _, rest = run.partition(":")
    decode = WORKERS[kind](rest, threads)
    decode(list(range(100, 132)), 8)  # warm
    print("ready", flush=True)
    for line in sys.stdin:
        tokens, seconds = decode(*json.loads(line))
        print(json.dumps([tokens, seconds]), flush=True)


class Worker:
    """A run in its own process."""

    def __init__(self, run: str, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", run, "--threads", str(threads)]
        self.run = run
        self.seconds: list[float] = []  # of each prompt, after the first token
        self.tokens: list[int] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.texts: list[list[int]] = []
        if self._read() != "ready":
            raise SystemExit(f"{run} did not start")

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, prompt: list[int], most: int) -> None:
        """Decode one prompt and keep the time."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([prompt, most]) + "\n")
        self.process.stdin.flush()
        tokens, seconds = json.loads(self._read())
        self.texts.append(tokens)
        self.tokens.append(len(tokens) - 1)
        self.seconds.append(seconds)

    def row(self, first: "Worker") -> dict[str, Any]:
        """Tokens per second, and the ratio to the first run."""
        rate = sum(self.tokens) / sum(self.seconds)
        logs = [
            math.log(rated(first, i) / rated(self, i))
            for i in range(len(self.seconds))
            if self.tokens[i] > 0
        ]
        same = sum(a == b for a, b in zip(self.texts, first.texts, strict=True))
        return {
            "run": self.run,
            "tokens_per_second": round(rate, 2),
            "against_first": round(rate * sum(first.seconds) / sum(first.tokens), 3),
            "mean_of_prompts": round(math.exp(sum(logs) / len(logs)), 3),
            "same_text_as_first": f"{same}/{len(self.texts)}",
        }


def rated(worker: Worker, index: int) -> float:
    """Seconds per token of one prompt."""
    return worker.seconds[index] / max(worker.tokens[index], 1)


# ------------------------------------------------------------------------------------------- main
def prompts_of(suite: Path, count: int) -> list[list[int]]:
    """First turns, spread over the file, as tokens of the built-in model."""
    from sapwood.backends.torch.resolve_model import find_folder
    from sapwood.tokenizer.tokenizer import Tokenizer

    text = Tokenizer.load(find_folder("smollm2", lambda _: None))
    rows = [json.loads(line) for line in suite.read_text().splitlines()]
    chosen = rows[:: max(1, len(rows) // count)][:count]
    return [text.chat([{"role": "user", "content": row["turns"][0]}]) for row in chosen]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="?", type=Path)
    parser.add_argument("--runs", nargs="+", default=["sapwood:plain", "sapwood:auto", "hf"])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.threads)
        return
    if options.suite is None or not options.suite.is_file():
        parser.error("name a suite: a JSONL file of {category, turns}")
    workers = [Worker(run, options.threads) for run in options.runs]
    for index, prompt in enumerate(prompts_of(options.suite, options.prompts), 1):
        for worker in workers[index % len(workers) :] + workers[: index % len(workers)]:
            worker.ask(prompt, options.tokens)
        print(f"{index} of {options.prompts} prompts", file=sys.stderr, flush=True)
    rows = [worker.row(workers[0]) for worker in workers]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    if options.json:
        add_run(options.json, {"prompts": options.prompts, "tokens": options.tokens, "rows": rows})


def add_run(path: Path, run: dict[str, Any]) -> None:
    """Add a run to a record, which is created if it does not exist."""
    from sapwood.bench import provenance

    record = (
        json.loads(path.read_text())
        if path.exists()
        else {"machine": {"cpu": provenance.cpu()}, "runs": []}
    )
    made = {"command": provenance.command(), "commit": provenance.commit(), **run}
    record["runs"].append(made)
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
