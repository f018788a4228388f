"""Self-speculation of diffusion models: the text and the order of step-by-step decoding."""

from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.toy_diffusion import ToyDiffusion
from sapwood.core.diffusion import MASK, filled, fills
from sapwood.engine import diffusion
from sapwood.engine.diffusion import decode_self_speculative, decode_stepwise, masked
from sapwood.errors import SapwoodError
from sapwood.testing import check_diffusion
from tests.helpers.masked_lm import MaskedLmConfig, train_masked_lm

CASES = [(f"table {number}", change) for number in range(30) for change in (0.0, 0.1, 0.3, 1.0)]


def departures(drafts: int, block: int = 0) -> int:
    """Tables whose text or order differs from decoding step by step."""
    found = 0
    for salt, change in CASES:
        model = ToyDiffusion(salt, change=change)
        text = masked([1, 3], 7)
        plain = decode_stepwise(model, text, block)
        fast = decode_self_speculative(model, text, drafts, block)
        assert MASK not in fast.tokens
        assert sum(fast.accepted) == 7
        assert fast.passes <= plain.passes
        found += (plain.tokens, plain.steps) != (fast.tokens, fast.steps)
    return found


@pytest.mark.parametrize("drafts", [1, 2, 4, 9])
@pytest.mark.parametrize("block", [0, 3])
def test_text_and_order_are_those_of_single_steps(drafts: int, block: int) -> None:
    assert departures(drafts, block) == 0


def test_a_rule_that_compares_tokens_alone_would_be_noticed() -> None:
    def tokens_alone(drafted: Any, following: Any) -> Any:
        right = 1
        while right < len(drafted):
            place, token = drafted[right]
            if dict(following[right - 1])[place] != token:
                break
            right += 1
        return right, following[right - 1] if right <= len(following) else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffusion, "confirmed", tokens_alone)
        assert departures(4) > 0


def test_a_rule_that_compares_places_alone_would_be_noticed() -> None:
    def places_alone(drafted: Any, following: Any) -> Any:
        right = 1
        while right < len(drafted) and following[right - 1][0][0] == drafted[right][0]:
            right += 1
        return right, following[right - 1] if right <= len(following) else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffusion, "confirmed", places_alone)
        assert departures(4) > 0


def test_a_table_that_can_be_foreseen_takes_a_pass_for_all_drafts() -> None:
    model = ToyDiffusion("sure", change=0.0)
    found = decode_self_speculative(model, masked([0], 8), drafts=4)
    assert found.accepted == [4, 4]
    assert found.passes == model.passes == 3  # the first one drafts
    assert found.rows == 1 + 4 + 3  # the full text needs no row


def test_one_draft_is_a_step() -> None:
    found = decode_self_speculative(ToyDiffusion(change=1.0), masked([0], 5), drafts=1)
    assert found.accepted == [1] * 5
    assert found.passes == 5


def test_the_surest_place_comes_first_within_its_block() -> None:
    probs = np.array([[0.5, 0.5], [0.3, 0.7], [0.9, 0.1], [0.2, 0.8]])
    text = (MASK, MASK, 1, MASK)
    assert fills(text, probs) == [(3, 1), (1, 1), (0, 0)]
    assert fills(text, probs, block=2) == [(1, 1), (0, 0), (3, 1)]
    assert filled(text, [(3, 1)]) == (MASK, MASK, 1, 1)


def test_a_small_trained_model_is_decoded_in_fewer_passes() -> None:
    torch.set_num_threads(1)
    starts = torch.arange(12)[:, None]
    texts = (starts + torch.arange(12)) % 12  # a text counts on from its first token
    model = train_masked_lm(texts, MaskedLmConfig(12, layers=1, places=12), steps=80)
    passes = [check_diffusion(model, masked([start], 11)) for start in range(12)]
    assert sum(each[4] for each in passes) < sum(each[1] for each in passes) == 11 * 12


def test_the_check_raises_where_texts_differ() -> None:
    assert check_diffusion()[1] == 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffusion, "confirmed", lambda drafted, following: (len(drafted), []))
        with pytest.raises(AssertionError, match="drafts a pass fill"):
            check_diffusion(ToyDiffusion(change=1.0))


def test_nothing_to_fill_takes_no_pass_and_wrong_numbers_are_refused() -> None:
    model = ToyDiffusion()
    assert decode_self_speculative(model, (1, 2)).passes == 0
    assert decode_stepwise(model, (1, 2)).passes == 0
    with pytest.raises(SapwoodError, match="drafts=0"):
        decode_self_speculative(model, (1, MASK), drafts=0)
    with pytest.raises(SapwoodError, match="length=0"):
        masked([1], 0)
