"""Expected tokens per pass of every lossless acceptance rule, from recorded probabilities.

    python benchmarks/temperature.py SUITE [--prompts 12] [--places 8] --json FILE

Sampling noise hides what tells the rules apart. So the target writes a text at each temperature,
and at every place of it the distributions of target and drafter are recorded. On these the
drafter's own code draws trees, and the verdict of a rule is not drawn but enumerated: all coins of
the rule, each with its probability. `khisti` plans for all draws at once; its chance is that of the
plan. What is left to chance are the texts, and the draws of trees, of which there are several for
each place and which rules of the same kind of draws share.

Trees are a pair and four siblings below one node, a chain of 6, and pairs on three levels (14
nodes). Levels of a tree have the distributions of consecutive places of the text, whichever token a
branch took. The order that theory gives is checked in pairs of rules on the same tree.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from enumerated_verdicts import KnownProbs, expected_tokens
from paired_record import PairedRecord, difference, ratio, until

from sapwood.bench import provenance
from sapwood.bench.suites import digest, gather
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetOutput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Verdict
from sapwood.drafters.propose import propose
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipe import build
from sapwood.recipes import resolve
from sapwood.spec_parser import read
from sapwood.verifiers.khisti import DraftSelection

TEMPERATURES = (0.0, 0.6, 1.0)
LONGEST = 240  # tokens of a prompt, so that prefill does not take most of the time
UNLIKELY = 1e-8  # probability of a token that shares a symbol with others like it
NAMED = 12  # tokens that a plan names, as in the recipes
TREES = {"two": [2], "four": [4], "chain": [1] * 6, "pairs": [2, 2, 2]}
# rules by kind of draws, of trees of several siblings and of a chain; at temperature 0 all are one
COLD = {"topk": ("match",)}
RULES = {
    "topk": ("match", "naive"),
    "iid": ("naive", "mss", "kseq(shape={shape})", "traversal-iid"),
    "swor": ("naive", "rrs", "traversal"),
    "mixed": ("mixed", "spechub", "traversal"),
}
CHAIN_RULES = {"topk": ("match",), "iid": ("naive", "speculative", "block")}
PLANNED = ("two",)  # trees on which the rule that plans for all draws is asked too


class Order(NamedTuple):
    """A statement of theory or of a paper: one rule accepts at least as much as another."""

    tree: str
    better: str  # kind of draws and rule
    worse: str
    source: str


BEST_IID = "2410.18234: the best for independent draws if all tokens are named; here 12"
NO_TWINS = "2402.14160, reported: no token is tested twice"
JOINT = "2505.12398, reported: 2 to 6 % longer"
ORDERS = (
    Order("chain", "iid speculative", "iid naive", "2211.17192: min(p, q) against p q"),
    Order("chain", "iid block", "iid speculative", "2403.10444: never less; reported 7 to 10 %"),
    Order("two", "iid mss", "iid naive", "2305.09781: the residual is tested"),
    Order("two", "iid khisti", "iid mss", BEST_IID),
    Order("two", "iid khisti", "iid kseq", BEST_IID),
    Order("two", "swor rrs", "iid mss", NO_TWINS),
    Order("two", "mixed mixed", "swor rrs", "2502.18779, reported"),
    Order("two", "mixed spechub", "swor rrs", "2411.05289, reported: 0.05 to 0.27 tokens"),
    Order("two", "mixed spechub", "topk match", "2411.05289, reported"),
    Order("four", "swor rrs", "iid mss", NO_TWINS),
    Order("four", "mixed mixed", "swor rrs", "2502.18779, reported"),
    Order("pairs", "swor rrs", "iid mss", NO_TWINS),
    Order("pairs", "iid traversal-iid", "iid mss", JOINT),
    Order("pairs", "swor traversal", "swor rrs", JOINT),
    Order("pairs", "mixed traversal", "mixed mixed", JOINT),
)


# ------------------------------------------------------------------------------- recording
class Place(NamedTuple):
    """Distributions after one place of a text, over the same few symbols for all places."""

    target: FloatArray
    draft: FloatArray


def written(llm: LLM, prompt: list[int], sampling: Sampling, places: int) -> list[int]:
    """The first tokens of the target's own text."""
    found: list[int] = []
    engine = llm.bind(resolve("plain"))
    with closing(engine.rounds(prompt, sampling, KeyedRng(sampling.seed))) as running:
        for outcome in running:
            found += outcome.tokens
            if len(found) >= places:
                break
    return found[:places]


