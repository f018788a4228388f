"""The search for sublayers that a model can do without: which set, how it was judged, and where it is kept.

Sublayers are numbered as they are run: 2 i is the attention of layer i, 2 i + 1 its MLP. The first and the
last layer are never skipped. A new set differs from the best one in a few members, or is drawn from
scratch; it takes the place of the best one where it says more of a text as it was written.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sapwood.paths import keep
from sapwood.rng import Keyed, Place

CHOICE, FRESH = 6, 4  # use of a place, beside others'; each so-manieth set is drawn from scratch
EXCHANGED = 3  # most members by which other sets differ from the best one

Merit = tuple[float, float]  # share of tokens that it would have said, and the mean chance it gave them


@dataclass
class Search:
    """The best set so far; shared by all requests and kept between runs."""

    layers: int
    count: int  # sublayers to skip
    path: Path
    noise: Keyed
    best: tuple[int, ...] = ()
    merit: Merit = (0.0, 0.0)  # of the best set, on the text that it was last judged by
    tries: int = 0
    stale: int = 0  # tries since the best set last changed
    able: range = field(init=False)  # sublayers that may be skipped

    def __post_init__(self) -> None:
        self.able = range(2, 2 * self.layers - 2)
        self.count = min(self.count, len(self.able))
        self.best = self._kept() or spread(self.able, self.count)

    def propose(self) -> tuple[int, ...]:
        """A set to try, of as many sublayers as the best one."""
        self.tries += 1
        self.stale += 1
        stays = list(self.best)
        fresh = self.tries % FRESH == 0
        for slot in range(len(stays) if fresh else min(len(stays), 1 + self.tries % EXCHANGED)):
            del stays[self._draw(len(stays), 2 * slot)]
        gone = [number for number in self.able if number not in (stays if fresh else self.best)]
        slot = 1
        while len(stays) < self.count and gone:
            stays.append(gone.pop(self._draw(len(gone), slot)))
            slot += 2
        return tuple(sorted(stays))

    def _draw(self, options: int, slot: int) -> int:
        """One of so many options, each as likely as the others."""
        return self.noise.pick(np.full(options, 1 / options), Place(self.tries, CHOICE, slot))

    def judge(self, sublayers: tuple[int, ...], merit: Merit, best: Merit) -> bool:
        """Compare a set with the best one on the same text; True where it takes its place."""
        self.merit = max(merit, best)
        if merit <= best:
            return False
        self.best, self.stale = sublayers, 0
        self._keep()
        return True

    def _keep(self) -> None:
        record = {"layers": self.layers, "skip": list(self.best), "said": self.merit[0], "tries": self.tries}
        keep(self.path, json.dumps(record).encode())

    def _kept(self) -> tuple[int, ...]:
        """The set of an earlier run; none where the file is absent, damaged or of another model."""
        try:
            record = json.loads(self.path.read_text())
            found, tries = tuple(sorted({int(number) for number in record["skip"]})), int(record["tries"])
        except (OSError, ValueError, KeyError, TypeError):
            return ()
        if record.get("layers") != self.layers or len(found) != self.count or not set(found) <= set(self.able):
            return ()
        self.tries = tries
        return found


def spread(able: Sequence[int], count: int) -> tuple[int, ...]:
    """So many of these numbers, evenly."""
    return tuple(able[int((index + 0.5) * len(able) / count)] for index in range(count))
