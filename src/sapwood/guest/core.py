"""Drafts for requests that another engine runs: the host verifies, commits and serves.

In every step the host says which tokens each request got. From that the guest learns what became
of its trees and of the host's seconds, and drafts for the next step: every request grows a tree,
and one node budget prunes the trees of the whole batch, as in our own scheduler. The host's own
rule decides what is accepted, so the recipe's verifier is not used.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sapwood.controllers.throughput_stats import batch_rate, refine, stats_of
from sapwood.core.array_types import IntArray
from sapwood.core.part import prices
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import (
    NO_NODES,
    BackendInfo,
    BatchLoad,
    Budget,
    Prune,
    SharedPass,
    StageTimes,
)
from sapwood.engine.draft_session import DetachedTarget, DraftSession, RoundRecord, walk
from sapwood.engine.loop import no_loader
from sapwood.engine.node_budget import batch_price, spend
from sapwood.errors import SapwoodError
from sapwood.guest.host_cost import HostCost
from sapwood.recipe import Recipe
from sapwood.recipes import resolve

# the default: lookups alone, the prompt before earlier outputs, priced by seconds
RECIPE = "suffix(local=4) + best + match + goodput"
LOG = logging.getLogger("sapwood.guest")  # without a handler, warnings go to standard error
MOST_FAILURES = 3  # errors after which it drafts no more
UNPRICED = 3  # steps in which all that is found is sent, unless one was timed before
# steps with drafts between two without, which are sent to be timed; one in which all drafts were
# refused counts as DOUBT more
TIMED_EVERY = 24
DOUBT = 3
# relative change of what trees cost, from which earlier throughput is not compared with any more
ANOTHER_CURVE = 0.1
ABSENT = 64  # steps for which a request may be left out of the batch before it is forgotten


@dataclass(frozen=True, slots=True)
class HostRow:
    """One request of the host's last step."""

    name: str  # the host's id of the request
    text: Sequence[int] | IntArray  # prompt and output so far, the new tokens included
    emitted: Sequence[int]  # tokens that the step added; empty while the prompt is in prefill
    checked: int | None = None  # nodes of its tree that the host verified; None is all of them


