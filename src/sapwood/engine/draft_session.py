"""Drafting for a target that runs elsewhere: text in, trees out.

A draft server, or a plug-in of another engine, runs no passes of the target. It learns what was
accepted from the emitted tokens, by following them through the tree that was drafted last.
Drafters that read scores or hidden states of the target cannot work like that and are refused.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part
from sapwood.core.protocols import (
    Capabilities,
    EngineContext,
    KvMemory,
    PrefillChunk,
    RequestContext,
    Session,
    TargetOutput,
    TreeInput,
)
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import BackendInfo, Budget, Outcome, SharedPass, StageTimes, Verdict
from sapwood.engine.prompt_scores import chain
from sapwood.engine.request_decoder import fit
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe

ELSEWHERE = "the target runs elsewhere: its scores, hidden states and memory are not at hand"


def unavailable() -> NoReturn:
    """Refuse what only the target itself could answer."""
    raise SapwoodError(ELSEWHERE)


class DetachedOutput(TargetOutput):
    """Output of a pass that ran elsewhere: nothing of it is known."""

    def argmax(self) -> IntArray:
        """Refused."""
        unavailable()

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Refused."""
        unavailable()

    def logits(self, row: int) -> FloatArray:
        """Refused."""
        unavailable()

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Refused."""
        unavailable()


@dataclass
class DetachedContext:
    """Session of a text whose target runs elsewhere: only its length is known."""

    length: int

    def prefill_output(self, last: int) -> TargetOutput | None:
        """None: the prompt was read elsewhere."""
        return None

    def commit(self, path: Sequence[int]) -> None:
        """Refused."""
        unavailable()

    def rewind(self, length: int) -> None:
        """Refused."""
        unavailable()

    def fork(self) -> "Session":
        """Refused."""
        unavailable()

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class DetachedTarget:
    """A target that runs elsewhere: its sizes are known, it scores nothing here."""

    info: BackendInfo
    capabilities: Capabilities = field(default_factory=Capabilities)

    @property
    def memory(self) -> KvMemory:
        """Refused."""
        unavailable()

    def open(self, tokens: Sequence[int]) -> Session:
        """Refused."""
        unavailable()

    def start(self, tokens: Sequence[int], tenant: str = "") -> Session:
        """Refused."""
        unavailable()

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """Refused."""
        unavailable()

    def watch(self, layers: Sequence[int]) -> None:
        """Refused."""
        unavailable()


def check_detached(recipe: Recipe) -> None:
    """Refuse a recipe with a part that reads scores or hidden states."""
    for part in recipe.parts():
        if part.needs or part.needs_scores_now:
            raise SapwoodError(
                f"{part} reads the target's scores or hidden states, which are not at hand where "
                "the target runs elsewhere; use a lookup drafter, such as suffix, or draft-model"
            )


def bind_detached(recipe: Recipe, context: EngineContext) -> Recipe:
    """The recipe bound to a target elsewhere."""
    check_detached(recipe)
    return recipe.bind(context)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Times of a round that ran elsewhere."""

    times: StageTimes = field(default_factory=StageTimes)
    shared: SharedPass | None = None


class DraftSession:
    """One text that grows elsewhere, with the parts that draft for it."""

    def __init__(
        self,
        recipe: Recipe,  # bound by `bind_detached`
        text: Sequence[int],
        sampling: Sampling | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.text = list(text)
        self.now = now
        self.rng: Rng = KeyedRng(0)
        sampler = Sampler(sampling or Sampling(), self.text)
        self.sampler = sampler
        context = RequestContext(self.text[:], sampler, DetachedContext(len(text) - 1))
        self.drafter, self.policy, self.verifier, self.controller = recipe.fresh(context)
        self.grown: Tree | None = None  # drafted, not observed yet
        self.tree: Tree | None = None  # of it, what was sent
        self.seconds = 0.0  # spent on drafting it
        self.asked = False  # its budget had nodes

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of this request."""
        return self.drafter, self.policy, self.verifier, self.controller  # type: ignore[return-value]

    def grow(self, budget: Budget, until: float | None = None) -> Tree:
        """Grow a tree after the text, level by level; no further level after the time `until`."""
        start = self.now()
        self.asked = budget.nodes > 0
        tree = Tree(self.text[-1])
        tree.keeps_probs = self.policy.reads_probs
        while budget.nodes and (
            frontier := fit(
                self.policy.frontier(tree, budget), (CAPACITY - len(tree)) // self.drafter.fan
            )
        ):
            self.drafter.expand(tree, frontier, self.rng)
            for node, _ in frontier:
                tree.close(node)
            if until is not None and self.now() > until:
                break
        self.grown, self.tree = tree, tree
        self.seconds = self.now() - start
        return tree

    def send(self, tree: Tree) -> None:
        """Set the part of the grown tree that the target is to verify."""
        self.tree = tree

    def extend(self, tokens: Sequence[int], record: RoundRecord | None = None) -> Verdict | None:
        """Append emitted tokens, and let every part observe what became of the last tree."""
        if not tokens:
            return None
        verdict = self._observe(self.tree, tokens, record or RoundRecord())
        rest = list(tokens[len(verdict.path) :])
        self.text += tokens[: len(verdict.path)]
        self.grown = self.tree = None
        if rest:  # rounds for which no tree was drafted here
            line = chain([self.text[-1], *rest[:-1]])
            self._notify_parts(
                line, line, Verdict(tuple(range(len(line))), rest[-1]), RoundRecord(), False
            )
            self.text += rest
        return verdict

    def _observe(self, tree: Tree | None, tokens: Sequence[int], record: RoundRecord) -> Verdict:
        """Observe the path that the emitted tokens took through a tree."""
        tree = Tree.of_root(self.text[-1]) if tree is None else tree
        verdict = walk(tree, tokens)
        grown = tree if self.grown is None else self.grown
        self._notify_parts(grown, tree, verdict, record, self.asked)
        return verdict

    def _notify_parts(
        self, grown: Tree, tree: Tree, verdict: Verdict, record: RoundRecord, asked: bool
    ) -> None:
        """Let every part observe a round."""
        context = len(self.text) - 1
        scores = DetachedOutput()
        times = record.times
        outcome = Outcome(grown, tree, verdict, scores, context, times, asked, record.shared)
        self.sampler.commit(outcome.tokens)
        for part in self.parts:
            part.observe(outcome)

    def close(self) -> None:
        """Free what the parts hold."""
        for part in reversed(self.parts):
            part.close()


def walk(tree: Tree, tokens: Sequence[int]) -> Verdict:
    """The verdict of a target that emitted these tokens: their path, and the first one off it."""
    path = [ROOT]
    for token in tokens[:-1]:
        child = tree.child(path[-1], token)
        if child is None:
            break
        path.append(child)
    return Verdict(tuple(path), int(tokens[len(path) - 1]))
