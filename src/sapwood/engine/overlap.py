"""Decodes one request with the drafter in a thread beside the target's pass.

A round sends the part of the lookahead that the policy names, and the drafter expands the lookahead
further until the pass is over. The parts are those of the ordinary loop: the verifier decides over
the sent tree alone, so the output is what it would be without overlap, whatever the drafter did
meanwhile. The part of the lookahead below the emitted text is the next one; nodes of other branches
are counted as discarded. Whether overlap pays is measured: the policy compares the tokens per
second of overlap, of drafting first, and of no draft, and the best one is used.

On a GPU a pass goes on after its launch, so a thread alone would queue the draft behind it: the
drafter's thread launches on a second stream of the device, once the pass is launched.

The drafter must not read the target, and the verifier must not read draft probs: `can_overlap`.
"""

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, cast

from sapwood.core.overlap import AheadPolicy, DraftStream, DraftWay, drafts_beside
from sapwood.core.protocols import TargetOutput, TreeInput
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import NO_NODES, Outcome
from sapwood.engine.request_decoder import RequestDecoder, fit
from sapwood.recipe import Recipe

if TYPE_CHECKING:
    from sapwood.engine.loop import Engine


def can_overlap(recipe: Recipe, sampling: Sampling) -> bool:
    """True when the drafter of this recipe may run beside the target's pass for this request."""
    return (
        drafts_beside(recipe.policy)
        and recipe.drafter.stands_alone
        and not (recipe.verifier.reads_q and not sampling.greedy)
        and sampling.grammar is None
        and not sampling.prediction
    )


def overlapped_rounds(
    engine: "Engine", prompt: Sequence[int], sampling: Sampling, rng: Rng
) -> Generator[Outcome]:
    """Decode one request, round by round, until the caller stops or the context is full."""
    decoding = OverlapDecoder(engine, prompt, sampling, rng)
    with ThreadPoolExecutor(1, "sapwood-draft") as drafting:
        try:
            while not decoding.full:
                yield decoding.round(drafting)
        finally:
            decoding.close()


