"""The toy backend keeps the promises of the waist: it is their definition."""

from sapwood.backends.toy import ToyBackend
from sapwood.testing import check_backend
from sapwood.testing.prefill_contract import check_memory


def test_toy_keeps_the_contract() -> None:
    for salt in "ab":
        check_backend(ToyBackend(salt, vocab=5, context=128))


def test_toy_keeps_the_contract_of_memory() -> None:
    for seed in range(5):
        check_memory(lambda: ToyBackend("a", vocab=5, context=128), seed)
