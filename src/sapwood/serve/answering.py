"""A request inside the engine: a text being read for it, then its answer, round by round."""

import time
from collections.abc import Sequence

from sapwood.completion import Step
from sapwood.engine import Decoding, Engine
from sapwood.output import Writer
from sapwood.protocols import Backend, Chunk, Scores, Session
from sapwood.records import Joint
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.serve.jobs import Job, Ticket


class Answer:
    """What was said so far, and the decoding of what comes next while it has memory."""

    def __init__(self, ticket: Ticket, engine: Engine, sampling: Sampling, writer: Writer) -> None:
        self.ticket, self.engine, self.sampling, self.writer = ticket, engine, sampling, writer
        self.priced: bool = getattr(engine.recipe.controller, "priced", False)
        self.said: list[int] = []
        self.nodes = 0  # of its last tree
        self.decoding: Decoding | None = None
        self._since = 0.0  # when its last step came, or its text was first begun

    @property
    def number(self) -> int:
        """Its age: the smaller, the older."""
        return self.ticket.number

    def start(self, now: float) -> None:
        """Have the clock of its numbers run, from when its text is first begun; `now` is by the clock of tickets."""
        self._since = self._since or time.perf_counter()
        if self.ticket.started is None:
            self.ticket.started = now

    def begin(self, session: Session) -> None:
        """Go on from a session that holds all of the text but its last token."""
        job = self.ticket.job
        self.decoding = Decoding(self.engine, job.prompt, self.sampling, Keyed(self.sampling.seed), session, self.said)

    @property
    def running(self) -> Decoding:
        """The decoding."""
        assert self.decoding is not None
        return self.decoding

    def judge(self, scores: Scores, joint: Joint | None) -> Step:
        """What a scored tree adds to the answer."""
        outcome = self.running.judge(scores, joint)
        step = self.writer.step(outcome, self._since, reading=not self.said)
        self._since = time.perf_counter()
        self.said += outcome.tokens
        self.nodes = len(outcome.tree) - 1
        return step

    def leave(self) -> None:
        """Free what it holds."""
        decoding, self.decoding = self.decoding, None
        if decoding is not None:
            decoding.close()


class Reading:
    """A text that is read for one answer or, where several begin alike, once for all of them."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        first = self.answers[0]
        self.text = [*first.ticket.job.prompt, *first.said][:-1]  # the last token is the root of the first tree
        self.session: Session | None = None

    @property
    def number(self) -> int:
        """The age of its oldest answer."""
        return self.answers[0].number

    @property
    def tenant(self) -> str:
        """Who asks."""
        return self.answers[0].ticket.job.tenant

    @property
    def left(self) -> int:
        """Tokens still to be read."""
        return len(self.text) - (self.session.length if self.session is not None else 0)

    def suits(self, job: Job) -> bool:
        """True when this text, still to be read, is that of a further job."""
        first = self.answers[0]
        mine = first.ticket.job
        return bool(self.left and not first.said and (mine.tenant, mine.prompt) == (job.tenant, job.prompt))

    def start(self, target: Backend, now: float) -> None:
        """Take up memory; what is still known of the text need not be read again."""
        self.session = target.start(self.text, self.tenant)
        for answer in self.answers:
            answer.start(now)

    def chunk(self, count: int) -> Chunk:
        """The next tokens to read."""
        assert self.session is not None
        begun = self.session.length
        return Chunk(self.session, self.text[begun : begun + count])

    def share(self) -> list[Session]:
        """A session for each answer, once all is read: forks, and the one that has read."""
        session, self.session = self.session, None
        assert session is not None
        forks: list[Session] = []
        try:
            forks += [session.fork() for _ in self.answers[1:]]
        except BaseException:
            for held in (session, *forks):
                held.close()
            raise
        return [session, *forks]

    def leave(self) -> None:
        """Free what it holds."""
        session, self.session = self.session, None
        if session is not None:
            session.close()
