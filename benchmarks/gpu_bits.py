"""Bits of logits: rows of trees, batches and chunked prompts against the same rows run alone.

    python benchmarks/gpu_bits.py --dtype float16,bfloat16 --json bits.json

Texts and trees are random. Every picked row is run once more as the only row of a pass, after a
prompt that is read at once; trees are run again beside others, and after prompts read in chunks.
"""

import argparse
import itertools
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from gpu_tools import Limit, Record, random_tree

from sapwood import LLM
from sapwood.bench import provenance
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend, PrefillChunk, TreeInput
from sapwood.core.tree import Tree

BATCH = 5  # trees that share a pass
CHUNKS = (7, 64, 300)  # tokens of a prompt in a pass


@dataclass
class Count:
    """Rows that were compared, and those of which some logit differs."""

    rows: int = 0
    differ: int = 0
    largest: float = 0.0  # difference of a logit

    def add(self, found: FloatArray, wanted: FloatArray) -> None:
        """Compare the logits of one row."""
        self.rows += 1
        if not np.array_equal(found, wanted):
            self.differ += 1
            self.largest = max(self.largest, float(np.abs(found - wanted).max()))


@dataclass
class Case:
    """A text, a tree behind it, and the logits of its rows."""

    text: list[int]
    tree: Tree
    logits: list[FloatArray]


def score(backend: Backend, texts: list[list[int]], trees: list[Tree]) -> list[list[FloatArray]]:
    """Logits of all rows of trees that share a pass."""
    sessions = [backend.open(text) for text in texts]
    work = [TreeInput(session, tree) for session, tree in zip(sessions, trees, strict=True)]
    outputs = backend.score(work)
    found = [
        [output.logits(row) for row in range(len(tree))]
        for output, tree in zip(outputs, trees, strict=True)
    ]
    for session in sessions:
        session.close()
    return found


def against_rows_alone(backend: Backend, case: Case, nodes: list[int], count: Count) -> None:
    """Run the path of each node as a prompt and one row."""
    for node in nodes:
        path = case.tree.spell(node)
        [[alone]] = score(backend, [case.text + path[:-1]], [Tree(path[-1])])
        count.add(case.logits[node], alone)


def in_batches(backend: Backend, cases: list[Case], count: Count) -> None:
    """Run several trees in one pass."""
    for start in range(0, len(cases) - BATCH + 1, BATCH):
        some = cases[start : start + BATCH]
        found = score(backend, [case.text for case in some], [case.tree for case in some])
        for case, rows in zip(some, found, strict=True):
            for row, wanted in zip(rows, case.logits, strict=True):
                count.add(row, wanted)


def in_chunks(backend: Backend, case: Case, chunk: int, count: Count) -> None:
    """Read the text in chunks before the tree is run."""
    session = backend.start(case.text)
    while session.length < len(case.text):
        part = case.text[session.length : session.length + chunk]
        backend.score((), [PrefillChunk(session, part)])
    [output] = backend.score([TreeInput(session, case.tree)])
    for row, wanted in enumerate(case.logits):
        count.add(output.logits(row), wanted)
    session.close()


def compare(backend: Backend, ask: argparse.Namespace, limit: Limit) -> dict[str, Count]:
    """All three comparisons, as far as the time goes."""
    rng = np.random.default_rng(ask.seed)
    vocab = backend.info.vocab
    found = {"rows alone": Count(), "batches": Count(), "chunks": Count()}
    cases: list[Case] = []
    for length, nodes in itertools.product(numbers(ask.lengths), numbers(ask.nodes)):
        if limit.left <= 0:
            break
        text = rng.integers(vocab, size=length).tolist()
        tree = random_tree(nodes, vocab, rng)
        [logits] = score(backend, [text], [tree])
        case = Case(text, tree, logits)
        picked = {0, nodes - 1, *rng.integers(nodes, size=ask.picks).tolist()}
        against_rows_alone(backend, case, sorted(picked), found["rows alone"])
        if len(cases) % 4 == 0:
            for chunk in CHUNKS:
                in_chunks(backend, case, chunk, found["chunks"])
        cases.append(case)
    in_batches(backend, cases, found["batches"])
    return found


def numbers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Compare in each number format."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    asked.add_argument("--model", default="smollm2")
    asked.add_argument("--device", default=None, help="cuda where there is one, else cpu")
    asked.add_argument("--dtype", default="float16,bfloat16")
    asked.add_argument("--lengths", default="3,64,130,400,1015,1290", help="tokens of the texts")
    asked.add_argument("--nodes", default="1,4,17,64,100", help="of the trees")
    asked.add_argument("--picks", type=int, default=5, help="rows of a tree that are run alone")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--limit-seconds", type=float, default=float("inf"))
    asked.add_argument("--json", type=Path, default=None)
    ask = asked.parse_args()
    device = ask.device or ("cuda" if torch.cuda.is_available() else "cpu")
    record = Record(ask.json)
    record.keep("command", provenance.command())
    record.keep("commit", provenance.commit())
    record.keep("device", torch.cuda.get_device_name() if device == "cuda" else "cpu")
    limit = Limit(ask.limit_seconds)
    dtypes = ask.dtype.split(",")
    for index, dtype in enumerate(dtypes):
        with LLM(ask.model, "plain", device=device, dtype=dtype) as llm:
            found = compare(llm.target, ask, limit.share(1 / (len(dtypes) - index)))
        record.keep(dtype, {name: asdict(count) for name, count in found.items()})
        for name, count in found.items():
            record.say(f"{dtype}, {name}: {count.differ} of {count.rows} rows differ")
    differ = any(count["differ"] for dtype in dtypes for count in record.parts[dtype].values())
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
