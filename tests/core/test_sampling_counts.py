"""Token ids at the edges of the vocabulary, and penalties by what was emitted, number by number."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sapwood.core.sampling import Sampler, Sampling, draft_probs, softmax, truncate
from sapwood.errors import SapwoodError

VOCAB = 5
LOGITS = np.array([2.0, 1.0, 0.0, -1.0, -2.0])


@pytest.mark.parametrize("name", ["banned", "stop_ids", "prediction"])
def test_ids_outside_of_the_vocabulary_are_refused(name: str) -> None:
    for token in (0, VOCAB - 1):
        replace(Sampling(), **{name: [token]}).check_tokens(VOCAB)  # type: ignore[arg-type]
    for token in (-1, VOCAB):
        with pytest.raises(SapwoodError, match=f"{name} names token {token}; .* 0 to 4"):
            replace(Sampling(), **{name: [0, token]}).check_tokens(VOCAB)  # type: ignore[arg-type]


def test_a_bias_outside_of_the_vocabulary_is_refused() -> None:
    Sampling(logit_bias={VOCAB - 1: 1.0}).check_tokens(VOCAB)
    with pytest.raises(SapwoodError, match="logit_bias names token 5"):
        Sampling(logit_bias={0: 1.0, VOCAB: 1.0}).check_tokens(VOCAB)


def test_frequency_counts_every_time_and_presence_once() -> None:
    sampler = Sampler(Sampling(frequency_penalty=0.5, presence_penalty=0.25), [4, 4])
    sampler.commit([0, 0, 1])
    found = sampler.adjust(LOGITS, [1, 2])
    # 0 twice, 1 once and once on the path, 2 on the path alone; the prompt does not count
    assert found - LOGITS == pytest.approx([-1.25, -1.25, -0.75, 0.0, 0.0])
    assert sampler.emitted == 3


def test_repetition_counts_the_prompt_and_divides_what_is_positive() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0), [0])
    sampler.commit([3])
    assert sampler.adjust(LOGITS, [2, 4]) == pytest.approx([1.0, 1.0, 0.0, -2.0, -4.0])


def test_stops_are_banned_until_there_are_enough_tokens() -> None:
    sampler = Sampler(Sampling(min_tokens=3, stop_ids=[1], banned=[4]), [0])
    sampler.commit([2])
    assert np.isneginf(sampler.adjust(LOGITS, [2])).tolist() == [False, True, False, False, True]
    assert np.isneginf(sampler.adjust(LOGITS, [2, 2])).tolist() == [False] * 4 + [True]


def test_logits_that_nothing_touches_are_handed_through() -> None:
    assert Sampler(Sampling(temperature=0.7, top_k=2), [0]).adjust(LOGITS, [1]) is LOGITS


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 5),
        ({"top_k": 2}, 2),
        ({"top_k": 5}, 5),
        ({"top_p": 0.6}, 1),
        ({"top_p": 0.64}, 2),
        ({"min_p": 0.3}, 2),
        ({"min_p": 0.02}, 4),
        ({"top_k": 3, "min_p": 0.3}, 2),
        ({"top_k": 4, "top_p": 0.95}, 3),
    ],
)
def test_truncation_keeps_the_best_and_scales_them_alike(
    options: dict[str, float], kept: int
) -> None:
    whole = softmax(LOGITS)
    found = truncate(whole, Sampling(temperature=1.0, **options))  # type: ignore[arg-type]
    wanted = np.where(np.arange(VOCAB) < kept, whole, 0.0)
    assert found == pytest.approx(wanted / wanted.sum())


def test_softmax_adds_up_at_any_temperature() -> None:
    assert softmax(LOGITS, 0.5).tolist() == pytest.approx(
        [math.exp(2 * x) / sum(math.exp(2 * y) for y in LOGITS) for x in LOGITS]
    )
    with pytest.raises(SapwoodError, match="every token is banned"):
        softmax(np.full(3, -math.inf))


def test_a_greedy_request_drafts_by_the_whole_softmax_and_another_by_its_own_probs() -> None:
    greedy = Sampler(Sampling(banned=[0]), [1])
    assert draft_probs(greedy, LOGITS, []) == pytest.approx(
        softmax(np.array([-math.inf, *LOGITS[1:]]))
    )
    warm = Sampler(Sampling(temperature=0.5, top_k=2), [1])
    assert draft_probs(warm, LOGITS, []) == pytest.approx(warm.probs(LOGITS, []))
    assert np.count_nonzero(draft_probs(warm, LOGITS, [])) == 2
