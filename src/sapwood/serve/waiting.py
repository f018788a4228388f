"""Who waits for memory: tenants in turn, each in its own order; whoever had to give memory up comes first."""

from collections import deque
from collections.abc import Iterator

from sapwood.serve.answering import Reading


class Waiting:
    """Texts that nobody has begun to read."""

    def __init__(self) -> None:
        self._back: list[Reading] = []  # had memory before, the oldest first
        self._lines: dict[str, deque[Reading]] = {}  # by tenant, whose turn is next first

    def add(self, reading: Reading) -> None:
        """Join the end of the tenant's line."""
        self._lines.setdefault(reading.tenant, deque()).append(reading)

    def put_back(self, reading: Reading) -> None:
        """Wait again, before all others but older ones like it."""
        self._back.append(reading)
        self._back.sort(key=lambda back: back.number)

    def first(self) -> Reading | None:
        """Whose turn it is."""
        if self._back:
            return self._back[0]
        return next((line[0] for line in self._lines.values()), None)

    def take(self, reading: Reading) -> None:
        """Leave the line; where it was the tenant's turn, the others come first now."""
        if reading in self._back:
            self._back.remove(reading)
            return
        line = self._lines.pop(reading.tenant)
        line.remove(reading)
        if line:
            self._lines[reading.tenant] = line

    def __iter__(self) -> Iterator[Reading]:
        yield from list(self._back)
        for line in list(self._lines.values()):
            yield from list(line)

    def __len__(self) -> int:
        return sum(len(reading.answers) for reading in self)
