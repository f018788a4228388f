"""Add what a datastore knows to a drafter's tree, where the drafter agrees on how it begins.

RASD (arXiv 2503.03434). The first drafter grows its tree as ever; the others retrieve. Of what they
find only those continuations stay whose first token is among the drafter's own best at the root, and each is put
into the tree along the longest path they share, so that a token both know is one node that both trust.
The paper prunes by the drafter's law and does not say by how much; its best tokens are as many as a node may have.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.drafters.follow import chosen
from sapwood.drafters.found import Found
from sapwood.drafters.merge import Merge
from sapwood.drafters.recycling import Recycling
from sapwood.drafters.rest import Rest
from sapwood.protocols import Drafter, Frontier
from sapwood.records import Draw, Levels
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree


def leader_and_store() -> list[Drafter]:
    """The trained head, where there is one, and a datastore."""
    return [Found(otherwise=Recycling()), Rest(doubt=True)]


@dataclass
class Rasd(Merge):
    """A drafter's tree, and retrieved paths that begin as the drafter would; the first leads, the others retrieve."""

    drafters: list[Drafter] = field(default_factory=leader_and_store)

    paper: ClassVar[str] = "2503.03434"

    @property
    def draws(self) -> Draw:
        """Chosen tokens alone."""
        return chosen(self, *self.drafters)

    def grow(self, root: int, levels: Levels) -> Tree | None:
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
        """Add to the leader's first tokens the trust of those that another one retrieves as well."""
        found = Tree(int(tree.tokens[ROOT]))
        other.expand(found, [(ROOT, width)], rng)
        best = set(tree.tokens[tree.children(ROOT)].tolist())
        for node in found.children(ROOT):
            if (token := int(found.tokens[node])) in best:
                tree.add(ROOT, token, float(found.probs[node]), source=other.source)
