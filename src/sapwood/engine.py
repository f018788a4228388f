"""The round loop: budget, draft, prune, score, verify, commit, observe.

Plain decoding is this loop with a budget of no nodes, and a chain is a tree of width one, so a
baseline and a method share every line that is timed.
"""

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from sapwood.cost import CostCurve, flat
from sapwood.errors import SapwoodError
from sapwood.laws import PathLaws
from sapwood.part import Part
from sapwood.protocols import (
    Backend,
    Drafter,
    Frontier,
    Policy,
    Request,
    Scores,
    Session,
    Setting,
    Words,
    Work,
    no_tokenizer,
    no_words,
)
from sapwood.recipe import Recipe
from sapwood.records import Budget, Company, Joint, Levels, Outcome, Times
from sapwood.rng import Rng
from sapwood.sampling import Sampler, Sampling
from sapwood.tree import CAPACITY, Tree

NEAR = 2  # tokens before the end of a request at which the next round most likely does not come


def no_loader(name: str) -> Backend:
    """Stands in where an engine was given no way to load further models."""
    raise SapwoodError(f"model {name!r} cannot be loaded here; hand the drafter a backend")


@dataclass(frozen=True, slots=True)
class Coming:
    """The next round, as far as it can be prepared while a pass runs."""

    budget: Budget
    levels: Levels | None = None  # of its tree, where a device grows it whole
    growing: float = 0.0  # seconds that this takes, where it begins when the device knows the verdict


@dataclass
class Engine:
    """A target and a recipe: decodes any number of requests."""

    target: Backend
    recipe: Recipe
    cost: CostCurve = field(default_factory=flat)
    load: Callable[[str], Backend] = no_loader
    now: Callable[[], float] = time.perf_counter  # seconds; replaced where runs must repeat exactly
    encode: Callable[[str], list[int]] = no_tokenizer  # for drafters that read a text the user names
    words: Callable[[str], Words] = no_words  # for drafters with a tokenizer of their own

    def __post_init__(self) -> None:
        self.recipe = self.recipe.bind(Setting(self.target, self.cost, self.load, self.encode, self.words))
        prepare(self.recipe)

    def rounds(self, prompt: Sequence[int], sampling: Sampling, rng: Rng) -> Generator[Outcome]:
        """Decode one request, round by round, until the caller has enough or the context is full."""
        decoding = Decoding(self, prompt, sampling, rng)
        try:
            while not decoding.full:
                [scores] = self.target.score([decoding.draft()])
                yield decoding.judge(scores)
        finally:
            decoding.close()


