"""What drafters share that read one thought of the target: its final state at the last committed token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sapwood.drafters.headed import Headed
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class LastState(Headed):
    """Several heads over one final state: that of depth d proposes the children of nodes at depth d."""

    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})

    def bind(self, setting: Setting) -> None:
        """Load the heads and have the target keep its final states."""
        super().bind(setting)
        target: Any = setting.target
        self.layer: int = target.model.config.get_text_config().num_hidden_layers
        target.watch([self.layer])

    def reset(self, request: Request) -> None:
        """Take what the target thought at the last token but one, which says the root."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1  # position of the root
        read = request.session.reading(1)
        self.thought_: Tensor | None = None if read is None else read.hidden([0], [self.layer])  # [1, width]

    def observe(self, outcome: Outcome) -> None:
        """Take what the target thought at the end of the accepted path, which says the next root."""
        path = outcome.verdict.path
        self.thought_ = outcome.scores.hidden(path[-1:], [self.layer])
        self.committed_ = outcome.context + len(path)

    def close(self) -> None:
        """Free the state."""
        self.thought_ = None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Propose children where a head reaches and there is a state to read."""
        import torch

        within = [(node, width) for node, width in frontier if tree.depths[node] < self.net.config.heads]
        if self.thought_ is None or not within:
            return
        with torch.inference_mode():
            self._propose(tree, within, self.thought_, rng)

    def _propose(self, tree: Tree, frontier: Frontier, thought: "Tensor", rng: Rng) -> None:
        """Add children to these nodes, none deeper than the heads reach."""
        raise NotImplementedError
