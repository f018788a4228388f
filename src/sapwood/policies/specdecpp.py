"""Draft a chain until one of its tokens is likely to be refused.

SpecDec++ (arXiv 2405.19715): the optimal stop is a threshold on the chance that at least one of the
drafted tokens is refused. A trained head reads the drafter's own state at each token it has
processed, and so lags one token behind: the newest token, which the drafter has not processed yet,
has no estimate and always stays. Only tokens that were never drawn are left out, so the rule is
exact for drafts of every kind. Published thresholds are 0.7 and 0.3; the right one rises with the
price of a target pass.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.numpy_mlp import NumpyMlp, as_float32, check_width, load, sigmoid
from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain, first_path

KIND = "specdec++"


@dataclass
class SpecDecPp(Chain):
    """A chain that ends when a trained head expects a refusal among its tokens."""

    threshold: float = 0.7  # chance of a refusal above which drafting ends
    most: int = 20  # longest chain
    weights: str = ""  # folder of the trained head; empty: the one trained for this model

    paper: ClassVar[str] = "2405.19715"

    def __post_init__(self) -> None:
        between(0, 1, threshold=self.threshold)
        at_least(1, most=self.most)

    def bind(self, setting: EngineContext) -> None:
        """Load the head."""
        info = setting.target.info
        bundle = load(self.weights, KIND, info.model, info.weights, setting.heads)
        self.net: NumpyMlp = bundle.nets["head"]

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain, while a refusal in it is unlikely."""
        found = super().frontier(tree, budget)
        if not found or tree.height >= self.most or self.refusal(tree) > self.threshold:
            return []
        return found

    def refusal(self, tree: Tree) -> float:
        """Probability that one of the tokens the drafter has processed is refused."""
        read = [node for node in first_path(tree)[1:] if tree.expanded[node]]
        if not read:
            return 0.0
        states = self.states(tree, read)
        check_width(self.net, states.shape[1], "the head of specdec++")
        return 1.0 - float(np.prod(sigmoid(self.net(states)[:, 0].astype(np.float64))))

    def states(self, tree: Tree, nodes: list[int]) -> FloatArray:
        """The drafter's states at these nodes, [nodes, width]."""
        missing = [node for node in nodes if node not in tree.states]
        if missing:
            raise SapwoodError(
                "specdec++ reads the drafter's states, and this drafter keeps none; "
                "use a trained one"
            )
        return np.stack([as_float32(tree.states[node]) for node in nodes])
