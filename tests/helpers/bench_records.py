"""Hand-made benchmark runs, rounds, rows and records."""

from dataclasses import asdict
from typing import Any

import numpy as np

from sapwood.bench.measure import BenchRun
from sapwood.bench.rows import ReportRow
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, SharedPass, StageTimes, Verdict

TIMES = StageTimes(draft=1.0, verify=4.0, other=0.5)


def run(said: int | list[int], seconds: float, **more: Any) -> BenchRun:
    """A run of so many tokens, one pass each, all of its seconds spent on passes."""
    tokens = [1] * said if isinstance(said, int) else said
    return BenchRun(**{"tokens": tokens, "passes": len(tokens), "verify": seconds, **more})


def outcome(
    parents: list[int],  # of each node after the root
    path: tuple[int, ...] = (0,),
    *,
    reach: list[float] | None = None,  # of each node after the root; None: not valued
    shared: SharedPass | None = None,
    times: StageTimes = TIMES,
    bonus: int = 99,
) -> Outcome:
    """A finished round; node n carries token 10 + n."""
    tree = Tree(10)
    for node, parent in enumerate(parents, 1):
        tree.add(parent, 10 + node, 0.5)
    if reach is not None:
        tree.reach[1:] = reach
        tree.valued = len(tree)
    scores: Any = None
    return Outcome(tree, tree, Verdict(path, bonus), scores, 7, times, shared=shared)


def row(recipe: str, category: str = "all", **more: Any) -> ReportRow:
    """A row of a recipe that ran."""
    usual: dict[str, Any] = {
        "prompts": 4,
        "tokens": 40,
        "seconds": 2.0,
        "tokens_per_second": 20.0,
        "tokens_per_pass": 2.0,
        "passes": 20,
        "nodes_per_pass": 3.0,
        "waste": 0.5,
        "speedup": 1.5,
        "speedup_low": 1.25,
        "speedup_high": 1.75,
        "identical": 4,
        "guarantee": "text",
        "spelling": "ngram + chain",
        "draft_share": 0.25,
        "verify_share": 0.5,
        "other_share": 0.25,
        "tokens_per_pass_low": 1.5,
        "tokens_per_pass_high": 2.5,
    }
    return ReportRow(recipe, category, **{**usual, **more})


def record(*rows: ReportRow, **more: Any) -> dict[str, Any]:
    """The record of a benchmark, as `sapwood bench --json` writes it."""
    made = {
        "machine": {"cpu": "some cpu", "cores": 8, "threads": 4, "python": "3.11", "gpu": None},
        "model": {"name": "tiny", "dtype": "float32", "device": "cpu", "fingerprint": "f00d"},
        "suite": {
            "name": "/data/questions.jsonl",
            "prompts": 4,
            "digest": "d1ge57",
            "max_tokens": 16,
            "turns": 4,
        },
        "command": "sapwood bench --recipes 'pld'",
        "commit": "abc123",
        "rows": [asdict(one) for one in rows],
        "cost": None,
        "samples": [],
    }
    return {**made, **more}


def seeded(*seed: int) -> np.random.Generator:
    """Noise of a fixed seed."""
    return np.random.default_rng(seed)
