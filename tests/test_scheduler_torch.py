"""The scheduler over packed eight-bit models, whose rows have the same bits in every company, and its thread."""

import asyncio
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from sapwood.api import LLM
from sapwood.backends.torch.load import build
from sapwood.backends.torch.model import TorchBackend
from sapwood.completion import Step
from sapwood.errors import SapwoodError
from sapwood.sampling import Sampling
from sapwood.serve.jobs import Busy, Expired, Job, Ticket
from sapwood.serve.rounds import Round
from sapwood.serve.worker import Worker
from tests import tiny
from tests.crowds import Stage, alone, said

TREE = "merge(drafters=[suffix, recycling]) + best(stride=4) + match + fixed(nodes=10, depth=4, width=3)"


def packed() -> TorchBackend:
    """A tiny model in packed form, with memory of its own."""
    return build(tiny.make("llama"), "llama", "int8", lambda _: None)


@cache
def shared() -> TorchBackend:
    """One whose memory has no limit: what single requests are answered by."""
    return packed()


@pytest.mark.parametrize("recipe", ["plain", TREE])
@pytest.mark.parametrize("memory", [128, 2048])
def test_any_interleaving_says_what_single_requests_say(recipe: str, memory: int) -> None:
    rng, target = np.random.default_rng(memory), packed()
    target.memory.limit(memory)
    stage = Stage(target, recipe, together=6)
    for number in range(14):
        prompt = rng.integers(3, 61, int(rng.integers(1, 36))).tolist()
        temperature = float(number % 3 == 1)
        sampling = Sampling(temperature=temperature, max_tokens=int(rng.integers(1, 90)), seed=number)
        for _ in range(2 if number % 5 == 0 else 1):
            stage.ask(prompt, sampling)
        stage.run(int(rng.integers(0, 4)))
        if number % 4 == 3:
            stage.tickets[-1].cancel()
    stage.run()
    assert (stage.crowd.preemptions > 0) == (memory < 2000)
    finished = [ticket for ticket in stage.tickets if not ticket.cancelled.is_set()]
    assert len(finished) >= 12
    for ticket in finished:
        assert said(ticket) == alone(shared(), "plain", ticket.job.prompt, ticket.job.sampling)
    assert target.memory.used == 0


# -------------------------------------------------------------------------------------- the thread
def worker(recipe: str = TREE, **options: Any) -> Worker:
    """A started worker over a tiny model."""
    made = Worker(LLM(packed(), recipe), **options)
    made.start()
    return made


def job(number: int, most: int = 20, **options: Any) -> Job:
    """A job of its own for each number."""
    prompt = tuple(np.random.default_rng(number).integers(3, 61, 5 + number % 40).tolist())
    return Job(prompt, Sampling(max_tokens=most, temperature=float(number % 2), seed=number), **options)


async def tokens(ticket: Ticket) -> list[int]:
    """All that a ticket says."""
    return [token async for step in ticket for token in step.tokens]


def test_many_owners_at_once() -> None:
    made = worker(memory=1024)

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(tokens(made.submit(job(number))) for number in range(24)))

    found = asyncio.run(all_of_them())
    made.stop()
    for number, got in enumerate(found):
        one = job(number)
        assert got == alone(shared(), "plain", one.prompt, one.sampling)
    assert made.snapshot().used == 0
    assert made.snapshot().tokens == sum(map(len, found))


def test_answers_to_one_job_have_seeds_of_their_own() -> None:
    made = worker()
    asked = Job((5, 6, 7, 8, 9), Sampling(temperature=1.0, max_tokens=20, seed=11))

    async def several() -> list[list[int]]:
        return await asyncio.gather(*map(tokens, made.submit_all(asked, 4)))

    found = asyncio.run(several())
    made.stop()
    for offset, got in enumerate(found):
        sampling = Sampling(temperature=1.0, max_tokens=20, seed=11 + offset)
        assert got == alone(shared(), "plain", asked.prompt, sampling)


def test_leaving_early_frees_memory_at_once() -> None:
    made = worker()

    async def leave() -> None:
        async for _ in made.submit(job(1, most=100)):
            break
        assert await asyncio.to_thread(made.drain, 5.0)

    asyncio.run(leave())
    assert made.snapshot().used == 0
    made.stop()


def test_a_full_queue_and_a_closing_server_refuse() -> None:
    made = Worker(LLM(packed(), "plain"), waiting=3)  # not started: nobody leaves the queue

    async def flood() -> None:
        with pytest.raises(SapwoodError, match="unknown recipe"):
            made.submit(job(4, recipe="nonsense"))
        for number in range(3):
            made.submit(job(number))
        with pytest.raises(Busy, match="3 requests are waiting"):
            made.submit(job(4))
        assert made.snapshot().waiting == 3
        made.start()
        assert await asyncio.to_thread(made.drain, 30.0)
        with pytest.raises(Busy, match="shutting down"):
            made.submit(job(5))

    asyncio.run(flood())
    assert made.snapshot().draining
    made.stop()


def test_a_stop_that_cannot_wait_says_so_to_those_who_do() -> None:
    made = worker("plain")

    async def cut() -> None:
        ticket = made.submit(job(0, most=100))
        stopper = threading.Thread(target=made.stop, args=(0.0,))
        stopper.start()
        with pytest.raises(SapwoodError, match="shutting down"):
            await tokens(ticket)
        stopper.join()

    asyncio.run(cut())
    assert made.crowd.target.memory.used == 0


def test_a_deadline_in_the_queue() -> None:
    made = Worker(LLM(packed(), "plain"))

    async def late() -> None:
        ticket = made.submit(job(0, seconds=0.01))
        time.sleep(0.05)
        made.start()
        with pytest.raises(Expired, match=r"longer than 0\.01 s"):
            await tokens(ticket)

    asyncio.run(late())
    made.stop()


def test_watchers_hear_of_steps_and_of_rounds_and_may_fail() -> None:
    made = Worker(LLM(packed(), TREE))
    steps: list[Step] = []
    rounds: list[Round] = []

    def broken(*_: object) -> None:
        raise RuntimeError("a watcher")

    made.watchers += [broken, lambda _, step: steps.append(step)]
    made.round_watchers += [broken, rounds.append]
    made.start()

    async def both() -> list[list[int]]:
        return await asyncio.gather(*(tokens(made.submit(job(number))) for number in range(2)))

    found = asyncio.run(both())
    made.stop()
    assert sum(len(step.tokens) for step in steps) == sum(map(len, found)) == sum(told.tokens for told in rounds)
    assert sum(told.accepted for told in rounds) == sum(piece.drafted for step in steps for piece in step.pieces)
    assert {told.trees for told in rounds} >= {2}
    assert [told.number for told in rounds] == list(range(1, len(rounds) + 1))
    assert all(told.seconds >= told.verify > 0 for told in rounds)
    assert rounds[-1].used == 0
