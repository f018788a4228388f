"""Requests in the caller's thread: one step by step, lists in shared passes."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sapwood import LLM, SapwoodError
from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import PrefillChunk, TargetOutput, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.engine.generate import generate, stream
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.recipes import resolve
from tests.helpers import byte_tokenizer
from tests.helpers.scheduler_harness import Stage

PROMPTS = ["Say something.", "Say more.", "And now something else.", "Say something."]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)


class Counted(ToyBackend):
    """A toy that counts the trees of each pass."""

    trees: list[int]

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        self.trees.append(len(work))
        return super().score(work, chunks)


def model(recipe: str = "recycling", context: int = 512) -> LLM:
    target = Counted(vocab=byte_tokenizer.SIZE, context=context)
    target.trees = []
    return LLM(target, recipe, text=byte_tokenizer.text())


# ------------------------------------------------------------------------------- lists
@pytest.mark.parametrize("recipe", ["plain", "recycling", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_list_gets_the_answers_of_its_prompts_in_order(recipe: str, temperature: float) -> None:
    options: dict[str, Any] = {"max_tokens": 24, "temperature": temperature, "seed": 4}
    alone = [model("plain").generate(prompt, **options) for prompt in PROMPTS]
    llm = model(recipe)
    found = llm.generate(PROMPTS, **options)
    assert [one.text for one in found] == [one.text for one in alone]
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    assert [one.finish for one in found] == [one.finish for one in alone]
    target: Any = llm.target
    assert max(target.trees) == len(PROMPTS)  # they shared passes
    assert target.memory.used == 0


def test_lists_of_tokens_are_prompts_and_a_list_of_ints_is_one() -> None:
    llm = model("plain")
    first = llm.generate([5, 6, 7], max_tokens=8)
    both = llm.generate([[5, 6, 7], [8, 9]], max_tokens=8)
    assert both[0].tokens == first.tokens
    assert len(both) == 2


def test_a_bad_prompt_of_a_list_is_named_before_anything_runs() -> None:
    llm = model("plain")
    with pytest.raises(SapwoodError, match="prompt is empty"):
        llm.generate(["fine", ""])
    with pytest.raises(SapwoodError, match="unknown option 'colour'"):
        llm.generate(["fine"], colour="red")  # type: ignore[call-overload]
    target: Any = llm.target
    assert target.trees == []


def test_a_list_shows_its_progress_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    llm = model("plain")
    llm.generate(PROMPTS, max_tokens=2, progress=True)
    assert "prompts" in capfd.readouterr().err
    llm.generate(PROMPTS * 3, max_tokens=2)  # standard error is no terminal here
    assert capfd.readouterr().err == ""


def test_a_failing_request_of_a_list_ends_it_and_frees_everything() -> None:
    class Failing(ToyBackend):
        def score(
            self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
        ) -> list[TargetOutput]:
            if any(one.session.length > 8 for one in work):
                raise RuntimeError("broken pass")
            return super().score(work, chunks)

    target = Failing(vocab=5, context=64)
    engine = Engine(target, resolve("plain"))
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="broken pass"):
        generate(
            engine,
            [[1, 2], [1, 2, 3]],
            Sampling(max_tokens=20),
            lambda index, step: seen.append(index),
        )
    assert set(seen) == {0, 1}
    assert target.memory.used == 0


# ------------------------------------------------------------------------------- one request
def test_a_stream_that_is_left_frees_its_memory() -> None:
    target = ToyBackend(vocab=5, context=64)
    with closing(stream(Engine(target, resolve("plain")), [1, 2, 3], Sampling(max_tokens=9))) as it:
        next(it)
        assert target.memory.used > 0
    assert target.memory.used == 0


def test_the_callers_pause_is_not_counted() -> None:
    clock = [0.0]

    class Slow(ToyBackend):
        def score(
            self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
        ) -> list[TargetOutput]:
            clock[0] += 1.0
            return super().score(work, chunks)

    engine = Engine(Slow(vocab=5, context=64), resolve("plain"), now=lambda: clock[0])
    steps = []
    for step in stream(engine, [1, 2, 3], Sampling(max_tokens=5)):
        steps.append(step)
        clock[0] += 100.0
    last = steps[-1]
    assert last.stats is not None
    assert last.stats.seconds == pytest.approx(5.0)


def test_several_streams_of_one_model_may_be_interleaved() -> None:
    llm = model("recycling")
    wanted = [model("plain").generate(prompt, max_tokens=12).text for prompt in PROMPTS[:2]]
    first, second = (llm.stream(prompt, max_tokens=12) for prompt in PROMPTS[:2])
    texts = ["", ""]
    for index in (0, 1) * 20:
        step = next((first, second)[index], None)
        texts[index] += "" if step is None else step.text
    assert texts == wanted


# ------------------------------------------------------------------------------- states
def test_a_request_passes_through_its_states() -> None:
    stage = Stage(ToyBackend("target", 3, 512), max_requests=1)
    requests = [stage.ask(prompt, Sampling(max_tokens=3)) for prompt in ([0, 1, 2], [2, 1, 0])]

    def states() -> list[str]:
        return [request.state.value for request in requests]

    assert states() == ["waiting", "waiting"]
    stage.run(1)
    assert states() == ["prefill", "waiting"]
    stage.run(1)
    assert states() == ["running", "waiting"]
    stage.run()
    assert states() == ["finished", "finished"]


def test_a_cancelled_request_is_finished_wherever_it_is() -> None:
    stage = Stage(ToyBackend("target", 3, 512), max_requests=1)
    running = stage.ask([0, 1, 2], Sampling(max_tokens=30))
    waiting = stage.ask([2, 1, 0], Sampling(max_tokens=30))
    stage.run(3)
    waiting.cancel()
    running.cancel()
    stage.run()
    assert running.finished
    assert waiting.finished
    assert stage.pool.idle


def test_tokens_of_the_prefix_cache_are_counted() -> None:
    target = ToyBackend("target", 3, 512)
    target.memory.limit(512)
    stage = Stage(target)
    prompt = [0, 1, 2] * 20
    counts = []
    for _ in range(2):
        request = stage.ask(prompt, Sampling(max_tokens=2))
        stage.run()
        last = stage.steps[request][-1]
        assert isinstance(last, Step)
        assert last.stats is not None
        counts.append(last.stats.cached_tokens)
    assert counts[0] == 0
    assert counts[1] >= 48  # whole blocks of sixteen


def test_requests_are_told_apart_by_identity() -> None:
    one, other = (Request((1,), Sampling()) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2
