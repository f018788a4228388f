"""The training loop: batches in a fixed order, a schedule fixed early, a state that survives a kill.

A run is given steps, or seconds from which it plans its steps once it has seen how long one takes.
The plan is kept with the state, so a run that was stopped goes on as if nothing had happened and
ends with the same weights.
"""

import math
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sapwood.arrays import IntArray
from sapwood.errors import SapwoodError
from sapwood.train import checkpoint
from sapwood.train.batches import Batch, Order, gather
from sapwood.train.corpus import Corpus
from sapwood.train.course import Course, Lesson
from sapwood.train.optimizers import optimizers
from sapwood.train.target import Teacher

PROBE = 30  # steps after which the plan is made; the first third only warms up the machine
WARMUP = 100  # steps over which the learning rates rise
FLOOR = 0.02  # of the peak rates, at the end
POINTS = 20  # of a curve, where a run has so many steps


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What a run may spend, and how it is paced."""

    steps: int | None = None  # exactly so many; or planned from seconds
    seconds: float = 600.0  # of training, over all interruptions
    tokens: int = 32_768  # of one batch, padding included
    longest: int = 1280  # tokens of a text
    seed: int = 0
    clip: float = 1.0  # largest norm of a gradient
    save: float = 60.0  # seconds between saved states
    log: int = 50  # most steps between points of the curve
    tell: float = 5.0  # most seconds between reports, steps allowing


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the curve: means since the one before."""

    step: int
    seconds: float
    tokens: int  # of answers read so far
    loss: float
    agreement: list[float]
    parts: list[tuple[float, list[float]]] = field(default_factory=list)  # of each of several heads


@dataclass
class Notes:
    """Where a run stands, beside its weights."""

    run: str  # what is being trained, on what: a state of another run is refused
    plan: int | None = None  # steps in all
    step: int = 0
    spent: float = 0.0  # seconds
    tokens: int = 0
    curve: list[Point] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)  # what the texts were asked for with


class Stopped(Exception):
    """The run was asked to stop and has saved its state."""


