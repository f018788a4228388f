"""Recipes and peers in turn on every prompt, under every setting; what is in the journal is not run again.

The order rotates from turn to turn, so that a machine that slows down or warms up treats all alike. What a recipe
learns stays with it from prompt to prompt, and is forgotten before the next setting. One that fails is left out from
then on, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sapwood.bench.gauges import Gauges
from sapwood.bench.journal import Journal
from sapwood.bench.lineup import PLAIN
from sapwood.bench.measure import WARM_UP, Run, decode, refuse, rotated
from sapwood.bench.sweep import Point
from sapwood.bench.talks import Asked, Talk
from sapwood.bench.together import decode_together
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.sampling import Sampling


class Contender(Protocol):
    """Answers prompts: a recipe of ours, or a peer."""

    def takes(self, point: Point) -> str | None:
        """Why there is nothing to be run under this setting; None where there is."""

    def run(self, asked: Sequence[Asked], sampling: Sampling) -> list[Run]:
        """Answer these together."""

    def fresh(self) -> "Contender":
        """The same without what it remembers of earlier prompts."""


@dataclass(frozen=True)
class Ours:
    """A recipe."""

    engine: Engine
    measured: bool = False  # its cost curve means seconds of this machine

    def takes(self, point: Point) -> str | None:
        """A recipe runs under every setting."""

    def run(self, asked: Sequence[Asked], sampling: Sampling) -> list[Run]:
        """One by itself, several in shared passes."""
        if len(asked) == 1:
            return [decode(self.engine, asked[0].tokens, sampling)]
        return decode_together(self.engine, [item.tokens for item in asked], sampling, measured=self.measured)

    def fresh(self) -> "Ours":
        """The recipe bound anew: under another setting the same prompts come once more, and must not be known."""
        return replace(self, engine=replace(self.engine))


@dataclass
class Stage:
    """One setting: what was asked under it, in order, and who answered what."""

    point: Point
    asked: list[Asked] = field(default_factory=list)
    runs: dict[str, dict[str, Run]] = field(default_factory=dict)  # by who and by the name of the turn

    def complete(self, who: Sequence[str]) -> list[Asked]:
        """The turns that all of these have answered."""
        return [item for item in self.asked if all(item.name in self.runs.get(name, {}) for name in who)]


@dataclass
class Contest:
    """Everything that is run."""

    contenders: dict[str, Contender]
    sampling: Sampling
    journal: Journal
    gauges: Gauges
    tick: Callable[[int], None] = lambda _: None  # told, after every run, how many there are in all
    drop: Callable[[str, SapwoodError], None] = refuse  # told of one that failed
    stages: list[Stage] = field(default_factory=list)
    total: int = 0
    _warm: set[str] = field(default_factory=set)

    def hold(self, talks: Mapping[Point, Sequence[Talk]], warm_up: Asked) -> None:
        """Run all of it."""
        self.total = self._count(talks)
        for point, some in talks.items():
            if self.stages:
                self.contenders = {name: one.fresh() for name, one in self.contenders.items()}
            self.stages.append(Stage(point))
            for place, group in enumerate(groups(some, point.batch)):
                self._talk(self.stages[-1], group, place, warm_up)

    def _talk(self, stage: Stage, group: Sequence[Talk], place: int, warm_up: Asked) -> None:
        """All turns of some conversations."""
        for turn in range(max(talk.turns for talk in group)):
            speaking = [talk for talk in group if talk.turns > turn and talk.goes_on]
            asked = [talk.ask() for talk in speaking]
            if not asked:
                return
            stage.asked += asked
            if not self._warm and not self._known(stage.point, asked):
                for name in list(self.contenders):  # all of them before the first counted run
                    self._warm_up(name, warm_up)
            for name in rotated(list(self.contenders), place + turn):
                self._answer(stage, name, asked, warm_up)
            for talk, item in zip(speaking, asked, strict=True):
                talk.hear(stage.runs[PLAIN][item.name].tokens)

    def _answer(self, stage: Stage, name: str, asked: Sequence[Asked], warm_up: Asked) -> None:
        """One contender's answers, from the journal where they are there."""
        contender = self.contenders.get(name)
        if contender is None or contender.takes(stage.point) is not None:
            return
        known = self.journal.done
        keys = [(stage.point, item.name, name) for item in asked]
        if not all(key in known for key in keys):
            if name not in self._warm and not self._warm_up(name, warm_up):
                return
            runs = self._run(name, asked, self._sampling(stage.point))
            for key, run in zip(keys, runs, strict=True) if runs else ():
                self.journal.add(key, run)
        if all(key in known for key in keys):
            stage.runs.setdefault(name, {}).update({key[1]: known[key] for key in keys})

    def _warm_up(self, name: str, warm_up: Asked) -> bool:
        """An uncounted first run; False where it fails."""
        self._warm.add(name)
        short = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, WARM_UP))
        return self._run(name, [warm_up], short) is not None

    def _run(self, name: str, asked: Sequence[Asked], sampling: Sampling) -> list[Run] | None:
        try:
            with self.gauges.watch() as reading:
                runs = self.contenders[name].run(asked, sampling)
        except SapwoodError as error:
            self.drop(name, error)
            del self.contenders[name]
            return None
        finally:
            self.tick(self.total)
        for run in runs:
            run.memory = run.memory or reading.memory
            run.joules = None if reading.joules is None else reading.joules / len(runs)
        return runs

    def _sampling(self, point: Point) -> Sampling:
        return replace(self.sampling, temperature=point.temperature)

    def _known(self, point: Point, asked: Sequence[Asked]) -> bool:
        done = self.journal.done
        return all((point, item.name, name) in done for item in asked for name in self.contenders)

    def _count(self, talks: Mapping[Point, Sequence[Talk]]) -> int:
        """Runs that are left to be made, one uncounted of each contender included."""
        done, count = self.journal.done, 0
        for point, some in talks.items():
            able = [name for name, one in self.contenders.items() if one.takes(point) is None]
            for group in groups(some, point.batch):
                for turn in range(max(talk.turns for talk in group)):
                    names = [turn_name(talk, turn) for talk in group if talk.turns > turn]
                    count += sum(any((point, name, who) not in done for name in names) for who in able)
        return count + len(self.contenders) if count else 0


def turn_name(talk: Talk, turn: int) -> str:
    """The name under which a turn is written down."""
    return Asked(talk.prompt, turn, [], "").name


def groups(talks: Sequence[Talk], size: int) -> Iterator[Sequence[Talk]]:
    """So many at a time."""
    return (talks[start : start + size] for start in range(0, len(talks), size))
