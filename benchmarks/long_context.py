"""Recipes on long texts: drafting over few keys, looking up, and `auto`; tokens per pass and time.

    python benchmarks/long_context.py [--contexts 4096 8192 16384] [--prompts 2] --json FILE
    python benchmarks/long_context.py --dtype int8 --json FILE

Prompts are questions about a long ledger (the built-in suite `long`), filled up so that the answer
ends at the length. Each is read once, and every recipe continues a copy of that session, in an
order that rotates from prompt to prompt. Texts beyond the model's context are read with its rotary
embedding scaled by YaRN, which a copy of its folder asks for. In float32 the model's own code shows
the queries by which keys are chosen; in int8 the last keys are seen instead. Seconds are those
behind the first round, in which a draft model reads the text, so that their ratio to plain
decoding's of the same prompt is a speed of decoding. A second dtype goes into the same file, which
has the origin of each.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paired_record import PairedRecord, draws, estimate, ratio, until

from sapwood.backends.torch.resolve_model import find_folder
from sapwood.bench import provenance
from sapwood.bench.conversations import lengthened
from sapwood.bench.measure import rotated
from sapwood.bench.suites import BenchPrompt, digest, gather
from sapwood.core.protocols import Session
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import resolve

SUITE = "long"
PLAIN = "plain"
# TriForce's 4096 keys are all that the shortest text has: the same rule with an eighth of them, too
CHUNKS = (
    "sparse-kv(recent=60, chosen=448, chunk=8) + chain + match + fixed(nodes=6, depth=6, width=1)"
)
WINDOW = "sparse-kv(recent=252) + chain + match + fixed(nodes=3, depth=3, width=1)"
RECIPES = {
    PLAIN: PLAIN,
    "suffix": "suffix",
    "auto": "auto",
    "sparse-kv": "sparse-kv",
    "sparse-kv, window alone": WINDOW,
    "triforce": "triforce",
    "triforce, 512 keys": CHUNKS,
}
# columns of a value
PASSES, NODES, ACCEPTED, SECONDS, TIMED, SAME = range(1, 7)  # tokens are before them
WARM = 64  # tokens of the text on which code is compiled that is not timed


@contextmanager
def scaled(model: str, length: int) -> Iterator[str]:
    """A model that reads so many tokens: itself, or a folder of it with a scaled embedding."""
    folder = find_folder(model, lambda line: print(line, file=sys.stderr))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    trained = config["max_position_embeddings"]
    if length <= trained:
        yield model
        return
    known = config.pop("rope_parameters", None) or config.pop("rope_scaling", None) or {}
    theta = known.get("rope_theta", config.get("rope_theta", 10000.0))
    config["rope_parameters"] = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": float(-(-length // trained)),
        "original_max_position_embeddings": trained,
    }
    config["max_position_embeddings"] = length
    with tempfile.TemporaryDirectory() as place:
        for file in folder.iterdir():
            if file.name != "config.json":
                os.symlink(file.resolve(), Path(place) / file.name)
        (Path(place) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield place


def continued(
    engine: Engine, prompt: list[int], session: Session, sampling: Sampling
) -> tuple[list[int], list[float]]:
    """Tokens of a recipe after a prompt that was read, and the columns of its value but SAME."""
    found: list[int] = []
    passes = nodes = accepted = first = 0
    began = 0.0
    rng = KeyedRng(sampling.seed)
    with closing(RequestDecoder(engine, prompt, sampling, rng, session.fork())) as decoder:
        while len(found) < sampling.max_tokens and not decoder.full:
            [scores] = engine.target.score([decoder.draft()])
            outcome = decoder.finish_round(scores)
            found += outcome.tokens
            passes += 1
            nodes += len(outcome.tree) - 1
            accepted += outcome.verdict.accepted
            if not first:
                first, began = len(found), time.perf_counter()
        seconds = time.perf_counter() - began
    return found, [len(found), passes, nodes, accepted, seconds, len(found) - first]


# -------------------------------------------------------------------------------------- the record
def summary(record: PairedRecord) -> dict[str, Any]:
    """A row for each dtype, length and recipe."""
    rows = []
    for name, values in record.values.items():
        dtype, context, recipe = name.split(maxsplit=2)
        plain = record.values[thing(dtype, int(context), PLAIN)]
        table = list(values.values())
        found = ratio(table)
        passes, nodes, accepted, same = (
            sum(row[at] for row in table) for at in (PASSES, NODES, ACCEPTED, SAME)
        )
        rows.append(
            {
                "dtype": dtype,
                "context": int(context),
                "recipe": recipe,
                "tokens_per_pass": found.mean,
                "low": found.low,
                "high": found.high,
                "speedup": speedup([(plain[prompt], row) for prompt, row in values.items()]),
                "nodes_per_pass": round(nodes / passes, 2),
                "accepted_per_node": round(accepted / nodes, 4) if nodes else None,
                "identical": int(same),
                "prompts": len(table),
            }
        )
    return {"rows": rows}


def speedup(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float] | None:
    """Plain decoding's seconds per token over a recipe's, mean over prompts with its interval.

    Prompts whose answer ended with the first round have no seconds; None if all did.
    """
    ratios = np.array(
        [pace(plain) / pace(row) for plain, row in pairs if plain[TIMED] and row[TIMED]]
    )
    if not len(ratios):
        return None
    return estimate(ratios.mean(), ratios[draws(len(ratios))].mean(axis=1))._asdict()


def pace(value: Sequence[float]) -> float:
    """Seconds per token behind the first round."""
    return value[SECONDS] / value[TIMED]


def thing(dtype: str, context: int, recipe: str) -> str:
    """Name of a row's values in the record."""
    return f"{dtype} {context} {recipe}"


