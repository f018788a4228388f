"""A record that grows prompt by prompt: interrupted runs go on, and intervals come from pairs.

A benchmark here measures the same things on every prompt. The record keeps one value per thing and
prompt, so that means have a bootstrap interval over prompts and two things are compared on the same
prompts. `--seconds` ends a run early; the same command then goes on with the prompts that are left.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sapwood.bench import provenance
from sapwood.errors import SapwoodError

Values = dict[str, dict[str, list[float]]]  # thing -> prompt -> [tokens, passes, ...]
SAMPLES = 4000  # of the bootstrap
TAIL = 2.5  # per cent on either side of an interval


class Estimate(NamedTuple):
    """A mean over prompts with its 95 % interval."""

    mean: float
    low: float
    high: float


class PairedRecord:
    """Values by thing and prompt in a JSON file, beside the settings that they belong to."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = dict(settings)
        self.values: Values = {}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["settings"] != self.settings:
                raise SapwoodError(f"{path} has other settings; name another file, or remove it")
            self.values = found["values"]

    def left(self, things: Iterable[str], prompts: Iterable[str]) -> list[tuple[str, str]]:
        """The pairs of prompt and thing without a value, prompt by prompt."""
        names = list(things)
        return [
            (prompt, thing)
            for prompt in prompts
            for thing in names
            if prompt not in self.values.get(thing, {})
        ]

    def add(self, thing: str, prompt: str, value: Sequence[float]) -> None:
        """Keep one value."""
        self.values.setdefault(thing, {})[prompt] = [round(float(one), 6) for one in value]

    def write(self, origin: Mapping[str, Any], **more: Any) -> None:
        """Write the file, with what was computed from the values."""
        made = {**origin, "settings": self.settings, **more, "values": self.values}
        self.path.write_text(json.dumps(made, indent=1, sort_keys=False) + "\n", encoding="utf-8")


def until(seconds: float | None) -> Callable[[], bool]:
    """A function that is True once so many seconds have passed; never, if None."""
    end = None if seconds is None else time.perf_counter() + seconds
    return lambda: end is not None and time.perf_counter() > end


def ratio(rows: Sequence[Sequence[float]]) -> Estimate:
    """First column over second, summed over prompts, with a bootstrap interval over them."""
    table = np.array([row[:2] for row in rows], np.float64)
    drawn = table[draws(len(table))].sum(axis=1)  # [samples, 2]
    return estimate(table[:, 0].sum() / table[:, 1].sum(), drawn[:, 0] / drawn[:, 1])


def difference(rows: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Estimate:
    """The ratio of `rows` over that of `others`, less 1, on the same prompts."""
    pairs = np.array([[*row[:2], *other[:2]] for row, other in zip(rows, others, strict=True)])
    sums = pairs.sum(axis=0)
    drawn = pairs[draws(len(pairs))].sum(axis=1)
    return estimate(gain(sums[None])[0], gain(drawn))


def gain(sums: Any) -> Any:
    """Relative gain of the first two columns' ratio over that of the other two."""
    return sums[:, 0] / sums[:, 1] * sums[:, 3] / sums[:, 2] - 1


def command(files: Iterable[str]) -> str:
    """The command line with bare names of these files."""
    words = provenance.command()
    for file in files:
        words = words.replace(file, Path(file).name)
    return words


def draws(prompts: int) -> Any:
    """Indices of resampled prompts, [samples, prompts], the same in every call."""
    return np.random.default_rng(0).integers(prompts, size=(SAMPLES, prompts))


def estimate(mean: float, samples: Any) -> Estimate:
    """A mean with the interval of its samples."""
    low, high = np.percentile(samples, [TAIL, 100 - TAIL])
    return Estimate(round(float(mean), 4), round(float(low), 4), round(float(high), 4))
