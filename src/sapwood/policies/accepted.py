"""How often the first, the second, ... of the siblings tested is the accepted one: counted, and kept in a file.

One record for greedy decoding and one for sampling, as the same drafter fares differently. Where nothing was
counted yet, a usual vector stands in, which falls with the square of the place.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.paths import cache_folder, keep
from sapwood.records import Outcome
from sapwood.trained import safe

PLACES = 32  # siblings with a count of their own
USUAL: FloatArray = 0.6 / np.arange(1, PLACES + 1) ** 2  # adds up to less than one
TRUST = 8.0  # trials that the usual vector is worth
MEMORY = 2000.0  # trials after which a record begins to forget
OFTEN = 16  # rounds between two writings of the file, at least


class Accepted:
    """Counts of sibling tests under one way of decoding."""

    def __init__(self) -> None:
        self.tested, self.taken, self.rounds = np.zeros(PLACES), np.zeros(PLACES), 0

    def observe(self, outcome: Outcome) -> None:
        """Count the tests on the accepted path."""
        tree, path = outcome.tree, outcome.verdict.path
        for node, following in zip(path, (*path[1:], None), strict=True):
            siblings = tree.children(node)[:PLACES]
            self.tested[: len(siblings)] += 1.0
            if following in siblings:
                self.taken[siblings.index(following)] += 1.0
        self.rounds += 1
        full = self.tested > MEMORY
        self.tested[full] /= 2
        self.taken[full] /= 2

    def vector(self, width: int) -> tuple[float, ...]:
        """Chance of each of the first places to be the accepted one."""
        found = (self.taken + TRUST * USUAL) / (self.tested + TRUST)
        return tuple(round(float(chance), 3) for chance in found[:width])

    def to_json(self) -> dict[str, list[float]]:
        """What is stored."""
        return {"tested": self.tested.tolist(), "taken": self.taken.tolist()}

    def read(self, record: dict[str, Any]) -> None:
        """Take over what was stored; a ValueError where it is something else."""
        tested, taken = (np.array(record[key], np.float64) for key in ("tested", "taken"))
        whole = tested.shape == taken.shape == (PLACES,)
        if not whole or not ((taken >= 0) & (taken <= tested) & (tested <= 2 * MEMORY)).all():
            raise ValueError("not a record of sibling tests")
        self.tested, self.taken = tested, taken


class Book:
    """The records of both ways of decoding, and the file they are kept in, if any."""

    def __init__(self, model: str, store: str) -> None:
        self.path: Path | None = cache_folder() / "trees" / f"{safe(model)}-{safe(store)}.json" if store else None
        self.records = {"greedy": Accepted(), "sampled": Accepted()}
        self.saved = 0  # rounds in the file
        self._read()

    def _read(self) -> None:
        """Go on from the file; where it is absent or damaged, from nothing."""
        if self.path is None:
            return
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            for name, record in self.records.items():
                record.read(stored[name])
        except (OSError, ValueError, KeyError, TypeError):
            self.records = {"greedy": Accepted(), "sampled": Accepted()}

    def save(self, trees: dict[str, list[int]]) -> None:
        """Write the records, and the trees made of them, after enough new rounds."""
        rounds = sum(record.rounds for record in self.records.values())
        if self.path is None or rounds - self.saved < OFTEN:
            return
        content = {name: record.to_json() for name, record in self.records.items()} | {"children": trees}
        keep(self.path, json.dumps(content, indent=1).encode())
        self.saved = rounds