class Decoding:
    """One request under way; a scheduler may interleave the drafts and judgements of many."""

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        sampling: Sampling,
        rng: Rng,
        session: Session | None = None,  # holds all but the last token already; from now on it is ours to close
        said: Sequence[int] = (),  # tokens that the request has emitted before, when it had to give its memory up
    ) -> None:
        self.info, self.rng = engine.target.info, rng
        if not prompt:
            raise SapwoodError("an empty prompt has nothing to continue; give at least one token")
        sampling.check_tokens(self.info.vocab)
        self.sampler, text = Sampler(sampling, prompt), [*prompt, *said]
        self.sampler.commit(said)
        self.session, self.root = session or engine.target.open(text[:-1]), text[-1]
        self.clock = Clock(engine.now)
        try:
            parts = engine.recipe.fresh(Request(text, self.sampler, self.session))
        except BaseException:
            self.session.close()
            raise
        self.drafter, self.policy, self.verifier, self.controller = parts
        self.patient = not any(getattr(part, "hurried", False) for part in parts[1:])  # may observe a round late
        self.lesson: Outcome | None = None  # a round that only the drafter has observed so far
        self.coming: Coming | None = None  # what is known of the next round
        self.growing = self.paused = self.judged = 0.0  # see `overlooked`
        self.clock.lap("draft")  # what parts do with the prompt is part of their price

    @property
    def full(self) -> bool:
        """True when the context holds no further token."""
        return self.session.length + 1 >= self.info.context

    def draft(self, most: int = CAPACITY - 1) -> Work:
        """Grow and prune this round's tree, of at most `most` nodes besides the root."""
        self.grow(most)
        return self.cut()

    def grow(self, most: int = CAPACITY - 1, company: Company | None = None) -> None:
        """Grow this round's candidates, at the prices of those who will share the pass."""
        self.paused = self.clock.restart()  # what the caller did since the last round is not ours
        if company is not None:
            join(self.controller, company)
            self.coming = None
        coming, self.coming = self.coming or Coming(self.controller.budget()), None
        self.growing = coming.growing
        self.budget = coming.budget.within(*self.room(most, begun=self.growing > 0))
        levels = coming.levels if self.budget is coming.budget else None
        self.grown = grow(self.root, self.drafter, self.policy, self.budget, self.rng, levels)

    def cut(self, nodes: int | None = None) -> Work:
        """Prune what was grown: to what the policy wants, or to at most `nodes` besides the root."""
        whole = self.grown.pruned
        budget = self.budget if nodes is None else replace(self.budget, nodes=nodes, price=None)
        self.tree = self.policy.prune(self.grown, budget) if whole is None else whole
        self.clock.lap("draft")
        self.clock.add("draft", self.overlooked())
        return Work(self.session, self.tree)

    def overlooked(self) -> float:
        """Seconds in which a device grew our tree while the caller paused: without the pause we would have waited."""
        busy = self.clock.last - self.judged - self.paused
        return min(self.paused, max(self.growing - busy, 0.0))

    def judge(self, scores: Scores, joint: Joint | None = None) -> Outcome:
        """Verify the scored tree, keep what stands, and let every part learn from it; `joint` is a shared pass."""
        self.learn()  # where that was put off; others are at work, so it takes no time
        overlaps = joint is None and self.patient and (self.grown.pruned is not None or beside(scores))
        if overlaps:
            self.coming = self.foresee()
        if joint is not None:
            self.clock.book("verify", joint.seconds)
        laws = PathLaws(self.tree, scores, self.sampler)
        context = self.session.length
        verdict = self.verifier.verify(self.tree, laws, context, self.rng).within(max(self.left, 1), self.tree)
        self.session.commit(verdict.path)
        self.clock.lap("verify")
        self.judged = self.clock.last
        self.clock.shift("verify", "draft", self.tree.drafting)
        asked, times = self.budget.nodes > 0, self.clock.split()
        outcome = Outcome(self.grown, self.tree, verdict, scores, context, times, asked, joint)
        self.sampler.commit(outcome.tokens)
        self.drafter.observe(outcome)
        self.clock.lap("draft")  # what a drafter spends on learning is part of its price, booked with the next round
        self.root, self.lesson = verdict.bonus, outcome
        if not overlaps:  # where others grow or check trees, the host learns while they are at the next one
            self.learn()
            self.clock.lap("other")
        return outcome

    def foresee(self) -> "Coming":
        """The next round's budget; a device may begin its tree when it knows the verdict, before the host does."""
        budget = self.controller.budget()
        fits = budget.within(*self.room(CAPACITY - 1, begun=True)) is budget
        if not budget.nodes or not fits or self.left <= NEAR:
            return Coming(budget)
        levels, ask = whole(self.drafter, self.policy, budget), getattr(self.drafter, "foresee", None)
        return Coming(budget, levels, 0.0 if levels is None or ask is None else ask(levels))

    def learn(self) -> None:
        """Let the other parts observe the last round, unless they have."""
        outcome, self.lesson = self.lesson, None
        if outcome is not None:
            for part in (self.policy, self.verifier, self.controller):
                part.observe(outcome)

    @property
    def left(self) -> int:
        """Tokens that the request still wants."""
        return self.sampler.sampling.max_tokens - self.sampler.emitted

    def room(self, most: int, *, begun: bool = False) -> tuple[int, int]:
        """Nodes and depth that context, request and backend leave for a tree; one that has begun to grow goes on."""
        depth = self.info.context - self.session.length - 2
        wanted = depth if begun else self.left - 1  # the bonus comes on top
        return min(most, self.info.max_nodes - 1), min(depth, wanted)

    def close(self) -> None:
        """Learn from the last round and free the request's memory, all of it even where a part fails."""
        with ExitStack() as stack:
            for part in (self.controller, self.verifier, self.policy, self.drafter, self.session):
                stack.callback(part.close)  # the last one first
            self.learn()


