"""A sound recipe's policy and verifier for each kind of draws."""

from typing import Any

import pytest

from sapwood.core.types import Draw
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative

# draws, policy, verifier, rounds to compute exactly
CASES: list[tuple[Draw, Any, Any, int]] = [
    (Draw.IID, Chain(), Speculative(), 2),
    (Draw.IID, Static(shape=[2, 1]), Mss(), 1),
    (Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1),
    (Draw.MIXED, Static(shape=[2, 1]), Mixed(), 1),
    (Draw.TOPK, Best(), Match(), 2),
]
each_draw_kind = pytest.mark.parametrize(("draws", "policy", "verifier", "rounds"), CASES, ids=str)
