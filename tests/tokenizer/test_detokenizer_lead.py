"""Half a character is held back equally long behind a prompt and without one."""

import pytest

from sapwood.tokenizer.detokenizer import HOLD, LEAD, Detokenizer
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()


@pytest.mark.parametrize("prompt", ["", "a", "a long prompt " * LEAD])
def test_broken_bytes_are_held_for_as_many_tokens_whatever_came_before(prompt: str) -> None:
    detokenizer = Detokenizer(TEXT, TEXT.encode(prompt))
    broken = TEXT.encode("€")[:1]
    assert [detokenizer.push(broken) for _ in range(HOLD)] == [""] * HOLD
    assert len(detokenizer.push(broken)) == HOLD + 1
