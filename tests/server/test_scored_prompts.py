"""`echo` with `logprobs` and `max_tokens: 0`: prompts that are scored, as evaluators ask for them."""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import probs_after
from tests.helpers import byte_tokenizer
from tests.helpers.asgi_client import Served, model, served

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served() as one:
        yield one


def expected(prompt: list[int]) -> list[float]:
    laws = [probs_after("target", byte_tokenizer.SIZE, tuple(prompt[:end])) for end in range(1, 99)]
    return [float(np.log(law[token])) for law, token in zip(laws, prompt[1:], strict=False)]


def test_no_tokens_are_generated_where_none_are_wanted(toy: Served) -> None:
    for echo in (False, True):
        answer = toy.complete(prompt=["Hi", "you"], max_tokens=0, echo=echo).json
        assert [choice["text"] for choice in answer["choices"]] == (
            ["Hi", "you"] if echo else [""] * 2
        )
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize("tokens", [0, 2])
def test_an_echoed_prompt_has_its_log_probabilities(toy: Served, tokens: int) -> None:
    prompt = byte_tokenizer.text().encode("Hé you")
    options = {"prompt": "Hé you", "max_tokens": tokens, "echo": True, "logprobs": 2}
    [choice] = toy.complete(**options).json["choices"]
    logs = choice["logprobs"]
    assert choice["text"].startswith("Hé you")
    assert logs["token_logprobs"][0] is None
    assert logs["top_logprobs"][0] is None
    count = len(prompt)
    assert logs["token_logprobs"][1:count] == pytest.approx(expected(prompt))
    assert all(len(column) == count + tokens for column in logs.values())
    assert logs["text_offset"][:count] == [0, 1, 1, 2, 3, 4, 5]
    events = toy.complete(**options, stream=True).events
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    for column in logs:
        joined = [
            entry for piece in pieces for entry in (piece["logprobs"] or {column: []})[column]
        ]
        assert joined == logs[column]
    assert pieces[-1]["finish_reason"] == "length"


def score(answer: Any, lengths: list[int]) -> list[tuple[float, bool]]:
    """Likelihood of each continuation, and whether it is the greedy one, as lm-eval reads them."""
    found = []
    ordered = sorted(answer["choices"], key=itemgetter("index"))
    for choice, length in zip(ordered, lengths, strict=True):
        logs = choice["logprobs"]
        own = logs["token_logprobs"][length:-1]
        top = logs["top_logprobs"][length:-1]
        greedy = all(value == max(best.values()) for value, best in zip(own, top, strict=True))
        found.append((sum(own), greedy))
    return found


def test_an_evaluator_reads_likelihoods(toy: Served) -> None:
    likely = [5, 6]
    for _ in range(3):
        likely.append(int(np.argmax(probs_after("target", byte_tokenizer.SIZE, tuple(likely)))))
    prompts = [[5, 6, 7, 8, 9], likely]
    options = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1}
    scores = score(toy.complete(prompt=prompts, **options).json, [2, 2])
    for (total, greedy), prompt in zip(scores, prompts, strict=True):
        assert total == pytest.approx(sum(expected(prompt)[1:]))
        assert greedy == (prompt == likely)


def test_a_text_that_ends_at_once_still_has_one_more_log_probability() -> None:
    with served(model("", recipe="plain"), "plain") as one:
        bot = byte_tokenizer.tokenizer().token_to_id("<bot>")
        options = {"echo": True, "logprobs": 0, "max_tokens": 1}
        [choice] = one.complete(prompt=[5, bot], **options).json["choices"]
        assert choice["finish_reason"] == "stop"
        assert len(choice["logprobs"]["token_logprobs"]) == 3
