"""Prompts whose own tokens are scored: the same numbers as the model's, whatever else runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput, probs_after
from sapwood.core.sampling import Sampling
from sapwood.engine.outputs import best_tokens
from sapwood.engine.prompt_scores import ROWS, MeanState, PromptLogprobs
from sapwood.engine.request import Request
from tests.helpers import tiny_models
from tests.helpers.scheduler_harness import Stage, ended, tokens_of

PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(0, 3, 2 * ROWS + 7))


def expected(prompt: Sequence[int]) -> list[float]:
    """Log-probabilities of all tokens but the first, by the toy's table."""
    return [
        float(np.log(probs_after("target", 3, tuple(prompt[:place]))[prompt[place]]))
        for place in range(1, len(prompt))
    ]


def scored(stage: Stage, prompt: Sequence[int], **options: Any) -> PromptLogprobs:
    reader = PromptLogprobs(2)
    stage.ask(prompt, prompt_reader=reader, **options)
    return reader


@pytest.mark.parametrize("alone", [True, False])
def test_a_prompt_is_scored_as_the_model_scores_it(alone: bool) -> None:
    stage = Stage(ToyBackend())
    readers = [scored(stage, PROMPT[:length], prompt_only=True) for length in (1, 2, 40, 200, 263)]
    texts = [] if alone else [stage.ask((1, 2, number)) for number in range(3)]
    stage.run()
    for length, reader in zip((1, 2, 40, 200, 263), readers, strict=True):
        found = [each.logprob for each in reader.logprobs]
        assert found == pytest.approx(expected(PROMPT[:length]))
        assert [each.token for each in reader.logprobs] == list(PROMPT[1:length])
        assert all(each.top[0][1] >= each.top[1][1] for each in reader.logprobs)
    for request in texts:
        own = Stage(ToyBackend())
        alone_ = own.ask(request.prompt)
        own.run()
        assert tokens_of(stage.steps[request]) == tokens_of(own.steps[alone_])


def test_the_output_after_a_scored_prompt_is_the_usual_one() -> None:
    stage = Stage(ToyBackend(), "suffix")
    plain = stage.ask(PROMPT[:50])
    shared = PromptLogprobs(0)
    both = [stage.ask(PROMPT[:50], prompt_reader=shared) for _ in range(2)]
    stage.run()
    assert {tuple(tokens_of(stage.steps[one])) for one in (plain, *both)} == {
        tuple(tokens_of(stage.steps[plain]))
    }
    assert [each.logprob for each in shared.logprobs] == pytest.approx(expected(PROMPT[:50]))


def test_a_prompt_that_only_is_read_ends_without_a_step() -> None:
    stage = Stage(ToyBackend())
    done: list[int] = []
    request = stage.ask(PROMPT, prompt_only=True, on_prompt=lambda: done.append(1))
    stage.run()
    assert done == [1]
    assert request.finished
    assert stage.steps[request] == []
    assert stage.target.memory.used == 0


def test_a_cached_prefix_is_scored_all_the_same() -> None:
    target = ToyBackend()
    target.memory.limit(2048)
    stage = Stage(target)
    stage.ask(PROMPT[:100])
    stage.run()
    reader = scored(stage, PROMPT[:100], prompt_only=True)
    stage.run()
    assert [each.logprob for each in reader.logprobs] == pytest.approx(expected(PROMPT[:100]))
    again = stage.ask(PROMPT[:100])  # and what was scored is cached
    stage.run()
    assert ended(stage.steps[again])


def test_scored_prompts_wait_for_memory_like_others() -> None:
    target = ToyBackend()
    target.memory.limit(320)
    stage = Stage(target)
    readers = [scored(stage, PROMPT[:length], prompt_only=True) for length in (200, 190, 180)]
    texts = [
        stage.ask(PROMPT[:length], Sampling(max_tokens=60), tenant=str(length))
        for length in (30, 60, 90)
    ]
    stage.run(2000)
    assert stage.pool.idle
    for length, reader in zip((200, 190, 180), readers, strict=True):
        assert [each.logprob for each in reader.logprobs] == pytest.approx(
            expected(PROMPT[:length])
        )
    assert all(ended(stage.steps[request]) for request in texts)


@dataclass
class Failing(ToyBackend):
    """A toy that cannot score one token."""

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyOutput:
        if any(context[0] == 2 for context in contexts):
            raise RuntimeError("no")
        return super().scores(contexts)


def test_a_prompt_that_cannot_be_scored_fails_alone() -> None:
    stage = Stage(Failing())
    bad = stage.ask((2, 1, 1), prompt_reader=PromptLogprobs(0), prompt_only=True)
    stage.run(1)
    good = stage.ask((1, 1, 1))
    stage.run()
    [error] = stage.steps[bad]
    assert isinstance(error, RuntimeError)
    assert ended(stage.steps[good])


def test_a_cancelled_one_is_freed() -> None:
    stage = Stage(ToyBackend())
    request: Request = stage.ask(PROMPT, prompt_reader=PromptLogprobs(0), prompt_only=True)
    stage.scheduler.advance()
    request.cancel()
    stage.scheduler.advance()
    assert stage.pool.idle
    assert stage.target.memory.used == 0


def test_the_best_tokens_are_those_of_a_whole_sort() -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 5, 300):
        logs = random.integers(0, 6, size).astype(np.float64)
        for count in (0, 1, 2, 5, 400):
            assert best_tokens(logs, count) == np.argsort(-logs, kind="stable")[:count].tolist()


def test_a_network_gives_the_same_scores_and_its_final_states() -> None:
    import torch

    target = tiny_models.backend("llama")
    model: Any = target.capabilities.model
    prompt = tuple(np.random.default_rng(1).integers(3, 60, 120).tolist())
    with torch.inference_mode():
        whole = model(torch.tensor([prompt]), output_hidden_states=True)
    logs = torch.log_softmax(whole.logits[0].double(), -1)
    stage = Stage(target)
    reader = scored(stage, prompt, prompt_only=True)
    mean = MeanState()
    stage.ask(prompt, prompt_reader=mean, prompt_only=True)
    stage.run()
    wanted = [float(logs[place, token]) for place, token in enumerate(prompt[1:])]
    assert [each.logprob for each in reader.logprobs] == pytest.approx(wanted, abs=1e-4)
    vector = whole.hidden_states[-1][0].double().mean(0).numpy()
    assert mean.vector == pytest.approx(vector / np.linalg.norm(vector), abs=1e-4)