@dataclass(eq=False)
class GuestRequest:
    """A request of the host, with the parts that draft for it."""

    session: DraftSession
    budget: Budget
    absent: int = 0  # steps since it was last in the batch

    @property
    def sent(self) -> Tree | None:
        """The tree that the host is to verify."""
        return self.session.tree

    @property
    def nodes(self) -> int:
        """Nodes of that tree besides its root."""
        return 0 if self.sent is None else len(self.sent) - 1

    def continues(self, row: HostRow) -> bool:
        """True when the row is what was known before, plus tokens that the tree explains."""
        text = self.session.text
        before = len(row.text) - len(row.emitted)
        if before != len(text) or int(row.text[before - 1]) != text[-1]:
            return False
        tree = self.sent
        return tree is not None and len(walk(tree, row.emitted).path) == len(row.emitted)

    @property
    def by_reach(self) -> bool:
        """True when single nodes of its tree may be pruned by reach and price."""
        grown = self.session.grown
        if grown is None or not 1 < len(grown) == grown.valued:
            return False
        return self.budget.price is not None and self.session.policy.prunes is Prune.NODES


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Counts of one step of the host, and of the drafts for the next one."""

    requests: int  # that had a tree, or a root alone, in the step
    rows: int  # of these
    prefill: int  # further rows, of prompts
    tokens: int  # that these requests got
    accepted: int  # of them, drafted ones
    seconds: float  # of the host's step; 0 when nothing was known of it
    draft: float  # seconds of learning and drafting after it
    drafted: tuple[int, ...]  # nodes sent for each row of the next step
    resting: bool  # drafting rests


class Guest:
    """The requests of one host: learns from each of its steps and drafts for the next one."""

    def __init__(
        self,
        info: BackendInfo,  # of the host: max_nodes is the most rows of one request
        recipe: str = "",
        cost: HostCost | None = None,
        *,
        width: int = 1,  # most children of a node; 1 where the host verifies chains
        now: Callable[[], float] = time.perf_counter,
        watch: Callable[[StepRecord], None] | None = None,
    ) -> None:
        self.info = info
        self.cost = cost or HostCost.unknown()
        self.width = width
        self.now = now
        self.watch = watch
        made = resolve(recipe or RECIPE)
        check_recipe(made, info)
        context = EngineContext(DetachedTarget(info), self.cost, no_loader, now=now)
        self.recipe = made.bind(context)
        self.stats = list(stats_of(self.recipe.controller))  # type: ignore[arg-type]
        self.priced = prices(self.recipe.controller)
        self.requests: dict[str, GuestRequest] = {}
        self.failures = 0  # steps that ended in an error
        # by number of requests: steps since the last one without drafts, while those are not timed
        self.untimed: dict[int, float] = {}
        self.refused = 0.0  # share of the last step's drafts
        self.counted = 0  # steps whose trees were counted
        self._left: float | None = None  # when the last drafts were handed over
        self._drafting = 0.0  # seconds of the guest before that

    # -------------------------------------------------------------------------------- the host
    def step(self, rows: Sequence[HostRow], scheduled: int = 0) -> list[Tree | None]:
        """Learn from the host's last step, and draft for its next one.

        A tree for each row, or None for those in prefill. `scheduled` is the number of rows of the
        whole step, prompts included, where the host tells it.
        """
        if self.failures < MOST_FAILURES:
            try:
                return self._step(rows, scheduled)
            except Exception:  # the host must go on: it decodes without drafts
                self.failures += 1
                end = ", and none from now on" if self.failures == MOST_FAILURES else ""
                LOG.exception("sapwood: an error, no drafts in this step%s", end)
                self.requests.clear()
                self._left = None
        return [Tree.of_root(int(row.text[-1])) if row.emitted else None for row in rows]

    def _step(self, rows: Sequence[HostRow], scheduled: int) -> list[Tree | None]:
        start = self.now()
        seconds = 0.0 if self._left is None else start - self._left
        done = [row for row in rows if row.emitted]
        record = self._learn(done, len(rows), scheduled, seconds)
        for row in done:
            self._open(row)
        trees = self._draft([row.name for row in done])
        self._forget({row.name for row in rows})
        self._left = self.now()
        self._drafting = self._left - start
        found = [trees.get(row.name) for row in rows]
        if self.watch is not None:
            drafted = tuple(0 if tree is None else len(tree) - 1 for tree in found)
            resting = any(stats.rest > 0 for stats in self.stats)
            self.watch(replace(record, draft=self._drafting, drafted=drafted, resting=resting))
        return found

    def finish(self, names: Iterable[str]) -> None:
        """Close requests that have ended or were cancelled."""
        for name in names:
            request = self.requests.pop(name, None)
            if request is not None:
                request.session.close()

    # -------------------------------------------------------------------------------- learning
    def _learn(
        self, rows: Sequence[HostRow], batch: int, scheduled: int, seconds: float
    ) -> StepRecord:
        """Let every part observe the step, and learn the host's seconds by it."""
        pairs = [
            (request, row)
            for row in rows
            if (request := self.requests.get(row.name)) is not None and request.continues(row)
        ]
        for request, row in pairs:
            verified_part(request, row.checked)
        nodes = sum(request.nodes for request, _ in pairs)
        count = len(pairs) + nodes
        # rows that are not ours are prompts, at least one for each request that is not known yet
        prefill = max(scheduled - count, batch - len(pairs))
        tokens = sum(len(row.emitted) for _, row in pairs)
        self.refused = 1 - (tokens - len(pairs)) / nodes if nodes else 0.0
        record = StepRecord(
            len(pairs), count, prefill, tokens, tokens - len(pairs), 0, 0, (), False
        )
        if not pairs:
            return record
        context = sum(len(row.text) for _, row in pairs) // len(pairs)
        shared = SharedPass(len(pairs), count, prefill, context, seconds)
        for request, row in pairs:
            times = StageTimes(draft=request.session.seconds, verify=seconds)
            request.session.extend(
                [int(token) for token in row.emitted], RoundRecord(times, shared)
            )
        self._count(shared)
        return replace(record, seconds=seconds)

    def _count(self, shared: SharedPass) -> None:
        """Learn the host's seconds by a step, and count what its trees brought.

        While the price of a row is a guess nothing is compared with it, neither throughput nor what
        a step lost: drafting rests after measured losses alone. What part of its seconds a step
        spent on prompts is a guess too.
        """
        self.counted += 1
        if self.cost.measured and not shared.prefill:
            before = self._saved(shared)
            refined = refine(self.cost, shared)
            for stats in self.stats:
                stats.settle(refined, self.cost)
                if abs(self._saved(shared) / before - 1) > ANOTHER_CURVE:
                    stats.forget()
            return
        for stats in self.stats:
            stats.entries.clear()
        if not shared.prefill:
            self.cost.observe(shared.rows, shared.context, shared.seconds, shared.trees)

    def _saved(self, shared: SharedPass) -> float:
        """Seconds of a step without trees, as a share of those of a step with the largest."""
        each = self.cost.seconds(shared.trees, shared.context)
        return each / self.cost.seconds(shared.trees * self.info.max_nodes, shared.context)

    def _open(self, row: HostRow) -> None:
        """Begin a request, or begin it anew where its text is not what was known."""
        request = self.requests.get(row.name)
        if request is not None:
            text = request.session.text
            if len(text) == len(row.text) and text[-1] == int(row.text[-1]):
                request.absent = 0
                return
            request.session.close()
        session = DraftSession(self.recipe, [int(token) for token in row.text], now=self.now)
        self.requests[row.name] = GuestRequest(session, NO_NODES)

    def _forget(self, present: set[str]) -> None:
        """Close requests that have been left out of the batch for long."""
        for name, request in list(self.requests.items()):
            request.absent = 0 if name in present else request.absent + 1
            if request.absent > ABSENT:
                self.finish([name])

    # -------------------------------------------------------------------------------- drafting
    def _draft(self, names: Sequence[str]) -> dict[str, Tree | None]:
        """Grow a tree for each of these requests, and prune all of them by one budget."""
        requests = [self.requests[name] for name in names]
        plain = self._times_plain(len(requests))
        rows = sum(1 + request.nodes for request in requests)
        rate = batch_rate(self.stats) if len(requests) > 1 else 0.0
        for request in requests:
            others = rows - 1 - request.nodes
            if self.priced:
                request.session.controller.join(BatchLoad(len(requests), others, rate))
            self._grow(request, NO_NODES if plain else self._budget(request))
        together = [request for request in requests if request.by_reach]
        counts = self._shares(together, len(requests)) if len(together) > 1 else []
        nodes = {id(request): count for request, count in zip(together, counts, strict=False)}
        for request in requests:
            self._prune(request, nodes.get(id(request)))
        return {name: self.requests[name].sent for name in names}

    def _budget(self, request: GuestRequest) -> Budget:
        """The controller's budget; in the first steps, of which none is timed, without prices."""
        budget: Budget = request.session.controller.budget()
        if self.cost.scaled or self.counted >= UNPRICED:
            return budget
        return replace(budget, price=None, draft=0.0)

    def _times_plain(self, requests: int) -> bool:
        """True when the next step is to be one without drafts, to learn what those take.

        Steps of other sizes tell what that may be, so drafting does not wait for it: only after
        many steps with drafts is one sent without, sooner where most drafts are refused.
        """
        if not self.priced or not requests or self.cost.knows(requests):
            return False
        since = self.untimed.get(requests, 0.0) + 1 + DOUBT * self.refused
        self.untimed[requests] = since % TIMED_EVERY
        return since >= TIMED_EVERY

    def _grow(self, request: GuestRequest, budget: Budget) -> None:
        """Grow one tree within the limits of the host."""
        room = self.info.context - len(request.session.text) - 1
        budget = budget.within(self.info.max_nodes - 1, min(self.info.max_nodes - 1, room))
        if budget.width > self.width:
            budget = replace(budget, width=self.width)
        request.budget = budget
        # lookups take next to no time: all that is found is grown, and pruned by its price
        request.session.grow(replace(budget, rate=0.0))

    def _shares(self, requests: Sequence[GuestRequest], trees: int) -> list[int]:
        """Number of nodes of each tree, by one budget for the batch."""
        reaches = []
        for request in requests:
            assert request.session.grown is not None
            reach = np.sort(request.session.grown.reach[1:])[::-1]
            reaches.append(reach[: request.budget.nodes])
        context = sum(len(request.session.text) for request in requests) // len(requests)
        rate = float(np.mean([request.budget.rate for request in requests]))
        nodes = sum(map(len, reaches))
        return spend(reaches, batch_price(self.cost, context, rate, trees, nodes))

    def _prune(self, request: GuestRequest, nodes: int | None) -> None:
        """Prune one tree by its policy, or to at most `nodes`; where the host wants it, a chain."""
        session = request.session
        start = self.now()
        grown = session.grown
        assert grown is not None
        tree = grown
        if len(grown) > 1:
            budget = request.budget
            if nodes is not None:
                budget = replace(budget, nodes=nodes, price=None)
            tree = session.policy.prune(grown, budget)
            if self.width == 1:
                tree = part_of(tree, likeliest_path(tree))
        session.send(tree)
        session.seconds += self.now() - start


