"""The training loop: batches in a fixed order, a schedule fixed early, a state that survives a kill.

A run is given steps, or seconds from which it plans its steps once it has seen how long one takes.
The plan is kept with the state, so a run that was stopped goes on as if nothing had happened and
ends with the same weights.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
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
    log: int = 50  # steps between points of the curve


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
    report: Callable[[Notes], None] = lambda _: None  # told after every logged step
    asked_to_stop: Callable[[], bool] = lambda: False
    now: Callable[[], float] = time.monotonic

    def run(self) -> tuple[nn.Module, Notes]:
        """Train to the end of the plan; return the head and what happened."""
        torch.manual_seed(self.settings.seed)
        self.head = self.course.build(self.teacher, self.corpus.counts(self.teacher.vocab)).train()
        self.taught = pairs(self.course, self.head)
        self.optimizers = [
            each for course, head in self.taught for each in optimizers(head, course.rate, course.matrix_rate)
        ]
        self.rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.lengths = np.diff(self.corpus.starts).clip(max=self.settings.longest)  # [texts]
        self.notes = self._resume()
        self.began = self.saved = self.now() - self.notes.spent
        self.saved = self.now()
        self._train()
        self._save()
        return self.head.eval(), self.notes

    def _resume(self) -> Notes:
        run = f"{self.course} on {len(self.corpus)} texts, seed {self.settings.seed}, {self.settings.tokens} tokens"
        fresh = Notes(run, plan=self.settings.steps)
        if not self.state.is_file():
            return fresh
        found = checkpoint.restore(self.state, self.head, self.optimizers)
        if found["run"] != run:
            raise SapwoodError(
                f"{self.state} holds another run ({found['run']}); give another --out, or delete it to begin anew"
            )
        points = [Point(**point) for point in found.pop("curve")]
        notes = Notes(**found, curve=points)
        notes.plan = self.settings.steps or notes.plan
        return notes

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
            if notes.step % settings.log == 0 or notes.step == notes.plan:
                self._point(lessons)
                lessons = []
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
        found = gather(self.corpus, texts, self.settings.longest)
        tokens, lengths, answers = (tensor.to(self.teacher.device, non_blocking=True) for tensor in found)
        features, final = self.teacher.read(tokens, self.course.features(self.teacher))
        return Batch(tokens, lengths, answers, features, final)

    def _precision(self) -> Any:
        on_gpu = self.teacher.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()

    # --------------------------------------------------------------------------------- records
    def _point(self, lessons: list[Lesson]) -> None:
        notes, spent = self.notes, self.now() - self.began
        parts = [mean(list(of_one)) for of_one in zip(*(lesson.parts for lesson in lessons), strict=True)]
        notes.curve.append(Point(notes.step, round(spent, 2), notes.tokens, *mean(lessons), parts))
        if not math.isfinite(notes.curve[-1].loss):
            raise SapwoodError(f"the loss is no number any more at step {notes.step}; lower the learning rate")
        self.report(notes)

    def _plan(self) -> None:
        """Fix the number of steps once a step's time is known."""
        notes = self.notes
        if notes.step == PROBE // 3 or (notes.step < PROBE and not hasattr(self, "probe")):
            self._settle()
            self.probe = notes.step, self.now()
        elif notes.step >= PROBE:
            self._settle()
            step, moment = self.probe
            each = (self.now() - moment) / (notes.step - step)
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
    share = (step - warmup) / max(1, (plan or step + 1) - warmup)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(1.0, share))) / 2
