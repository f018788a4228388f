"""Adds retrieved paths to a drafter's tree, if their first token is one of the drafter's.

RASD (arXiv 2503.03434). The first drafter grows its tree as usual; the others retrieve
continuations. Those whose first token is among the drafter's best at the root are merged into the
tree along their longest shared path; a token that both propose is one node with both sources. The
paper prunes by the drafter's probabilities without a threshold; here the best tokens are as many
as a node may have children.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.protocols import Drafter, Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, TreeShape
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.lookup.lookup_base import chosen
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.rest import Rest


def leader_and_store() -> list[Drafter]:
    """The trained head, where there is one, and a datastore."""
    return [AutoHead(otherwise=Recycling()), Rest(doubt=True)]


@dataclass
class Rasd(Merge):
    """The first drafter's tree, with retrieved paths of the others that begin like it."""

    drafters: list[Drafter] = field(default_factory=leader_and_store)

    paper: ClassVar[str] = "2503.03434"

    @property
    def draws(self) -> Draw:
        """Chosen tokens alone."""
        return chosen(self, *self.drafters)

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """No whole trees: what is retrieved joins the tree while it grows."""
        return None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the leader propose everywhere, the others what begins like one of its own."""
        self._catch_up()
        leader, *others = self.drafters
        leader.expand(tree, frontier, rng)
        below = [(node, width) for node, width in frontier if node != ROOT]
        for other in others:
            for width in [width for node, width in frontier if node == ROOT]:
                self._agree(tree, other, width, rng)
            other.expand(tree, below, rng)

    def _agree(self, tree: Tree, other: Drafter, width: int, rng: Rng) -> None:
        """Merge first tokens that both the leader and another drafter propose."""
        found = Tree(int(tree.tokens[ROOT]))
        other.expand(found, [(ROOT, width)], rng)
        best = set(tree.tokens[tree.children(ROOT)].tolist())
        for node in found.children(ROOT):
            if (token := int(found.tokens[node])) in best:
                tree.add(ROOT, token, float(found.probs[node]), source=other.source)
