"""Who is here: those that wait for memory, those whose text is read, those that are answered."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.output import Writer, within
from sapwood.protocols import Backend
from sapwood.request import fitting
from sapwood.serve.answering import Answer, Reading
from sapwood.serve.jobs import Expired, Job, Ticket
from sapwood.serve.tenants import Engines
from sapwood.serve.waiting import Waiting
from sapwood.text import Text

LOG = logging.getLogger("sapwood.serve.engine")


@dataclass
class Crowd:
    """All requests, and how they come by memory and lose it."""

    target: Backend
    engines: Engines
    text: Text | None = None
    measured: bool = True  # the cost curve says something about this machine
    now: Callable[[], float] = time.monotonic  # of tickets
    waiting: Waiting = field(default_factory=Waiting)
    reading: list[Reading] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    preemptions: int = 0

    @property
    def active(self) -> int:
        """Requests that hold memory."""
        return len(self.answers) + sum(len(reading.answers) for reading in self.reading)

    @property
    def idle(self) -> bool:
        """True when nobody is here."""
        return not (self.answers or self.reading or len(self.waiting))

    # -------------------------------------------------------------------------------------- joining
    def room(self) -> int:
        """Most tokens that a text may have here, its answer included."""
        memory, context = self.target.memory, self.target.info.context
        return context if memory.blocks is None else min(context, memory.blocks * memory.block)

    def check(self, job: Job) -> None:
        """Refuse what can never be answered, in one sentence."""
        fitting(list(job.prompt), self.target.info)
        if len(job.prompt) >= self.room():
            raise SapwoodError(
                f"the prompt has {len(job.prompt)} tokens, but memory holds {self.room()} with the answer; shorten it"
            )

    def add(self, ticket: Ticket) -> None:
        """Have a job wait its turn; one whose text somebody else waits for, or begins to read, joins them."""
        job = ticket.job
        try:
            self.check(job)
            engine = self.engines.get(job.tenant, job.recipe)
            sampling = within(job.sampling, self.room() - len(job.prompt))
            sampling = replace(sampling, prediction=job.prediction or sampling.prediction)
            writer = Writer(engine, job.prompt, sampling, self.text, measured=self.measured)
        except Exception as error:
            ticket.give(error)
            return
        answer = Answer(ticket, engine, sampling, writer)
        twin = next((other for other in (*self.reading, *self.waiting) if other.suits(job)), None)
        if twin is None:
            self.waiting.add(Reading([answer]))
        else:
            twin.answers.append(answer)
            if twin in self.reading:
                answer.start(self.now())

    def admit(self, most: int, in_time: Callable[[int], bool]) -> None:
        """Give memory to those whose turn it is, as long as there is some, and time for so many."""
        memory = self.target.memory
        while (reading := self.waiting.first()) is not None and self.active < most:
            # each of those who are here may soon need one more block
            promised = sum(other.left for other in self.reading) + memory.block * (self.active + 1)
            if self.active and not (memory.fits(len(reading.text) + promised) and in_time(self.active + 1)):
                return
            self.waiting.take(reading)
            try:
                reading.start(self.target, self.now())
            except Exception as error:
                self._fail(reading, error)
            else:
                self.reading.append(reading)

    def begin(self) -> None:
        """Begin the answers whose text has been read."""
        for reading in [reading for reading in self.reading if not reading.left]:
            self.reading.remove(reading)
            try:
                sessions = reading.share()
            except OutOfMemory:  # for forks: each goes its own way
                for answer in reading.answers:
                    self.waiting.put_back(Reading([answer]))
                continue
            for answer, session in zip(reading.answers, sessions, strict=True):
                try:
                    answer.begin(session)
                except Exception as error:
                    self.drop(answer, error)
                else:
                    self.answers.append(answer)

    # -------------------------------------------------------------------------------------- leaving
    def sweep(self) -> None:
        """Let go of who has left and of who has stayed too long."""
        for answer in list(self.answers):
            if self._gone(answer):
                self.drop(answer)
        for reading in [*self.reading, *self.waiting]:
            stay = [answer for answer in reading.answers if not self._gone(answer)]
            if not stay:
                self.forget(reading)
            reading.answers[:] = stay or reading.answers

    def _gone(self, answer: Answer) -> bool:
        ticket = answer.ticket
        if ticket.cancelled.is_set():
            return True
        late = self.now() - ticket.submitted > ticket.job.seconds
        if late:
            ticket.give(Expired(f"the request took longer than {ticket.job.seconds:g} s; ask for less"))
        return late

    def drop(self, answer: Answer, error: Exception | None = None) -> None:
        """Free what an answer holds, and say why where it has failed."""
        if answer in self.answers:
            self.answers.remove(answer)
        try:
            answer.leave()
        except Exception:  # of a part; the memory is free all the same
            LOG.exception("a part failed when its request was closed")
        if error is not None:
            answer.ticket.give(error)

    def forget(self, reading: Reading, error: Exception | None = None) -> None:
        """Read a text no further, and say why where that has failed."""
        if reading in self.reading:
            self.reading.remove(reading)
        else:
            self.waiting.take(reading)
        reading.leave()
        if error is not None:
            self._fail(reading, error)

    def _fail(self, reading: Reading, error: Exception) -> None:
        for answer in reading.answers:
            answer.ticket.give(error)

    def close(self, error: Exception) -> None:
        """End everything."""
        for answer in list(self.answers):
            self.drop(answer, error)
        for reading in [*self.reading, *self.waiting]:
            self.forget(reading, error)

    # --------------------------------------------------------------------------------- giving memory up
    def youngest(self) -> Answer | Reading:
        """Who gives memory up first."""
        held: Sequence[Answer | Reading] = (*self.answers, *self.reading)
        return max(held, key=lambda one: one.number)

    def preempt(self, one: Answer | Reading) -> None:
        """Take the memory of an answer, or of a text that is read; it waits at the front."""
        self.preemptions += 1
        if isinstance(one, Reading):
            self.reading.remove(one)
            one.leave()
        else:
            self.drop(one)
        self.waiting.put_back(one if isinstance(one, Reading) else Reading([one]))
