"""Let a cheaper drafter guess for the drafter, and draft on its own where tokens matter less.

CS-Drafting (arXiv 2312.11462). The vertical cascade: before the drafter is asked about a node, the guesser
proposes a row of tokens below it, and the drafter is asked about the whole row in one pass. While its own
children agree with the guesses, the next questions are answered already. So its drafts are what they would have
been, draw for draw, in fewer passes; guesses it does not share are forgotten and never reach the target. The
horizontal cascade: nodes from depth `first` on, which are seldom reached, are left to the guesser alone. Nested
cascades make longer ladders.

The paper lets the drafter take over a guess that it finds likely enough, which the target checks all the
same: `share` is one over its lenience. That changes what is drafted, so tokens that are drawn are left alone.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.drafters.draw import covering
from sapwood.drafters.ngram import Ngram
from sapwood.drafters.small import Small
from sapwood.errors import Unsound
from sapwood.part import Part, at_least, between
from sapwood.protocols import Drafter, Frontier, Request
from sapwood.records import Draw
from sapwood.rng import Rng
from sapwood.tree import CAPACITY, ROOT, Tree


@dataclass
class Cascade(Part):
    """A drafter that is asked ahead along the guesses of a cheaper one, which drafts the deep nodes alone."""

    drafter: Drafter = field(default_factory=Small)
    guesser: Drafter = field(default_factory=Ngram)
    ahead: int = 10  # tokens guessed at a time; 0 asks the drafter node by node
    first: int = 0  # depth from which on the guesser drafts alone; 0: nowhere
    share: float = 1.0  # a guess is taken over where the drafter gives it more than this of its own chance; 1: never

    paper: ClassVar[str] = "2312.11462"

    def __post_init__(self) -> None:
        at_least(0, ahead=self.ahead, first=self.first)
        between(0, 1, share=self.share)
        if self.guesser.draws is not Draw.TOPK:
            raise Unsound(f"the guesses of {self.guesser} are drawn, a cascade needs chosen ones; use draws=topk in it")

    @property
    def draws(self) -> Draw:
        """The drafter's kind, with chosen tokens below where the guesser drafts alone."""
        return covering({self.drafter.draws, Draw.TOPK} if self.first else {self.drafter.draws}, self)

    @property
    def fan(self) -> int:
        """The drafter's voices."""
        return max(self.drafter.fan, self.guesser.fan)

    @property
    def needs(self) -> frozenset[str]:
        """What either of them needs."""
        return self.drafter.needs | self.guesser.needs

    def reset(self, request: Request) -> None:
        """Let the drafter draw where this part stands."""
        self.drafter.source = self.source
        self.tree_: Tree | None = None
        super().reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the drafter's children, where it can from what it has answered already; deep down the guesser's."""
        if tree is not self.tree_:
            self._begin(tree)
        frontier = frontier[: self._room(frontier)]
        deep = [(node, width) for node, width in frontier if self.first and tree.depths[node] >= self.first]
        high = [(node, width) for node, width in frontier if (node, width) not in deep]
        asked = [(self._twin(tree, node, width), width) for node, width in high]
        self._ask([(node, width) for node, width in asked if not self.draft_.expanded[node]], rng)
        for (node, width), (twin, _) in zip(high, asked, strict=True):
            self._copy(tree, node, twin, width)
        if deep:
            self._go_on(tree, deep, rng)

    def _begin(self, tree: Tree) -> None:
        """A tree for the drafter, which holds guesses beside drafts, and one for the guesser."""
        self.tree_, root = tree, int(tree.tokens[ROOT])
        self.draft_, self.guess_ = Tree(root), Tree(root)
        self.draft_.keeps_laws = tree.keeps_laws or self.share < 1
        self.twins_ = {ROOT: ROOT}  # node of the round's tree -> node of the drafter's
        self.spots_ = {ROOT: ROOT}  # node of the drafter's tree -> node of the guesser's
        self.guessed_: dict[tuple[int, int], int] = {}  # (parent, token) -> guess, in the drafter's tree
        self.guesses_: set[int] = set()
        self.widths_: dict[int, int] = {}  # node of the drafter's tree -> children it was asked for

    def _room(self, frontier: Frontier) -> int:
        """Nodes that the drafter can be asked about while its tree, and that of the round, hold their children."""
        wide = max((width for _, width in frontier), default=1) * self.fan
        return max(0, CAPACITY - len(self.draft_) - len(frontier)) // (wide + 1)

    def _twin(self, tree: Tree, node: int, width: int = 0) -> int:
        """The node in the drafter's tree; a new one if it came from elsewhere, or if fewer children were asked for."""
        twin = self.twins_.get(node)
        if twin is None or self.widths_.get(twin, width) < width:
            parent = ROOT if node == ROOT else self._twin(tree, int(tree.parents[node]))
            twin = self.twins_[node] = self._stand(parent, int(tree.tokens[node]), 0.0)
        return twin

    def _stand(self, parent: int, token: int, prob: float) -> int:
        """A node of the drafter's tree that is no draft: never merged with one, its noise its own."""
        return self.draft_.add(parent, token, prob, rank=CAPACITY + len(self.draft_), sampled=True)

    def _spot(self, node: int) -> int:
        """The node of the drafter's tree in the guesser's."""
        if node not in self.spots_:
            parent = self._spot(int(self.draft_.parents[node]))
            self.spots_[node] = self.guess_.add(parent, int(self.draft_.tokens[node]), 0.0, sampled=True)
        return self.spots_[node]

    def _ask(self, frontier: Frontier, rng: Rng) -> None:
        """One pass of the drafter over these nodes and the guesses below them."""
        room, tips, asked = self._room(frontier), frontier, frontier
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
        """True where a guess below this node would be asked about by the drafter."""
        return not self.first or self.draft_.depths[node] + 1 < self.first

    def _guess(self, tips: Frontier, rng: Rng) -> Frontier:
        """The guesser's best child of each, as a node of the drafter's tree that no draft is merged with."""
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
        """Hand out the drafter's children of a node; one that was guessed stands where the guess was asked about."""
        draft = self.draft_
        if (twin, self.source) in draft.laws:
            tree.laws[node, self.source] = draft.laws[twin, self.source]
        children = [child for child in draft.children(twin) if child not in self.guesses_]
        children = self._lenient(twin, children)[: width * self.fan]
        for place, child in enumerate(children):
            token, sampled = int(draft.tokens[child]), bool(draft.sampled[child])
            rank = int(draft.ranks[child]) if sampled else place
            mine = tree.add(node, token, float(draft.probs[child]), rank=rank, source=self.source, sampled=sampled)
            self.twins_[mine] = self.guessed_.pop((twin, token), child)  # twins drawn later draw their own children

    def _lenient(self, twin: int, children: list[int]) -> list[int]:
        """The children, the guess before all others where it is likely enough."""
        guess = next((node for (parent, _), node in self.guessed_.items() if parent == twin), None)
        law = self.draft_.laws.get((twin, self.source))
        if self.share == 1 or guess is None or law is None or self.draft_.sampled[children].any():
            return children
        token = int(self.draft_.tokens[guess])
        if law[token] <= self.share * self.draft_.probs[guess]:
            return children
        self.draft_.probs[guess] = law[token]
        self.draft_.sampled[guess] = False
        return [guess, *(child for child in children if self.draft_.tokens[child] != token)]

    def _go_on(self, tree: Tree, deep: Frontier, rng: Rng) -> None:
        """Let the guesser draft alone."""
        twins = [self._twin(tree, node) for node, _ in deep]
        spots = [(self._spot(twin), width) for twin, (_, width) in zip(twins, deep, strict=True)]
        self.guesser.expand(self.guess_, spots, rng)
        for (node, width), twin, (spot, _) in zip(deep, twins, spots, strict=True):
            for rank, child in enumerate(self.guess_.children(spot)[: width * self.fan]):
                token, prob = int(self.guess_.tokens[child]), float(self.guess_.probs[child])
                mine = tree.add(node, token, prob, rank=rank, source=self.source)
                if mine not in self.twins_:
                    self.twins_[mine] = self._stand(twin, token, 0.0)
                    self.spots_[self.twins_[mine]] = child
