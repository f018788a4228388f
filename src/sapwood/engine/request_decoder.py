"""Decodes one request, round by round: draft, prune, verify, commit, observe."""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from sapwood.core.lookahead import LookaheadRows
from sapwood.core.part import adds_rows, learns, prices
from sapwood.core.protocols import (
    Drafter,
    Frontier,
    Policy,
    RequestContext,
    Session,
    TargetOutput,
    TreeInput,
    Verifier,
)
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import (
    ALWAYS,
    BatchLoad,
    Budget,
    Outcome,
    SharedPass,
    StageClock,
    StageTimes,
    TreeShape,
    Verdict,
)
from sapwood.core.whole_tree import TreeJob, drafts_batches, drafts_rounds, knows_rounds
from sapwood.engine.prelaunch import (
    NextRound,
    WholeTreeParts,
    plan_next,
    prepare_launch,
    whole_tree_parts,
    whole_tree_shape,
)
from sapwood.errors import SapwoodError
from sapwood.verifiers.match import Match

if TYPE_CHECKING:
    from sapwood.engine.loop import Engine


ROOT_PATH = (ROOT,)
RESTED = 64  # rounds without a tree that a drafter observes at a time


class RequestDecoder:
    """The rounds of one request; a scheduler may interleave those of many requests."""

    def __init__(
        self,
        engine: "Engine",
        prompt: Sequence[int],
        sampling: Sampling,
        rng: Rng,
        # holds all tokens but the last; closed by `close`
        session: Session | None = None,
        # tokens that the request emitted before it was preempted
        emitted: Sequence[int] = (),
    ) -> None:
        self.info = engine.target.info
        self.rng = rng
        if not prompt:
            raise SapwoodError("an empty prompt has nothing to continue; give at least one token")
        sampling.check_tokens(self.info.vocab)
        self.sampler = Sampler(sampling, prompt)
        text = [*prompt, *emitted]
        self.sampler.commit(emitted)
        self.session = session or engine.target.open(text[:-1])
        self.root = text[-1]
        self.clock = StageClock(engine.now)
        try:
            parts = engine.recipe.fresh(RequestContext(text, self.sampler, self.session))
        except BaseException:
            self.session.close()
            raise
        self.drafter, self.policy, self.verifier, self.controller = parts
        self.whole_trees = whole_tree_parts(self.drafter, self.policy)
        self.adds_rows = adds_rows(self.drafter)
        self.learning = [learns(part) for part in parts[1:]]  # of policy, verifier, controller
        self.joins = prices(self.controller)  # its budget depends on the load of the pass
        # True when no part but the drafter must observe a round before the next pass
        self.observes_late = not any(part.needs_scores_now for part in parts[1:])
        self.never_drafts = self.controller.resting >= ALWAYS
        drawn_on_device = draws_on_device(self.verifier, rng, sampling)
        # True when passes without trees can run ahead: the drafter observes them later
        self.runs_ahead = drawn_on_device and (self.never_drafts or self.drafter.observes_roots)
        # True when a device can run whole rounds: the drafter's head is there
        self.joins_rounds = (
            drawn_on_device
            and self.whole_trees is not None
            and drafts_rounds(self.drafter)
            and self.drafter.joins_rounds()
        )
        # True when the next token after a root alone is the best one
        self.follows_best = (
            sampling.greedy and not sampling.touches_logits and isinstance(self.verifier, Match)
        )
        self.rested: list[Outcome] = []  # rounds of launched passes, for the drafter
        self.unobserved: list[int] = []  # tokens of rounds on the device, for the drafter
        # a round that only the drafter has observed so far
        self.pending_outcome: Outcome | None = None
        self.row_drafts: LookaheadRows | None = None  # rows behind this round's nodes
        self.next_round: NextRound | None = None
        # seconds; see `draft_seconds_in_pause`
        self.device_draft_seconds = 0.0  # for a draft launched ahead
        self.paused = 0.0  # between the last round and the present one
        self.verified_at = 0.0  # clock at the end of the last verification
        self.clock.lap("draft")  # the parts' work on the prompt counts as drafting

    @property
    def full(self) -> bool:
        """True when the context has no room for a further token."""
        return self.session.length + 1 >= self.info.context

    def draft(self, most: int = CAPACITY - 1) -> TreeInput:
        """Grow and prune this round's tree, of at most `most` nodes besides the root."""
        self.grow(most)
        return self.prune()

    def grow(self, most: int = CAPACITY - 1, load: BatchLoad | None = None) -> None:
        """Grow this round's tree, at the prices of a pass with this load."""
        self.plan_tree(most, load)
        self.grow_planned()

    def plan_tree(self, most: int, load: BatchLoad | None) -> None:
        """Set the budget of this round's tree, at the prices of a pass with this load."""
        self.catch_up()
        self.paused = self.clock.restart()  # the caller's time since the last round is not counted
        if load is not None:
            if self.joins:
                self.controller.join(load)
            self.next_round = None
        planned = self.next_round or NextRound(self.controller.budget())
        self.next_round = None
        self.device_draft_seconds = planned.seconds
        self.budget = planned.budget.within(*self.room(most, begun=planned.launched))
        self.shape = planned.shape if self.budget is planned.budget else None

    def grow_planned(self) -> None:
        """Grow the tree of the plan."""
        grown = draft_whole(self.root, self.whole_trees, self.budget, self.shape)
        if grown is None:
            parts = self.drafter, self.policy
            grown = grow_by_levels(self.root, *parts, self.budget, self.rng)
        self.grown = grown

    def tree_job(self) -> TreeJob | Tree | None:
        """The planned tree, to be built together with those of others; None if it cannot be."""
        drafter = self.drafter
        if not self.budget.nodes or not drafts_batches(drafter):
            return None
        self.shape = self.shape or whole_tree_shape(self.whole_trees, self.budget)
        return None if self.shape is None else drafter.tree_job(self.root, self.shape)

    def prune(self, nodes: int | None = None) -> TreeInput:
        """Prune the grown tree by the policy, or to at most `nodes` besides the root."""
        whole = self.grown.pruned
        if whole is not None:
            self.tree = whole
        elif len(self.grown) == 1:  # drafting rests, or nothing was found
            self.tree = self.grown
        else:
            budget = self.budget if nodes is None else replace(self.budget, nodes=nodes, price=None)
            self.tree = self.policy.prune(self.grown, budget)
        self.clock.lap("draft")
        self.clock.add("draft", self.draft_seconds_in_pause())
        self.row_drafts = self.drafter.lookahead(self.tree) if self.adds_rows else None
        return TreeInput(self.session, self.tree, lookahead=self.row_drafts)

    def draft_seconds_in_pause(self) -> float:
        """Seconds of device drafting during the caller's pause, which count as drafting."""
        busy = self.clock.last - self.verified_at - self.paused
        return min(self.paused, max(self.device_draft_seconds - busy, 0.0))

    def finish_round(self, scores: TargetOutput, shared: SharedPass | None = None) -> Outcome:
        """Verify the scored tree, commit the accepted path, and let every part observe the round.

        The order is prelaunch, verify, commit, observe; `shared` is given for a shared pass.
        """
        self.learn()  # if it was put off; it overlaps with the device's work
        if shared is not None and self.follows_best and len(self.tree) == 1:
            return self._finish_root(scores, shared)
        probs = PathProbs(self.tree, scores, self.sampler)
        overlaps = shared is None and self._overlaps(scores)
        if overlaps:
            self.next_round = self.prelaunch(probs)
        if shared is not None:
            self.clock.book("verify", shared.seconds)
        context = self.session.length
        verdict = self.verify(probs)
        self.session.commit(verdict.path)
        times = self._time_verified()
        outcome = self._outcome(verdict, scores, context, times, shared)
        self.observe(outcome, late=overlaps)
        return outcome

    def _outcome(
        self,
        verdict: Verdict,
        scores: TargetOutput,
        context: int,
        times: StageTimes,
        shared: SharedPass | None,
    ) -> Outcome:
        """The round as parts observe it."""
        asked = self.budget.nodes > 0
        found = Outcome(self.grown, self.tree, verdict, scores, context, times, asked, shared)
        return found if self.row_drafts is None else replace(found, lookahead=self.row_drafts)

    def _finish_root(self, scores: TargetOutput, shared: SharedPass) -> Outcome:
        """`finish_round` of a root alone in a shared pass, whose verdict is the best token."""
        self.clock.book("verify", shared.seconds)
        self.verified_at = self.clock.last
        context = self.session.length
        verdict = Verdict(ROOT_PATH, int(scores.argmax()[ROOT]))
        self.session.commit(ROOT_PATH)
        times = self.clock.split()
        outcome = self._outcome(verdict, scores, context, times, shared)
        self.observe(outcome, late=False)
        return outcome

    def noise_key(self) -> int:
        """Key of the noise of the token after the root; 0 at temperature 0."""
        if self.sampler.sampling.greedy:
            return 0
        assert isinstance(self.rng, KeyedRng)
        return self.rng.key(NoiseKey(self.session.length + 1))

    def finish_root(self, outcome: Outcome) -> None:
        """Take the token after a root that a launched pass has committed, and observe it."""
        if self.pending_outcome is not None:
            self.learn()
        self.next_round = None
        self.sampler.commit(outcome.tokens)
        self.root = outcome.verdict.bonus
        if not self.never_drafts:
            self.rested.append(outcome)
            if len(self.rested) == RESTED:
                self.catch_up()

    # ------------------------------------------------------------------------- rounds on a device
    def plan_round(self, load: BatchLoad) -> TreeShape | None:
        """Shape of the trees of a round on the device, at the prices of this load; None: no tree.

        The request that plans does so for all of the batch.
        """
        if self.joins:
            self.controller.join(load)
        budget = self.controller.budget()
        if not budget.nodes:
            return None
        return whole_tree_shape(self.whole_trees, budget)

    def round_gain(self, shape: TreeShape) -> float | None:
        """Tokens that the policy expects of such trees of a batch; None if it does not know."""
        policy = self.policy
        return policy.round_gain(shape.nodes, shape.depth) if knows_rounds(policy) else None

    def round_job(self, shape: TreeShape) -> TreeJob | None:
        """The tree of a request that joins rounds on the device; None if it has no text yet."""
        self.catch_up()
        self.learn()
        self.next_round = None
        return self.drafter.round_job(shape) if drafts_rounds(self.drafter) else None

    def finish_device_round(self, outcome: Outcome, *, ended: bool, learn: bool) -> None:
        """Take the tokens of a round that the device has committed.

        `ended`: the next round does not run on the device. `learn`: the outcome has the drafted
        tree, from which the policy learns.
        """
        self.sampler.commit(outcome.tokens)
        self.root = outcome.verdict.bonus
        self.unobserved += outcome.tokens
        if learn and self.learning[0]:
            self.policy.observe(outcome)
        if ended:
            self._leave_rounds(outcome)

    def _leave_rounds(self, last: Outcome | None) -> None:
        """Let the drafter go on after rounds on the device."""
        tokens, self.unobserved = self.unobserved, []
        if tokens and drafts_rounds(self.drafter):
            self.drafter.observe_rounds(tokens, last)

    def catch_up(self) -> None:
        """Let the drafter observe the rounds without a tree that it has not."""
        rested, self.rested = self.rested, []
        if rested:
            self.drafter.observe_roots(rested)

    def _overlaps(self, scores: TargetOutput) -> bool:
        """True when a device drafts or scores while the host plans and learns."""
        return self.observes_late and (self.grown.pruned is not None or scores.overlaps_host)

    def prelaunch(self, probs: PathProbs) -> NextRound:
        """Plan the next round while the pass runs, and launch it when the device can go on.

        On the device's stream, in this order: the verification of this round's tree, the draft of
        the next one, and the target's pass over that. The host then waits for the first only.
        """
        planned = plan_next(self.whole_trees, self.controller, self._fits, self.left)
        launch = prepare_launch(self.whole_trees, planned, self.tree)
        if launch is None or not self.verifier.follows(probs):
            return planned
        if not probs.launch_follow(self.session.length, self.rng):
            return planned
        launch.launch_draft()
        launch.launch_pass()
        return replace(planned, launched=True, seconds=launch.seconds)

    def verify(self, probs: PathProbs) -> Verdict:
        """The verdict on this round's tree, limited to the request's remaining tokens."""
        found = self.verifier.verify(self.tree, probs, self.session.length, self.rng)
        return found.within(max(self.left, 1), self.tree)

    def _time_verified(self) -> StageTimes:
        """Seconds of the round; time in which the device was still drafting counts as drafting."""
        self.clock.lap("verify")
        self.verified_at = self.clock.last
        self.clock.shift("verify", "draft", self.tree.drafting)
        return self.clock.split()

    def observe(self, outcome: Outcome, *, late: bool) -> None:
        """Let the drafter observe the round; the other parts too, unless `late`."""
        self.sampler.commit(outcome.tokens)
        self.drafter.observe(outcome)
        # the drafter's learning counts as drafting of the next round
        self.clock.lap("draft")
        self.root = outcome.verdict.bonus
        self.pending_outcome = outcome
        if not late:
            self.learn()
            self.clock.lap("other")

    def learn(self) -> None:
        """Let the other parts observe the last round, if they have not."""
        outcome, self.pending_outcome = self.pending_outcome, None
        if outcome is not None:
            parts = self.policy, self.verifier, self.controller
            for part, learning in zip(parts, self.learning, strict=True):
                if learning:
                    part.observe(outcome)

    @property
    def left(self) -> int:
        """Tokens until the request's max_tokens."""
        return self.sampler.sampling.max_tokens - self.sampler.emitted

    def room(self, most: int, *, begun: bool = False) -> tuple[int, int]:
        """Most nodes and depth of a tree; one that was launched (`begun`) may pass max_tokens."""
        depth = self.info.context - self.session.length - 2
        wanted = depth if begun else self.left - 1  # the bonus comes on top
        return min(most, self.info.max_nodes - 1), min(depth, wanted)

    def _fits(self, budget: Budget) -> bool:
        """True when the next tree may be as large as this budget allows."""
        return budget.within(*self.room(CAPACITY - 1, begun=True)) is budget

    def close(self) -> None:
        """Learn from the last round and free all memory, also when a part fails."""
        with ExitStack() as stack:
            for part in (self.controller, self.verifier, self.policy, self.drafter, self.session):
                stack.callback(part.close)  # the last one first
            self.catch_up()
            self._leave_rounds(None)
            self.learn()