class OverlapDecoder(RequestDecoder):
    """The rounds of one request whose drafter runs beside the target."""

    def __init__(
        self, engine: "Engine", prompt: Sequence[int], sampling: Sampling, rng: Rng
    ) -> None:
        super().__init__(engine, prompt, sampling, rng)
        self.target = engine.target
        self.plan = cast(AheadPolicy, self.policy)
        self.lookahead: Tree | None = None  # below the next root; None: nothing was drafted ahead
        self.drafting: Future[None] | None = None  # the draft beside the pass
        opened = engine.target.capabilities.draft_stream
        self.stream = None if opened is None else opened()

    def round(self, drafting: ThreadPoolExecutor) -> Outcome:
        """One round, in the way that has paid best."""
        gauge = self.plan.gauge
        if gauge.way is DraftWay.BESIDE:
            outcome = self._beside(drafting)
        elif gauge.way is DraftWay.BEFORE:
            outcome = self._alone(draft=True)
        else:
            self.controller.budget()  # every round that it observes has one
            outcome = self._alone(draft=False)
        gauge.add(len(outcome.tokens), outcome.times.total)
        return outcome

    def _alone(self, *, draft: bool) -> Outcome:
        """Draft, then score; or score the root alone. The lookahead is not used."""
        discarded = 0 if self.lookahead is None else len(self.lookahead) - 1
        self.lookahead = None
        if draft:
            work = self.draft()
        else:
            self.paused = self.clock.restart()
            self.device_draft_seconds = 0.0
            self.budget = NO_NODES
            self.grown = self.tree = Tree.of_root(self.root)
            work = TreeInput(self.session, self.tree)
        [scores] = self.target.score([work])
        return replace(self.finish_round(scores), discarded=discarded)

    def _beside(self, drafting: ThreadPoolExecutor) -> Outcome:
        """Score what is drafted while the drafter goes on."""
        self.paused = self.clock.restart()
        self.device_draft_seconds = 0.0
        self.budget = self.controller.budget().within(*self.room(CAPACITY - 1))
        if not self.budget.nodes:
            return self._alone(draft=False)
        tree = self.lookahead or Tree(self.root)
        tree.keeps_probs = self.policy.reads_probs
        tree.ahead = True
        sent = self.plan.sent(tree, self.budget)
        if not sent and self.plan.first:
            depth = min(self.plan.first, self.budget.depth)
            self._draft_ahead(tree, ROOT, depth, None)
            sent = self.plan.sent(tree, self.budget)
        self.grown = tree
        self.tree = tree.keep(sent)
        scores = self._score(tree, sent[-1] if sent else ROOT, drafting)
        outcome = self.finish_round(scores)
        self.lookahead, discarded = advance(tree, outcome, set(sent))
        return replace(outcome, discarded=discarded)

    def _score(self, tree: Tree, tip: int, drafting: ThreadPoolExecutor) -> TargetOutput:
        """The target's pass, with the drafter beside it until it is over."""
        over = Event()
        # below the sent nodes: first the token that this pass adds, then the next draft
        depth = int(tree.depths[tip]) + 1 + self.budget.depth
        work = TreeInput(self.session, self.tree)
        self.clock.lap("draft")
        if self.stream is None:
            self.drafting = drafting.submit(self._draft_ahead, tree, tip, depth, over)
        else:
            self.stream.release()
        try:
            [scores] = self.target.score([work])
            if self.stream is not None:  # the pass is launched; now the draft
                self.drafting = drafting.submit(self._draft_on, self.stream, tree, tip, depth, over)
            if scores.overlaps_host:
                scores.argmax()  # wait: the pass is over when its scores are there
        except BaseException:
            over.set()
            self._join_draft()
            raise
        over.set()
        return scores

    def observe(self, outcome: Outcome, *, late: bool) -> None:
        """End the draft beside the pass, then observe: its last level overlaps verification."""
        self._join_draft()
        super().observe(outcome, late=late)

    def _join_draft(self) -> None:
        """Wait for the level that the drafter was at when the pass ended."""
        drafting, self.drafting = self.drafting, None
        if drafting is not None:
            try:
                drafting.result()
            finally:
                if self.stream is not None:
                    self.stream.join()

    def close(self) -> None:
        """End the draft beside the pass and free all memory, also when verification failed."""
        try:
            self._join_draft()
        finally:
            super().close()

    def _overlaps(self, scores: TargetOutput) -> bool:
        """False: the drafter is in a thread of its own, and nothing is launched behind a pass."""
        return False

    def _draft_on(self, stream: DraftStream, tree: Tree, tip: int, depth: int, over: Event) -> None:
        """Expand the lookahead on a stream of its own."""
        with stream.running():
            self._draft_ahead(tree, tip, depth, over)

    def _draft_ahead(self, tree: Tree, tip: int, depth: int, over: Event | None) -> None:
        """Expand the lookahead level by level until the pass is over or it is deep enough."""
        most = min(depth, self.room(CAPACITY - 1, begun=True)[1])
        while frontier := fit(
            self.plan.ahead(tree, tip, most), (CAPACITY - len(tree)) // self.drafter.fan
        ):
            self.drafter.expand(tree, frontier, self.rng)
            for node, _ in frontier:
                tree.close(node)
            if over is not None and over.is_set():
                break


def advance(tree: Tree, outcome: Outcome, sent: set[int]) -> tuple[Tree | None, int]:
    """The lookahead below the emitted text, and the nodes drafted ahead that it leaves behind."""
    node = ROOT
    used = set[int]()
    for token in outcome.tokens:
        child = tree.child(node, token)
        if child is None:
            return None, len(tree) - 1 - len(sent)
        used.add(child)
        node = child
    below = subtree(tree, node)
    kept = len(below) - 1 + len(used - sent)  # the token that was emitted is not drafted in vain
    return below, len(tree) - 1 - len(sent) - kept


def subtree(tree: Tree, top: int) -> Tree:
    """The nodes below `top` as a tree of their own."""
    below = Tree(int(tree.tokens[top]))
    places = {top: ROOT}
    if tree.expanded[top]:
        below.close(ROOT)
    for node in range(top + 1, len(tree)):
        parent = places.get(int(tree.parents[node]))
        if parent is None:
            continue
        places[node] = below.add(
            parent,
            int(tree.tokens[node]),
            float(tree.probs[node]),
            rank=int(tree.ranks[node]),
            source=max(0, int(tree.sources[node]).bit_length() - 1),
            sampled=bool(tree.sampled[node]),
        )
        if tree.expanded[node]:
            below.close(places[node])
    return below