def prepare(recipe: Recipe) -> None:
    """Have a device prepare for all trees that it may be asked to grow whole, rather than in the middle of a text."""
    shapes, largest = getattr(recipe.policy, "shapes", None), getattr(recipe.controller, "largest", None)
    ready = getattr(recipe.drafter, "prepare", None)
    if shapes is not None and largest is not None and ready is not None:
        ready(shapes(largest))


def beside(scores: Scores) -> bool:
    """True where the pass goes on while the host does something else, until it asks for scores."""
    return getattr(scores, "beside", False)


def join(part: Any, company: Company) -> None:
    """Tell a controller, and those inside it, who shares the coming pass."""
    if (told := getattr(part, "join", None)) is not None:
        told(company)
    for inner in part.nested() if isinstance(part, Part) else ():
        join(inner, company)


def grow(root: int, drafter: Drafter, policy: Policy, budget: Budget, rng: Rng, levels: Levels | None = None) -> Tree:
    """Draft a whole tree where drafter and policy can; else level by level until the policy is content."""
    levels = levels or (whole(drafter, policy, budget) if budget.nodes else None)
    grown: Tree | None = None if levels is None else drafter.grow(root, levels)  # type: ignore[attr-defined]
    if grown is not None:
        return grown
    tree = Tree(root)
    tree.keeps_laws = policy.reads_laws
    while budget.nodes and (frontier := fit(policy.frontier(tree, budget), (CAPACITY - len(tree)) // drafter.fan)):
        drafter.expand(tree, frontier, rng)
        for node, _ in frontier:
            tree.close(node)
    return tree


def whole(drafter: Drafter, policy: Policy, budget: Budget) -> Levels | None:
    """The policy's levels for a drafter that needs no questions in between; None if one of them does."""
    shape = getattr(policy, "levels", None) if hasattr(drafter, "grow") else None
    return None if shape is None else shape(budget)


def fit(frontier: Frontier, room: int) -> Frontier:
    """As much of a frontier, from its front, as the tree has room for."""
    ends = itertools.accumulate(width for _, width in frontier)
    return [request for request, end in zip(frontier, ends, strict=True) if end <= room]


class Clock:
    """Seconds of a round by stage; every moment belongs to one stage."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.last = now, now()
        self.stages = {"draft": 0.0, "verify": 0.0, "other": 0.0}

    def restart(self) -> float:
        """Leave the time since the last lap out of the books; how long it was."""
        last, self.last = self.last, self.now()
        return self.last - last

    def add(self, stage: str, seconds: float) -> None:
        """Book seconds that no lap has seen."""
        self.stages[stage] += seconds

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under this stage."""
        now = self.now()
        self.stages[stage] += now - self.last
        self.last = now

    def book(self, stage: str, seconds: float) -> None:
        """Book these seconds under this stage instead of what has passed since the last lap."""
        self.stages[stage] += seconds
        self.last = self.now()

    def shift(self, giver: str, taker: str, seconds: float) -> None:
        """Book seconds of one stage under another, as far as the stage has them."""
        seconds = min(seconds, self.stages[giver])
        self.stages[giver] -= seconds
        self.stages[taker] += seconds

    def split(self) -> Times:
        """The stages since the last split."""
        times = Times(**self.stages)
        self.stages = dict.fromkeys(self.stages, 0.0)
        return times
