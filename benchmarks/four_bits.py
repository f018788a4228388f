"""Decoding a 4-bit GGUF file: int4 against int8 and against llama.cpp, a few tokens in turns.

    python benchmarks/four_bits.py SUITE.jsonl --file MODEL.gguf --json FILE [--seconds 60]

Every engine runs in a process of its own, with the same file and the same number of threads, and
decodes the same prompts greedily, each once, so that no drafter finds an earlier text of its own.
Prompts are spread over the categories of the suite; long ones lose their middle.
`auto` runs with trained heads hidden, and once more with its head where the weights have one.
Engines take turns of some tokens, so that a machine that becomes slower or faster treats them
alike; the others sleep meanwhile. A turn's seconds are those of its tokens; prefill is not timed.
Plain decoding is compared by medians of seconds per token, recipes with trees by their means, as
a tree's tokens come in bursts; with 95 % bootstrap intervals over rounds of turns.
"""

import argparse
import json
import multiprocessing as mp
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from paired_record import command, draws, estimate, until

from sapwood.backends.torch.gguf_samples import fingerprint_of_gguf
from sapwood.bench import provenance
from sapwood.bench.suites import BenchPrompt, digest, gather
from sapwood.common.drafter_store import HIDE, has
from sapwood.common.gguf_header import read_header
from sapwood.errors import SapwoodError

TURN = 16  # tokens
LENGTH = 192  # tokens of an answer, with those that are not timed
LONGEST = 700  # tokens of a prompt
REST = 0.03  # seconds after a turn in which threads that spin come to rest
PEER = "llama.cpp"
WITH_HEAD = "with head"
ENGINES = ("int8 plain", "int4 plain", "int4 auto")
HEAD_ENGINES = (f"int8 auto {WITH_HEAD}", f"int4 auto {WITH_HEAD}")
# an engine over another
RATIOS = {
    "int4 over int8": ("int4 plain", "int8 plain"),
    "plain over llama.cpp": ("int4 plain", PEER),
    "auto over llama.cpp": ("int4 auto", PEER),
    "auto over plain": ("int4 auto", "int4 plain"),
    "auto with head over plain": (HEAD_ENGINES[1], "int4 plain"),
    "auto with head over llama.cpp": (HEAD_ENGINES[1], PEER),
    "int8 auto with head over llama.cpp": (HEAD_ENGINES[0], PEER),
}


# --------------------------------------------------------------------------------------- engines
def fitting(tokens: list[int]) -> list[int]:
    """A prompt; a long one without its middle."""
    half = LONGEST // 2
    return tokens if len(tokens) <= LONGEST else [*tokens[:half], *tokens[-half:]]


def own_tokens(
    file: str, engine: str, threads: int, suite: Sequence[BenchPrompt]
) -> tuple[list[list[int]], dict[str, Any], Callable[[int], Any]]:
    """The prompts in tokens, the machine, and a function that begins to decode one of them."""
    from sapwood.llm import LLM

    dtype, recipe, *_ = engine.split()
    llm = LLM(file, recipe, dtype=dtype, threads=threads)
    prompts = [fitting(prompt.tokens(llm.target.info, llm.text)) for prompt in suite]

    def begin(number: int) -> Iterator[int]:
        """Tokens, several at a time where drafts were accepted."""
        for step in llm.stream(prompts[number], max_tokens=LENGTH):
            yield len(step.tokens)

    return prompts, provenance.machine(llm.target.info, None), begin


def peer_tokens(file: str, prompts: list[list[int]], threads: int) -> Callable[[int], Any]:
    """A function that begins to decode one of the prompts with llama.cpp."""
    import llama_cpp

    model: Any = llama_cpp.Llama(
        file,
        n_ctx=1024,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=True,
        verbose=False,
    )

    def begin(number: int) -> Iterator[int]:
        """Tokens, one at a time."""
        model.reset()
        for _ in model.generate(prompts[number], temp=0.0, top_k=1, reset=True):
            yield 1

    return begin


def serve(
    pipe: Connection, file: str, engine: str, threads: int, suite: Sequence[BenchPrompt]
) -> None:
    """Decode in turns: the reply to each message is tokens and seconds."""
    os.environ[HIDE] = "0" if engine.endswith(WITH_HEAD) else "1"
    if engine == PEER:
        begin = peer_tokens(file, pipe.recv(), threads)
    else:
        prompts, machine, begin = own_tokens(file, engine, threads, suite)
        pipe.send((prompts, machine))
    running: Iterator[int] = iter(())
    left = number = 0
    while pipe.recv():
        if left <= 0:
            if number == len(suite):
                pipe.send(None)
                return
            running = begin(number)
            number += 1
            left = LENGTH - next(running) - 2 * TURN  # the first one has the prefill
        made = new = 0
        start = time.perf_counter()
        while made < TURN and (new := next(running, 0)):
            made += new
        pipe.send((made, time.perf_counter() - start))
        left = left - made if new else 0  # 0: the text has ended


