"""The sparse tree of parallel prompt decoding (arXiv 2405.18628, dynamic sparse tree).

How deep a tree can be depends on the prompt tokens behind the last accepted node. For each such
number there is a tree of candidates: the paths of ranks that are right most often.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.rank_table import Ranks, measured, rank_tree, usual
from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.types import Budget, Outcome
from sapwood.policies.rank_paths import RankTree


@dataclass
class PromptTree(RankTree):
    """Paths of ranks that are right most often, as deep as the last round's prompt tokens allow."""

    nodes: int = 32  # of the tree, root not counted, >= 1
    # kind of trained head, or its folder, that holds how often each rank is right
    head: str = "ppd"

    paper: ClassVar[str] = "2405.18628"
    reads_scores = True  # the next tree depends on the accepted node

    def __post_init__(self) -> None:
        at_least(1, nodes=self.nodes)

    def bind(self, setting: EngineContext) -> None:
        """Make a tree for each number of prompt tokens."""
        chances = measured(self.head, setting.target.info) or usual()
        self.trees = [rank_tree(chances[:rows], self.nodes) for rows in range(len(chances) + 1)]

    def reset(self, request: RequestContext) -> None:
        """Begin without prompt tokens."""
        self.rows_ = 0

    def observe(self, outcome: Outcome) -> None:
        """Count the prompt tokens behind the last accepted node."""
        found = outcome.lookahead
        self.rows_ = 0 if found is None else len(found.behind(outcome.verdict.path[-1]))

    def _within(self, budget: Budget) -> list[Ranks]:
        """The first paths of the tree for this many prompt tokens, as the budget allows."""
        paths = self.trees[min(self.rows_, len(self.trees) - 1)]
        able = [path for path in paths if len(path) <= budget.depth and max(path) < budget.width]
        return able[: budget.nodes]
