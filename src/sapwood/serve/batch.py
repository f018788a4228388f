"""The trees of one round: grown one by one, cut together, checked in one pass, booked once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sapwood.completion import Step
from sapwood.controllers.ledger import Ledger, joint_rate, refine
from sapwood.cost import CostCurve
from sapwood.protocols import Backend, Chunk, Scores, Work
from sapwood.records import Company, Joint, Prune
from sapwood.serve.answering import Answer
from sapwood.serve.plan import joint_price, spend

Trouble = tuple[Answer, Exception]


@dataclass
class Pass:
    """What the target has said, and what came of it."""

    scores: list[tuple[Answer, Scores]]
    reading: int  # rows of prompts
    seconds: float
    joint: Joint | None = None  # None where a request had the pass for itself
    whole: bool = True  # False where it had to be done in pieces, so that its seconds say nothing
    steps: list[tuple[Answer, Step]] = field(default_factory=list)


@dataclass
class Batch:
    """All answers under way in one round."""

    target: Backend
    cost: CostCurve
    answers: list[Answer]
    books: Sequence[Ledger]
    reading: int  # rows of prompts that will be read in the same pass
    now: Callable[[], float]  # seconds
    works: dict[Answer, Work] = field(default_factory=dict)

    @property
    def context(self) -> int:
        """Mean length of the texts."""
        lengths = [answer.running.session.length for answer in self.answers]
        return sum(lengths) // len(lengths) if lengths else 0

    @property
    def solo(self) -> bool:
        """True when one tree has the pass for itself: then all is as if there were no scheduler."""
        return len(self.answers) == 1 and not self.reading

    # ------------------------------------------------------------------------------------- trees
    def grow(self, each: int, total: int, *, again: bool) -> Iterator[Trouble]:
        """Grow all trees, of at most `each` nodes, and of `total` together; whoever fails is left out.

        `again` says that the last pass was as lonely as this one will be, and nothing need be told.
        """
        rows = self.reading + sum(1 + answer.nodes for answer in self.answers)
        trees, rate, alone = len(self.answers), joint_rate(self.books), self.solo
        for answer in list(self.answers):
            company = Company(trees, rows - 1 - answer.nodes, rate if trees > 1 else 0.0)
            shares = total if answer.priced else total // trees  # priced trees are cut together
            try:
                answer.running.grow(min(each, shares), None if again and alone else company)
            except Exception as error:
                self.answers.remove(answer)
                yield answer, error
            else:
                if not alone:
                    answer.running.clock.lap("draft")

    def cut(self, total: int) -> Iterator[Trouble]:
        """Cut all trees, those that have a price together; whoever fails is left out."""
        alone = self.solo
        able = [answer for answer in self.answers if len(self.answers) > 1 and by_reach(answer)]
        for answer in list(self.answers):
            if answer not in able:
                yield from self._cut(answer, None, alone)
        rows = self.reading + len(able) + sum(len(work.tree) for work in self.works.values())
        for answer, count in zip(able, self._shares(able, rows, total), strict=True):
            yield from self._cut(answer, count, alone)

    def _shares(self, able: Sequence[Answer], rows: int, total: int) -> list[int]:
        """Nodes of each tree, where so many rows are taken already."""
        if not able:
            return []
        drafts = [answer.running for answer in able]
        reaches = [np.sort(draft.grown.reach[1:])[::-1][: draft.budget.nodes] for draft in drafts]
        nodes = min(sum(map(len, reaches)), max(total - rows + len(self.answers) + self.reading, 0))
        rate = float(np.mean([draft.budget.rate for draft in drafts]))
        return spend(reaches, joint_price(self.cost, self.context, rate, rows, nodes))

    def _cut(self, answer: Answer, nodes: int | None, alone: bool) -> Iterator[Trouble]:
        try:
            if not alone:
                answer.running.clock.restart()
            self.works[answer] = answer.running.cut(nodes)
        except Exception as error:
            self.answers.remove(answer)
            yield answer, error

    def without(self, answer: Answer) -> None:
        """Leave an answer out of the pass."""
        if answer in self.answers:
            self.answers.remove(answer)
        self.works.pop(answer, None)

    # --------------------------------------------------------------------------------------- pass
    def score(self, chunks: Sequence[Chunk]) -> Pass:
        """Check all trees and read all chunks."""
        works, start = self.works, self.now()
        scores = self.target.score(list(works.values()), chunks)
        reading = sum(len(chunk.tokens) for chunk in chunks)
        found = Pass(list(zip(works, scores, strict=True)), reading, 0.0)
        alone = len(works) == 1 and not reading
        if scores and not alone and self.target.info.device != "cpu":
            scores[-1].argmax()  # waits for the device
        found.seconds = self.now() - start
        if works and not alone:
            sizes = [len(work.tree) for work in works.values()]
            seen = sum(size * work.session.length for size, work in zip(sizes, works.values(), strict=True))
            found.joint = Joint(len(works), sum(sizes), reading, seen // sum(sizes), found.seconds)
        return found

    def score_apart(self) -> tuple[Pass, list[Trouble]]:
        """Check the trees one by one; those whose pass fails are left out."""
        found, failed, start = Pass([], 0, 0.0, whole=False), [], self.now()
        for answer, work in list(self.works.items()):
            try:
                [scores] = self.target.score([work])
                found.scores.append((answer, scores))
            except Exception as error:
                self.without(answer)
                failed.append((answer, error))
        found.seconds = self.now() - start
        if found.scores:
            rows = sum(len(work.tree) for work in self.works.values())
            found.joint = Joint(len(self.works), rows, 0, self.context, found.seconds)
        return found, failed

    # -------------------------------------------------------------------------------------- books
    def settle(self, found: Pass, *, measured: bool) -> None:
        """Refine the cost curve by the pass and settle the books of all recipes, each once."""
        if found.joint is None:
            return
        if not found.whole:
            for book in self.books:
                book.entries.clear()
            return
        joint = refine(self.cost, found.joint) if measured else found.joint
        outcomes = [step.outcome for _, step in found.steps]
        tokens, draft = (
            sum(len(outcome.tokens) for outcome in outcomes),
            sum(outcome.times.draft for outcome in outcomes),
        )
        for book in self.books:
            mine = sum(entry.tokens for entry in book.entries)
            spent = sum(entry.draft for entry in book.entries)
            book.settle(joint, self.cost, tokens - mine, max(draft - spent, 0.0))


def by_reach(answer: Answer) -> bool:
    """True when single nodes may be cut from an answer's tree, by their reach and at a price."""
    draft = answer.running
    grown = draft.grown
    whole = grown.pruned is None and 1 < len(grown) == grown.valued
    return whole and draft.budget.price is not None and draft.policy.prunes is Prune.NODES
