"""Draft with the target's own first layers and a small adapter (Kangaroo, arXiv 2404.18911).

Where the target can stop between two layers (`LayerSplit`: transformers models and int8 on a CPU),
a drafted token goes through the first layers once: the target keeps their keys and values, and its
pass over the tree goes on from their states. Elsewhere, as on CUDA, the first layers, the adapter
and a narrow output head form a model that shares the target's weights and is run like any draft
model, with keys of its own; drafts are the same, and a round costs the first layers once more.
Kangaroo's second exit, which ends the draft after an unlikely token, is policy `max-confidence`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.core.protocols import Capabilities, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.heads.head_base import HeadBase
from sapwood.drafters.heads.shared_layers import SharedLayers
from sapwood.errors import SapwoodError


@dataclass
class EarlyExit(HeadBase):
    """The target's first layers and a trained adapter in place of the others."""

    paper: ClassVar[str] = "2404.18911"
    needs: ClassVar[frozenset[str]] = frozenset()
    trained: ClassVar[str] = "early-exit"

    def bind(self, setting: EngineContext) -> None:
        """Load the adapter; split the target behind its first layers, or build the short model."""
        super().bind(setting)
        able = setting.target.capabilities
        self.context = setting.target.info.context
        self.shares = can_split(able, self.net.config.layer)
        self.split = able.layer_split
        if self.shares:
            self.reads_scores = True  # the target's states of the accepted path
            setting.target.watch([self.net.config.layer])
        else:
            self._build_short(setting)

    def _build_short(self, setting: EngineContext) -> None:
        """Build the model of the first layers and the adapter."""
        from sapwood.heads.early_exit import early_exit_model

        able = setting.target.capabilities
        assert able.run_derived is not None
        backend: Any = able.run_derived(
            lambda model: early_exit_model(model, self.net),
            f"{setting.target.info.model}, {self.net.config.layer} layers",
        )
        # tokens outside the draft vocabulary have a low logit
        backend.info = dataclasses.replace(backend.info, vocab=self.vocab)
        self.exit: Any = backend.model.get_output_embeddings()
        self.short = DraftModel(model=backend, draws=self.draws)
        self.short.bind(setting)

    def reset(self, request: RequestContext) -> None:
        """Take the target's states of the prompt, or prefill it in the short model."""
        self.sampler_ = request.sampler
        if self.shares:
            assert self.split is not None
            self.layers_ = SharedLayers(self.net, self.split, request, self.embedding)
            return
        self.short_ = self.short.fresh()
        self.short_.source = self.source
        self.short_.reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier, and keep the inputs of the output head."""
        if self.shares:
            self._expand_shared(tree, frontier, rng)
            return
        short = self.short_
        short.expand(tree, frontier, rng)
        for node, _ in frontier if short.scratch_ is not None else []:
            if node in short.inner_:  # a node beyond the context was not scored
                tree.states[node] = self.exit.states[short.inner_[node] - short.since_]

    def _expand_shared(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Run the frontier through the target's first layers and the adapter."""
        import torch

        committed = self.layers_.committed
        room = self.context - committed - 1  # depths whose children fit the context
        frontier = [(node, width) for node, width in frontier if tree.depths[node] < room]
        if not frontier:
            return
        nodes = [node for node, _ in frontier]
        with torch.inference_mode():
            outputs = self.layers_.outputs(tree, nodes)
            tree.states.update(zip(nodes, outputs, strict=True))
            logits = self.net.output_logits(outputs)
            self._add_children(tree, frontier, logits, rng, self.sampler_, committed)

    def observe(self, outcome: Outcome) -> None:
        """Take the target's states of the accepted path, or commit it in the short model."""
        if self.shares:
            self.layers_.observe(outcome)
        else:
            self.short_.observe(outcome)

    def close(self) -> None:
        """Free the adapter's keys, or the short model's session."""
        if self.shares:
            self.layers_.close()
        else:
            self.short_.close()


def can_split(able: Capabilities, layer: int) -> bool:
    """True when the target can stop before this layer and go on later."""
    if able.layer_split is None:
        return False
    try:
        able.layer_split.check_layer(layer)
    except SapwoodError:
        return False
    return True
