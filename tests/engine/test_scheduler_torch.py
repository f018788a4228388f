"""The scheduler over packed eight-bit models, whose rows have the same bits in every company, and its thread."""

import asyncio
import threading
import time
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import build
from sapwood.core.sampling import Sampling
from sapwood.engine.outputs import Step
from sapwood.engine.request import QueueFull, Request, RequestTimeout
from sapwood.engine.step_stats import StepStats
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.server.engine_thread import EngineThread
from tests.helpers import tiny_models
from tests.helpers.scheduler_harness import Stage, alone, tokens_of

TREE = "merge(drafters=[suffix, recycling]) + best(stride=4) + match + fixed(nodes=10, depth=4, width=3)"


def packed() -> TorchBackend:
    """A tiny model in packed form, with memory of its own."""
    return build(tiny_models.make("llama"), "llama", "int8", lambda _: None)


@cache
def shared() -> TorchBackend:
    """One whose memory has no limit: what single requests are answered by."""
    return packed()


@pytest.mark.parametrize("recipe", ["plain", TREE])
@pytest.mark.parametrize("memory", [128, 2048])
def test_any_interleaving_says_what_single_requests_say(recipe: str, memory: int) -> None:
    rng = np.random.default_rng(memory)
    target = packed()
    target.memory.limit(memory)
    stage = Stage(target, recipe, max_requests=6)
    for number in range(14):
        prompt = rng.integers(3, 61, int(rng.integers(1, 36))).tolist()
        temperature = float(number % 3 == 1)
        sampling = Sampling(
            temperature=temperature, max_tokens=int(rng.integers(1, 90)), seed=number
        )
        for _ in range(2 if number % 5 == 0 else 1):
            stage.ask(prompt, sampling)
        stage.run(int(rng.integers(0, 4)))
        if number % 4 == 3:
            stage.requests[-1].cancel()
    stage.run()
    assert (stage.pool.preemptions > 0) == (memory < 2000)
    finished = [request for request in stage.requests if not request.cancelled.is_set()]
    assert len(finished) >= 12
    for request in finished:
        assert tokens_of(stage.steps[request]) == alone(
            shared(), "plain", request.prompt, request.sampling
        )
    assert target.memory.used == 0


# -------------------------------------------------------------------------------------- the thread
def worker(recipe: str = TREE, **options: Any) -> EngineThread:
    """A started worker over a tiny model."""
    made = EngineThread(LLM(packed(), recipe), **options)
    made.start()
    return made


def job(number: int, most: int = 20, **options: Any) -> Request:
    """A job of its own for each number."""
    prompt = tuple(np.random.default_rng(number).integers(3, 61, 5 + number % 40).tolist())
    return Request(
        prompt, Sampling(max_tokens=most, temperature=float(number % 2), seed=number), **options
    )


def deliver(
    loop: asyncio.AbstractEventLoop,
    queue: "asyncio.Queue[Step | Exception]",
    step: Step | Exception,
) -> None:
    """Put a step into a queue of another thread's event loop."""
    loop.call_soon_threadsafe(queue.put_nowait, step)


def submitted(made: EngineThread, *requests: Request) -> list[asyncio.Queue[Step | Exception]]:
    """Submit requests from an event loop; their steps arrive in queues."""
    loop = asyncio.get_running_loop()
    queues: list[asyncio.Queue[Step | Exception]] = [asyncio.Queue() for _ in requests]
    for request, queue in zip(requests, queues, strict=True):
        request.on_step = partial(deliver, loop, queue)
    made.submit(requests)
    return queues


async def tokens(steps: asyncio.Queue[Step | Exception]) -> list[int]:
    """All tokens of a request."""
    found: list[int] = []
    while True:
        step = await steps.get()
        if isinstance(step, Exception):
            raise step
        found += step.tokens
        if step.done:
            return found


def test_many_owners_at_once() -> None:
    made = worker(memory=1024)

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*map(tokens, submitted(made, *map(job, range(24)))))

    found = asyncio.run(all_of_them())
    made.stop()
    for number, got in enumerate(found):
        one = job(number)
        assert got == alone(shared(), "plain", one.prompt, one.sampling)
    assert made.snapshot().used == 0
    assert made.snapshot().tokens == sum(map(len, found))