def draws_on_device(verifier: Verifier, rng: Rng, sampling: Sampling) -> bool:
    """True when a device can draw the target's tokens: keyed noise, logits as they are."""
    return (
        isinstance(verifier, Match)
        and isinstance(rng, KeyedRng)
        and sampling.logprobs is None
        and not (sampling.touches_logits or sampling.truncates)
    )


def grow(root: int, drafter: Drafter, policy: Policy, budget: Budget, rng: Rng) -> Tree:
    """Draft a whole tree when drafter and policy can; else grow it level by level."""
    grown = draft_whole(root, whole_tree_parts(drafter, policy), budget)
    return grow_by_levels(root, drafter, policy, budget, rng) if grown is None else grown


def draft_whole(
    root: int, parts: WholeTreeParts | None, budget: Budget, shape: TreeShape | None = None
) -> Tree | None:
    """Draft a whole tree in one call; None where it must grow level by level."""
    if parts is None:
        return None
    shape = shape or (whole_tree_shape(parts, budget) if budget.nodes else None)
    return None if shape is None else parts.drafter.draft_tree(root, shape)


def grow_by_levels(root: int, drafter: Drafter, policy: Policy, budget: Budget, rng: Rng) -> Tree:
    """Let the drafter expand the policy's frontier, level by level, until it is empty."""
    if not budget.nodes:
        return Tree.of_root(root)
    tree = Tree(root)
    tree.keeps_probs = policy.reads_probs
    while frontier := fit(policy.frontier(tree, budget), (CAPACITY - len(tree)) // drafter.fan):
        drafter.expand(tree, frontier, rng)
        for node, _ in frontier:
            tree.close(node)
    return tree


def fit(frontier: Frontier, room: int) -> Frontier:
    """The first nodes of a frontier that the tree has room for."""
    ends = itertools.accumulate(width for _, width in frontier)
    return [request for request, end in zip(frontier, ends, strict=True) if end <= room]
