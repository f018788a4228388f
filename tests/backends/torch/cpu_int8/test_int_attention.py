"""Weights and sums of values in sixteen bits: exact, also where one key has more weight than fits."""

import numpy as np
import pytest

from sapwood.backends.torch.cpu_int8 import attention_pass, int8_gemm
from sapwood.backends.torch.cpu_int8.int_attention import SHORT, STRIP

pytestmark = pytest.mark.skipif(
    not int8_gemm.available(), reason="this processor has no dot products in whole numbers"
)
KEYS = 77
TOTAL = 65_000.0  # of all weights, below what sums of values bear
HEAVY: dict[
    str, dict[int, float]
] = {  # keys that have more than the others, and what share of the total
    "none": {},
    "first": {0: 0.9},
    "last": {KEYS - 1: 0.98},
    "two": {4: 0.505, 70: 0.506},
    "two-in-one-place-of-sixteen": {3: 0.506, 19: 0.505},
    "just-enough": {30: SHORT / TOTAL},
}
RUNS = {"whole": [[2, 100]], "torn": [[40, 16], [3, 17], [90, 1], [60, 30], [20, 15]]}


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("heavy", HEAVY)
def test_sums_of_values_are_exact(heavy: str, runs: str, width: int) -> None:
    rng = np.random.default_rng(0)
    group = 3
    strip = min(width, STRIP)
    terms = np.zeros((group, KEYS + 16), np.float32)
    for g in range(group):
        terms[g, :KEYS] = rng.random(KEYS) * (0.01 if HEAVY[heavy] else TOTAL / KEYS)
        for key, share in HEAVY[heavy].items():
            terms[g, key] = TOTAL * share
    values = rng.integers(-255, 256, (128, width)).astype(np.int16)
    sizes = np.ones((2, 128, 1), np.float32)
    places = np.array(RUNS[runs])
    sums = np.zeros((width // strip, group, strip), np.float32)
    shares = np.full((group, KEYS + 16), -1, np.int16)
    for g in range(group):
        attention_pass.divide(
            terms[g, :KEYS], sizes, places, np.float32(1.0), values, shares[g], sums[:, g]
        )
    attention_pass.gather(shares, values, places, sums, KEYS)

    slots = np.concatenate([np.arange(first, first + count) for first, count in places])[:KEYS]
    weights = np.rint(terms[:, :KEYS]).astype(np.int64)
    assert np.array_equal(shares[:, :KEYS], np.minimum(weights, SHORT))
    assert (shares[:, KEYS:] == -1).all()  # nothing beyond the keys is touched
    want = weights @ values[slots].astype(np.int64)
    assert np.array_equal(sums.transpose(1, 0, 2).reshape(group, width), want.astype(np.float32))
    assert (weights > SHORT).any() == (heavy not in ("none", "just-enough"))