def origins(path: Path, dtype: str, own: dict[str, Any]) -> dict[str, Any]:
    """The origin of each dtype's rows, with this run's own in the place of an earlier one."""
    found = json.loads(path.read_text(encoding="utf-8"))["origins"] if path.exists() else {}
    return {**found, dtype: own}


# ------------------------------------------------------------------------------------ measurements
def run(options: argparse.Namespace) -> None:
    """Measure what is left, length by length, and write the record."""
    busy = provenance.load()
    late = until(options.seconds)
    prompts = gather(SUITE)[: options.prompts]
    settings = {
        "suite": SUITE,
        "model": options.model,
        "digest": digest(prompts),
        "tokens": options.tokens,
        "recipes": RECIPES,
    }
    record = PairedRecord(options.json, settings)
    for context in options.contexts:
        known = record.values.get(thing(options.dtype, context, PLAIN), {})
        left = [prompt for prompt in prompts if prompt.name not in known]
        if not left or late():
            continue
        with scaled(options.model, context) as model:
            # with the cost of passes measured, by which `auto` chooses
            llm = LLM(model, "auto", dtype=options.dtype, threads=options.threads)
            info = replace(llm.target.info, model=options.model)
            origin = provenance.origin(info, busy)
            made = origins(options.json, options.dtype, origin)
            for values in measured(llm, options, context, left):
                for name, prompt, value in values:
                    record.add(name, prompt, value)
                record.write({**origin, "origins": made}, **summary(record))
                if late():
                    break


def measured(
    llm: LLM, options: argparse.Namespace, context: int, prompts: Sequence[BenchPrompt]
) -> Iterator[list[tuple[str, str, list[float]]]]:
    """Names, prompt and value of every recipe, prompt by prompt."""
    info = llm.target.info
    engines = {name: llm.bind(resolve(spelling)) for name, spelling in RECIPES.items()}
    sampling = Sampling(max_tokens=options.tokens)
    for number, prompt in enumerate(prompts):
        filled = lengthened(prompt, context - options.tokens, info, llm.text)
        tokens = filled.tokens(info, llm.text)
        if not number:
            warm_up(llm, tokens[:WARM])
        found = {}
        with closing(llm.target.open(tokens[:-1])) as session:
            for name in rotated(list(RECIPES), number):
                found[name] = continued(engines[name], tokens, session, sampling)
                print(f"{context} {prompt.name} {name} {found[name][1]}", file=sys.stderr)
        expected = found[PLAIN][0][: options.tokens]
        yield [
            (
                thing(options.dtype, context, name),
                prompt.name,
                [*value, text[: options.tokens] == expected],
            )
            for name, (text, value) in found.items()
        ]


def warm_up(llm: LLM, tokens: list[int]) -> None:
    """Decode a short text by every recipe, with engines of their own."""
    with closing(llm.target.open(tokens[:-1])) as session:
        for spelling in RECIPES.values():
            engine = llm.bind(resolve(spelling))
            continued(engine, tokens, session, Sampling(max_tokens=8))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, help="stop after this time; run again to go on")
    parser.add_argument("--json", type=Path, required=True)
    try:
        run(parser.parse_args(arguments))
    except SapwoodError as error:
        print(f"long_context: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
