"""Mistakes in the options of a verifier are named in one sentence."""

import pytest

from sapwood.errors import SapwoodError
from sapwood.recipe import parse


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "optimal(shape=[4], tokens=12)",
            r"cannot weigh 12\*\*4 drafts of 4 children, at most 4096; lower tokens, or",
        ),
        ("optimal(tokens=0)", "tokens=0 must be at least 1"),
        (
            "optimal(shape=[])",
            r"shape of optimal must list the children of a node by level, each at least 1, not \[\]",
        ),
        (
            "kseq(shape=[2, 0])",
            r"shape of kseq must list the children of a node by level, each at least 1",
        ),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(SapwoodError, match=message):
        parse(f"recycling(draws=iid) + chain + {text} + fixed")
