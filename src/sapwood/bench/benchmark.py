"""A benchmark from end to end: its options, its runs and the record that is written."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sapwood.bench import provenance
from sapwood.bench.conversations import Conversation, ConversationTurn, lengthened
from sapwood.bench.journal import Journal
from sapwood.bench.peer_rows import missing, peer_rows
from sapwood.bench.peer_runner import PeerSet
from sapwood.bench.prompts import RandomPrompt
from sapwood.bench.recipe_set import PLAIN, RecipeSet, with_node_budget
from sapwood.bench.report import ReportOptions, ReportRow, report
from sapwood.bench.resources import ResourceMeter
from sapwood.bench.runner import BenchRunner, BenchSetting, Contender, RecipeContender
from sapwood.bench.suites import BenchPrompt, digest
from sapwood.bench.sweep import SweepPoint
from sapwood.common.cache_dir import cache_folder
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import resolve

Progress = Callable[[str], None]  # receives a line about what takes long
Tick = Callable[[int], None]  # called after every run with the number of all runs
WARM_UP = "Count from one to twenty."  # in no suite
NOISE = RandomPrompt(0, 16)  # the same without a tokenizer
SAMPLES = 2  # sample trees of each recipe in a record


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Options of a benchmark: recipes, prompts, sampling, settings, peers."""

    # by name or spelling; False for a recipe that is skipped when it cannot run
    recipes: dict[str, bool]
    suite: str  # as given by the user
    prompts: list[BenchPrompt]
    sampling: Sampling
    ignore_eos: bool = False  # decode past the end of the text
    nodes: int | None = None  # the same number of nodes for every recipe
    points: list[SweepPoint] = field(default_factory=lambda: [SweepPoint()])
    peers: list[str] = field(default_factory=list)
    oracle: bool = False  # compare every drafter with an oracle that knows the text

    def make_runner(
        self, llm: LLM, recipe_set: RecipeSet, peer_set: PeerSet, journal: Journal, tick: Tick
    ) -> BenchRunner:
        """A runner over all recipes and peers."""
        ends = () if self.ignore_eos or llm.text is None else llm.text.eos
        known = llm.profile.measured
        contenders: dict[str, Contender] = {
            name: RecipeContender(engine, known) for name, engine in recipe_set.engines.items()
        }
        contenders.update(peer_set.ready)

        def drop(name: str, error: SapwoodError) -> None:
            (peer_set if name in peer_set.ready else recipe_set).drop(name, error)

        sampling = replace(self.sampling, stop_ids=ends)
        meter = ResourceMeter(llm.target.info.device)
        return BenchRunner(contenders, sampling, journal, meter, tick, drop)

    def run(self, runner: BenchRunner, llm: LLM) -> None:
        """Run it; all prompts are tokenized before the first run."""
        info, text = llm.target.info, llm.text
        talks = {}
        for point in self.points:
            longer = [lengthened(prompt, point.context, info, text) for prompt in self.prompts]
            talks[point] = [Conversation(prompt, info, text) for prompt in longer]
            for talk in talks[point]:
                talk.next_turn()
        warm_up = BenchPrompt("warm-up", "", "", WARM_UP if text else NOISE)
        runner.run(talks, ConversationTurn(warm_up, 0, warm_up.tokens(info, text), WARM_UP))

    def rows(
        self, llm: LLM, recipe_set: RecipeSet, peer_set: PeerSet, runner: BenchRunner
    ) -> list[ReportRow]:
        """Rows of the report, over the turns that every contender has completed."""
        return [
            row
            for stage in runner.stages
            for row in self._rows(llm, recipe_set, peer_set, runner, stage)
        ]

    def with_regrets(
        self,
        rows: list[ReportRow],
        llm: LLM,
        recipe_set: RecipeSet,
        runner: BenchRunner,
        progress: Progress,
    ) -> list[ReportRow]:
        """The rows with their regret against an oracle, if wanted and possible in this setting."""
        from sapwood.bench.oracle_gap import with_oracle

        point = self.points[0]
        if (
            not self.oracle
            or point != SweepPoint(context=point.context)
            or len(self.points) > 1
            or self.ignore_eos
        ):
            return rows
        asked = runner.stages[0].complete(list(recipe_set.engines))
        recipes = {
            name: resolve(with_node_budget(name, self.nodes))
            for name in recipe_set.engines
            if name != PLAIN
        }
        return with_oracle(rows, llm, recipes, asked, self.sampling, progress)

    def _rows(
        self,
        llm: LLM,
        recipe_set: RecipeSet,
        peer_set: PeerSet,
        runner: BenchRunner,
        stage: BenchSetting,
    ) -> Iterator[ReportRow]:
        running = [
            name for name, one in runner.contenders.items() if one.takes(stage.point) is None
        ]
        asked = stage.complete(running)
        if not asked:
            return
        runs = {name: [stage.runs[name][item.name] for item in asked] for name in running}
        prompts = [replace(item.prompt, name=item.name) for item in asked]
        talks = [item.prompt.name for item in asked] if any(item.turn for item in asked) else None
        view = ReportOptions(stage.point, talks, llm.profile.measured, runner.meter.note)
        sampling = replace(runner.sampling, temperature=stage.point.temperature)
        yield from report(
            llm.target, recipe_set, prompts, [item.tokens for item in asked], runs, sampling, view
        )
        for name in self.peers:
            if name in peer_set.skipped:
                yield missing(name, peer_set.skipped[name], view)
            elif (reason := peer_set.ready[name].takes(stage.point)) is not None:
                yield missing(name, reason, view)
            else:
                yield from peer_rows(name, peer_set.weights[name], prompts, runs, llm.text, view)

    def check(self, recipe_set: RecipeSet) -> None:
        """Raise if a recipe failed that was named explicitly."""
        for name, reason in recipe_set.skipped.items():
            if self.recipes[name]:
                raise SapwoodError(f"recipe {name!r} {reason}")

    def record(
        self, llm: LLM, rows: list[ReportRow], runner: BenchRunner, load: float | None = None
    ) -> dict[str, Any]:
        """The record that is written to a file; `load` is the machine's load before the runs."""
        info = llm.target.info
        made = provenance.origin(info, load)
        return {
            "machine": made["machine"],
            "model": made["model"],
            "suite": self.describe(),
            "command": made["command"],
            "commit": made["commit"],
            "rows": [asdict(row) for row in rows],
            "substitutes": {
                name: found
                for name, contender in runner.contenders.items()
                if isinstance(contender, RecipeContender)
                and (found := contender.engine.recipe.substitutes)
            },
            "cost": llm.profile.curve.to_json() if llm.profile.measured else None,
            "samples": samples(runner, llm),
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
        """A hash of everything that must be equal for runs to be comparable."""
        own = {
            key: value
            for key, value in self.describe().items()
            if key not in ("points", "peers", "temperature")
        }
        content = json.dumps([own, info.model, info.name, info.dtype, info.device, info.threads])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def journal_path(self, info: BackendInfo, given: Path | None, beside: Path | None) -> Path:
        """Path of the journal: `given`, else beside the record, else in the cache."""
        if given is not None:
            return given
        if beside is not None:
            return beside.with_suffix(".runs.jsonl")
        path = cache_folder() / "bench" / f"{self.mark(info)}.runs.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def samples(runner: BenchRunner, llm: LLM) -> list[dict[str, Any]]:
    """SVG pictures of a few trees of each recipe, those with the longest accepted paths."""
    made: list[dict[str, Any]] = []
    spell = llm.text.spell if llm.text else str
    for name, contender in runner.contenders.items():
        if not isinstance(contender, RecipeContender) or not runner.stages:
            continue
        runs = runner.stages[0].runs.get(name, {})
        shown = sorted(
            ((run.sample, asked) for asked, run in runs.items() if run.sample is not None),
            key=lambda item: -len(item[0].path),
        )
        for sample, asked in shown[:SAMPLES]:
            kept = {"nodes": len(sample.tokens) - 1, "accepted": len(sample.path) - 1}
            made.append({"recipe": name, "prompt": asked, **kept, "svg": sample.drawn(spell)})
    return made


def check_place(path: Path) -> None:
    """Raise if a file cannot be written, before anything slow."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SapwoodError(
            f"the record cannot be written to {path}; name a file in a folder that can be written"
        )


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record atomically."""
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a file atomically."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(content, encoding="utf-8")
    draft.replace(path)
