"""The thread that owns a target: passes of several clients are merged into one."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend, PrefillChunk, TargetOutput, TreeInput


@dataclass
class ScoreJob:
    """One client's share of a pass."""

    work: Sequence[TreeInput]
    chunks: Sequence[PrefillChunk]
    result: "Future[list[FloatArray]]" = field(default_factory=Future)


@dataclass
class BackendCall:
    """Any other operation on the target."""

    action: Callable[[], Any]
    result: "Future[Any]" = field(default_factory=Future)


class TargetWorker:
    """Runs all operations on a target in one thread; waiting passes are run together."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.jobs: queue.SimpleQueue[ScoreJob | BackendCall | None] = queue.SimpleQueue()
        self.passes = 0
        self.shared = 0  # passes with trees of several clients
        self.thread = threading.Thread(target=self.run, name="target", daemon=True)
        self.thread.start()

    def score(self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk]) -> list[FloatArray]:
        """Logits of each tree, [rows, vocab]; waits for the pass."""
        job = ScoreJob(work, chunks)
        self.jobs.put(job)
        return job.result.result()

    def call(self, action: Callable[[], Any]) -> Any:
        """The result of an action in the thread of the target."""
        job = BackendCall(action)
        self.jobs.put(job)
        return job.result.result()

    def close(self) -> None:
        """End the thread after what is queued."""
        self.jobs.put(None)
        self.thread.join()

    def run(self) -> None:
        """Run jobs until the end; passes that wait at the same time become one."""
        while (first := self.jobs.get()) is not None:
            batch = [first]
            while not self.jobs.empty():
                job = self.jobs.get()
                if job is None:
                    self.run_all(batch)
                    return
                batch.append(job)
            self.run_all(batch)

    def run_all(self, batch: Sequence[ScoreJob | BackendCall]) -> None:
        """Run what came together: the calls in order, then one pass."""
        # a client waits for each of its jobs, so those of one batch are of different clients
        for job in batch:
            if isinstance(job, BackendCall):
                settle(job.result, job.action)
        scores = [job for job in batch if isinstance(job, ScoreJob)]
        if len(scores) > 1:
            try:
                results = self.run_pass(scores)
            except (ValueError, TypeError, RuntimeError):  # one of them is at fault: run them apart
                pass
            else:
                self.shared += 1
                for job, result in zip(scores, results, strict=True):
                    job.result.set_result(result)
                return
        for one in scores:
            settle(one.result, lambda one=one: self.run_pass([one])[0])  # type: ignore[misc]

    def run_pass(self, jobs: Sequence[ScoreJob]) -> list[list[FloatArray]]:
        """One pass over the trees and chunks of all jobs; its logits by job and tree."""
        work = [item for job in jobs for item in job.work]
        chunks = [item for job in jobs for item in job.chunks]
        outputs = iter(self.backend.score(work, chunks))
        self.passes += 1
        return [[rows_of(next(outputs), item) for item in job.work] for job in jobs]


def rows_of(output: TargetOutput, item: TreeInput) -> FloatArray:
    """A copy of the logits of a tree, as the next pass may overwrite them."""
    count = len(item.tree) - item.since
    rows: FloatArray = np.stack([output.logits(row) for row in range(count)])
    return rows


def settle(result: "Future[Any]", action: Callable[[], Any]) -> None:
    """Run an action and give its result or error to the thread that waits for it."""
    try:
        found = action()
    except BaseException as error:
        result.set_exception(error)
    else:
        result.set_result(found)
