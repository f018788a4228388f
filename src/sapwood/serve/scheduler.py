"""Continuous batching of trees: one loop of rounds over many requests.

Requests join and leave between rounds. In each, prompts are read in chunks, every answer under way grows its
tree, one plan cuts all trees together, and one pass of the target reads and checks everything. Whoever has to
wait, waits for memory: when it runs out in the middle, the youngest gives its own up and is read again later,
from its prompt and what it has said. What happens to one request changes no token of another.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.completion import Step
from sapwood.controllers.ledger import Ledger, joint_rate, ledgers
from sapwood.cost import CostCurve
from sapwood.errors import OutOfMemory
from sapwood.serve.answering import Answer, Reading
from sapwood.serve.batch import Batch, Pass
from sapwood.serve.crowd import Crowd
from sapwood.serve.jobs import Ticket
from sapwood.serve.plan import portions, rows_within
from sapwood.serve.rounds import Recent, Round, Snapshot
from sapwood.tree import CAPACITY

TOGETHER = 64  # requests that may share a pass
CHUNK = 64  # rows of prompts in a pass that others wait for
WHOLE = 512  # rows of prompts in a pass that nobody waits for
LEAST = 16  # rows of prompts that are read however little time a pass may take: else nobody would ever begin

Shares = list[tuple[Reading, int]]  # rows that are read of each text


def hand_over(ticket: Ticket, step: Step) -> None:
    """Give a step to its owner."""
    ticket.give(step)


@dataclass
class Scheduler:
    """Rounds over all requests, on one thread."""

    crowd: Crowd
    cost: CostCurve
    together: int = TOGETHER
    slo: float | None = None  # seconds that a pass should not exceed
    now: Callable[[], float] = time.perf_counter  # seconds, as the engines count them
    give: Callable[[Ticket, Step], None] = hand_over
    rounds: int = 0
    tokens: int = 0
    recent: Recent = field(default_factory=Recent)
    _solo: bool = False  # the last pass held one tree and nothing else

    def round(self) -> Round | None:
        """One round; None where there was nothing to do."""
        start, crowd = self.now(), self.crowd
        crowd.sweep()
        crowd.admit(self.together, self._in_time)
        crowd.begin()
        if not crowd.answers and not crowd.reading:
            return None
        each, total, shares = self._sizes()
        reading = sum(rows for _, rows in shares)
        batch = Batch(crowd.target, self.cost, list(crowd.answers), self.books(), reading, self.now)
        again, self._solo = self._solo, batch.solo
        for troubles in (batch.grow(each, total, again=again), batch.cut(total)):
            for answer, error in troubles:
                self._trouble(answer, error)
        found = self._score(batch, shares)
        self._judge(found)
        batch.settle(found, measured=crowd.measured)
        return self._tell(found, self.now() - start)

    def books(self) -> list[Ledger]:
        """The ledgers of all recipes under way, each once."""
        parts = {id(answer.engine): answer.engine.recipe.parts()[-1] for answer in self.crowd.answers}
        return list({id(book): book for part in parts.values() for book in ledgers(part)}.values())

    # --------------------------------------------------------------------------------------- sizes
    def _context(self) -> int:
        lengths = [answer.running.session.length for answer in self.crowd.answers]
        return sum(lengths) // len(lengths) if lengths else 0

    def _in_time(self, trees: int) -> bool:
        """True when a pass of so many requests is as quick as it should be."""
        return rows_within(self.cost, self._context(), trees, self.slo) >= trees

    def _sizes(self) -> tuple[int, int, Shares]:
        """Most nodes of one tree and of all, and rows of each prompt, that time and memory leave room for."""
        crowd, memory = self.crowd, self.crowd.target.memory
        trees = len(crowd.answers)
        rows = rows_within(self.cost, self._context(), max(trees, 1), self.slo)
        room = min(max(rows - trees, LEAST), CHUNK if trees else WHOLE)
        wanted = portions([reading.left for reading in crowd.reading], room)
        shares = [(reading, want) for reading, want in zip(crowd.reading, wanted, strict=True) if want]
        each, total = CAPACITY - 1, max(rows - trees - sum(wanted), 0)
        if memory.blocks is not None and trees:
            free = memory.blocks - memory.used - sum(want // memory.block + 2 for _, want in shares)
            each = min(each, max((free // trees - 1) * memory.block - 1, 0))  # the last block may have to be copied
        return each, total, shares

    # -------------------------------------------------------------------------------------- a pass
    def _score(self, batch: Batch, shares: Shares) -> Pass:
        """The pass; where memory runs out, without the youngest, and where it fails, one by one."""
        crowd = self.crowd
        while True:
            shares = [(reading, rows) for reading, rows in shares if reading in crowd.reading]
            if not batch.works and not shares:
                return Pass([], 0, 0.0)
            try:
                return batch.score([reading.chunk(rows) for reading, rows in shares])
            except OutOfMemory as error:
                self._make_room(batch, error)
            except Exception:
                return self._one_by_one(batch, shares)

    def _make_room(self, batch: Batch, error: OutOfMemory) -> None:
        """Have the youngest give its memory up; who is alone and does not fit never will."""
        crowd = self.crowd
        youngest = crowd.youngest()
        if isinstance(youngest, Answer):
            batch.without(youngest)
        if len(crowd.answers) + len(crowd.reading) > 1:
            crowd.preempt(youngest)
        elif isinstance(youngest, Reading):
            crowd.forget(youngest, error)
        else:
            crowd.drop(youngest, error)

    def _one_by_one(self, batch: Batch, shares: Shares) -> Pass:
        """Only whoever fails alone has failed."""
        for reading, rows in shares:
            try:
                if reading.left:  # the pass may have failed after it had read
                    self.crowd.target.score([], [reading.chunk(rows)])
            except Exception as error:
                self.crowd.forget(reading, error)
        found, failed = batch.score_apart()
        for answer, problem in failed:
            self._trouble(answer, problem)
        return found

    def _trouble(self, answer: Answer, error: Exception) -> None:
        """An answer could not go on: for want of memory it waits, for all else it ends."""
        if isinstance(error, OutOfMemory) and self.crowd.active > 1:
            self.crowd.preempt(answer)
        else:
            self.crowd.drop(answer, error)

    def _judge(self, found: Pass) -> None:
        """What the pass adds to each answer goes to its owner."""
        for answer, scores in found.scores:
            try:
                step = answer.judge(scores, found.joint)
            except Exception as error:
                self.crowd.drop(answer, error)
                continue
            found.steps.append((answer, step))
            if step.done:
                self.crowd.drop(answer)
            self.give(answer.ticket, step)

    # ------------------------------------------------------------------------------------- its end
    def _tell(self, found: Pass, seconds: float) -> Round:
        """Say how the round went."""
        outcomes = [step.outcome for _, step in found.steps]
        nodes, memory, books = (
            sum(len(outcome.tree) - 1 for outcome in outcomes),
            self.crowd.target.memory,
            self.books(),
        )
        rows, trees = nodes + len(outcomes) + found.reading, len(outcomes)
        context = sum(outcome.context for outcome in outcomes) // max(trees, 1)
        shape = [self.cost.seconds(max(count, 1), context, max(trees, 1)) for count in (rows - nodes, rows)]
        self.rounds += 1
        record = Round(
            number=self.rounds,
            trees=trees,
            nodes=nodes,
            reading=found.reading,
            tokens=sum(len(step.pieces) for _, step in found.steps),
            accepted=sum(piece.drafted for _, step in found.steps for piece in step.pieces),
            seconds=seconds,
            draft=sum(outcome.times.draft for outcome in outcomes),
            verify=found.seconds,
            plain=found.seconds * shape[0] / shape[1],
            rate=joint_rate(books),
            resting=any(book.rest > 0 for book in books),
            running=self.crowd.active,
            waiting=len(self.crowd.waiting),
            used=memory.used,
            cached=memory.cached,
        )
        self.tokens += record.tokens
        self.recent.count(record)
        return record

    def snapshot(self) -> Snapshot:
        """How things stand."""
        crowd, memory, books, recent = self.crowd, self.crowd.target.memory, self.books(), self.recent
        return Snapshot(
            running=len(crowd.answers),
            reading=crowd.active - len(crowd.answers),
            waiting=len(crowd.waiting),
            used=memory.used,
            cached=memory.cached,
            blocks=memory.blocks,
            block=memory.block,
            rounds=self.rounds,
            tokens=self.tokens,
            tokens_per_second=recent.tokens_per_second,
            nodes_per_pass=recent.each(recent.nodes),
            trees_per_pass=recent.each(recent.trees),
            rate=joint_rate(books),
            resting=any(book.rest > 0 for book in books),
            preemptions=crowd.preemptions,
        )
