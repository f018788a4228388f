"""Checks that any method or backend can be put through, from inside or outside the package.

`check_part` runs the contract of a part's family, `check_backend` the contract of the waist, and
`law_error` computes how far a recipe's exact output law is from the target's; `departure` does so step by step, for
recipes that depart by design. `expected_tokens` is what a round brings, exactly.
"""

from sapwood.testing.contracts import check_part
from sapwood.testing.departure import departure
from sapwood.testing.exact import Enumerator, law_error, outcomes
from sapwood.testing.waist import check_backend
from sapwood.testing.yields import expected_tokens

__all__ = ["Enumerator", "check_backend", "check_part", "departure", "expected_tokens", "law_error", "outcomes"]
