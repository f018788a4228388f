"""Tokens per pass on long texts: drafting over few keys, looking up, and `auto`.

    python benchmarks/long_context.py [--contexts 4096] [--prompts 2] [--tokens 24] --json FILE

Prompts are questions about a long ledger (the built-in suite `long`), filled up to the length. Each
is read once, and every recipe continues a copy of that session. The default is float32, in which
the model's own code shows the queries by which keys are chosen. Nothing is timed: passes, nodes and
accepted nodes do not depend on the machine.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from paired_record import PairedRecord, ratio, until

from sapwood.bench import provenance
from sapwood.bench.conversations import lengthened
from sapwood.bench.suites import digest, gather
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
# TriForce's 4096 keys are all that such texts have: the same rule with an eighth of them, too
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
    "triforce, 512 keys": CHUNKS,
}


def continued(
    engine: Engine, prompt: list[int], session: Session, sampling: Sampling
) -> tuple[list[int], list[float]]:
    """Tokens of a recipe after a prompt that was read, and [tokens, passes, nodes, accepted]."""
    found: list[int] = []
    passes = nodes = accepted = 0
    rng = KeyedRng(sampling.seed)
    with closing(RequestDecoder(engine, prompt, sampling, rng, session.fork())) as decoder:
        while len(found) < sampling.max_tokens and not decoder.full:
            [scores] = engine.target.score([decoder.draft()])
            outcome = decoder.finish_round(scores)
            found += outcome.tokens
            passes += 1
            nodes += len(outcome.tree) - 1
            accepted += outcome.verdict.accepted
    return found, [len(found), passes, nodes, accepted]


def summary(record: PairedRecord) -> dict[str, Any]:
    """A row for each length and recipe."""
    rows = []
    for name, values in record.values.items():
        context, recipe = name.split(maxsplit=1)
        table = list(values.values())
        found = ratio(table)
        passes, nodes, accepted, same = (sum(row[at] for row in table) for at in (1, 2, 3, 4))
        rows.append(
            {
                "context": int(context),
                "recipe": recipe,
                "tokens_per_pass": found.mean,
                "low": found.low,
                "high": found.high,
                "nodes_per_pass": round(nodes / passes, 2),
                "accepted_per_node": round(accepted / nodes, 4) if nodes else None,
                "identical": int(same),
                "prompts": len(table),
            }
        )
    return {"rows": rows}


def run(options: argparse.Namespace) -> None:
    """Measure what is left, and write the record."""
    busy = provenance.load()
    llm = LLM(options.model, PLAIN, dtype=options.dtype, threads=options.threads)
    info = llm.target.info
    prompts = gather(SUITE)[: options.prompts]
    settings = {
        "suite": SUITE,
        "digest": digest(prompts),
        "tokens": options.tokens,
        "recipes": RECIPES,
    }
    record = PairedRecord(options.json, settings)
    origin = provenance.origin(info, busy)
    late = until(options.seconds)
    engines = {name: llm.bind(resolve(spelling)) for name, spelling in RECIPES.items()}
    sampling = Sampling(max_tokens=options.tokens)
    for context in options.contexts:
        for prompt in prompts:
            left = [name for name in RECIPES if not done(record, context, name, prompt.name)]
            if not left:
                continue
            tokens = lengthened(prompt, context, info, llm.text).tokens(info, llm.text)
            session = llm.target.open(tokens[:-1])
            expected: list[int] | None = None
            for name in dict.fromkeys([PLAIN, *left]):
                if late():
                    break
                found, value = continued(engines[name], tokens, session, sampling)
                expected = expected or found
                kept = found[: options.tokens] == expected[: options.tokens]
                record.add(f"{context} {name}", prompt.name, [*value, float(kept)])
                record.write(origin, **summary(record))
                print(f"{context} {prompt.name} {name} {value}", file=sys.stderr, flush=True)
            session.close()
    record.write(origin, **summary(record))


def done(record: PairedRecord, context: int, name: str, prompt: str) -> bool:
    """True when this value is in the record."""
    return prompt in record.values.get(f"{context} {name}", {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096])
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
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
