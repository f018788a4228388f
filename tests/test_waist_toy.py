"""The toy backend keeps the promises of the waist: it is their definition."""

from sapwood.backends.toy import Toy
from sapwood.testing import check_backend


def test_toy_keeps_the_contract() -> None:
    for salt in "ab":
        check_backend(Toy(salt, vocab=5, context=64))
