"""Time per token of a draft beside the target's pass, against the same chain drafted first.

    python benchmarks/overlap.py [--draft-layers 3,4,6] [--prompts 6] [--tokens 40] [--json FILE]
    python benchmarks/overlap.py --device cuda --layers 24 --widths 576,2048 --draft-layers 5,8,12
        --prompts 8 --tokens 96 --limit-seconds 55 --json FILE

The target is a Llama-like model of random weights, whose layers add little each, and the draft
model is its first layers with the same output head: they agree often enough to be like a trained
pair, and the share of a pass that a draft pass takes is that of the layers. Both run in int8, whose
compiled passes run without the interpreter's lock, or in another `--dtype`, with one thread each.
On a GPU both run in float16, each on a stream of its own; the kernels of two streams share the
device's memory, so a small model gains more than one that fills it.
The ways take turns on every prompt; the record has the mean ratio of their seconds per token,
prompt by prompt, with its 95 % bootstrap interval. `--limit-seconds` ends the command in time: each
pair of models has an equal share, and two prompts at least.

Where other programs use the machine, two threads have no two cores. `--clock processor` counts
processor seconds of each thread instead: a round takes those of the target's pass or of the draft
beside it, whichever are more, as if each had a core of its own. Memory that two cores would have to
share is not counted then.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import build
from sapwood.bench import provenance
from sapwood.bench.measure import rotated
from sapwood.controllers.fixed import Fixed
from sapwood.core.overlap import DraftWay, OverlapGauge
from sapwood.core.protocols import TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine import overlap
from sapwood.engine.loop import Engine
from sapwood.policies.pearl import Pearl
from sapwood.policies.specbranch import SpecBranch
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match

VOCAB = 2048
SAMPLES = 4000  # of the bootstrap
SHARP = 12.0  # scale of the output head, so that the best token has most of the probability
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WAYS = 5  # rows of each pair of models
QUIET = 0.06  # scale of what a layer adds, so that the first layers predict the last


class Held(OverlapGauge):
    """A gauge that keeps to one way."""

    def add(self, tokens: int, seconds: float) -> None:
        """Change nothing."""


class ProcessorPass:
    """Stands for the event that a pass is over: by processor seconds instead of the clock's."""

    seconds = 0.0  # of a pass, measured before
    offset = 0.0  # seconds that the target would have waited for drafts
    present: "ProcessorPass | None" = None

    def __init__(self) -> None:
        ProcessorPass.present = self
        self.begun = time.thread_time()
        self.spent = 0.0  # by the target
        self.draft = 0.0  # by the drafter
        self.first: float | None = None
        self.looks = -1  # at the clock, since the pass was over

    def set(self) -> None:
        """The pass is over."""
        self.spent = time.thread_time() - self.begun
        self.looks = 0

    def start(self) -> None:
        """The drafter begins."""
        self.first = time.thread_time()

    def is_set(self) -> bool:
        """True when the drafter has used as much as a pass takes."""
        assert self.first is not None
        self.draft = time.thread_time() - self.first
        return self.draft >= self.seconds

    @classmethod
    def now(cls) -> float:
        """Processor seconds of this thread, and those that it would have waited."""
        event = cls.present
        if event is not None and event.looks >= 0:
            event.looks += 1
            if event.looks == 2:  # after the pass, and after the draft
                cls.offset += max(0.0, event.draft - event.spent)
                cls.present = None
        return time.thread_time() + cls.offset


def by_processor(seconds: float) -> None:
    """Let rounds end by processor seconds."""
    ProcessorPass.seconds = seconds
    overlap.Event = ProcessorPass  # type: ignore[misc, assignment]
    expand = DraftModel.expand

    def timed(self: DraftModel, *given: Any) -> None:
        event = ProcessorPass.present
        if event is not None and event.first is None:
            event.start()
        expand(self, *given)

    DraftModel.expand = timed  # type: ignore[method-assign]


