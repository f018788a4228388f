"""Shared tools of the parts of gpu.py: time limit, record, timers, trees."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from sapwood.core.tree import Tree


class Limit:
    """A time limit."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def share(self, part: float) -> "Limit":
        """A limit of this part of what is left."""
        return Limit(part * self.left)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()


class Record:
    """The output: printed lines, and numbers in a JSON file that is kept up to date."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.lines: list[str] = []
        self.parts: dict[str, Any] = {}

    def say(self, line: str) -> None:
        """Print a line."""
        self.lines.append(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def keep(self, part: str, found: Any) -> None:
        """Add numbers, and write the file."""
        self.parts[part] = found
        if self.file is not None:
            self.file.write_text(json.dumps(self.parts, indent=1) + "\n")


def seconds_of(call: Callable[[], object], times: int, cuda: bool) -> float:
    """Median seconds of a call: on the device if there is one, else on the host."""
    for _ in range(3):
        call()
    spent = []
    for _ in range(times):
        if cuda:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
            call()
            marks[1].record()
            marks[1].synchronize()
            spent.append(marks[0].elapsed_time(marks[1]) / 1e3)
        else:
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
    return sorted(spent)[times // 2]


def random_tree(nodes: int, vocab: int, rng: np.random.Generator) -> Tree:
    """A tree of this size, each node below one of the last ten."""
    tree = Tree(int(rng.integers(vocab)))
    while len(tree) < nodes:
        tree.add(
            int(rng.integers(max(0, len(tree) - 10), len(tree))),
            int(rng.integers(vocab)),
            0.5,
            sampled=True,
        )
    return tree
