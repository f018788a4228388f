"""A chain that goes on while the target checks its beginning.

PEARL (arXiv 2408.11850): draft model and target run at the same time. While the target checks the
drafted tokens, the draft model writes on behind them (post-verify); the target's own token after
the last of them, which every pass brings, checks the first of these. If all agree, the rest is the
next draft, which cost no time, and grows with every round that is accepted. If not, it is thrown
away, and the next pass checks no draft but its root: its token checks the first of those that are
written meanwhile (pre-verify). A pass that brings one token is a dear one, so `first` may put a few
draft steps before it, as without overlap.

The engine that runs both at once is `engine/overlap.py`; where requests share passes, or where the
draft reads the target, this is a plain chain.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.overlap import OverlapGauge
from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget
from sapwood.policies.chain import Chain, first_path


@dataclass
class Pearl(Chain):
    """A chain that is drafted on while the target checks its beginning."""

    # tokens drafted before a pass that would otherwise check none; 0 is the paper's pre-verify
    first: int = 0

    paper: ClassVar[str] = "2408.11850"

    def __post_init__(self) -> None:
        at_least(0, first=self.first)

    def bind(self, setting: EngineContext) -> None:
        """Begin to measure whether overlap pays; shared by all requests."""
        super().bind(setting)
        self.gauge = OverlapGauge()

    def sent(self, tree: Tree, budget: Budget) -> list[int]:
        """The whole chain, as far as the budget allows."""
        return first_path(tree)[1 : 1 + min(budget.depth, budget.nodes)]

    def ahead(self, tree: Tree, tip: int, depth: int) -> Frontier:
        """The end of the chain, while it may grow."""
        end = first_path(tree)[-1]
        return [] if tree.expanded[end] or tree.depths[end] >= depth else [(end, 1)]
