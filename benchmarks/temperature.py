"""Expected tokens per pass of every lossless acceptance rule at equal places, trees and drafters.

    python benchmarks/temperature.py SUITE [--prompts 12] [--places 8] --json FILE

Sampling noise hides what tells the rules apart. So the target writes a text at each temperature,
every rule is asked at the same places of that text, and its verdict is not drawn but enumerated:
all coins of the rule on the drafted tree, each with its probability, give the exact expectation of
accepted tokens for that tree. What is left to chance are the texts and the draws of the drafter,
which rules of the same kind of draws share. Intervals are over prompts.

Trees are a chain of 6, pairs on three levels (14 nodes), and threes, twos and ones (15 nodes). The
order that theory gives is checked in pairs of rules on the same tree.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from enumerated_verdicts import KnownProbs, expected_tokens, folded
from paired_record import PairedRecord, difference, ratio, until

from sapwood.bench import provenance
from sapwood.bench.suites import digest, gather
from sapwood.core.protocols import TargetOutput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Verdict
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipe import build
from sapwood.recipes import resolve
from sapwood.spec_parser import read

TEMPERATURES = (0.0, 0.6, 1.0)
LONGEST = 240  # tokens of a prompt, so that prefill does not take most of the time
TREES = {"chain": [1] * 6, "pairs": [2, 2, 2], "threes": [3, 2, 1]}
# rules by kind of draws; {shape} is that of the tree
EVERYWHERE = ("naive", "match")
RULES = {
    "topk": EVERYWHERE,
    "iid": ("mss", "kseq(shape={shape})", "khisti(shape={shape})", "traversal-iid"),
    "swor": ("rrs", "traversal", "optimal(shape={shape})"),
    "mixed": ("mixed", "spechub", "traversal"),
}
CHAIN_RULES = {"topk": EVERYWHERE, "iid": ("naive", "speculative", "block")}


class Order(NamedTuple):
    """A statement of theory: on a tree, one rule accepts at least as much as another."""

    tree: str
    better: str  # kind of draws and rule
    worse: str
    source: str


ORDERS = (
    Order("chain", "iid block", "iid speculative", "2403.10444, theorem: never less"),
    Order("chain", "iid speculative", "iid naive", "2211.17192: min(p, q) against p q"),
    Order("pairs", "iid khisti", "iid mss", "2410.18234: the best rule for independent draws"),
    Order("pairs", "iid khisti", "iid kseq", "2410.18234: the best rule for independent draws"),
    Order("pairs", "iid traversal-iid", "iid mss", "2505.12398, reported +2 to 6 %"),
    Order("pairs", "swor rrs", "iid mss", "2402.14160, reported: no token is tested twice"),
    Order("pairs", "swor optimal", "swor rrs", "2310.15141: no rule for single nodes is better"),
    Order("pairs", "swor traversal", "swor rrs", "2505.12398, reported +2 to 6 %"),
    Order("pairs", "mixed spechub", "swor rrs", "2411.05289, reported +0.05 to 0.27 tokens"),
    Order("pairs", "mixed mixed", "swor rrs", "2502.18779, reported"),
    Order("threes", "iid khisti", "iid mss", "2410.18234: the best rule for independent draws"),
    Order("threes", "iid khisti", "iid kseq", "2410.18234: the best rule for independent draws"),
    Order("threes", "swor rrs", "iid mss", "2402.14160, reported: no token is tested twice"),
    Order("threes", "swor optimal", "swor rrs", "2310.15141: no rule for single nodes is better"),
    Order("threes", "swor traversal", "swor rrs", "2505.12398, reported +2 to 6 %"),
    Order("threes", "mixed mixed", "swor rrs", "2502.18779, reported"),
    Order("threes", "mixed traversal", "mixed mixed", "2505.12398, reported +2 to 6 %"),
)


# ------------------------------------------------------------------------------- measuring
class Place(NamedTuple):
    """A scored tree after a place of the text."""

    tree: Tree
    target: KnownProbs
    position: int


def rounds(
    llm: LLM, spelling: str, prompt: list[int], text: Sequence[int], sampling: Sampling
) -> Iterator[Place]:
    """The recipe's tree after each token of a text that the target has written."""
    engine = llm.bind(resolve(spelling))
    with closing(RequestDecoder(engine, prompt, sampling, KeyedRng(sampling.seed))) as decoder:
        for token in text:
            scores: TargetOutput
            [scores] = llm.target.score([decoder.draft()])
            tree, target = folded(decoder.tree, PathProbs(decoder.tree, scores, decoder.sampler))
            yield Place(tree, target, decoder.session.length)
            advance(decoder, scores, token)


def advance(decoder: RequestDecoder, scores: TargetOutput, token: int) -> None:
    """Commit the root and go on with this token, whatever the tree holds."""

    def forced(_: PathProbs) -> Verdict:
        return Verdict((ROOT,), token)

    decoder.verify = forced  # type: ignore[method-assign]
    decoder.finish_round(scores)


