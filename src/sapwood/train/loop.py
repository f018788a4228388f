"""The training loop: batches in a fixed order, a fixed schedule, a saved state to resume from.

A run is given steps, or seconds from which it plans its steps after measuring one. The plan is kept
with the state, so a run that was stopped goes on as if nothing had happened and ends with the same
weights.
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

from sapwood.core.array_types import IntArray
from sapwood.errors import SapwoodError
from sapwood.train import checkpoint
from sapwood.train.batches import BatchOrder, TrainBatch, gather
from sapwood.train.corpus import Corpus
from sapwood.train.objective import LossResult, Objective
from sapwood.train.optimizers import optimizers
from sapwood.train.teacher import Teacher

PROBE = 30  # steps after which the plan is made; the first third only warms up
EARLY = 0.1  # of the seconds, after which the plan is made from fewer steps
LATE = 1.03  # of the seconds: a plan that would take longer is shortened
WARMUP = 100  # steps over which the learning rates rise
FLOOR = 0.02  # of the peak rates, at the end
SAVING = 10  # least seconds between two saves, over the seconds that a save takes
POINTS = 20  # of a curve, if a run has as many steps


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Budget and pace of a run."""

    steps: int | None = None  # exactly this many; or planned from seconds
    seconds: float = 600.0  # of training, over all interruptions
    tokens: int = 32_768  # of one batch, padding included
    longest: int = 1280  # tokens of a text
    seed: int = 0
    clip: float = 1.0  # largest norm of a gradient
    save: float = 20.0  # seconds between saved states, if saving takes less than a tenth of it
    log: int = 50  # most steps between points of the curve
    tell: float = 5.0  # most seconds between reports, steps allowing


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of the curve: means since the one before."""

    step: int
    seconds: float
    tokens: int  # of answers read so far
    loss: float
    agreement: list[float]
    parts: list[tuple[float, list[float]]] = field(default_factory=list)  # of each of several heads


@dataclass
class RunState:
    """Progress of a run, beside its weights."""

    run: str  # identity of the run: a state of another run is refused
    plan: int | None = None  # steps in all
    step: int = 0
    spent: float = 0.0  # seconds
    tokens: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)  # options of the texts


class TrainingStopped(Exception):
    """The run was stopped on request and has saved its state."""


@dataclass
class TrainingLoop:
    """One training run."""

    objective: Objective
    teacher: Teacher
    corpus: Corpus
    settings: LoopSettings
    state: Path  # file of the state
    # called with every point, and with the newest steps in between
    report: Callable[[RunState], None] = lambda _: None
    asked_to_stop: Callable[[], bool] = lambda: False
    now: Callable[[], float] = time.monotonic
    asked: dict[str, Any] = field(default_factory=dict)  # kept with the state

    def run(self) -> tuple[nn.Module, RunState]:
        """Train to the end of the plan; return the head and the run's state."""
        torch.manual_seed(self.settings.seed)
        self.head = self.objective.build(
            self.teacher, self.corpus.counts(self.teacher.vocab)
        ).train()
        self.taught = pairs(self.objective, self.head)
        self.optimizers = [
            each
            for objective, head in self.taught
            for each in optimizers(head, objective.rate, objective.matrix_rate)
        ]
        self.rates = [
            group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups
        ]
        self.longest = min(self.settings.longest, self.teacher.backend.info.context)  # tokens
        self.lengths = np.diff(self.corpus.starts).clip(max=self.longest)  # [texts]
        self.notes = self._resume()
        self.first = self.notes.step  # done before this process
        self.saved = self.reported = self.now()
        self.began = self.saved - self.notes.spent
        self.saving = 0.0  # seconds of the last save
        self.planned = self.notes.step, self.saved  # step and time from which steps are timed
        self._train()
        self._save()
        return self.head.eval(), self.notes

    def _resume(self) -> RunState:
        if not self.state.is_file():
            return RunState(self._name(), plan=self.settings.steps, asked=self.asked)
        notes = remembered(self.state)
        if notes.run != self._name():
            raise SapwoodError(
                f"{self.state} holds another run ({notes.run}); "
                "give another --out, or delete it to begin anew"
            )
        notes.plan = self.settings.steps or notes.plan
        if notes.plan is not None and notes.plan < notes.step:
            raise SapwoodError(
                f"{self.state} has {notes.step} steps behind it, more than the {notes.plan} "
                "asked for; ask for as many, or delete it to begin anew"
            )
        checkpoint.restore(self.state, self.head, self.optimizers)
        return notes

    def _name(self) -> str:
        """Identity of the run: objective, texts, seed, batch size."""
        model, settings = self.teacher.backend.info.model, self.settings
        mark = zlib.crc32(self.corpus.tokens.tobytes())
        texts = f"{len(self.corpus)} texts of {model} with mark {mark:08x}"
        return f"{self.objective} on {texts}, seed {settings.seed}, {settings.tokens} tokens"

    # --------------------------------------------------------------------------------- steps
    def _train(self) -> None:
        notes, settings = self.notes, self.settings
        order = BatchOrder(self.lengths, settings.tokens, settings.seed)
        results: list[LossResult] = []
        for texts in order.after(notes.step):
            if notes.plan is not None and notes.step >= notes.plan:
                return
            result = self._step(texts)
            results.append(detached(result))
            if notes.step % self._every() == 0 or notes.step == notes.plan:
                notes.curve.append(self._point(results))
                self._report(notes)
                results = []
            elif self.now() - self.reported >= settings.tell:
                self._report(replace(notes, curve=[*notes.curve, self._point(results)]))
            if notes.plan is None:
                self._plan()
            elif settings.steps is None:
                self._shorten(notes.plan)
            self._keep()

    def _step(self, texts: IntArray) -> LossResult:
        notes = self.notes
        factor = pace(notes.step, notes.plan)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, self.rates, strict=True):
            group["lr"] = rate * factor
        batch = self._batch(texts)
        with self._precision():
            result = self.objective.loss(self.head, self.teacher, batch)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        result.loss.backward()  # type: ignore[no-untyped-call]
        for _, head in self.taught:
            nn.utils.clip_grad_norm_(head.parameters(), self.settings.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        notes.step += 1
        notes.tokens += int((self.lengths[texts] - self.corpus.answers[texts]).clip(min=0).sum())
        return result

    def _batch(self, texts: IntArray) -> TrainBatch:
        found = gather(self.corpus, texts, self.longest)
        tokens, lengths, answers = (
            tensor.to(self.teacher.device, non_blocking=True) for tensor in found
        )
        features, final = self.teacher.read(tokens, self.objective.features(self.teacher))
        return TrainBatch(tokens, lengths, answers, features, final)

    def some(self, count: int) -> Iterator[TrainBatch]:
        """A few batches with the target's states, for measuring a trained head."""
        order = BatchOrder(self.lengths, self.settings.tokens, self.settings.seed)
        return (self._batch(texts) for texts in order.epoch(0)[:count])

    def _precision(self) -> Any:
        on_gpu = self.teacher.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()

    # ------------------------------------------------------------------------------- records
    def _every(self) -> int:
        """Steps between points of the curve."""
        plan, log = self.notes.plan, self.settings.log
        return log if plan is None else max(1, min(log, plan // POINTS))

    def _point(self, results: list[LossResult]) -> CurvePoint:
        notes = self.notes
        spent = self.now() - self.began
        parts = [
            mean(list(of_one)) for of_one in zip(*(result.parts for result in results), strict=True)
        ]
        point = CurvePoint(notes.step, round(spent, 2), notes.tokens, *mean(results), parts)
        if not math.isfinite(point.loss):
            raise SapwoodError(
                f"the loss is not finite at step {notes.step}; lower the learning rate"
            )
        return point

    def _report(self, notes: RunState) -> None:
        self.reported = self.now()
        self.report(notes)

    def _plan(self) -> None:
        """Fix the number of steps once a step's time is known, from the steps of this process."""
        notes = self.notes
        done = notes.step - self.first
        if done in (1, PROBE // 3):
            self._settle()
            self.probed, self.probe = done, self.now()
        elif done == PROBE or self.now() - self.probe >= EARLY * self.settings.seconds:
            self._settle()
            each = (self.now() - self.probe) / (done - self.probed)
            left = self.settings.seconds - (self.now() - self.began)
            notes.plan = notes.step + max(1, int(left / each))
            self.planned = notes.step, self.now()

    def _shorten(self, plan: int) -> None:
        """Take steps from a plan that would end late, as when the machine has become slower."""
        notes = self.notes
        step, at = self.planned
        if notes.step <= step or notes.step >= plan:
            return
        each = (self.now() - at) / (notes.step - step)
        left = self.settings.seconds - (self.now() - self.began)
        if (plan - notes.step) * each > left + (LATE - 1) * self.settings.seconds:
            notes.plan = notes.step + max(0, int(left / each))

    def _settle(self) -> None:
        if self.teacher.device.type == "cuda":
            torch.cuda.synchronize(self.teacher.device)

    def _keep(self) -> None:
        """Save the state at intervals, and when asked to stop."""
        stop = self.asked_to_stop()
        if stop or self.now() - self.saved >= max(self.settings.save, SAVING * self.saving):
            self._save()
        if stop:
            planned = self.notes.plan or "an unplanned number"
            raise TrainingStopped(f"stopped after step {self.notes.step} of {planned}")

    def _save(self) -> None:
        self.saved = self.now()
        self.notes.spent = self.saved - self.began
        checkpoint.save(self.state, self.head, self.optimizers, asdict(self.notes))
        self.saving = self.now() - self.saved


def remembered(state: Path) -> RunState:
    """The notes of a saved state."""
    record = checkpoint.notes_in(state)
    try:
        return RunState(**{**record, "curve": [CurvePoint(**point) for point in record["curve"]]})
    except (KeyError, TypeError) as error:
        raise SapwoodError(
            f"{state} is of another version of sapwood; delete it to begin anew"
        ) from error


def pairs(objective: Any, head: Any) -> list[tuple[Objective, nn.Module]]:
    """Each objective with its head: one, or several that are trained together."""
    from sapwood.train.multi_objective import MultiObjective  # it imports this module

    if isinstance(objective, MultiObjective):
        return objective.taught(head)
    return [(objective, head)]


def detached(result: LossResult) -> LossResult:
    """A loss result without its graph."""
    return LossResult(
        result.loss.detach(), result.agreement.detach(), tuple(map(detached, result.parts))
    )


def mean(results: list[LossResult]) -> tuple[float, list[float]]:
    """Mean loss and agreement."""
    loss = torch.stack([result.loss for result in results]).mean()
    agreement: list[float] = torch.stack([result.agreement for result in results]).mean(0).tolist()
    return float(loss), agreement


def pace(step: int, plan: int | None) -> float:
    """Factor on the learning rates: a short rise, then half a cosine down to the floor."""
    warmup = WARMUP if plan is None else max(1, min(WARMUP, plan // 10))
    if step < warmup:
        return (step + 1) / warmup
    share = 0.0 if plan is None else (step - warmup) / max(1, plan - warmup)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(1.0, share))) / 2