# ------------------------------------------------------------------------------------- measuring
def measure(
    file: str,
    engines: Sequence[str],
    threads: int,
    suite: Sequence[BenchPrompt],
    over: Callable[[], bool],
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The machine, and seconds per token of each engine, by round of turns."""
    context = mp.get_context("spawn")
    pipes: dict[str, Any] = {}
    workers = []
    prompts: list[list[int]] = []
    machine: dict[str, Any] = {}
    for engine in engines:
        pipe, other = context.Pipe()
        worker = context.Process(
            target=serve, args=(other, file, engine, threads, suite), daemon=True
        )
        worker.start()
        workers.append(worker)
        pipes[engine] = pipe
        if engine == PEER:
            pipe.send(prompts)
        else:
            prompts, machine = pipe.recv()

    def turn(engine: str) -> float | None:
        """Seconds per token of one turn; None if there is no further prompt."""
        while True:
            pipes[engine].send(True)
            reply = pipes[engine].recv()
            time.sleep(REST)
            if reply is None:
                return None
            made, seconds = reply
            if made:  # a text may end before its turn
                return float(seconds / made)

    for engine in engines:
        turn(engine)  # compiles
    found: dict[str, list[float]] = {engine: [] for engine in engines}
    while not over():
        times = [each for engine in engines if (each := turn(engine)) is not None]
        if len(times) < len(engines):
            break
        for engine, each in zip(engines, times, strict=True):
            found[engine].append(each)
    for worker in workers:
        worker.terminate()
    return machine, found


def compare(found: dict[str, list[float]], engine: str, base: str) -> dict[str, float]:
    """Tokens per second of an engine over those of another."""
    ours, theirs = (np.array(found[name]) for name in (engine, base))
    middle = np.mean if "auto" in engine else np.median
    places = draws(len(ours))
    samples = middle(theirs[places], axis=1) / middle(ours[places], axis=1)
    return estimate(float(middle(theirs) / middle(ours)), samples)._asdict()


def engines_of(file: str) -> tuple[str, ...]:
    """The engines that decode a file, llama.cpp last: it needs the tokens of the others."""
    path = Path(file)
    weights = fingerprint_of_gguf(path, read_header(path))
    heads = HEAD_ENGINES if has("eagle3", file, weights) else ()
    return (*ENGINES, *heads, PEER)


def figures(found: dict[str, list[float]]) -> dict[str, Any]:
    """What the record says about a file."""
    pairs = {name: pair for name, pair in RATIOS.items() if set(pair) <= set(found)}
    return {
        "rounds": len(found[PEER]),
        "ms per token": {
            name: round(1e3 * float(np.median(rows)), 3) for name, rows in found.items()
        },
        **{name: compare(found, *pair) for name, pair in pairs.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each file, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", help="a JSONL file of prompts")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--file", action="append", required=True, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=60, help="for each file")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args(argv)
    busy = provenance.load()
    suite = gather(args.suite, limit=args.prompts, turns=1)
    files = {}
    known = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
    for file in args.file:
        started = time.perf_counter()
        engines = engines_of(file)
        machine, found = measure(file, engines, args.threads, suite, until_ready(args.seconds))
        sys.stderr.write(f"{Path(file).name}: {time.perf_counter() - started:.0f} s\n")
        files[Path(file).name] = figures(found)
    record = {
        "command": command([args.suite, *args.file]),
        "commit": provenance.commit(),
        "machine": {**machine, "load": busy},
        "settings": {
            "turn": TURN,
            "tokens": LENGTH,
            "threads": args.threads,
            "prompts": digest(suite),
        },
        "files": {**known.get("files", {}), **files},
    }
    args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(record["files"], indent=1) + "\n")
    return 0


def until_ready(seconds: float) -> Callable[[], bool]:
    """`until` that begins with its first call, when all engines have loaded."""
    over: Callable[[], bool] | None = None

    def ask() -> bool:
        nonlocal over
        over = over or until(seconds)
        return over()

    return ask


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SapwoodError as error:
        sys.exit(f"four_bits: {error}")