def written(llm: LLM, prompt: list[int], sampling: Sampling, places: int) -> list[int]:
    """The first tokens of the target's own text."""
    found: list[int] = []
    with closing(
        llm.bind(resolve("plain")).rounds(prompt, sampling, KeyedRng(sampling.seed))
    ) as running:
        for outcome in running:
            found += outcome.tokens
            if len(found) >= places:
                break
    return found[:places]


def rules(tree: str, temperature: float) -> dict[str, list[str]]:
    """Rules to ask on a tree, by kind of draws; at temperature 0 all are one."""
    some = {"topk": ("match",)}
    if temperature:
        some = CHAIN_RULES if tree == "chain" else RULES
    return {draws: [rule.format(shape=TREES[tree]) for rule in own] for draws, own in some.items()}


def short(rule: str) -> str:
    """A rule without its options."""
    return rule.partition("(")[0]


def measured(
    llm: LLM, drafter: str, tree: str, prompt: list[int], text: list[int], sampling: Sampling
) -> dict[str, list[float]]:
    """[tokens, passes, nodes] of each rule on each kind of draws, summed over all places."""
    found: dict[str, list[float]] = {}
    shape = TREES[tree]
    nodes = sum(int(np.prod(shape[: level + 1])) for level in range(len(shape)))
    budget = f"fixed(nodes={nodes}, depth={len(shape)}, width={max(shape)})"
    for draws, asked in rules(tree, sampling.temperature).items():
        spelling = f"{drafter}(draws={draws}) + static(shape={shape}) + {asked[0]} + {budget}"
        verifiers = {short(rule): build("verifier", read(rule)) for rule in asked}
        for place in rounds(llm, spelling, prompt, text, sampling):
            for rule, verifier in verifiers.items():
                row = found.setdefault(f"{draws} {rule}", [0.0, 0.0, 0.0])
                row[0] += expected_tokens(verifier, place.tree, place.target, place.position)
                row[1] += 1
                row[2] += len(place.tree) - 1
    return found


def thing(temperature: float, tree: str, rule: str = "") -> str:
    """The name of a value in the record."""
    return f"{temperature:g} {tree} {rule}".strip()


def summary(record: PairedRecord) -> dict[str, Any]:
    """Means of all rules, and the pairs that theory orders."""
    rows = []
    for name, values in record.values.items():
        temperature, tree, *rest = name.split()
        if not rest:
            continue
        found = ratio(list(values.values()))
        accepted = sum(row[0] - row[1] for row in values.values())
        rows.append(
            {
                "temperature": float(temperature),
                "tree": tree,
                "draws": rest[0],
                "rule": rest[1],
                "tokens_per_pass": found.mean,
                "low": found.low,
                "high": found.high,
                "accepted_per_node": round(accepted / sum(row[2] for row in values.values()), 4),
                "prompts": len(values),
                "places": int(sum(row[1] for row in values.values())),
            }
        )
    orders = []
    for temperature in record.settings["temperatures"]:
        for order in ORDERS if temperature else ():
            pair = [
                record.values.get(thing(temperature, order.tree, rule), {})
                for rule in (order.better, order.worse)
            ]
            both = [prompt for prompt in pair[0] if prompt in pair[1]]
            if both:
                gain = difference(*([values[prompt] for prompt in both] for values in pair))
                orders.append({"temperature": temperature, **order._asdict(), **gain._asdict()})
    return {"rows": rows, "orders": orders}


def run(options: argparse.Namespace) -> None:
    """Measure what is left, and write the record."""
    busy = provenance.load()
    llm = LLM(options.model, "plain", threads=options.threads)
    asked = [
        (prompt.name, tokens)
        for prompt in gather(str(options.suite), turns=1)
        if len(tokens := prompt.tokens(llm.target.info, llm.text)) <= LONGEST
    ][: options.prompts]
    settings = {
        "suite": options.suite.name,
        "digest": digest(gather(str(options.suite), turns=1)),
        "drafter": options.drafter,
        "places": options.places,
        "temperatures": list(TEMPERATURES),
        "trees": TREES,
        "longest_prompt": LONGEST,
    }
    record = PairedRecord(options.json, settings)
    origin = provenance.origin(llm.target.info, busy)
    late = until(options.seconds)
    things = [thing(temperature, tree) for temperature in TEMPERATURES for tree in TREES]
    tokens_of = dict(asked)
    for prompt, name in record.left(things, tokens_of):
        if late():
            break
        temperature, tree = name.split()
        sampling = Sampling(temperature=float(temperature), max_tokens=4096, seed=options.seed)
        text = written(llm, tokens_of[prompt], sampling, options.places)
        found = measured(llm, options.drafter, tree, tokens_of[prompt], text, sampling)
        for rule, value in found.items():
            record.add(f"{name} {rule}", prompt, value)
        record.add(name, prompt, [1.0])
        record.write(origin, **summary(record))
        print(f"{prompt} {name}", file=sys.stderr, flush=True)
    record.write(origin, **summary(record))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path, help="JSONL file of prompts")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafter", default="eagle3", help="one with the option draws")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--places", type=int, default=8, help="tokens of each text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, help="stop after this time; run again to go on")
    parser.add_argument("--json", type=Path, required=True)
    try:
        run(parser.parse_args(arguments))
    except SapwoodError as error:
        print(f"temperature: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
