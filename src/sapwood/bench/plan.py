"""A benchmark from end to end: what to run, running it, and the record that is kept."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sapwood.api import LLM
from sapwood.bench import provenance
from sapwood.bench.lineup import Lineup
from sapwood.bench.measure import measure
from sapwood.bench.prompts import Noise
from sapwood.bench.report import Row, report
from sapwood.bench.suites import Prompt, digest
from sapwood.errors import SapwoodError
from sapwood.records import BackendInfo
from sapwood.sampling import Sampling

Tick = Callable[[int], None]  # told, after every run, how many there are in all
WARM_UP, NOISE = "Count from one to twenty.", Noise(0, 16)  # in no suite; noise where there is no tokenizer


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    recipes: dict[str, bool]  # by name or spelling; False where a recipe that cannot run is left out
    suite: str  # as it was asked for
    prompts: list[Prompt]
    sampling: Sampling
    ignore_eos: bool = False  # decode past the end of the text
    nodes: int | None = None  # the same number of nodes for every recipe

    def run(self, llm: LLM, lineup: Lineup, tick: Tick = lambda _: None) -> list[Row]:
        """Every recipe on every prompt, as rows; one that fails is left out, with the reason, and the others go on."""
        info, text = llm.target.info, llm.text
        texts = [prompt.tokens(info, text) for prompt in self.prompts]  # all of them before the first run
        ends = () if self.ignore_eos or text is None else text.eos
        sampling = replace(self.sampling, stop_ids=ends)
        count = len(lineup.engines) * (len(texts) + 1)
        warm_up = Prompt("warm-up", "", "", WARM_UP if text else NOISE).tokens(info, text)
        runs = measure(lineup.engines, texts, sampling, warm_up, lambda: tick(count), lineup.drop)
        return report(llm.target, lineup, self.prompts, texts, runs, sampling)

    def check(self, lineup: Lineup) -> None:
        """Refuse a run in which a recipe failed that was asked for by itself."""
        for name, reason in lineup.skipped.items():
            if self.recipes[name]:
                raise SapwoodError(f"recipe {name!r} {reason}")

    def record(self, info: BackendInfo, rows: list[Row], load: float | None = None) -> dict[str, Any]:
        """What is written to a file; `load` is how busy the machine was before."""
        return {
            "machine": provenance.machine(info, load),
            "model": provenance.model(info),
            "suite": self.describe(),
            "command": provenance.command(),
            "commit": provenance.commit(),
            "rows": [asdict(row) for row in rows],
        }

    def describe(self) -> dict[str, Any]:
        """The prompts and how they were decoded."""
        return {
            "name": self.suite,
            "prompts": len(self.prompts),
            "digest": digest(self.prompts),
            "max_tokens": self.sampling.max_tokens,
            "temperature": self.sampling.temperature,
            "seed": self.sampling.seed,
            "ignore_eos": self.ignore_eos,
            "nodes": self.nodes,
        }


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written, before anything slow."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SapwoodError(f"the record cannot be written to {path}; name a file in a folder that can be written")


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)
