"""Recipes and peers in turn on every prompt, in every setting; journalled runs are not repeated.

The order rotates from turn to turn, so that a machine that slows down or warms up treats all alike.
A recipe keeps what it has learned from prompt to prompt, and forgets it before the next setting.
One that fails is left out from then on, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sapwood.bench.batched import decode_together
from sapwood.bench.conversations import Conversation, ConversationTurn
from sapwood.bench.journal import Journal
from sapwood.bench.measure import WARM_UP, BenchRun, decode, refuse, rotated
from sapwood.bench.recipe_set import PLAIN
from sapwood.bench.resources import ResourceMeter
from sapwood.bench.sweep import SweepPoint
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError


class Contender(Protocol):
    """A recipe or a peer that decodes prompts."""

    def takes(self, point: SweepPoint) -> str | None:
        """Reason to skip this setting; None to run it."""

    def run(self, asked: Sequence[ConversationTurn], sampling: Sampling) -> list[BenchRun]:
        """Decode these turns together."""

    def fresh(self) -> "Contender":
        """The same without anything learned from earlier prompts."""


@dataclass(frozen=True)
class RecipeContender:
    """A recipe with its engine."""

    engine: Engine
    measured: bool = False  # its cost model was measured on this machine

    def takes(self, point: SweepPoint) -> str | None:
        """None: a recipe runs in every setting."""

    def run(self, asked: Sequence[ConversationTurn], sampling: Sampling) -> list[BenchRun]:
        """Decode one turn by itself, several in shared passes."""
        if len(asked) == 1:
            return [decode(self.engine, asked[0].tokens, sampling)]
        return decode_together(
            self.engine, [item.tokens for item in asked], sampling, measured=self.measured
        )

    def fresh(self) -> "RecipeContender":
        """The recipe bound anew: the next setting has the same prompts, which must not be known."""
        return replace(self, engine=replace(self.engine))


@dataclass
class BenchSetting:
    """One setting: its turns in order, and the runs of each contender."""

    point: SweepPoint
    asked: list[ConversationTurn] = field(default_factory=list)
    # by contender and by name of the turn
    runs: dict[str, dict[str, BenchRun]] = field(default_factory=dict)

    def complete(self, who: Sequence[str]) -> list[ConversationTurn]:
        """The turns that all of these contenders have completed."""
        return [
            item for item in self.asked if all(item.name in self.runs.get(name, {}) for name in who)
        ]


@dataclass
class BenchRunner:
    """All runs of a benchmark."""

    contenders: dict[str, Contender]
    sampling: Sampling
    journal: Journal
    meter: ResourceMeter
    tick: Callable[[int], None] = lambda _: None  # called after every run with their total
    drop: Callable[[str, SapwoodError], None] = refuse  # called with one that failed
    # called with the share of the settings that are done or under way; True ends the setting
    over: Callable[[float], bool] = lambda _: False
    stages: list[BenchSetting] = field(default_factory=list)
    total: int = 0
    _warm: set[str] = field(default_factory=set)

    def run(
        self, talks: Mapping[SweepPoint, Sequence[Conversation]], warm_up: ConversationTurn
    ) -> None:
        """Run everything."""
        self.total = self._count(talks)
        for point, some in talks.items():
            if self.stages:
                self.contenders = {name: one.fresh() for name, one in self.contenders.items()}
            self.stages.append(BenchSetting(point))
            for place, group in enumerate(groups(some, point.batch)):
                if place and self.over(len(self.stages) / len(talks)):
                    break
                self._talk(self.stages[-1], group, place, warm_up)

    def _talk(
        self,
        stage: BenchSetting,
        group: Sequence[Conversation],
        place: int,
        warm_up: ConversationTurn,
    ) -> None:
        """Run all turns of a group of conversations."""
        for turn in range(max(talk.turns for talk in group)):
            active = [talk for talk in group if talk.turns > turn and talk.fits_context]
            asked = [talk.next_turn() for talk in active]
            if not asked:
                return
            stage.asked += asked
            if not self._warm and not self._known(stage.point, asked):
                for name in list(self.contenders):
                    self._warm_up(name, warm_up)
            for name in rotated(list(self.contenders), place + turn):
                self._answer(stage, name, asked, warm_up)
            for talk, item in zip(active, asked, strict=True):
                talk.add_answer(stage.runs[PLAIN][item.name].tokens)

    def _answer(
        self,
        stage: BenchSetting,
        name: str,
        asked: Sequence[ConversationTurn],
        warm_up: ConversationTurn,
    ) -> None:
        """Runs of one contender on these turns, from the journal if they are there."""
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

    def _warm_up(self, name: str, warm_up: ConversationTurn) -> bool:
        """An uncounted first run; False if it fails."""
        self._warm.add(name)
        short = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, WARM_UP))
        return self._run(name, [warm_up], short) is not None

    def _run(
        self, name: str, asked: Sequence[ConversationTurn], sampling: Sampling
    ) -> list[BenchRun] | None:
        try:
            with self.meter.watch() as use:
                runs = self.contenders[name].run(asked, sampling)
        except SapwoodError as error:
            self.drop(name, error)
            del self.contenders[name]
            return None
        finally:
            self.tick(self.total)
        for run in runs:
            run.memory = run.memory or use.memory
            run.joules = None if use.joules is None else use.joules / len(runs)
        return runs

    def _sampling(self, point: SweepPoint) -> Sampling:
        return replace(self.sampling, temperature=point.temperature)

    def _known(self, point: SweepPoint, asked: Sequence[ConversationTurn]) -> bool:
        done = self.journal.done
        return all((point, item.name, name) in done for item in asked for name in self.contenders)

    def _count(self, talks: Mapping[SweepPoint, Sequence[Conversation]]) -> int:
        """Number of runs left, one uncounted run of each contender included."""
        done, count = self.journal.done, 0
        for point, some in talks.items():
            running = [name for name, one in self.contenders.items() if one.takes(point) is None]
            for group in groups(some, point.batch):
                for turn in range(max(talk.turns for talk in group)):
                    names = [turn_name(talk, turn) for talk in group if talk.turns > turn]
                    count += sum(
                        any((point, name, who) not in done for name in names) for who in running
                    )
        return count + len(self.contenders) if count else 0


def turn_name(talk: Conversation, turn: int) -> str:
    """The name of a turn in the journal."""
    return ConversationTurn(talk.prompt, turn, [], "").name


def groups(talks: Sequence[Conversation], size: int) -> Iterator[Sequence[Conversation]]:
    """Conversations in groups of `size`."""
    return (talks[start : start + size] for start in range(0, len(talks), size))