def test_requests_with_one_prompt_share_its_prefill_and_keep_their_seeds() -> None:
    made = worker()
    prompt = (5, 6, 7, 8, 9)
    sampling = [Sampling(temperature=1.0, max_tokens=20, seed=11 + offset) for offset in range(4)]
    prefill: list[int] = []
    made.step_watchers.append(lambda stats: prefill.append(stats.prefill))

    async def several() -> list[list[int]]:
        return await asyncio.gather(
            *map(tokens, submitted(made, *(Request(prompt, own) for own in sampling)))
        )

    found = asyncio.run(several())
    made.stop()
    for own, got in zip(sampling, found, strict=True):
        assert got == alone(shared(), "plain", prompt, own)
    assert sum(prefill) == len(prompt) - 1


def test_leaving_early_frees_memory_at_once() -> None:
    made = worker()

    async def leave() -> None:
        request = job(1, most=100)
        [steps] = submitted(made, request)
        await steps.get()
        request.cancel()
        assert await asyncio.to_thread(made.drain, 5.0)

    asyncio.run(leave())
    assert made.snapshot().used == 0
    made.stop()


def test_a_full_queue_and_a_closing_server_refuse() -> None:
    made = EngineThread(LLM(packed(), "plain"), waiting=3)  # not started: nobody leaves the queue

    async def flood() -> None:
        with pytest.raises(SapwoodError, match="unknown recipe"):
            submitted(made, job(4, recipe="nonsense"))
        for number in range(3):
            submitted(made, job(number))
        with pytest.raises(QueueFull, match="3 requests are waiting"):
            submitted(made, job(4))
        assert made.snapshot().waiting == 3
        made.start()
        assert await asyncio.to_thread(made.drain, 30.0)
        with pytest.raises(QueueFull, match="shutting down"):
            submitted(made, job(5))

    asyncio.run(flood())
    assert made.snapshot().draining
    made.stop()


def test_a_stop_that_cannot_wait_says_so_to_those_who_do() -> None:
    made = worker("plain")

    async def cut() -> None:
        [steps] = submitted(made, job(0, most=100))
        stopper = threading.Thread(target=made.stop, args=(0.0,))
        stopper.start()
        with pytest.raises(SapwoodError, match="shutting down"):
            await tokens(steps)
        stopper.join()

    asyncio.run(cut())
    assert made.pool.target.memory.used == 0


def test_a_stop_before_the_first_step_refuses_what_was_submitted() -> None:
    llm = LLM(packed(), "plain")
    stopped = threading.Event()
    with pytest.MonkeyPatch.context() as patch:  # a start that takes long
        patch.setattr(type(llm.profile), "widen", lambda *_: stopped.wait(30.0))
        made = EngineThread(llm)
        made.start()

        async def cut() -> None:
            [steps] = submitted(made, job(0))
            stopper = threading.Thread(target=made.stop, args=(0.0,))
            stopper.start()
            await asyncio.to_thread(made._ending.wait, 30.0)
            stopped.set()
            with pytest.raises(SapwoodError, match="shutting down"):
                await asyncio.wait_for(tokens(steps), 30.0)
            stopper.join()

        asyncio.run(cut())
    made.draining = False
    with pytest.raises(QueueFull, match="shutting down"):
        made.submit([job(1)])


def test_a_deadline_in_the_queue() -> None:
    made = EngineThread(LLM(packed(), "plain"))

    async def late() -> None:
        [steps] = submitted(made, job(0, timeout=0.01))
        time.sleep(0.05)
        made.start()
        with pytest.raises(RequestTimeout, match=r"longer than 0\.01 s"):
            await tokens(steps)

    asyncio.run(late())
    made.stop()


def test_watchers_hear_of_steps_and_of_rounds_and_may_fail() -> None:
    made = EngineThread(LLM(packed(), TREE))
    steps: list[Step] = []
    rounds: list[StepStats] = []

    def broken(*_: object) -> None:
        raise RuntimeError("a watcher")

    made.watchers += [broken, lambda _, step: steps.append(step)]
    made.step_watchers += [broken, rounds.append]
    made.start()

    async def both() -> list[list[int]]:
        return await asyncio.gather(*map(tokens, submitted(made, *map(job, range(2)))))

    found = asyncio.run(both())
    made.stop()
    assert (
        sum(len(step.tokens) for step in steps)
        == sum(map(len, found))
        == sum(told.tokens for told in rounds)
    )
    assert sum(told.accepted for told in rounds) == sum(
        piece.drafted for step in steps for piece in step.pieces
    )
    assert {told.trees for told in rounds} >= {2}
    assert [told.number for told in rounds] == list(range(1, len(rounds) + 1))
    assert all(told.seconds >= told.verify > 0 for told in rounds)
    assert rounds[-1].used == 0
