"""Decodes one request over a pipeline: several runs of one tree are in the target's stages at once.

A tick moves every run to its next stage, each stage in a worker of its own that stands for a
machine, while the drafter grows the nodes of the next run. When a run has left the last stage, the
target's own tokens are followed along it. Runs that do not lie below the last of them are
cancelled; when the token is in no run, all that is under way is thrown away, the path is committed,
and a window begins anew at that token. A window is a round of the ordinary loop: its tree holds the
nodes that were scored, and nodes that were drafted but not scored are counted as discarded.

Tokens are drawn as plain decoding draws them, each once, so the text is plain decoding's. Whether
the pipeline pays is measured, as for drafts beside a pass: `engine/overlap.py`.
"""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from sapwood.core.pipeline import ExitDrafter, PipelinePolicy, Window
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import Outcome, Verdict
from sapwood.engine.overlap import OverlapDecoder
from sapwood.engine.request_decoder import fit
from sapwood.engine.stages import RunOutputs, stages_of
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match

if TYPE_CHECKING:
    from sapwood.engine.loop import Engine


def can_pipeline(engine: "Engine", recipe: Recipe, sampling: Sampling) -> bool:
    """True when this request may be decoded over the target's stages."""
    drafter = recipe.drafter
    return (
        isinstance(recipe.policy, PipelinePolicy)
        and (drafter.stands_alone or isinstance(drafter, ExitDrafter))
        and isinstance(recipe.verifier, Match)
        # a device overwrites the scores of a run with those of the next
        and engine.target.info.device == "cpu"
        and sampling.grammar is None
        and not sampling.prediction
    )


def pipelined_rounds(
    engine: "Engine", prompt: Sequence[int], sampling: Sampling, rng: Rng
) -> Generator[Outcome]:
    """Decode one request, window by window, until the caller stops or the context is full."""
    decoding = PipelineDecoder(engine, prompt, sampling, rng)
    with ThreadPoolExecutor(decoding.runner.stages + 1, "sapwood-stage") as workers:
        try:
            while not decoding.full:
                yield decoding.round(workers)
        finally:
            decoding.close()


@dataclass
class Run:
    """Some nodes of the window on their way through the stages."""

    first: int  # index of its first node among the sent ones
    end: int
    handle: Any  # of the stage runner
    stage: int = 0  # the next one


class PipelineDecoder(OverlapDecoder):
    """The windows of one request over the stages of the target."""

    def __init__(
        self, engine: "Engine", prompt: Sequence[int], sampling: Sampling, rng: Rng
    ) -> None:
        super().__init__(engine, prompt, sampling, rng)
        self.pipeline = cast(PipelinePolicy, self.policy)
        self.runner = stages_of(
            engine.target, self.session, self.pipeline.stages, engine.recipe.drafter
        )
        self.exits = isinstance(engine.recipe.drafter, ExitDrafter)
        self.found: Verdict | None = None
        self.misses = 0

    def _beside(self, drafting: ThreadPoolExecutor) -> Outcome:
        """One window."""
        self.paused = self.clock.restart()
        self.device_draft_seconds = 0.0
        self.budget = self.controller.budget().within(*self.room(CAPACITY - 1))
        if not self.budget.nodes:
            return self._alone(draft=False)
        window = Window(Tree(self.root), self.budget, self.misses)
        window.tree.keeps_probs = self.policy.reads_probs
        scores, scored, passes = self._fill(window, drafting)
        self.grown = window.tree
        self.tree = window.tree.keep(scored)
        try:
            outcome = self.finish_round(scores)
        finally:
            self.found = None
        self.misses = 0 if outcome.verdict.accepted else self.misses + 1
        return replace(outcome, discarded=len(window.tree) - len(scored), passes=passes)

    def _fill(
        self, window: Window, workers: ThreadPoolExecutor
    ) -> tuple[RunOutputs, list[int], int]:
        """Tick until the window ends: scores, the sent nodes they are of, and finished runs."""
        scores = RunOutputs()
        runs = list[Run]()
        begun = passes = 0
        while True:
            window.sent[begun:] = filter(window.alive, window.sent[begun:])
            if begun < len(window.sent):
                tree = window.tree.keep(window.sent)
                runs.append(Run(begun, len(tree), self.runner.begin(tree, begun)))
                begun = len(tree)
            self._tick(window, runs, workers)
            if runs and runs[0].stage == self.runner.stages:
                run = runs.pop(0)
                first, output = self.runner.output(run.handle)
                scores.add(first, run.end, output)
                passes += 1
                self.found = self._follow(window, scores)
                if self.found is not None:
                    return scores, window.sent[: run.end], passes
                runs = self._cancel(window, runs)
            if self.exits:
                self._draft_next(window)

    def _tick(self, window: Window, runs: list[Run], workers: ThreadPoolExecutor) -> None:
        """Move every run one stage on, and draft the next one meanwhile."""
        window.ticks += 1
        drafting = None if self.exits else workers.submit(self._draft_next, window)
        try:
            if self.runner.parallel:
                for step in [workers.submit(self._step, run) for run in runs]:
                    step.result()
            else:
                for run in runs:
                    self._step(run)
        finally:
            if drafting is not None:
                drafting.result()
        window.left_first = []
        if runs and runs[-1].stage == 1:
            self._leave_first(window, runs[-1])

    def _step(self, run: Run) -> None:
        self.runner.step(run.handle, run.stage)
        run.stage += 1

    def _leave_first(self, window: Window, run: Run) -> None:
        """Show the drafter the states of a run that left the first stage."""
        window.left_first = window.sent[run.first : run.end]
        states = self.runner.states(run.handle)
        if states is not None:
            window.tree.states.update(zip(window.left_first, states, strict=True))

    def _draft_next(self, window: Window) -> None:
        """Grow the nodes of this tick and choose those that the next run takes."""
        tree = window.tree
        start = len(tree)
        while frontier := fit(
            [
                (node, width)
                for node, width in self.pipeline.grow(window, start)
                if tree.depths[node] < window.budget.depth and window.room > 0
            ],
            (CAPACITY - len(tree)) // self.drafter.fan,
        ):
            self.drafter.expand(tree, frontier, self.rng)
            for node, _ in frontier:
                tree.close(node)
        window.sent += self.pipeline.choose(window, start)[: max(0, window.room)]

    def _follow(self, window: Window, scores: RunOutputs) -> Verdict | None:
        """Follow the target's own tokens as far as they are scored; a verdict where they leave."""
        tree = window.tree.keep(window.sent)
        place = {node: index for index, node in enumerate(window.sent)}
        probs = PathProbs(tree, scores, self.sampler)
        node = place[window.tip]
        while scores.knows(node):
            depth = int(tree.depths[node])
            token = probs.draw(node, self.session.length + depth + 1, self.rng)
            child = tree.child(node, token)
            if child is None:
                return Verdict(tuple(tree.path(node)), token)
            node = child
            window.tip = window.sent[node]
            window.ticks = 0
        return None

    def _cancel(self, window: Window, runs: list[Run]) -> list[Run]:
        """The runs that still matter; the others are dropped where they are."""
        left = list[Run]()
        for run in runs:
            if any(window.alive(node) for node in window.sent[run.first : run.end]):
                left.append(run)
            else:
                self.runner.drop(run.handle, run.stage)
        return left

    def verify(self, probs: PathProbs) -> Verdict:
        """The verdict that was found while the window was filled."""
        if self.found is None:
            return super().verify(probs)
        return self.found.within(max(self.left, 1), self.tree)