def recorded(
    llm: LLM, drafter: str, prompt: list[int], text: Sequence[int], sampling: Sampling
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Distributions of target and drafter after each token of a text, [vocab] each."""
    # a policy that reads whole distributions, so that the tree keeps them
    one = "svip + match + fixed(nodes=1, depth=1, width=1)"
    engine = llm.bind(resolve(f"{drafter} + {one}"))
    with closing(RequestDecoder(engine, prompt, sampling, KeyedRng(sampling.seed))) as decoder:
        for token in text:
            scores: TargetOutput
            [scores] = llm.target.score([decoder.draft()])
            if decoder.tree.proposals:  # a head begins with the second round of a short prompt
                [q] = decoder.tree.proposals.values()
                yield PathProbs(decoder.tree, scores, decoder.sampler).probs(ROOT), q
            advance(decoder, scores, token)


def advance(decoder: RequestDecoder, scores: TargetOutput, token: int) -> None:
    """Commit the root and go on with this token, whatever the tree holds."""

    def forced(_: PathProbs) -> Verdict:
        return Verdict((ROOT,), token)

    decoder.verify = forced  # type: ignore[method-assign]
    decoder.finish_round(scores)


def folded(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> list[Place]:
    """The same distributions over few symbols: tokens that are likely nowhere share the last one.

    That one has less than a thousandth of any distribution.
    """
    kept = np.flatnonzero(np.max([law for pair in pairs for law in pair], axis=0) > UNLIKELY)

    def fold(law: FloatArray) -> FloatArray:
        return np.append(law[kept], max(0.0, float(law.sum() - law[kept].sum())))

    return [Place(fold(target), fold(draft)) for target, draft in pairs]


# ------------------------------------------------------------------------------- measuring
def drawn(levels: Sequence[Place], shape: Sequence[int], draws: Draw, seed: int) -> Tree:
    """A tree of this shape, drawn as drafters draw it."""
    tree = Tree(0)
    for depth, width in enumerate(shape):
        for node in tree.level(depth):
            q = levels[depth].draft
            propose(tree, node, q, width, draws, depth + 1, KeyedRng(seed), 0)
            tree.close(node)
    return tree


def laws(tree: Tree, levels: Sequence[Place], *, cold: bool) -> KnownProbs:
    """The target's distributions on a tree; leaves have those of the place after the last."""
    last = len(levels) - 1
    return KnownProbs([levels[min(depth, last)].target for depth in tree.depths.tolist()], cold)


def planned(place: Place, draws: int) -> float:
    """Tokens of `khisti` at a node: one, and the overlap of p with the picked token's q*."""
    picked = DraftSelection(place.target, place.draft, NAMED, draws).law()
    return 1 + float(np.minimum(place.target, picked).sum())


def measured(
    places: Sequence[Place], tree: str, temperature: float, count: int
) -> dict[str, list[float]]:
    """[tokens, passes, nodes] of each rule on each kind of draws, summed over places and draws."""
    found: dict[str, list[float]] = {}
    shape = TREES[tree]
    rules = COLD if not temperature else CHAIN_RULES if tree == "chain" else RULES

    def add(name: str, tokens: float, nodes: int) -> None:
        row = found.setdefault(name, [0.0, 0.0, 0.0])
        row[:] = [row[0] + tokens, row[1] + 1, row[2] + nodes]

    for start in range(len(places) - len(shape)):
        levels = places[start : start + len(shape) + 1]
        for draws, asked in rules.items():
            kind = Draw(draws)
            for seed in range(1 if kind is Draw.TOPK else count):
                made = drawn(levels, shape, kind, seed)
                target = laws(made, levels, cold=not temperature)
                for rule in asked:
                    verifier = build("verifier", read(rule.format(shape=shape)))
                    tokens = expected_tokens(verifier, made, target, 0)
                    add(f"{draws} {rule.partition('(')[0]}", tokens, len(made) - 1)
        if temperature and tree in PLANNED:
            add("iid khisti", planned(levels[0], shape[0]), shape[0])
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
                "trees": int(sum(row[1] for row in values.values())),
            }
        )
    return {"rows": rows, "orders": list(ordered(record))}


def ordered(record: PairedRecord) -> Iterator[dict[str, Any]]:
    """The relative difference of each pair of rules that theory orders, prompt by prompt."""
    for temperature in filter(None, record.settings["temperatures"]):
        for order in ORDERS:
            pair = [
                record.values.get(thing(temperature, order.tree, rule), {})
                for rule in (order.better, order.worse)
            ]
            both = [prompt for prompt in pair[0] if prompt in pair[1]]
            if both:
                gain = difference(*([values[prompt] for prompt in both] for values in pair))
                yield {"temperature": temperature, **order._asdict(), **gain._asdict()}


def run(options: argparse.Namespace) -> None:
    """Measure what is left, and write the record."""
    busy = provenance.load()
    llm = LLM(
        options.model, "plain", device=options.device, dtype=options.dtype, threads=options.threads
    )
    every = gather(str(options.suite), turns=1)
    asked = dict(
        [
            (prompt.name, tokens)
            for prompt in every
            if len(tokens := prompt.tokens(llm.target.info, llm.text)) <= LONGEST
        ][: options.prompts]
    )
    settings = {
        "suite": options.suite.name,
        "digest": digest(every),
        "drafter": options.drafter,
        "places": options.places,
        "draws": options.draws,
        "temperatures": list(TEMPERATURES),
        "trees": TREES,
        "longest_prompt": LONGEST,
    }
    record = PairedRecord(options.json, settings)
    origin = provenance.origin(llm.target.info, busy)
    late = until(options.seconds)
    for prompt, name in record.left([f"{value:g} texts" for value in TEMPERATURES], asked):
        if late():
            break
        temperature = float(name.split()[0])
        sampling = Sampling(temperature=temperature, max_tokens=4096, seed=options.seed)
        text = written(llm, asked[prompt], sampling, options.places)
        pairs = list(recorded(llm, options.drafter, asked[prompt], text, sampling))
        places = folded(pairs)
        for tree in TREES:
            for rule, value in measured(places, tree, temperature, options.draws).items():
                record.add(thing(temperature, tree, rule), prompt, value)
        record.add(name, prompt, [len(places)])
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
    parser.add_argument("--places", type=int, default=12, help="tokens of each text")
    parser.add_argument("--draws", type=int, default=8, help="trees drawn at each place")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
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