def model(layers: int, width: int, seed: int = 0) -> LlamaForCausalLM:
    """A random model whose layers add little to the residual stream."""
    torch.manual_seed(seed)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 64,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        made.model.embed_tokens.weight.mul_(20.0)
        made.lm_head.weight.mul_(SHARP)
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight.mul_(QUIET)
            layer.mlp.down_proj.weight.mul_(QUIET)
    return made.eval()


def first_layers(target: LlamaForCausalLM, layers: int, width: int) -> LlamaForCausalLM:
    """The target's first layers with its own embeddings and output head."""
    made = model(layers, width)
    own = target.state_dict()
    made.load_state_dict({name: own[name] for name in made.state_dict()})
    return made


def pass_seconds(backend: TorchBackend, rows: int = 1) -> float:
    """Median seconds of a pass: the processor's, or on a GPU those until its tokens are there."""
    now = time.thread_time if backend.device.type == "cpu" else time.perf_counter
    session = backend.open(list(range(64)))
    tree = Tree(1)
    for node in range(rows - 1):
        tree.add(node, 2, 1.0)
    taken = list[float]()
    for _ in range(15):
        start = now()
        [scores] = backend.score([TreeInput(session, tree)])
        scores.argmax()
        taken.append(now() - start)
    session.close()
    return statistics.median(taken)


def engines(
    target: TorchBackend, draft: TorchBackend, length: int, now: Callable[[], float]
) -> dict[str, Engine]:
    """One engine for each way."""
    found = dict[str, Engine]()
    for name, policy, way in (
        ("plain", Pearl(), DraftWay.NONE),
        ("chain", Pearl(), DraftWay.BEFORE),
        ("pearl", Pearl(first=2), DraftWay.BESIDE),
        ("specbranch", SpecBranch(first=2), DraftWay.BESIDE),
        ("pearl, measured", Pearl(first=2), None),
    ):
        recipe = Recipe(DraftModel(model=draft), policy, Match(), Fixed(length, length, 4))
        engine = Engine(target, recipe, now=now)
        if way is not None:
            engine.recipe.policy.gauge = Held(way=way)  # type: ignore[attr-defined]
        found[name] = engine
    return found


