"""Draft with the target's own first layers and a small adapter (Kangaroo, arXiv 2404.18911).

The first layers, the adapter and a narrow output head form a model that shares the target's weights
and is run like any draft model, with keys of its own. Kangaroo and LayerSkip also hand the keys of
these layers to the target; here both compute theirs, so that the target's pass stays as it is.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.drafters.headed import Headed
from sapwood.drafters.model import Model
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import Tree


@dataclass
class EarlyExit(Headed):
    """The target's first layers and a trained adapter that speaks for the rest."""

    paper: ClassVar[str] = "2404.18911"
    needs: ClassVar[frozenset[str]] = frozenset()
    trained: ClassVar[str] = "early-exit"

    def bind(self, setting: Setting) -> None:
        """Load the adapter and build the short model."""
        from sapwood.heads.early_exit import shortened

        super().bind(setting)
        target: Any = setting.target
        runner: Any = getattr(target, "runner", type(target))  # a stand-in for a target names what runs models
        backend = runner(shortened(target.model, self.net), f"{target.info.model}, {self.net.config.layer} layers")
        backend.info = dataclasses.replace(backend.info, vocab=self.vocab)  # tokens it does not know have a low logit
        self.exit: Any = backend.model.get_output_embeddings()
        self.short = Model(model=backend, draws=self.draws)
        self.short.bind(setting)

    def reset(self, request: Request) -> None:
        """Read the prompt with the short model."""
        self.short_ = self.short.fresh()
        self.short_.source = self.source
        self.short_.reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the short model propose, and keep what its output head read."""
        short = self.short_
        short.expand(tree, frontier, rng)
        for node, _ in frontier if short.scratch_ is not None else []:
            if node in short.inner_:  # a node beyond the context was not scored
                tree.states[node] = self.exit.states[short.inner_[node] - short.since_]

    def observe(self, outcome: Outcome) -> None:
        """Keep the short model in step."""
        self.short_.observe(outcome)

    def close(self) -> None:
        """Free the short model's session."""
        self.short_.close()
