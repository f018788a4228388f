"""The thread that owns the model: jobs are submitted from an event loop, steps come back to it."""

import asyncio
import dataclasses
import itertools
import logging
import queue
import threading
from collections.abc import Callable

from sapwood.api import LLM
from sapwood.completion import Step
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.recipes import resolve
from sapwood.sampling import Sampling
from sapwood.serve.crowd import Crowd
from sapwood.serve.jobs import Busy, Job, Ticket
from sapwood.serve.rounds import Round, Snapshot
from sapwood.serve.scheduler import TOGETHER, Scheduler
from sapwood.serve.tenants import Engines

LOG = logging.getLogger("sapwood.serve.engine")
MEMORY = 16384  # tokens that memory holds where nobody says how many; more where one text may be longer
LONGEST = 65536  # tokens of one text up to which that is so


class Worker:
    """Decodes the jobs of many owners on one model, in rounds that they share."""

    def __init__(
        self,
        llm: LLM,
        waiting: int = 256,  # requests that may wait
        *,
        together: int = TOGETHER,  # requests that may share a pass
        slo: float | None = None,  # seconds that a pass should not exceed
        memory: int | None = None,  # tokens of all texts together
    ) -> None:
        self.llm, self._waiting = llm, waiting
        self._inbox: queue.SimpleQueue[list[Ticket]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._ending, self._still = threading.Event(), threading.Event()
        self._lock, self._coming = threading.Lock(), 0  # tickets in the inbox
        self._still.set()
        self.draining = False  # nothing new is taken
        self.watchers: list[Callable[[Ticket, Step], None]] = []  # told of every step, on the engine's thread
        self.round_watchers: list[Callable[[Round], None]] = []  # told once per round, on the engine's thread
        llm.target.memory.limit(memory or max(MEMORY, min(llm.target.info.context, LONGEST)))
        self.crowd = Crowd(llm.target, Engines(self._engine), llm.text, llm.profile.measured)
        self.scheduler = Scheduler(self.crowd, llm.profile.curve, together, slo, give=self._give)
        self._seen = self.scheduler.snapshot()

    def _engine(self, recipe: str) -> Engine:
        """A further engine for a tenant: of the server's recipe where none is named."""
        return self.llm.bind(resolve(recipe) if recipe else resolve(self.llm.recipe))

    # -------------------------------------------------------------------- called by the jobs' owners
    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, job: Job) -> Ticket:
        """Queue a job of the running event loop."""
        [ticket] = self.submit_all(job, 1)
        return ticket

    def submit_all(self, job: Job, n: int) -> list[Ticket]:
        """Queue a job for `n` answers; its prompt is read once, and each answer has the next seed."""
        if self.draining:
            raise Busy("the server is shutting down; try again soon")
        if self._coming + self._seen.waiting >= self._waiting:
            raise Busy(f"{self._waiting} requests are waiting already; try again later")
        if job.recipe:
            resolve(job.recipe)  # a misspelling fails at once
        self.crowd.check(job)
        loop = asyncio.get_running_loop()
        jobs = [dataclasses.replace(job, sampling=seeded(job, offset)) if offset else job for offset in range(n)]
        tickets = [Ticket(one, next(self._numbers), loop, wake=self._nudge) for one in jobs]
        with self._lock:
            self._coming += n
            self._still.clear()
            self._inbox.put(tickets)
        return tickets

    def snapshot(self) -> Snapshot:
        """How things stood after the last round."""
        return dataclasses.replace(self._seen, waiting=self._seen.waiting + self._coming, draining=self.draining)

    def drain(self, seconds: float | None = None) -> bool:
        """Take nothing new and wait for what is under way; False where that took longer than it may."""
        self.draining = True
        return self._still.wait(seconds)

    def stop(self, seconds: float | None = None) -> None:
        """Finish what is under way, as far as it takes no longer than this, then end."""
        self.drain(seconds)
        self._ending.set()
        self._nudge()
        self._thread.join()

    def _nudge(self) -> None:
        self._inbox.put([])

    # ------------------------------------------------------------------------- the engine's thread
    def _run(self) -> None:
        self.llm.profile.widen(self.llm.target, self.llm.progress)
        while not self._ending.is_set():
            self._take()
            try:
                self._round()
            except Exception as error:  # the thread must outlive every request
                LOG.exception("a round failed as a whole")
                self.crowd.close(error)
            self._seen = self.scheduler.snapshot()
            with self._lock:
                if self.crowd.idle and not self._coming:
                    self._still.set()
        self.crowd.close(SapwoodError("the server is shutting down; try again soon"))

    def _take(self) -> None:
        """Let in who has come; where nobody is here, wait for somebody."""
        while self.crowd.idle or not self._inbox.empty():
            tickets = self._inbox.get()
            for ticket in tickets:
                self.crowd.add(ticket)
            with self._lock:
                self._coming -= len(tickets)
            if self._ending.is_set():
                return

    def _round(self) -> None:
        told = self.scheduler.round()
        if told is None:
            return
        for watcher in self.round_watchers:
            try:
                watcher(told)
            except Exception:
                LOG.exception("a watcher of rounds failed")
        self.llm.profile.keep()

    def _give(self, ticket: Ticket, step: Step) -> None:
        ticket.give(step)
        for watcher in self.watchers:
            try:
                watcher(ticket, step)
            except Exception:
                LOG.exception("a watcher of steps failed")


def seeded(job: Job, offset: int) -> Sampling:
    """The sampling of one of several answers."""
    return dataclasses.replace(job.sampling, seed=job.sampling.seed + offset)