def run(engine: Engine, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Seconds per token of one request, and its counts."""
    text = list[int]()
    seconds = 0.0
    passes = drafted = accepted = discarded = 0
    for index, outcome in enumerate(
        engine.rounds(prompt, Sampling(max_tokens=tokens), KeyedRng(0))
    ):
        text += outcome.tokens
        if index:  # the first round includes the prefill of the draft model
            seconds += outcome.times.total
            passes += 1
        else:
            first = len(outcome.tokens)
        drafted += len(outcome.tree) - 1
        accepted += outcome.verdict.accepted
        discarded += outcome.discarded
        if len(text) >= tokens:
            break
    return {
        "text": text[:tokens],
        "seconds_per_token": seconds / (len(text) - first),
        "tokens_per_pass": (len(text) - first) / passes,
        "drafted": drafted,
        "accepted": accepted,
        "discarded": discarded,
    }


def backend_of(net: LlamaForCausalLM, name: str, dtype: str, device: str = "cpu") -> TorchBackend:
    """A backend of this model in this number format."""
    if device != "cpu":
        moved: Any = net.to(device, DTYPES[dtype])
        return build(moved, name, dtype, silent)
    return TorchBackend(net, name) if dtype == "float32" else build(net, name, dtype, silent)


def silent(_: str) -> None:
    """Report nothing."""


def measure(
    target: TorchBackend, width: int, layers: int, options: argparse.Namespace, end: float
) -> list[dict[str, Any]]:
    """One row for each way, with a draft model of so many layers; two prompts even after `end`."""
    with torch.device(options.device):
        first = first_layers(model(options.layers, width), layers, width)
    draft = backend_of(first, "its first layers", options.dtype, options.device)
    share = pass_seconds(draft) / pass_seconds(target)
    now = time.perf_counter
    if options.clock == "processor":
        by_processor(pass_seconds(target, 1 + options.length))
        now = ProcessorPass.now
    made = engines(target, draft, options.length, now)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in made}
    names = list(made)
    for name in names:
        run(made[name], list(range(32)), 16 if options.device == "cpu" else options.tokens)
    for index in range(options.prompts):
        if index >= 2 and time.monotonic() > end:
            break
        prompt = torch.randint(0, VOCAB, (32,), generator=torch.Generator().manual_seed(index))
        for name in rotated(names, index):
            runs[name].append(run(made[name], prompt.tolist(), options.tokens))
    rows = [{"width": width, **row(name, runs, layers, share)} for name in names]
    for found in rows:
        print(
            f"{share:.2f} {found['way']:<16} {found['over_chain']:.3f} ({found['low']:.3f} to "
            f"{found['high']:.3f}) of the chain, {found['tokens_per_pass']:.2f} tokens / pass, "
            f"waste {found['waste']:.2f}, same {found['same_text']}",
            flush=True,
        )
    return rows


def row(
    name: str, runs: dict[str, list[dict[str, Any]]], layers: int, share: float
) -> dict[str, Any]:
    """Numbers of one way."""
    every = runs[name]
    ratios = np.array(
        [
            one["seconds_per_token"] / other["seconds_per_token"]
            for one, other in zip(every, runs["chain"], strict=True)
        ]
    )
    draws = np.random.default_rng(0).integers(0, len(ratios), (SAMPLES, len(ratios)))
    low, high = np.quantile(ratios[draws].mean(axis=1), [0.025, 0.975])
    spent = sum(one["drafted"] + one["discarded"] for one in every)
    return {
        "way": name,
        "draft_layers": layers,
        "prompts": len(every),
        "draft_pass_over_target_pass": round(share, 3),
        "seconds_per_token": round(statistics.median(one["seconds_per_token"] for one in every), 5),
        "over_chain": round(float(ratios.mean()), 3),
        "low": round(float(low), 3),
        "high": round(float(high), 3),
        "tokens_per_pass": round(statistics.mean(one["tokens_per_pass"] for one in every), 3),
        "waste": round(1 - sum(one["accepted"] for one in every) / max(1, spent), 3),
        "same_text": sum(
            one["text"] == other["text"] for one, other in zip(every, runs["plain"], strict=True)
        ),
    }


def random_model(options: argparse.Namespace, width: int) -> LlamaForCausalLM:
    """The random target, made on its device."""
    with torch.device(options.device):
        return model(options.layers, width)


def measure_all(options: argparse.Namespace, write: Callable[[Any, list[Any]], None]) -> None:
    """Rows of all widths and draft models; `write` is called after each pair of models."""
    begin = time.monotonic()
    pairs = len(options.widths) * len(options.draft_layers)
    rows: list[dict[str, Any]] = []
    for width in options.widths:
        target = backend_of(
            random_model(options, width), "random target", options.dtype, options.device
        )
        for layers in options.draft_layers:
            done = len(rows) // WAYS + 1
            end = begin + options.limit_seconds * done / pairs
            rows += measure(target, width, layers, options, end)
            write(target.info, rows)


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--draft-layers", default="3,4,6", type=numbers)
    parser.add_argument("--widths", default="1024", type=numbers)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["int8", *DTYPES])
    parser.add_argument("--length", type=int, default=4, help="most drafted tokens of a pass")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.dtype = options.dtype or ("int8" if options.device == "cpu" else "float16")
    return options


def numbers(text: str) -> list[int]:
    """Numbers between commas."""
    return [int(one) for one in text.split(",")]


def main() -> None:
    """Measure, print and write the record."""
    options = arguments()
    load = provenance.load()
    if options.device == "cpu":
        torch.set_num_threads(1)

    def write(info: Any, rows: list[Any]) -> None:
        record = {
            **provenance.origin(info, load),
            "clock": options.clock,
            "threads": {"target": 1, "draft": 1},
            "layers": options.layers,
            "widths": options.widths,
            "length": options.length,
            "prompts": options.prompts,
            "tokens": options.tokens,
            "rows": rows,
        }
        if options.json is not None:
            options.json.write_text(json.dumps(record, indent=1) + "\n")

    measure_all(options, write)


if __name__ == "__main__":
    main()
