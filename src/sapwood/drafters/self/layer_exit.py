"""Draft by an exit behind the target's first layers, fitted while decoding.

A linear map from the states behind the first layers to those of the output head is fitted to the
prompt and to the text as it is written (`EarlyHead`), and the target's own output head turns them
into tokens; before the first fit the states go there as they are. Nothing is trained beforehand.
In a pipeline the first stage ends at the exit: its states are there without a further pass
(`ExitDrafter`). Elsewhere the tree is run through the first layers once for each of its levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapwood.common.drafter_store import home
from sapwood.common.early_head import EarlyHead, numbers
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, between
from sapwood.core.protocols import (
    EngineContext,
    Frontier,
    RequestContext,
    TargetOutput,
    TreeInput,
)
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome

PROMPT = 512  # last tokens of a prompt that the exit learns from


@dataclass
class LayerExit(Part):
    """The target's first layers and a map behind them that is fitted while decoding."""

    share: float = 0.25  # of the layers that run before the exit, 0 to 1

    paper: ClassVar[str] = "2509.19368"
    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset({"hidden", "layers"})
    reads_scores = True

    def __post_init__(self) -> None:
        between(0, 1, share=self.share)

    def bind(self, setting: EngineContext) -> None:
        """Split the target and load what was fitted before; shared by all requests."""
        target, able = setting.target, setting.target.capabilities
        assert able.layer_split is not None  # it provides layers
        self.split = able.layer_split
        self.exit_layer = min(max(1, round(self.share * able.layers)), able.layers - 1)
        self.split.check_layer(self.exit_layer)
        self.watched = [self.exit_layer, able.layers]
        target.watch(self.watched)
        info = target.info
        path = home("layer-exit", info.model) / f"{info.dtype}-{self.exit_layer}.npz"
        self.head = EarlyHead(able.model.get_output_embeddings().weight.shape[1], path)

    def reset(self, request: RequestContext) -> None:
        """Learn from the prompt."""
        self.session_ = request.session
        read = request.session.prefill_output(PROMPT)
        if read is not None:
            self._learn(read, range(min(PROMPT, request.session.length)))

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """The best tokens of the exit at each node."""
        states = self._states(tree, [node for node, _ in frontier])
        output = self.split.logits_of(self.head.guess(states) if self.head.fitted else states)
        tokens, logs = output.topk(max(width for _, width in frontier))
        for row, (node, width) in enumerate(frontier):
            chances = np.exp(logs[row, :width]).tolist()
            tree.extend(node, tokens[row, :width].tolist(), chances, source=self.source)

    def _states(self, tree: Tree, nodes: Sequence[int]) -> FloatArray:
        """States behind the first layers at these nodes, [nodes, width]."""
        if not all(node in tree.states for node in nodes):
            whole = tree.keep(range(len(tree)))
            rows = self.split.layer_input(TreeInput(self.session_, whole), self.exit_layer)
            return numbers(rows)[list(nodes)]
        return np.concatenate([numbers(tree.states[node][None]) for node in nodes])

    def observe(self, outcome: Outcome) -> None:
        """Fit the map to the states of the accepted path."""
        self._learn(outcome.scores, list(outcome.verdict.path))

    def _learn(self, scores: TargetOutput, rows: Any) -> None:
        states = numbers(scores.hidden(list(rows), self.watched))
        self.head.learn(*np.split(states, 2, axis=1))

    def close(self) -> None:
        """Save what was fitted."""
        self.head.save()
