"""Two stages: choose one of several independent draws, then verify the chosen one alone.

Khisti et al. (arXiv 2410.18234) show that the best rule for several independent draws has two
stages: importance-weighted sampling picks one of the drawn tokens, and speculative sampling tests
that token against p, with the distribution q* of the picked token in the place of q. Any choice of
the first stage is exact, since q* is known; a good one makes q* overlap p as far as it can.

The weights of the first stage solve a linear programme, which the paper truncates to few tokens.
Here the tokens of largest p + q are named and all others share one symbol; the weights are a
maximum flow from the sets of symbols that may be drawn to the symbols of p, and what the flow
leaves of a set is spread evenly over it. Within the shared symbol the first such draw is picked,
whose distribution is q's own. As in `optimal`, the number of draws is that of `shape`: where the
tree has fewer, the missing ones are drawn here, and further ones are tested in turn.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.errors import SapwoodError
from sapwood.verifiers.optimal import MOST, finish
from sapwood.verifiers.transport import transport
from sapwood.verifiers.walk import (
    GreedyWalk,
    check_shape,
    drawn_from,
    norm,
    of_level,
    walk,
)

CHOICE = 2 * CAPACITY  # noise slot of the second stage's coin


@dataclass
class Khisti(GreedyWalk):
    """Pick one of the independent draws by importance, then accept it with min(1, p / q*)."""

    # children of a node by level, the last for all deeper levels
    shape: list[int] = field(default_factory=lambda: [2, 1])
    tokens: int = 12  # tokens that the first stage names, >= 1; the others share a symbol

    paper: ClassVar[str] = "2410.18234"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shape("khisti", self.shape)
        at_least(1, tokens=self.tokens)
        if self.tokens ** max(self.shape) > MOST:
            raise SapwoodError(
                f"khisti cannot weigh {self.tokens}**{max(self.shape)} drafts of "
                f"{max(self.shape)} children, at most {MOST}; "
                "lower tokens, or the largest number in shape"
            )

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down by two stages per node."""
        return walk(tree, target, position, rng, self._step)

    def _step(
        self, tree: Tree, node: int, p: FloatArray, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        """The accepted child, or None and the next token."""
        drawn = list(drawn_from(tree, tree.children(node), replacement=True))
        if not drawn:
            return None, rng.pick(p, NoiseKey(position))
        first, q = drawn[0]
        selection = DraftSelection(p, q, self.tokens, of_level(self.shape, int(tree.depths[node])))
        tokens = list[int]()
        for slot in range(selection.draws):
            real = drawn and tree.sources[drawn[0][0]] == tree.sources[first]
            made_up = NoiseKey(position, NoiseUse.ACCEPT, CAPACITY + slot)
            tokens.append(int(tree.tokens[drawn.pop(0)[0]]) if real else rng.pick(q, made_up))
        token = selection.choose(tokens, NoiseKey(position, NoiseUse.ACCEPT), rng)
        picked = selection.law()
        chance = p[token] / picked[token] if p[token] < picked[token] else 1.0
        if rng.flip(float(chance), NoiseKey(position, NoiseUse.ACCEPT, CHOICE)):
            return tree.child(node, token), token
        return finish(tree, node, norm(p - picked, p), drawn, position, rng)


class DraftSelection:
    """The first stage of a node: weights by which one of the drawn tokens is picked."""

    def __init__(self, p: FloatArray, q: FloatArray, tokens: int, draws: int) -> None:
        self.q = q
        self.draws = draws
        self.named: list[int] = np.argsort(-(p + q), kind="stable")[:tokens].tolist()
        self.rest = len(self.named)  # the symbol of all other tokens
        others = np.delete(p, self.named)
        drafted = np.delete(q, self.named)
        chances = np.append(q[self.named], drafted.sum())
        room = np.append(p[self.named], np.minimum(others, drafted).sum())
        self.sets = symbol_sets(chances, draws)
        weights = np.array(list(self.sets.values()))
        flow = transport(list(self.sets), weights, room)
        self.shares: dict[frozenset[int], FloatArray] = {}  # of each symbol, by the set drawn
        self.total = np.zeros(len(room))  # chance that a symbol is picked
        for drawn, chance, spent in zip(self.sets, weights, flow, strict=True):
            members = sorted(drawn)
            share = np.zeros(len(room))
            share[members] = max(0.0, chance - spent.sum()) / len(members)
            share = (spent + share) / chance
            self.shares[drawn] = share / share.sum()
            self.total += chance * self.shares[drawn]

    def choose(self, tokens: list[int], place: NoiseKey, rng: Rng) -> int:
        """One of these tokens, drawn by the weights of their symbols."""
        symbols = [
            self.named.index(token) if token in self.named else self.rest for token in tokens
        ]
        symbol = rng.pick(self.shares[frozenset(symbols)], place)
        return tokens[symbols.index(symbol)]

    def law(self) -> FloatArray:
        """Distribution q* of the picked token, [vocab]."""
        probs = self.q.copy()
        probs[self.named] = 0.0
        mass = probs.sum()
        if mass > 0:
            probs *= self.total[self.rest] / mass
        probs[self.named] = self.total[: self.rest]
        return probs


def symbol_sets(chances: FloatArray, draws: int) -> dict[frozenset[int], float]:
    """Chance of each set of symbols that so many independent draws may give."""
    sets: dict[frozenset[int], float] = {frozenset(): 1.0}
    for _ in range(draws):
        grown: dict[frozenset[int], float] = {}
        for members, chance in sets.items():
            for symbol in np.flatnonzero(chances).tolist():
                wider = members | {symbol}
                grown[wider] = grown.get(wider, 0.0) + chance * float(chances[symbol])
        sets = grown
    return sets
