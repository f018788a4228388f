"""The expected tokens of an acceptance rule on a drafted tree, by enumeration of its coins.

All randomness of a verifier goes through `flip` and `pick`. A random source that follows a script
and queues the options that it did not take, run once for each script, gives every verdict with its
probability, on trees of a real model too: tokens outside of the tree count as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Verdict

SMALLEST = 1e-5  # branches of the enumeration below this probability are left out


class BranchRng:
    """Random source that follows a script, then the first option, and queues the others.

    A draw from the whole vocabulary matters only as far as it is a token of the tree: all other
    tokens are one option.
    """

    def __init__(self, tree: Tree, script: Sequence[int], symbols: int) -> None:
        self.symbols = symbols  # of the vocabulary
        self.tokens: list[int] = sorted(set(tree.tokens[1:].tolist()))
        self.script = list(script)
        self.at = 0
        self.weight = 1.0
        self.left: list[list[int]] = []

    def flip(self, chance: float, place: NoiseKey) -> bool:
        """Both sides of a coin, one per replay."""
        return self._take([1.0 - chance, chance]) == 1

    def pick(self, probs: FloatArray, place: NoiseKey) -> int:
        """Every option, one per replay."""
        if len(probs) < self.symbols:  # a choice among few options, not of a token
            return self._take(probs.tolist())
        rest = probs.copy()
        rest[self.tokens] = 0.0
        named = probs[self.tokens].tolist()
        choice = self._take([*named, max(0.0, float(probs.sum()) - sum(named))])
        return self.tokens[choice] if choice < len(named) else int(np.argmax(rest))

    def _take(self, chances: list[float]) -> int:
        if self.at == len(self.script):
            options = [
                option for option, chance in enumerate(chances) if self.weight * chance > SMALLEST
            ] or [int(np.argmax(chances))]
            self.left += [[*self.script, option] for option in options[1:]]
            self.script.append(options[0])
        choice = self.script[self.at]
        self.at += 1
        self.weight *= chances[choice]
        return choice


@dataclass(frozen=True)
class KnownProbs(TargetProbs):
    """The target's distributions on a tree."""

    laws: list[FloatArray]  # by node
    cold: bool = False

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.cold

    def probs(self, node: int) -> FloatArray:
        """Distribution of the next token after this node, [vocab]."""
        return self.laws[node]

    def soft(self, node: int) -> FloatArray:
        """The same as `probs`."""
        return self.probs(node)

    def hidden(self, nodes: Sequence[int], layers: Sequence[int]) -> Any:
        """None: recorded distributions come without states."""
        return None

    def draw(self, node: int, position: int, rng: Rng) -> int:
        """The target's own next token."""
        return rng.pick(self.probs(node), NoiseKey(position))

    def follow(self, position: int, rng: Rng) -> Verdict | None:
        """None: the walk goes token by token, so that its draws are enumerated."""
        return None


def expected_tokens(verifier: Any, tree: Tree, target: KnownProbs, position: int) -> float:
    """Expectation of accepted tokens and the bonus, over all coins of a rule on this tree."""
    scripts: list[list[int]] = [[]]
    total = weight = 0.0
    while scripts:
        rng = BranchRng(tree, scripts.pop(), len(target.probs(ROOT)))
        verdict = verifier.fresh().verify(tree, target, position, rng)
        total += rng.weight * len(verdict.path)
        weight += rng.weight
        scripts += rng.left
    return total / weight
