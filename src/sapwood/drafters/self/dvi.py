"""DVI (arXiv 2510.05421): an exit behind the first layers that learns from what is accepted.

The target's first layers, its own norm and output head, and a low-rank correction of that head.
Every checked token of the draft, up to the first rejected one, teaches the correction: the target's
probs at first, whether it was accepted later on (`LowRankHead`). It learns between rounds alone, so
a round drafts from one correction, and is shared by all requests of an engine. Nothing is trained
beforehand, and nothing is kept.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapwood.common.early_head import numbers
from sapwood.common.low_rank_head import CheckedToken, LowRankHead, probs_of
from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.propose import leaders
from sapwood.drafters.self.layer_exit import LayerExit


@dataclass
class Dvi(LayerExit):
    """The target's first layers and a low-rank head that learns from verification."""

    rank: int = 8  # of the correction, >= 1
    rate: float = 0.01  # of Adam, 0 to 1
    warmup: int = 256  # tokens of KL alone, and as many of the move to rewards, >= 0
    anchor: float = 0.2  # weight of KL at the end, 0 to 1
    batch: int = 16  # tokens of a step, >= 1

    paper: ClassVar[str] = "2510.05421"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, rank=self.rank, batch=self.batch)
        at_least(0, warmup=self.warmup)
        between(0, 1, rate=self.rate, anchor=self.anchor)

    def bind(self, setting: EngineContext) -> None:
        """Split the target and begin without a correction; shared by all requests."""
        able = setting.target.capabilities
        assert able.layer_split is not None  # it provides layers
        self.split = able.layer_split
        self.exit_layer = min(max(1, round(self.share * able.layers)), able.layers - 1)
        self.split.check_layer(self.exit_layer)
        model: Any = able.model
        width = model.get_input_embeddings().weight.shape[1]
        norm = dict(model.base_model.named_parameters()).get("norm.weight")
        self.scale: FloatArray = (
            np.ones(width, np.float32) if norm is None else numbers(norm.detach()[None])[0]
        )
        self.learner = LowRankHead(
            setting.target.info.vocab, width, self.rank, self.rate, self.warmup, self.anchor
        )
        self.checked: list[CheckedToken] = []  # not learned yet

    def reset(self, request: RequestContext) -> None:
        """Begin a request."""
        self.session_ = request.session
        # node -> its state and the logits of its children
        self.said_: dict[int, tuple[FloatArray, FloatArray]] = {}

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """The best tokens of the corrected exit at each node."""
        nodes = [node for node, _ in frontier]
        states = self._normed(self._states(tree, nodes))
        output = self.split.logits_of(states)
        for row, (node, width) in enumerate(frontier):
            logits = output.logits(row) + self.learner.correction(states[row])
            self.said_[node] = states[row], logits
            probs = probs_of(logits)
            best = leaders(probs, width)
            tree.extend(node, best, probs[best].tolist(), source=self.source)

    def _normed(self, states: FloatArray) -> FloatArray:
        """States as the target's norm before its output head gives them, [rows, width]."""
        level = np.sqrt((states.astype(np.float64) ** 2).mean(-1, keepdims=True)) + 1e-6
        found: FloatArray = (states / level * self.scale).astype(np.float32)
        return found

    def observe(self, outcome: Outcome) -> None:
        """Learn from the drafted tokens up to the first that was rejected."""
        self.checked += checked_tokens(outcome, self.said_)
        self.said_ = {}
        while len(self.checked) >= self.batch:
            self.learner.learn(self.checked[: self.batch])
            del self.checked[: self.batch]

    def close(self) -> None:
        """Forget the request's nodes."""
        del self.said_


def checked_tokens(
    outcome: Outcome, said: dict[int, tuple[FloatArray, FloatArray]]
) -> list[CheckedToken]:
    """The drafted tokens below the accepted path, the best child of each of its nodes."""
    kept = range(len(outcome.tree)) if outcome.tree.kept is None else outcome.tree.kept.tolist()
    found = []
    for node, token in zip(outcome.verdict.path, outcome.tokens, strict=True):
        children = outcome.tree.children(node)
        if not len(children) or kept[node] not in said:
            continue
        state, logits = said[kept[node]]
        drafted = int(outcome.tree.tokens[children[0]])
        probs = probs_of(outcome.scores.logits(node))
        found.append(CheckedToken(state, logits, drafted, probs, drafted == token))
    return found
