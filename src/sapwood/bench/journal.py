"""Every run is written down when it is over, so that a benchmark that was interrupted can go on where it was.

A line of the file is one run: who answered which turn of which prompt under which setting, what came out, and where
that was: command, commit, versions, machine, model. Files grow; a benchmark that goes on reads the lines of the last
one of the same prompts, model and sampling.
"""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.bench.measure import Run
from sapwood.bench.samples import Sample
from sapwood.bench.sweep import Point
from sapwood.reliability import Reliability

NOWHERE: Mapping[str, Any] = {}
Key = tuple[Point, str, str]  # setting, prompt with its turn, who answered


class Journal:
    """Runs in a file."""

    def __init__(
        self,
        path: Path | None = None,  # None: nothing is written
        mark: str = "",  # of the prompts, the model and how it is sampled
        origin: Mapping[str, Any] = NOWHERE,  # command, commit, versions, machine, model
        *,
        resume: bool = False,
    ) -> None:
        self.path, self.mark, self.origin = path, mark, dict(origin)
        self.series = f"{time.strftime('%Y-%m-%dT%H:%M:%S')}-{time.perf_counter_ns() % 10**6:06d}"
        self.done: dict[Key, Run] = {}
        if resume and path is not None:
            self._take_up(path)

    def _take_up(self, path: Path) -> None:
        """Read the runs of the last series with our mark."""
        lines = [line for line in read_lines(path) if line.get("mark") == self.mark]
        if not lines:
            return
        self.series = lines[-1]["series"]
        for line in lines:
            if line["series"] == self.series:
                key = Point(**line["point"]), line["prompt"], line["who"]
                self.done[key] = read_run(line["run"])

    def add(self, key: Key, run: Run) -> None:
        """Write one run down, whole and at once."""
        self.done[key] = run
        if self.path is None:
            return
        point, prompt, who = key
        line = {
            "series": self.series,
            "mark": self.mark,
            "point": dataclasses.asdict(point),
            "prompt": prompt,
            "who": who,
            "run": run_record(run),
            "origin": self.origin,
        }
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal; one that was cut off by a crash is passed over."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"series", "mark", "point", "prompt", "who", "run"} <= record.keys():
            yield record


def run_record(run: Run) -> dict[str, Any]:
    """A run as JSON."""
    sums: list[list[float]] = run.reliability.sums.tolist()
    plain = {item.name: getattr(run, item.name) for item in dataclasses.fields(run)}
    plain["reliability"] = sums
    plain["sample"] = None if run.sample is None else dataclasses.asdict(run.sample)
    plain["expected"] = run.expected if np.isfinite(run.expected) else None
    return plain


def read_run(record: Mapping[str, Any]) -> Run:
    """A run from what `run_record` made of it."""
    sample = record["sample"]
    return Run(
        **{
            **record,
            "reliability": Reliability(np.array(record["reliability"])),
            "sample": None if sample is None else Sample(**sample),
            "expected": float("nan") if record["expected"] is None else record["expected"],
        }
    )
