"""Search for the set of sublayers to skip by exchanging members, and its file.

Sublayers are numbered as they are run: 2 i is the attention of layer i, 2 i + 1 its MLP. The first
and the last layer are never skipped. A new set differs from the best one in a few members, or is
drawn from scratch; it replaces the best one if it predicts more tokens of a text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from sapwood.common.cache_dir import write_cached
from sapwood.core.rng import KeyedRng, NoiseKey

# noise use of the search; every so many tries a set is drawn from scratch
CHOICE = 6
FRESH = 4
EXCHANGED = 3  # most members by which other sets differ from the best one

# share of tokens that a set predicts, and the mean probability of the tokens
Merit = tuple[float, float]


@dataclass
class SkipSearch:
    """The best set so far; shared by all requests and kept between runs."""

    layers: int
    count: int  # sublayers to skip
    path: Path
    noise: KeyedRng
    best: tuple[int, ...] = ()
    merit: Merit = (0.0, 0.0)  # of the best set, on the last text that it was compared on
    tries: int = 0
    stale: int = 0  # tries since the best set last changed
    able: range = field(init=False)  # sublayers that may be skipped

    same_text: ClassVar[bool] = True  # a new set and the best one are compared on the same text
    most: ClassVar[int | None] = None  # tries that end the search

    def __post_init__(self) -> None:
        self.able = range(2, 2 * self.layers - 2)
        self.count = min(self.count, len(self.able))
        self.best = self._kept() or spread(self.able, self.count)

    def ended(self, enough: float, patience: int) -> bool:
        """True when the best set is good enough, or no better one was found for long."""
        spent = self.most is not None and self.tries >= self.most
        return self.merit[0] > enough or self.stale >= patience or spent

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
        """A uniformly random index."""
        return self.noise.pick(np.full(options, 1 / options), NoiseKey(self.tries, CHOICE, slot))

    def judge(self, sublayers: tuple[int, ...], merit: Merit, best: Merit) -> bool:
        """Compare a set with the best one on the same text; True if it replaces it."""
        self.merit = max(merit, best)
        if merit <= best:
            return False
        self.best = sublayers
        self.stale = 0
        self._keep()
        return True

    def _keep(self) -> None:
        record = {
            "layers": self.layers,
            "skip": list(self.best),
            "said": self.merit[0],
            "tries": self.tries,
        }
        write_cached(self.path, json.dumps(record).encode())

    def _kept(self) -> tuple[int, ...]:
        """The set of an earlier run; none if the file is missing, damaged or of another model."""
        try:
            record = json.loads(self.path.read_text())
            found = tuple(sorted({int(number) for number in record["skip"]}))
            tries = int(record["tries"])
        except (OSError, ValueError, KeyError, TypeError):
            return ()
        if (
            record.get("layers") != self.layers
            or len(found) != self.count
            or not set(found) <= set(self.able)
        ):
            return ()
        self.tries = tries
        return found


def spread(able: Sequence[int], count: int) -> tuple[int, ...]:
    """So many of these numbers, evenly spaced."""
    return tuple(able[int((index + 0.5) * len(able) / count)] for index in range(count))
