"""Cascade of a drafter and a cheaper one, which drafts ahead for it and drafts deep nodes alone.

CS-Drafting (arXiv 2312.11462). The vertical cascade: before the drafter expands a node, the cheaper
one (`guesser`) proposes a chain below it, and the drafter scores the whole chain in one pass. While
its own children agree with the chain, the next expansions need no further pass. So its drafts are
the same, draw for draw, in fewer passes; tokens of the chain that it does not share are dropped and
never reach the target. The horizontal cascade: nodes from depth `first` on, which are seldom
accepted, are drafted by the cheaper one alone. Cascades can be nested.

The paper lets the drafter take over a guess that it finds likely enough, which the target checks
all the same: `share` is one over its lenience. That changes what is drafted, so tokens that are
drawn are left alone. Its ladder has several models and ends in a bigram table where no match is
found; the recipe `cascade` has one draft model above a lookup, and a lenience of 2.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import Drafter, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import Draw
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.propose import covering
from sapwood.errors import Unsound


@dataclass
class Cascade(Part):
    """A drafter that verifies the drafts of a cheaper one, which drafts deep nodes alone."""

    drafter: Drafter = field(default_factory=AutoDraftModel)
    guesser: Drafter = field(default_factory=Ngram)
    ahead: int = 10  # tokens drafted ahead at a time; 0 runs the drafter node by node
    first: int = 0  # depth from which on the cheaper one drafts alone; 0: never
    # a token drafted ahead is kept if the drafter gives it this share of its own; 1: never
    share: float = 1.0

    paper: ClassVar[str] = "2312.11462"

    def __post_init__(self) -> None:
        at_least(0, ahead=self.ahead, first=self.first)
        between(0, 1, share=self.share)
        if self.guesser.draws is not Draw.TOPK:
            raise Unsound(
                f"the drafts of {self.guesser} are drawn, a cascade needs chosen ones; "
                "use draws=topk in it"
            )

    @property
    def draws(self) -> Draw:
        """The drafter's kind, mixed with chosen tokens if the cheaper one drafts deep nodes."""
        return covering(
            {self.drafter.draws, Draw.TOPK} if self.first else {self.drafter.draws}, self
        )

    @property
    def fan(self) -> int:
        """The larger fan of the two."""
        return max(self.drafter.fan, self.guesser.fan)

    @property
    def needs(self) -> frozenset[str]:
        """The needs of both."""
        return self.drafter.needs | self.guesser.needs

    def reset(self, request: RequestContext) -> None:
        """Give the drafter this part's source."""
        self.drafter.source = self.source
        self.tree_: Tree | None = None
        super().reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the drafter's children, from earlier passes if possible, or the cheaper one's."""
        if tree is not self.tree_:
            self._begin(tree)
        frontier = frontier[: self._room(frontier)]
        deep = [
            (node, width)
            for node, width in frontier
            if self.first and tree.depths[node] >= self.first
        ]
        high = [(node, width) for node, width in frontier if (node, width) not in deep]
        asked = [(self._twin(tree, node, width), width) for node, width in high]
        self._ask([(node, width) for node, width in asked if not self.draft_.expanded[node]], rng)
        for (node, width), (twin, _) in zip(high, asked, strict=True):
            self._copy(tree, node, twin, width)
        if deep:
            self._go_on(tree, deep, rng)

    def _begin(self, tree: Tree) -> None:
        """Begin two trees: the drafter's, which also holds the chains, and the chains alone."""
        self.tree_ = tree
        root = int(tree.tokens[ROOT])
        self.draft_ = Tree(root)
        self.guess_ = Tree(root)
        self.draft_.keeps_probs = tree.keeps_probs or self.share < 1
        self.twins_ = {ROOT: ROOT}  # node of the round's tree -> node of the drafter's
        self.spots_ = {ROOT: ROOT}  # node of the drafter's tree -> node of the guesser's
        # (parent, token) -> node drafted ahead, in the drafter's tree
        self.guessed_: dict[tuple[int, int], int] = {}
        self.guesses_: set[int] = set()
        self.widths_: dict[int, int] = {}  # node of the drafter's tree -> children it was asked for

    def _room(self, frontier: Frontier) -> int:
        """The first nodes of a frontier whose children fit into both trees."""
        wide = max((width for _, width in frontier), default=1) * self.fan
        return max(0, CAPACITY - len(self.draft_) - len(frontier)) // (wide + 1)

    def _twin(self, tree: Tree, node: int, width: int = 0) -> int:
        """The node in the drafter's tree; a new one if it was not there with this width."""
        twin = self.twins_.get(node)
        if twin is None or self.widths_.get(twin, width) < width:
            parent = ROOT if node == ROOT else self._twin(tree, int(tree.parents[node]))
            twin = self.twins_[node] = self._stand(parent, int(tree.tokens[node]), 0.0)
        return twin

    def _stand(self, parent: int, token: int, prob: float) -> int:
        """Add a node to the drafter's tree that is never merged with its own children."""
        return self.draft_.add(parent, token, prob, rank=CAPACITY + len(self.draft_), sampled=True)

    def _spot(self, node: int) -> int:
        """The node of the drafter's tree in the guesser's."""
        if node not in self.spots_:
            parent = self._spot(int(self.draft_.parents[node]))
            self.spots_[node] = self.guess_.add(
                parent, int(self.draft_.tokens[node]), 0.0, sampled=True
            )
        return self.spots_[node]

    def _ask(self, frontier: Frontier, rng: Rng) -> None:
        """One pass of the drafter over these nodes and the tokens drafted ahead below them."""
        room = self._room(frontier)
        tips = frontier
        asked = frontier
        for _ in range(self.ahead):
            tips = [(node, width) for node, width in tips if self._drafted(node)]
            if not tips or len(asked) + len(tips) > room:
                break
            tips = self._guess(tips, rng)
            asked = asked + tips
        if asked:
            self.drafter.expand(self.draft_, asked, rng)
        for node, width in asked:
            self.widths_[node] = width
            self.draft_.close(node)

    def _drafted(self, node: int) -> bool:
        """True if the drafter would expand a token drafted ahead below this node."""
        return not self.first or self.draft_.depths[node] + 1 < self.first

    def _guess(self, tips: Frontier, rng: Rng) -> Frontier:
        """The cheaper drafter's best child of each, as a node of the drafter's tree."""
        spots = [(self._spot(node), 1) for node, _ in tips]
        self.guesser.expand(self.guess_, spots, rng)
        found = []
        for (node, width), (spot, _) in zip(tips, spots, strict=True):
            self.guess_.close(spot)
            for child in self.guess_.children(spot)[:1]:
                token = int(self.guess_.tokens[child])
                guess = self._stand(node, token, float(self.guess_.probs[child]))
                self.spots_[guess], self.guessed_[node, token] = child, guess
                self.guesses_.add(guess)
                found.append((guess, width))
        return found

    def _copy(self, tree: Tree, node: int, twin: int, width: int) -> None:
        """Copy the drafter's children of a node to the round's tree."""
        draft = self.draft_
        if (twin, self.source) in draft.proposals:
            tree.proposals[node, self.source] = draft.proposals[twin, self.source]
        children = [child for child in draft.children(twin) if child not in self.guesses_]
        children = self._lenient(twin, children)[: width * self.fan]
        for place, child in enumerate(children):
            token = int(draft.tokens[child])
            sampled = bool(draft.sampled[child])
            rank = int(draft.ranks[child]) if sampled else place
            mine = tree.add(
                node,
                token,
                float(draft.probs[child]),
                rank=rank,
                source=self.source,
                sampled=sampled,
            )
            # twins drawn later draw their own children
            self.twins_[mine] = self.guessed_.pop((twin, token), child)

    def _lenient(self, twin: int, children: list[int]) -> list[int]:
        """The children; the token drafted ahead comes first if it is likely enough."""
        guess = next((node for (parent, _), node in self.guessed_.items() if parent == twin), None)
        full_probs = self.draft_.proposals.get((twin, self.source))
        if (
            self.share == 1
            or guess is None
            or full_probs is None
            or self.draft_.sampled[children].any()
        ):
            return children
        token = int(self.draft_.tokens[guess])
        if full_probs[token] <= self.share * self.draft_.probs[guess]:
            return children
        self.draft_.probs[guess] = full_probs[token]
        self.draft_.sampled[guess] = False
        return [guess, *(child for child in children if self.draft_.tokens[child] != token)]

    def _go_on(self, tree: Tree, deep: Frontier, rng: Rng) -> None:
        """Expand by the cheaper drafter alone."""
        twins = [self._twin(tree, node) for node, _ in deep]
        spots = [(self._spot(twin), width) for twin, (_, width) in zip(twins, deep, strict=True)]
        self.guesser.expand(self.guess_, spots, rng)
        for (node, width), twin, (spot, _) in zip(deep, twins, spots, strict=True):
            for rank, child in enumerate(self.guess_.children(spot)[: width * self.fan]):
                token = int(self.guess_.tokens[child])
                prob = float(self.guess_.probs[child])
                mine = tree.add(node, token, prob, rank=rank, source=self.source)
                if mine not in self.twins_:
                    self.twins_[mine] = self._stand(twin, token, 0.0)
                    self.spots_[self.twins_[mine]] = child
