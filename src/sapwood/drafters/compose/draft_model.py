"""A draft model: a smaller model in any backend, with a KV cache of its own.

The draft model scores the nodes of a frontier in a tree of its own (the scratch tree), level by
level, so that it can expand nodes of other drafters and scores no node that is not expanded. Tokens
that are not in its KV cache yet, such as its own last draft, are a chain above the scratch tree.
Where the draft runs beside the target's pass and the emitted text lies in the scratch tree with its
last token, the scratch tree is kept for the next round: what was scored ahead stays so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.drafter_store import find
from sapwood.core.part import Part
from sapwood.core.protocols import (
    Backend,
    EngineContext,
    Frontier,
    RequestContext,
    TargetOutput,
    TreeInput,
)
from sapwood.core.rng import Rng
from sapwood.core.sampling import draft_probs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import BackendInfo, Draw, Outcome
from sapwood.drafters.propose import kind, propose, ranks_do
from sapwood.errors import SapwoodError

CATCH_UP = 64  # unread tokens that are committed at once rather than carried in the scratch tree
KEPT = 32  # most nodes of a scratch tree that is kept for the next round


@dataclass
class DraftModel(Part):
    """Any smaller model with the target's vocabulary."""

    # a name as for --model, or a backend; empty takes the one trained for the target
    model: str | Backend = ""
    draws: Draw = Draw.TOPK
    made_by: str = "draft-model"  # kind of `sapwood train`, where the model is not named

    paper: ClassVar[str] = "2211.17192"
    needs: ClassVar[frozenset[str]] = frozenset()
    stands_alone = True

    def bind(self, setting: EngineContext) -> None:
        """Load the model and compare vocabularies."""
        model = self.model or trained_for(setting.target.info, self.made_by)
        self.backend = setting.load(model) if isinstance(model, str) else model
        ours, theirs = self.backend.info, setting.target.info
        if ours.vocab != theirs.vocab:
            raise SapwoodError(
                f"draft model {ours.model} has {ours.vocab} tokens "
                f"and {theirs.model} has {theirs.vocab}; "
                "a draft model must share the target's vocabulary"
            )

    def reset(self, request: RequestContext) -> None:
        """Prefill the prompt but its last token, unless it exceeds the draft model's context."""
        fits = len(request.prompt) < self.backend.info.context
        self.session_ = self.backend.open(request.prompt[:-1] if fits else [])
        # emitted, not committed here; the last is the root
        self.unread_ = list(request.prompt[-1 if fits else 0 :])
        self.sampler_ = request.sampler
        self._drop_scratch()

    def _drop_scratch(self) -> None:
        """Begin without a scratch tree."""
        self.scratch_: Tree | None = None
        self.keeps_ = False  # the scratch tree may be kept for the next round
        self.carried_ = False  # it was

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Score the frontier in one pass and propose children of each of its nodes."""
        if self.scratch_ is None and self._room(len(self.unread_)):
            self._begin(tree)
        elif self.carried_ and not (tree.ahead and tree.expanded[ROOT]):
            self._restart(tree)  # the root's output is gone
        self.carried_ = False
        frontier = [
            (node, width)
            for node, width in frontier
            if self._room(len(self.unread_) + int(tree.depths[node]))
        ]
        if not frontier:
            return
        rows = [self._place(tree, node) for node, _ in frontier]
        self.keeps_ = tree.ahead
        if self.keeps_ and min(rows) < self.scored_:  # in a round before
            self._restart(tree)
            rows = [self._place(tree, node) for node, _ in frontier]
        scores = self._score()
        draws = kind(self.draws, self.sampler_)
        wide = max(width for _, width in frontier)
        best = scores.topk(wide) if ranks_do(tree, self.draws, self.sampler_) else None
        for (node, width), row in zip(frontier, rows, strict=True):
            index = row - self.since_
            if best is not None:
                tree.extend(
                    node,
                    best[0][index, :width].tolist(),
                    np.exp(best[1][index, :width]).tolist(),
                    source=self.source,
                )
                continue
            probs = draft_probs(self.sampler_, scores.logits(index), tree.spell(node)[1:])
            position = self.root_position_ + int(tree.depths[node]) + 1
            propose(tree, node, probs, width, draws, position, rng, self.source)

    def _room(self, rows: int) -> bool:
        """True while this many more tokens fit the draft's context."""
        return self.session_.length + rows < self.backend.info.context

    def _begin(self, tree: Tree) -> None:
        """Start the scratch tree with the chain of unread tokens, the root last."""
        self.root_position_ = self.session_.length + len(self.unread_) - 1
        while len(self.unread_) > CATCH_UP:
            self._commit_chain(self.unread_[:CATCH_UP])
            del self.unread_[:CATCH_UP]
        self.scratch_ = chain(self.unread_)
        # node of the round's tree -> node of the scratch tree
        self.inner_ = {0: len(self.scratch_) - 1}
        self.path_ = list(range(len(self.scratch_)))  # the unread tokens in the scratch tree
        self.since_ = self.scored_ = 0

    def _restart(self, tree: Tree) -> None:
        """Commit the text but its root, and begin another scratch tree."""
        if len(self.path_) > 1:
            self.session_.commit(self.path_[:-1])
            self.unread_ = self.unread_[-1:]
        self._begin(tree)

    def _place(self, tree: Tree, node: int) -> int:
        """The node's twin in the scratch tree, added with its ancestors if new."""
        if node not in self.inner_:
            assert self.scratch_ is not None
            parent = self._place(tree, int(tree.parents[node]))
            token = int(tree.tokens[node])
            twin = self.scratch_.child(parent, token) if tree.ahead else None
            if twin is None:
                twin = self.scratch_.add(parent, token, 1.0, sampled=True)
            self.inner_[node] = twin
        return self.inner_[node]

    def _score(self) -> TargetOutput:
        """Score the scratch nodes that are new since the last call."""
        assert self.scratch_ is not None
        self.since_ = self.scored_
        self.scored_ = len(self.scratch_)
        [scores] = self.backend.score([TreeInput(self.session_, self.scratch_, self.since_)])
        return scores

    def _commit_chain(self, tokens: Sequence[int]) -> None:
        line = chain(tokens)
        self.backend.score([TreeInput(self.session_, line)])
        self.session_.commit(range(len(line)))

    def observe(self, outcome: Outcome) -> None:
        """Keep the accepted tokens that were scored here; the rest stay unread."""
        emitted = outcome.tokens
        if self.scratch_ is None:
            self.unread_ += emitted
            return
        path = self.path_
        whole = len(path) + len(emitted)
        keeps = self.keeps_ and len(self.scratch_) <= KEPT
        for token in emitted if keeps else emitted[:-1]:
            child = self.scratch_.child(path[-1], token)
            if child is None or child >= self.scored_:
                break
            path.append(child)
        if len(path) == whole:
            self.unread_ += emitted
            self.inner_ = {0: path[-1]}
            self.carried_ = True
            self.root_position_ += len(emitted)
            return
        self.session_.commit(path)
        self.unread_ = emitted[len(path) - len(self.unread_) :]
        self.scratch_ = None

    def close(self) -> None:
        """Free the draft session."""
        self.session_.close()


def trained_for(info: BackendInfo, kind: str) -> str:
    """The folder of the draft model that was trained for this target, by this kind of training."""
    try:
        return str(find(kind, info.model, info.weights))
    except SapwoodError as error:
        raise SapwoodError(
            f"{kind} needs a model; write {kind}(model='NAME'), or make one with "
            f"`sapwood train {kind} --model {info.model}`"
        ) from error


def chain(tokens: Sequence[int]) -> Tree:
    """A tree that is one path."""
    line = Tree(tokens[0], capacity=len(tokens))
    for node, token in enumerate(tokens[1:]):
        line.add(node, token, 1.0, sampled=True)
    return line
