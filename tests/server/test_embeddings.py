"""Embeddings: the mean of hidden states, in both encodings, through the scheduler."""

import base64
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from sapwood import LLM
from sapwood.backends.toy import probs_after
from sapwood.core.protocols import Capabilities
from tests.helpers import byte_tokenizer
from tests.helpers.asgi_client import Answer, Served, served
from tests.helpers.hidden_state_toy import LAYER, Mindful

pytestmark = pytest.mark.usefixtures("own_cache")
PATH = "/v1/embeddings"


@dataclass
class OneLayer(Mindful):
    """A toy whose head's input is its log-probabilities."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, layers=LAYER)


def target() -> LLM:
    return LLM(
        OneLayer(vocab=byte_tokenizer.SIZE, context=512), "plain", text=byte_tokenizer.text()
    )


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served(target(), "plain", limits={"inputs": 70}) as one:
        yield one


def expected(tokens: list[int]) -> Any:
    states = [
        np.log(probs_after("target", byte_tokenizer.SIZE, tuple(tokens[: end + 1])))
        for end in range(len(tokens))
    ]
    mean = np.mean(states, 0)
    return mean / np.linalg.norm(mean)


def vectors(answer: Answer) -> list[list[float]]:
    assert answer.status == 200, answer.body
    assert [entry["index"] for entry in answer.json["data"]] == list(
        range(len(answer.json["data"]))
    )
    return [entry["embedding"] for entry in answer.json["data"]]


def test_a_text_is_the_mean_of_its_hidden_states(toy: Served) -> None:
    tokens = byte_tokenizer.text().encode("Hello")
    answer = toy.post(PATH, {"model": "toy", "input": "Hello"})
    [vector] = vectors(answer)
    assert vector == pytest.approx(expected(tokens))
    assert answer.json["usage"] == {"prompt_tokens": len(tokens), "total_tokens": len(tokens)}
    assert (answer.json["object"], answer.json["model"]) == ("list", "toy")
    [ids] = vectors(toy.post(PATH, {"input": tokens}))
    assert ids == vector
    many = vectors(toy.post(PATH, {"input": [f"text {number}" for number in range(70)]}))
    assert len(many) == 70
    assert many[7] == pytest.approx(expected(byte_tokenizer.text().encode("text 7")))


def test_base64_holds_the_same_numbers(toy: Served) -> None:
    body = {"input": ["a", "b"], "encoding_format": "base64", "dimensions": byte_tokenizer.SIZE}
    plain = vectors(toy.post(PATH, {"input": ["a", "b"]}))
    for text, vector in zip(vectors(toy.post(PATH, body)), plain, strict=True):
        assert np.frombuffer(base64.b64decode(str(text)), "<f4") == pytest.approx(vector, rel=1e-6)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": ["a", ""]}, "input"),
    ({"input": ["a", 5]}, "input"),
    ({"input": [100_000]}, "input"),
    ({"input": ["a"] * 71}, "input"),
    ({"input": "x" * 600}, "input"),
    ({"input": "a", "dimensions": 4}, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "pooling": "last"}, "pooling"),
    ({}, "input"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda value: str(value)[:30])
def test_what_cannot_be_embedded(toy: Served, body: dict[str, Any], param: str) -> None:
    answer = toy.post(PATH, body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert toy.post(PATH, {"model": "other", "input": "a"}).status == 404
    assert toy.api.dispatcher.busy == 0


def test_a_backend_without_hidden_states_says_so() -> None:
    with served() as one:
        answer = one.post(PATH, {"input": "a"})
        assert answer.status == 400
        assert "hidden states" in answer.error["message"]


def test_nothing_is_loaded_or_kept_before_the_first_request() -> None:
    name = "sapwood.server.openai.embeddings"
    before = sys.modules.pop(name, None)
    try:
        with served(target(), "plain") as one:
            assert one.chat(max_tokens=2).status == 200
            backend = one.api.engine_thread.llm.target
            assert isinstance(backend, OneLayer)
            assert name not in sys.modules
            assert backend.watched == []
            assert one.post(PATH, {"input": "a"}).status == 200
            assert set(backend.watched) == {LAYER}
    finally:
        if before is not None:
            sys.modules[name] = before


def test_ollamas_route_has_the_same_vectors(toy: Served) -> None:
    texts = ["one", "two"]
    wanted = vectors(toy.post(PATH, {"model": "toy", "input": texts}))
    answer = toy.post("/api/embed", {"model": "toy:latest", "input": texts, "truncate": True})
    assert answer.status == 200, answer.body
    assert answer.json["embeddings"] == wanted
    assert answer.json["prompt_eval_count"] == sum(map(len, texts))
    one = toy.post("/api/embed", {"input": "one"}).json
    assert one["embeddings"] == wanted[:1]
    long = toy.post("/api/embed", {"input": "x" * 600})
    assert (long.status, "shorten" in long.json["error"]) == (400, True)
    short = toy.post("/api/embed", {"input": "one", "dimensions": 2})
    assert (short.status, "dimensions" in short.json["error"]) == (400, True)
