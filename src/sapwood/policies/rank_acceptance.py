"""Acceptance rate of the first, second, ... sibling tested, counted and stored in a file.

Greedy decoding and sampling have separate counts, as the same drafter's rates differ. Before
anything was counted a default vector is used, which falls with the square of the rank.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common.cache_dir import cache_folder, write_cached
from sapwood.common.drafter_store import safe
from sapwood.core.array_types import FloatArray
from sapwood.core.types import Outcome

PLACES = 32  # siblings with a count of their own
USUAL: FloatArray = 0.6 / np.arange(1, PLACES + 1) ** 2  # adds up to less than one
TRUST = 8.0  # trials that the default vector is worth
MEMORY = 2000.0  # trials after which counts are halved
OFTEN = 16  # least rounds between two writes of the file


class RankAcceptance:
    """Counts of sibling tests, greedy or sampled."""

    def __init__(self) -> None:
        self.tested = np.zeros(PLACES)
        self.taken = np.zeros(PLACES)
        self.rounds = 0

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
        """Probability of each of the first `width` siblings to be the accepted one."""
        found = (self.taken + TRUST * USUAL) / (self.tested + TRUST)
        return tuple(round(float(chance), 3) for chance in found[:width])

    def to_json(self) -> dict[str, list[float]]:
        """The counts as stored in the file."""
        return {"tested": self.tested.tolist(), "taken": self.taken.tolist()}

    def read(self, record: dict[str, Any]) -> None:
        """Load stored counts; a ValueError if they are not valid."""
        tested, taken = (np.array(record[key], np.float64) for key in ("tested", "taken"))
        whole = tested.shape == taken.shape == (PLACES,)
        if not whole or not ((taken >= 0) & (taken <= tested) & (tested <= 2 * MEMORY)).all():
            raise ValueError("not a record of sibling tests")
        self.tested = tested
        self.taken = taken


class RankAcceptanceFile:
    """The counts of greedy and of sampled decoding, and their file, if any."""

    def __init__(self, model: str, store: str) -> None:
        self.path: Path | None = (
            cache_folder() / "trees" / f"{safe(model)}-{safe(store)}.json" if store else None
        )
        self.records = {"greedy": RankAcceptance(), "sampled": RankAcceptance()}
        self.saved = 0  # rounds in the file
        self._read()

    def _read(self) -> None:
        """Load the file; begin empty if it is missing or damaged."""
        if self.path is None:
            return
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            for name, record in self.records.items():
                record.read(stored[name])
        except (OSError, ValueError, KeyError, TypeError):
            self.records = {"greedy": RankAcceptance(), "sampled": RankAcceptance()}

    def save(self, trees: dict[str, list[int]]) -> None:
        """Write the counts, and the trees derived from them, after enough new rounds."""
        rounds = sum(record.rounds for record in self.records.values())
        if self.path is None or rounds - self.saved < OFTEN:
            return
        content = {name: record.to_json() for name, record in self.records.items()} | {
            "children": trees
        }
        write_cached(self.path, json.dumps(content, indent=1).encode())
        self.saved = rounds