@dataclass
class Loop:
    """One training run."""

    course: Course
    teacher: Teacher
    corpus: Corpus
    settings: LoopSettings
    state: Path  # where the state is kept
    report: Callable[[Notes], None] = lambda _: None  # told of every point, and of the newest steps in between
    asked_to_stop: Callable[[], bool] = lambda: False
    now: Callable[[], float] = time.monotonic
    asked: dict[str, Any] = field(default_factory=dict)  # kept with the state

    def run(self) -> tuple[nn.Module, Notes]:
        """Train to the end of the plan; return the head and what happened."""
        torch.manual_seed(self.settings.seed)
        self.head = self.course.build(self.teacher, self.corpus.counts(self.teacher.vocab)).train()
        self.taught = pairs(self.course, self.head)
        self.optimizers = [
            each for course, head in self.taught for each in optimizers(head, course.rate, course.matrix_rate)
        ]
        self.rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.longest = min(self.settings.longest, self.teacher.backend.info.context)  # tokens
        self.lengths = np.diff(self.corpus.starts).clip(max=self.longest)  # [texts]
        self.notes = self._resume()
        self.first = self.notes.step  # done before this sitting
        self.saved = self.told = self.now()
        self.began = self.saved - self.notes.spent
        self._train()
        self._save()
        return self.head.eval(), self.notes

    def _resume(self) -> Notes:
        if not self.state.is_file():
            return Notes(self._name(), plan=self.settings.steps, asked=self.asked)
        notes = remembered(self.state)
        if notes.run != self._name():
            raise SapwoodError(
                f"{self.state} holds another run ({notes.run}); give another --out, or delete it to begin anew"
            )
        notes.plan = self.settings.steps or notes.plan
        if notes.plan is not None and notes.plan < notes.step:
            raise SapwoodError(
                f"{self.state} has {notes.step} steps behind it, more than the {notes.plan} asked for; "
                "ask for as many, or delete it to begin anew"
            )
        checkpoint.restore(self.state, self.head, self.optimizers)
        return notes

    def _name(self) -> str:
        """What makes this run this run."""
        model, settings = self.teacher.backend.info.model, self.settings
        mark = zlib.crc32(self.corpus.tokens.tobytes())
        texts = f"{len(self.corpus)} texts of {model} with mark {mark:08x}"
        return f"{self.course} on {texts}, seed {settings.seed}, {settings.tokens} tokens"

    # ---------------------------------------------------------------------------------- steps
    def _train(self) -> None:
        notes, settings = self.notes, self.settings
        order = Order(self.lengths, settings.tokens, settings.seed)
        lessons: list[Lesson] = []
        for texts in order.after(notes.step):
            if notes.plan is not None and notes.step >= notes.plan:
                return
            lesson = self._step(texts)
            lessons.append(detached(lesson))
            if notes.step % self._every() == 0 or notes.step == notes.plan:
                notes.curve.append(self._point(lessons))
                self._tell(notes)
                lessons = []
            elif self.now() - self.told >= settings.tell:
                self._tell(replace(notes, curve=[*notes.curve, self._point(lessons)]))
            if notes.plan is None:
                self._plan()
            self._keep()

    def _step(self, texts: IntArray) -> Lesson:
        notes = self.notes
        factor = pace(notes.step, notes.plan)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, self.rates, strict=True):
            group["lr"] = rate * factor
        batch = self._batch(texts)
        with self._precision():
            lesson = self.course.lesson(self.head, self.teacher, batch)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        lesson.loss.backward()  # type: ignore[no-untyped-call]
        for _, head in self.taught:
            nn.utils.clip_grad_norm_(head.parameters(), self.settings.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        notes.step += 1
        notes.tokens += int((self.lengths[texts] - self.corpus.answers[texts]).clip(min=0).sum())
        return lesson

    def _batch(self, texts: IntArray) -> Batch:
        found = gather(self.corpus, texts, self.longest)
        tokens, lengths, answers = (tensor.to(self.teacher.device, non_blocking=True) for tensor in found)
        features, final = self.teacher.read(tokens, self.course.features(self.teacher))
        return Batch(tokens, lengths, answers, features, final)

    def some(self, count: int) -> Iterator[Batch]:
        """A few batches, read by the target; for measuring a head that was trained."""
        order = Order(self.lengths, self.settings.tokens, self.settings.seed)
        return (self._batch(texts) for texts in order.epoch(0)[:count])

    def _precision(self) -> Any:
        on_gpu = self.teacher.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()

    # --------------------------------------------------------------------------------- records
    def _every(self) -> int:
        """Steps between points of the curve."""
        plan, log = self.notes.plan, self.settings.log
        return log if plan is None else max(1, min(log, plan // POINTS))

    def _point(self, lessons: list[Lesson]) -> Point:
        notes, spent = self.notes, self.now() - self.began
        parts = [mean(list(of_one)) for of_one in zip(*(lesson.parts for lesson in lessons), strict=True)]
        point = Point(notes.step, round(spent, 2), notes.tokens, *mean(lessons), parts)
        if not math.isfinite(point.loss):
            raise SapwoodError(f"the loss is no number any more at step {notes.step}; lower the learning rate")
        return point

    def _tell(self, notes: Notes) -> None:
        self.told = self.now()
        self.report(notes)

    def _plan(self) -> None:
        """Fix the number of steps once a step's time is known, from the steps of this sitting."""
        notes = self.notes
        if notes.step - self.first == PROBE // 3:
            self._settle()
            self.probe = self.now()
        elif notes.step - self.first == PROBE:
            self._settle()
            each = (self.now() - self.probe) / (PROBE - PROBE // 3)
            left = self.settings.seconds - (self.now() - self.began)
            notes.plan = notes.step + max(1, int(left / each))

    def _settle(self) -> None:
        if self.teacher.device.type == "cuda":
            torch.cuda.synchronize(self.teacher.device)

    def _keep(self) -> None:
        """Save the state now and then, and when asked to stop."""
        stop = self.asked_to_stop()
        if stop or self.now() - self.saved >= self.settings.save:
            self._save()
        if stop:
            raise Stopped(f"stopped after step {self.notes.step} of {self.notes.plan or 'an unplanned number'}")

    def _save(self) -> None:
        self.saved = self.now()
        self.notes.spent = self.saved - self.began
        checkpoint.save(self.state, self.head, self.optimizers, asdict(self.notes))


def remembered(state: Path) -> Notes:
    """The notes of a saved state."""
    record = checkpoint.notes_in(state)
    try:
        return Notes(**{**record, "curve": [Point(**point) for point in record["curve"]]})
    except (KeyError, TypeError) as error:
        raise SapwoodError(f"{state} is of another version of sapwood; delete it to begin anew") from error


def pairs(course: Any, head: Any) -> list[tuple[Course, nn.Module]]:
    """Each course with its head: one, or several that are taught together."""
    found: list[tuple[Course, nn.Module]] = course.taught(head) if hasattr(course, "taught") else [(course, head)]
    return found


def detached(lesson: Lesson) -> Lesson:
    """A lesson's numbers, without what they were computed from."""
    return Lesson(lesson.loss.detach(), lesson.agreement.detach(), tuple(map(detached, lesson.parts)))


def mean(lessons: list[Lesson]) -> tuple[float, list[float]]:
    """Loss and agreement over these lessons."""
    loss = torch.stack([lesson.loss for lesson in lessons]).mean()
    agreement: list[float] = torch.stack([lesson.agreement for lesson in lessons]).mean(0).tolist()
    return float(loss), agreement


def pace(step: int, plan: int | None) -> float:
    """Factor on the learning rates: a short rise, then half a cosine down to the floor."""
    warmup = WARMUP if plan is None else max(1, min(WARMUP, plan // 10))
    if step < warmup:
        return (step + 1) / warmup
    share = 0.0 if plan is None else (step - warmup) / max(1, plan - warmup)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(1.0, share))) / 2
