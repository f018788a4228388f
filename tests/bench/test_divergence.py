"""How many tokens of an output plain decoding would not have said after the same text."""

from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench import divergence
from sapwood.bench.divergence import count_departures
from sapwood.bench.measure import decode
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.recipes import resolve

TOY: Any = ToyBackend(vocab=5, context=300)
PLAIN = Engine(TOY, resolve("plain"))
PROMPT = [0, 1, 2]
HOT = Sampling(temperature=1.0, seed=7, max_tokens=20)


def slowly(prompt: list[int], output: list[int], sampling: Sampling) -> int:
    """One token of plain decoding after each beginning of the output."""
    one = Sampling(temperature=sampling.temperature, seed=sampling.seed, max_tokens=1)
    return sum(
        decode(PLAIN, [*prompt, *output[:place]], one).tokens != [token]
        for place, token in enumerate(output)
    )


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=20), HOT], ids=["greedy", "sampled"])
def test_plain_decoding_never_strays(sampling: Sampling) -> None:
    said = decode(PLAIN, PROMPT, sampling).tokens
    assert len(said) == 20
    assert count_departures(TOY, PROMPT, said, sampling) == 0


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=20), HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [1, 5, 30])
def test_every_place_is_asked_after_the_same_text(sampling: Sampling, length: int) -> None:
    output = [(3 * at + at // 4) % 5 for at in range(length)]
    found = count_departures(TOY, PROMPT, output, sampling)
    assert found == slowly(PROMPT, output, sampling)
    assert 0 <= found <= length


def test_one_changed_token_counts_once_and_what_follows_is_judged_anew() -> None:
    said = decode(PLAIN, PROMPT, Sampling(max_tokens=6)).tokens
    wrong = [*said[:5], (said[5] + 1) % 5]
    assert count_departures(TOY, PROMPT, wrong, Sampling()) == 1
    early = [(said[0] + 1) % 5, *said[1:]]
    assert (
        count_departures(TOY, PROMPT, early, Sampling()) == slowly(PROMPT, early, Sampling()) >= 1
    )


@pytest.mark.parametrize("rows", [1, 3, 7, 64])
def test_long_outputs_are_read_in_pieces(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    output = [(7 * at + at // 3) % 5 for at in range(20)]
    whole = count_departures(TOY, PROMPT, output, HOT)
    monkeypatch.setattr(divergence, "ROWS", rows)
    sizes: list[int] = []
    score = ToyBackend.score

    def seen(self: Any, work: Any, *more: Any) -> Any:
        sizes.extend(len(one.tree) for one in work)
        return score(self, work, *more)

    monkeypatch.setattr(ToyBackend, "score", seen)
    assert count_departures(TOY, PROMPT, output, HOT) == whole
    assert sum(sizes) == 20
    assert max(sizes) == min(rows, 20)


def test_penalties_count_the_output_so_far() -> None:
    sampling = Sampling(max_tokens=12, frequency_penalty=3.0)
    said = decode(PLAIN, PROMPT, sampling).tokens
    assert count_departures(TOY, PROMPT, said, sampling) == 0
    assert count_departures(TOY, PROMPT, said, Sampling()) > 0


def test_an_empty_output_strays_nowhere() -> None:
    assert count_departures(TOY, PROMPT, [], Sampling()) == 0
