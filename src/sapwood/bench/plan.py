"""A benchmark from end to end: what to run, running it, and the record that is kept."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sapwood.api import LLM
from sapwood.bench import provenance
from sapwood.bench.contest import Contender, Contest, Ours, Stage
from sapwood.bench.gauges import Gauges
from sapwood.bench.journal import Journal
from sapwood.bench.lineup import PLAIN, Lineup, evened
from sapwood.bench.peer_rows import missing, peer_rows
from sapwood.bench.prompts import Noise
from sapwood.bench.report import Row, View, report
from sapwood.bench.rivals import Rivals
from sapwood.bench.suites import Prompt, digest
from sapwood.bench.sweep import Point
from sapwood.bench.talks import Asked, Talk, lengthened
from sapwood.errors import SapwoodError
from sapwood.paths import cache_folder
from sapwood.recipes import resolve
from sapwood.records import BackendInfo
from sapwood.sampling import Sampling

Progress = Callable[[str], None]  # told what takes long
Tick = Callable[[int], None]  # told, after every run, how many there are in all
WARM_UP, NOISE = "Count from one to twenty.", Noise(0, 16)  # in no suite; noise where there is no tokenizer
PICTURED = 2  # sample trees of each recipe in a record


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    recipes: dict[str, bool]  # by name or spelling; False where a recipe that cannot run is left out
    suite: str  # as it was asked for
    prompts: list[Prompt]
    sampling: Sampling
    ignore_eos: bool = False  # decode past the end of the text
    nodes: int | None = None  # the same number of nodes for every recipe
    points: list[Point] = field(default_factory=lambda: [Point()])
    peers: list[str] = field(default_factory=list)
    oracle: bool = False  # replay every drafter for one who knows the text

    def contest(self, llm: LLM, lineup: Lineup, rivals: Rivals, journal: Journal, tick: Tick) -> Contest:
        """All contenders, ready to be run."""
        ends = () if self.ignore_eos or llm.text is None else llm.text.eos
        known = llm.profile.measured
        everyone: dict[str, Contender] = {name: Ours(engine, known) for name, engine in lineup.engines.items()}
        everyone.update(rivals.ready)

        def drop(name: str, error: SapwoodError) -> None:
            (rivals if name in rivals.ready else lineup).drop(name, error)

        sampling, gauges = replace(self.sampling, stop_ids=ends), Gauges(llm.target.info.device)
        return Contest(everyone, sampling, journal, gauges, tick, drop)

    def hold(self, contest: Contest, llm: LLM) -> None:
        """Run it; all prompts are read before the first run."""
        info, text = llm.target.info, llm.text
        talks = {}
        for point in self.points:
            longer = [lengthened(prompt, point.context, info, text) for prompt in self.prompts]
            talks[point] = [Talk(prompt, info, text) for prompt in longer]
            for talk in talks[point]:
                talk.ask()
        warm_up = Prompt("warm-up", "", "", WARM_UP if text else NOISE)
        contest.hold(talks, Asked(warm_up, 0, warm_up.tokens(info, text), WARM_UP))

    def rows(self, llm: LLM, lineup: Lineup, rivals: Rivals, contest: Contest) -> list[Row]:
        """What the runs amount to, over the turns that all have answered."""
        return [row for stage in contest.stages for row in self._rows(llm, lineup, rivals, contest, stage)]

    def foreseen(self, rows: list[Row], llm: LLM, lineup: Lineup, contest: Contest, progress: Progress) -> list[Row]:
        """The rows with their regret against an oracle, where one was asked for and the first setting allows it."""
        from sapwood.bench.hindsight import with_oracle

        point = self.points[0]
        if not self.oracle or point != Point(context=point.context) or len(self.points) > 1 or self.ignore_eos:
            return rows
        asked = contest.stages[0].complete(list(lineup.engines))
        recipes = {name: resolve(evened(name, self.nodes)) for name in lineup.engines if name != PLAIN}
        return with_oracle(rows, llm, recipes, asked, self.sampling, progress)

    def _rows(self, llm: LLM, lineup: Lineup, rivals: Rivals, contest: Contest, stage: Stage) -> Iterator[Row]:
        able = [name for name, one in contest.contenders.items() if one.takes(stage.point) is None]
        asked = stage.complete(able)
        if not asked:
            return
        runs = {name: [stage.runs[name][item.name] for item in asked] for name in able}
        prompts = [replace(item.prompt, name=item.name) for item in asked]
        talks = [item.prompt.name for item in asked] if any(item.turn for item in asked) else None
        view = View(stage.point, talks, llm.profile.measured, contest.gauges.note)
        sampling = replace(contest.sampling, temperature=stage.point.temperature)
        yield from report(llm.target, lineup, prompts, [item.tokens for item in asked], runs, sampling, view)
        for name in self.peers:
            if name in rivals.skipped:
                yield missing(name, rivals.skipped[name], view)
            elif (reason := rivals.ready[name].takes(stage.point)) is not None:
                yield missing(name, reason, view)
            else:
                yield from peer_rows(name, rivals.weights[name], prompts, runs, llm.text, view)

    def check(self, lineup: Lineup) -> None:
        """Refuse a run in which a recipe failed that was asked for by itself."""
        for name, reason in lineup.skipped.items():
            if self.recipes[name]:
                raise SapwoodError(f"recipe {name!r} {reason}")

    def record(self, llm: LLM, rows: list[Row], contest: Contest, load: float | None = None) -> dict[str, Any]:
        """What is written to a file; `load` is how busy the machine was before."""
        info = llm.target.info
        made = provenance.origin(info, load)
        return {
            "machine": made["machine"],
            "model": made["model"],
            "suite": self.describe(),
            "command": made["command"],
            "commit": made["commit"],
            "rows": [asdict(row) for row in rows],
            "cost": llm.profile.curve.to_json() if llm.profile.measured else None,
            "samples": samples(contest, llm),
        }

    def describe(self) -> dict[str, Any]:
        """The prompts and how they were decoded."""
        return {
            "name": self.suite,
            "prompts": len(self.prompts),
            "digest": digest(self.prompts),
            "max_tokens": self.sampling.max_tokens,
            "temperature": self.points[0].temperature,
            "seed": self.sampling.seed,
            "ignore_eos": self.ignore_eos,
            "nodes": self.nodes,
            "turns": sum(1 + len(prompt.later) for prompt in self.prompts),
            "points": [asdict(point) for point in self.points],
            "peers": self.peers,
        }

    def mark(self, info: BackendInfo) -> str:
        """A hash of all that must be the same for runs to stand side by side."""
        own = {key: value for key, value in self.describe().items() if key not in ("points", "peers", "temperature")}
        said = json.dumps([own, info.model, info.name, info.dtype, info.device, info.threads])
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def journal_path(self, info: BackendInfo, given: Path | None, beside: Path | None) -> Path:
        """Where the runs are written down: as asked, else beside the record, else in the cache."""
        if given is not None:
            return given
        if beside is not None:
            return beside.with_suffix(".runs.jsonl")
        path = cache_folder() / "bench" / f"{self.mark(info)}.runs.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def samples(contest: Contest, llm: LLM) -> list[dict[str, Any]]:
    """A few telling trees of each recipe, drawn."""
    made: list[dict[str, Any]] = []
    words = llm.text.spell if llm.text else str
    for name, contender in contest.contenders.items():
        if not isinstance(contender, Ours) or not contest.stages:
            continue
        runs = contest.stages[0].runs.get(name, {})
        shown = sorted(
            ((run.sample, asked) for asked, run in runs.items() if run.sample is not None),
            key=lambda item: -len(item[0].path),
        )
        for sample, asked in shown[:PICTURED]:
            kept = {"nodes": len(sample.tokens) - 1, "accepted": len(sample.path) - 1}
            made.append({"recipe": name, "prompt": asked, **kept, "svg": sample.drawn(words)})
    return made


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written, before anything slow."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SapwoodError(f"the record cannot be written to {path}; name a file in a folder that can be written")


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record whole or not at all."""
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(content, encoding="utf-8")
    draft.replace(path)
