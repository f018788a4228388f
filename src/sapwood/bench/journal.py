"""Journal of runs: each is written to a file when it ends, so that a benchmark can be resumed.

A line of the file is one run: setting, prompt with its turn, contender, result, and its origin:
command, commit, versions, machine, model. Files are appended to; a resumed benchmark reads the
lines of the last one with the same prompts, model and sampling.
"""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.bench.measure import BenchRun
from sapwood.bench.samples import TreeSample
from sapwood.bench.sweep import SweepPoint
from sapwood.common.calibration import CalibrationCurve
from sapwood.errors import SapwoodError

NOWHERE: Mapping[str, Any] = {}
Key = tuple[SweepPoint, str, str]  # setting, prompt with its turn, contender


class Journal:
    """Runs in a JSONL file."""

    def __init__(
        self,
        path: Path | None = None,  # None: nothing is written
        mark: str = "",  # hash of the prompts, the model and the sampling
        origin: Mapping[str, Any] = NOWHERE,  # command, commit, versions, machine, model
        *,
        resume: bool = False,
    ) -> None:
        self.path = path
        self.mark = mark
        self.origin = dict(origin)
        self.series = f"{time.strftime('%Y-%m-%dT%H:%M:%S')}-{time.perf_counter_ns() % 10**6:06d}"
        self.done: dict[Key, BenchRun] = {}
        if resume and path is not None:
            self._take_up(path)

    def _take_up(self, path: Path) -> None:
        """Read the runs of the last series with our mark."""
        lines = [line for line in read_lines(path) if line.get("mark") == self.mark]
        if not lines:
            return
        self.series = lines[-1]["series"]
        try:
            for line in lines:
                if line["series"] == self.series:
                    key = SweepPoint(**line["point"]), line["prompt"], line["who"]
                    self.done[key] = read_run(line["run"])
        except (KeyError, TypeError, ValueError) as error:
            raise SapwoodError(
                f"the runs in {path} were written by another version of sapwood ({error}); "
                "leave --resume out to run them again"
            ) from error

    def add(self, key: Key, run: BenchRun) -> None:
        """Append one run."""
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
    """The lines of a journal; one that was truncated by a crash is skipped."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if (
            isinstance(record, dict)
            and {"series", "mark", "point", "prompt", "who", "run"} <= record.keys()
        ):
            yield record


def run_record(run: BenchRun) -> dict[str, Any]:
    """A run as JSON."""
    sums: list[list[float]] = run.reliability.sums.tolist()
    plain = {item.name: getattr(run, item.name) for item in dataclasses.fields(run)}
    plain["reliability"] = sums
    plain["sample"] = None if run.sample is None else dataclasses.asdict(run.sample)
    plain["expected"] = run.expected if np.isfinite(run.expected) else None
    return plain


def read_run(record: Mapping[str, Any]) -> BenchRun:
    """A run from the output of `run_record`."""
    sample = record["sample"]
    return BenchRun(
        **{
            **record,
            "reliability": CalibrationCurve(np.array(record["reliability"])),
            "sample": None if sample is None else TreeSample(**sample),
            "expected": float("nan") if record["expected"] is None else record["expected"],
        }
    )
