"""The best that can be done at one node: an optimal transport from what may be drafted to what is to be said.

SpecTr (arXiv 2310.15141) states the problem: of all ways to pair the possible drafts with tokens of law p, take one
under which the token is most often among the drafts. No rule that judges node by node accepts more often. It is a
yardstick for the others: a plan weighs every draft that could have come, tokens ** draws of them.

A vocabulary is too large for that, so a plan names the tokens of largest p + q and has one symbol for the rest,
which stays exact. A draft is read up to its first draw outside of the named tokens, so that its chance follows from
the named ones alone; a draft that is given the rest symbol is tested against p and q within the rest; and what the
plan leaves goes on to the draws that were not read, in turn. On laws of no more than `tokens` tokens it is the optimum.

A plan must not depend on how many draws there are, where a policy decides by one draw whether to keep the next. It
weighs as many as `shape` leaves beside the chosen children: further ones are tested in turn, and missing ones are made
up here, from the law they would have had. A token that was made up can be said, like any other, but not followed.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.errors import SapwoodError
from sapwood.part import Part, at_least
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Place, Rng, Use
from sapwood.sampling import without
from sapwood.tree import CAPACITY, Tree
from sapwood.verifiers.transport import transport
from sapwood.verifiers.walk import Step, check_shape, drawn_from, norm, of_level, residual, walk

MOST = 4096  # drafts that a plan may weigh
Drawn = list[tuple[int, FloatArray]]  # draws, each with its law


@dataclass
class Optimal(Part):
    """Accept as often as any rule could that judges node by node; a yardstick, slow."""

    shape: list[int] = field(default_factory=lambda: [2, 1])  # children of a node by level, the last for all below
    tokens: int = 12  # tokens that a plan names, >= 1; the others share a symbol

    paper: ClassVar[str] = "2310.15141"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.TOPK, Draw.SWOR, Draw.MIXED})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True
    replacement: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_shape("optimal", self.shape)
        at_least(1, tokens=self.tokens)
        if self.tokens ** max(self.shape) > MOST:
            raise SapwoodError(
                f"optimal cannot weigh {self.tokens}**{max(self.shape)} drafts of {max(self.shape)} children, "
                f"at most {MOST}; lower tokens, or the largest number in shape"
            )

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk down by a plan per node."""
        return walk(tree, laws, position, rng, planned(self.shape, self.tokens, replacement=self.replacement))


@dataclass
class OptimalIid(Optimal):
    """As optimal, for siblings that are independent draws."""

    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    replacement: ClassVar[bool] = True


def planned(shape: list[int], tokens: int, *, replacement: bool) -> Step:
    """The rule that judges a node's children by an optimal plan."""

    def step(tree: Tree, node: int, p: FloatArray, position: int, rng: Rng) -> tuple[int | None, int]:
        children = tree.children(node)
        drawn = list(drawn_from(tree, [child for child in children if tree.sampled[child]], replacement=replacement))
        if not drawn:
            return finish(tree, node, p, [], position, rng)
        first, q = drawn[0]
        chosen = [int(tree.tokens[child]) for child in children if child < first]
        draws = max(1, of_level(shape, int(tree.depths[node])) - len(chosen))
        plan = Plan(p, q, chosen, tokens, draws, replacement=replacement)
        draft = frozenset(range(len(chosen)))  # as symbols: chosen tokens are named first
        law, last = q, None  # of the next draw, and the last one that was read
        for slot in range(plan.draws):
            if plan.rest in draft or not law.any():
                break
            real = drawn and tree.sources[drawn[0][0]] == tree.sources[first]
            last = drawn.pop(0) if real else None
            made_up = Place(position, Use.ACCEPT, CAPACITY + slot)
            token = int(tree.tokens[last[0]]) if last else rng.pick(law, made_up)
            draft |= {plan.symbol(token)}
            law = law if replacement else without(law, [token])
        choice = plan.spend(draft, Place(position, Use.ACCEPT), rng)
        if choice is None:
            return finish(tree, node, plan.unspent(), drawn, position, rng)
        if choice < plan.rest:
            return tree.child(node, plan.named[choice]), plan.named[choice]
        again = [(last[0], without(last[1], plan.named))] if last else []
        return finish(tree, node, without(p, plan.named), [*again, *drawn], position, rng)

    return step


def finish(tree: Tree, node: int, law: FloatArray, drawn: Drawn, position: int, rng: Rng) -> tuple[int | None, int]:
    """Test draws in turn against a law, then draw from what they leave of it."""
    for slot, (child, q) in enumerate(drawn):
        token = int(tree.tokens[child])
        if rng.flip(min(1.0, float(law[token] / q[token])), Place(position, Use.ACCEPT, 1 + slot)):
            return child, token
        law = residual(law, q)
    token = rng.pick(law, Place(position))
    return tree.child(node, token), token


class Plan:
    """Which token each draft that a node could have had is spent on, in symbols: places in `named`, and the rest."""

    def __init__(
        self, p: FloatArray, q: FloatArray, chosen: list[int], tokens: int, draws: int, *, replacement: bool
    ) -> None:
        self.p, self.draws, self.replacement = p, draws, replacement
        likely: list[int] = np.argsort(-(p + q), kind="stable")[: tokens + len(chosen)].tolist()
        likely = [token for token in likely if token not in chosen]
        self.named = [*chosen, *likely[: max(0, tokens - len(chosen))]]
        self.rest = len(self.named)
        self.chances: dict[frozenset[int], float] = {}  # of each possible draft
        self._weigh(frozenset(range(len(chosen))), self._symbols(q), draws, 1.0)
        room, drafts = self._symbols(p), list(self.chances)
        flow = transport(drafts, np.array(list(self.chances.values())), room)
        self.flow = dict(zip(drafts, flow, strict=True))
        self.left: FloatArray = room - flow.sum(axis=0)

    def symbol(self, token: int) -> int:
        """The symbol of a token."""
        return self.named.index(token) if token in self.named else self.rest

    def _symbols(self, law: FloatArray) -> FloatArray:
        return np.append(law[self.named], np.delete(law, self.named).sum())

    def _weigh(self, draft: frozenset[int], law: FloatArray, draws: int, chance: float) -> None:
        """Add up the chances of all drafts that begin like this; a draw from the rest is the last that is read."""
        if not draws or self.rest in draft or not law.any():
            self.chances[draft] = self.chances.get(draft, 0.0) + chance
            return
        for symbol in np.flatnonzero(law).tolist():
            after = law if self.replacement or symbol == self.rest else without(law, [symbol])
            self._weigh(draft | {symbol}, after, draws - 1, chance * float(law[symbol]))

    def spend(self, draft: frozenset[int], place: Place, rng: Rng) -> int | None:
        """The symbol that this draft is spent on, or None."""
        options = sorted(draft)
        shares = self.flow[draft][options] / self.chances[draft]
        choice = rng.pick(np.append(shares, max(0.0, 1.0 - shares.sum())), place)
        return options[choice] if choice < len(options) else None

    def unspent(self) -> FloatArray:
        """Law of the token where the draft is spent on none: what all drafts together leave of p."""
        law = without(self.p, self.named) * self.left[self.rest]
        law[self.named] = self.left[: self.rest]
        return norm(law, self.p)
