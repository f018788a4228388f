"""A toy whose rounds run as on a device, and a drafter of guesses that joins them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sapwood.core.device_rounds import RoundBatch, RoundResult
from sapwood.core.part import Part
from sapwood.core.protocols import (
    Capabilities,
    Frontier,
    PrefillChunk,
    RequestContext,
    TargetOutput,
    TreeInput,
)
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome, TreeShape
from sapwood.core.whole_tree import TreeBuilder, TreeJob, WholeTreeDrafter
from sapwood.verifiers.match import follow
from tests.helpers.launching_toy import LaunchingToy


def guesses(text: Sequence[int], vocab: int) -> list[int]:
    """All tokens in an order that depends on the last two."""
    rng = np.random.default_rng([7, *text[-2:]])
    return [int(token) for token in rng.permutation(vocab)]


def guess_tree(text: Sequence[int], shape: TreeShape, vocab: int) -> Tree:
    """A tree of guesses behind a text whose last token is the root."""
    tree = Tree(text[-1])
    node = 0
    while len(tree) <= shape.nodes and node < len(tree):
        if tree.depths[node] < shape.depth:
            said = [*text[:-1], *tree.spell(node)]
            for token in guesses(said, vocab)[: max(shape.nodes + 1 - len(tree), 0)]:
                tree.add(node, token, 1 / vocab)
        node += 1
    return tree


@dataclass
class ToyRound:
    """A launched round; its verdicts count as unknown until they are read."""

    results: list[RoundResult]
    scores: list[TargetOutput]
    learn: int
    draft_seconds: float = 0.25
    was_read: bool = False

    def read(self) -> Sequence[RoundResult]:
        self.was_read = True
        return self.results

    def drafted(self) -> Tree:
        pruned = self.results[self.learn].tree
        grown = Tree.from_columns(pruned.tokens, pruned.parents, pruned.depths, pruned.probs)
        grown.pruned = pruned
        return grown

    def output(self, index: int) -> TargetOutput:
        return self.scores[index]


@dataclass
class RoundToy(LaunchingToy):
    """A toy with the capability to run rounds by itself."""

    rounds: list[ToyRound] = field(default_factory=list, compare=False)
    failing_rounds: set[int] = field(default_factory=set, compare=False)
    refuses: bool = False  # no round fits

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, round_launcher=lambda builder: ToyLauncher(self))

    def launch_round(self, batch: RoundBatch) -> ToyRound:
        if len(self.rounds) in self.failing_rounds:
            self.failing_rounds.remove(len(self.rounds))
            raise RuntimeError("a launch failed")
        assert all(one.was_read for one in self.rounds[:-1]), "two rounds were not read yet"
        trees = []
        for one in batch.requests:
            session: Any = one.session
            if one.before < 0:
                [(_, tokens)] = one.job.unread
                assert list(tokens)[:-1] == session.tokens, "the drafter lost some of the text"
                one.job.unread.clear()
                root = tokens[-1]
            else:
                root = self.rounds[-1].results[one.before].verdict.bonus
            trees.append(guess_tree([*session.tokens, root], batch.shape, self.info.vocab))
        work = [
            TreeInput(one.session, tree) for one, tree in zip(batch.requests, trees, strict=True)
        ]
        scores = self.score(work)
        results = []
        for one, tree, output in zip(batch.requests, trees, scores, strict=True):
            sampler = Sampler(Sampling(temperature=one.temperature), ())
            probs = PathProbs(tree, output, sampler)
            context = one.session.length
            verdict = follow(tree, probs, context, KeyedRng(one.seed))
            one.session.commit(verdict.path)
            results.append(RoundResult(context, tree, verdict))
        self.rounds.append(ToyRound(results, scores, batch.learn))
        return self.rounds[-1]


@dataclass
class ToyLauncher:
    """Launches rounds of the toy."""

    toy: RoundToy

    def fits(self, batch: RoundBatch) -> bool:
        room = min(self.toy.info.context - one.session.length for one in batch.requests)
        return not self.toy.refuses and room > 2 * (batch.shape.depth + 1)

    def seconds(self, shape: TreeShape, requests: int, longest: int) -> float | None:
        return None

    def launch(self, batch: RoundBatch, chunks: Sequence[PrefillChunk] = ()) -> ToyRound:
        if chunks:
            self.toy.score([], chunks)
        return self.toy.launch_round(batch)


class NoBuilder:
    """Stands for the builder of a trained head."""


BUILDER: Any = NoBuilder()


@dataclass
class Guesses(Part, WholeTreeDrafter):
    """A drafter of guesses, which keeps the whole text to show that no token is lost."""

    draws: ClassVar[Draw] = Draw.TOPK
    observes_roots: ClassVar[bool] = True

    def reset(self, request: RequestContext) -> None:
        self.text_ = list(request.prompt)

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        return None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        assert tree.tokens[ROOT] == self.text_[-1]
        for node, width in frontier:
            best = guesses([*self.text_[:-1], *tree.spell(node)], 3)[:width]
            tree.extend(node, best, [1 / 3] * len(best), source=self.source)

    def observe(self, outcome: Outcome) -> None:
        self.text_ += outcome.tokens

    def joins_rounds(self) -> bool:
        return True

    def round_job(self, shape: TreeShape) -> TreeJob | None:
        builder: TreeBuilder = BUILDER
        return TreeJob(builder, None, [(None, list(self.text_))], 0, shape, self.source)  # type: ignore[arg-type]

    def observe_rounds(self, tokens: Sequence[int], last: Outcome | None) -> None:
        self.text_ += tokens
        if last is not None:
            assert tokens[-1] == last.verdict.bonus
