"""Keyed random numbers: coin flips and draws.

Noise belongs to a place of the text (seed, position, use), never to how many numbers were drawn
before, so speculation does not shift the stream: the same seed gives the same text with and
without a tree. A counter-based hash makes each number a pure function of its key, on any device.
"""

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sapwood.core.array_types import FloatArray

Words = NDArray[np.uint64]
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


class NoiseUse:
    """Uses of noise; one position has one number for each use and slot."""

    TARGET = 0  # the target's own token
    ACCEPT = 1  # the coin of a sibling test
    DRAFT = 2  # a draw of a drafter


class NoiseKey(NamedTuple):
    """Key of a random number: its position and use."""

    position: int  # absolute position of the token it decides
    use: int = NoiseUse.TARGET
    slot: int = 0  # which sibling, where there are several
    path: int = 0  # hash of the drafted path, so that branches draw independently


class Rng(Protocol):
    """Random decisions: all randomness of the package goes through these two methods."""

    def flip(self, chance: float, place: NoiseKey) -> bool:
        """True with this probability."""

    def pick(self, probs: FloatArray, place: NoiseKey) -> int:
        """An index drawn from this distribution."""


class KeyedRng:
    """Noise that is a function of (seed, place)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed & MASK

    def flip(self, chance: float, place: NoiseKey) -> bool:
        """True with this probability: a uniform number lies below it."""
        return float(self.noise(place, 1)[0]) < chance

    def pick(self, probs: FloatArray, place: NoiseKey) -> int:
        """The token that this place's noise picks."""
        return pick_by_key(probs, self.key(place))

    def noise(self, place: NoiseKey, count: int) -> FloatArray:
        """The uniform numbers of this place, [count]."""
        return uniforms(self.key(place), count)

    def key(self, place: NoiseKey) -> int:
        """64 bits that name the seed and this place."""
        key = self.seed
        for word in place:
            key = mix((key ^ (word & MASK)) + GOLDEN)
        return key


def pick_by_key(probs: FloatArray, key: int) -> int:
    """The argmax of log probs + Gumbel noise; only tokens of positive probability can win."""
    support = np.flatnonzero(probs)
    noise = uniforms(key, len(probs))[support]
    # argmax(log p - log(-log u)) = argmin(-log u / p): one division, one logarithm
    with np.errstate(over="ignore"):  # for probabilities near zero
        return int(support[np.argmin(-np.log(noise) / probs[support])])


def mix(word: int) -> int:
    """Scramble 64 bits (the finaliser of SplitMix64)."""
    word &= MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def uniforms(key: int, count: int) -> FloatArray:
    """Numbers strictly between 0 and 1, the i-th a function of (key, i) alone."""
    words: Words = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)) + np.uint64(key)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    # 52 bits: u < 1 exactly
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * math.ldexp(1.0, -52)


def path_key(words: list[int]) -> int:
    """Hash of a drafted path."""
    key = 0
    for word in words:
        key = mix((key ^ word) + GOLDEN)
    return key
