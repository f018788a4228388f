"""The toy backend keeps the promises of the waist: it is their definition."""

from sapwood.backends.toy import Toy
from sapwood.testing import check_backend
from sapwood.testing.chunks import check_memory


def test_toy_keeps_the_contract() -> None:
    for salt in "ab":
        check_backend(Toy(salt, vocab=5, context=128))


def test_toy_keeps_the_contract_of_memory() -> None:
    for seed in range(5):
        check_memory(lambda: Toy("a", vocab=5, context=128), seed)