def check_recipe(recipe: Recipe, info: BackendInfo) -> None:
    """Refuse a recipe with a part that needs more of the target than its tokens."""
    for part in recipe.parts():
        if part.needs or part.needs_scores_now:
            raise SapwoodError(
                f"{part} reads the target's scores or hidden states, which {info.name} does not "
                f"hand to a plug-in; use a lookup drafter, as in {RECIPE!r}"
            )


def likeliest_path(tree: Tree) -> list[int]:
    """Nodes from the root down, each time the child of largest reach, the first among equals."""
    path = [ROOT]
    while children := tree.children(path[-1]):
        path.append(max(children, key=lambda node: float(tree.reach[node])))
    return path


def part_of(tree: Tree, nodes: Sequence[int]) -> Tree:
    """The tree on these nodes, whose `kept` names nodes of the grown tree."""
    if len(nodes) == len(tree):
        return tree
    cut = tree.keep(nodes)
    if tree.kept is not None:
        cut.kept = tree.kept[cut.kept]
    return cut


def verified_part(request: GuestRequest, checked: int | None) -> None:
    """Leave out nodes at the end of a tree that the host did not verify."""
    tree = request.sent
    if tree is not None and checked is not None and checked < len(tree) - 1:
        request.session.send(part_of(tree, range(checked + 1)))
