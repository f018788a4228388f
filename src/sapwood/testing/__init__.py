"""Checks for any method or backend, from inside or outside the package.

`check_part` runs the contract of a part's family, `check_backend` the contract of the waist, and
`law_error` computes how far a recipe's exact output distribution is from the target's; `departure`
does so step by step, for lossy recipes. `expected_tokens` is the exact mean of a round's tokens.
`check_diffusion` compares self-speculation of a diffusion model with its single steps.
The contract of tree builders, which needs torch, is `sapwood.testing.tree_builder_contract`.
"""

from sapwood.testing.backend_contract import check_backend
from sapwood.testing.contracts import check_part
from sapwood.testing.diffusion_contract import check_diffusion
from sapwood.testing.divergence import departure
from sapwood.testing.exact import Enumerator, law_error, outcomes
from sapwood.testing.yields import expected_tokens

__all__ = [
    "Enumerator",
    "check_backend",
    "check_diffusion",
    "check_part",
    "departure",
    "expected_tokens",
    "law_error",
    "outcomes",
]
