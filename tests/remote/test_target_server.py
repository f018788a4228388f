"""A remote target keeps the contract of the waist, merges clients, and ends with a sentence."""

import threading
import time

import numpy as np
import pytest

from sapwood.backends.remote import RemoteBackend
from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.recipe import parse
from sapwood.remote.messages import LinkError, RemoteMessage
from sapwood.remote.target_worker import TargetWorker
from sapwood.testing import check_backend
from sapwood.testing.prefill_contract import LIMITED, Limited
from tests.helpers import tiny_models
from tests.helpers.remote_servers import (
    plain_tokens,
    remote_target,
    rounds_of,
    target_server,
    tokens_of,
)

TREES = "suffix + best(estimator=raw) + match + fixed(nodes=8, depth=4, width=2)"


def test_a_remote_toy_keeps_the_contract() -> None:
    with remote_target(ToyBackend()) as backend:
        check_backend(backend)


def test_a_remote_torch_model_keeps_the_contract() -> None:
    with remote_target(tiny_models.backend("llama")) as backend:
        check_backend(backend)


@pytest.mark.parametrize("check", LIMITED)
def test_a_remote_memory_keeps_its_contract(check: Limited) -> None:
    with remote_target(ToyBackend()) as backend, remote_target(ToyBackend()) as free:
        check(backend, free, np.random.default_rng(0), 1e-4)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=40),
        Sampling(temperature=0.8, seed=5, max_tokens=40),
        Sampling(temperature=0.8, top_k=2, seed=5, max_tokens=40),
        Sampling(repetition_penalty=1.3, max_tokens=40),
    ],
    ids=["greedy", "sampled", "top-k", "penalty"],
)
def test_text_is_that_of_a_local_target(sampling: Sampling) -> None:
    with remote_target(ToyBackend()) as backend:
        rounds = rounds_of(Engine(backend, parse(TREES)), sampling)
    assert tokens_of(rounds) == plain_tokens(ToyBackend(), sampling)


def test_a_round_is_one_call_when_greedy_and_two_when_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with remote_target(ToyBackend()) as backend:
        calls: list[str] = []
        inner = backend.link.call

        def counted(message: RemoteMessage, kind: str) -> RemoteMessage:
            calls.append(message.kind)
            return inner(message, kind)

        monkeypatch.setattr(backend.link, "call", counted)
        engine = Engine(backend, parse(TREES))
        rounds = rounds_of(engine, Sampling(max_tokens=30))
        assert calls == ["start"] + ["score"] * len(rounds)
        calls.clear()
        rounds = rounds_of(engine, Sampling(temperature=1.0, max_tokens=30))
        assert calls == ["start"] + ["score", "follow"] * len(rounds)


def test_passes_of_several_clients_are_merged() -> None:
    class Slow(ToyBackend):
        def score(self, *given: object) -> list:  # type: ignore[type-arg]
            time.sleep(0.02)
            return super().score(*given)  # type: ignore[arg-type]

    texts: dict[int, list[int]] = {}
    with target_server(Slow()) as service:

        def decode(number: int) -> None:
            remote = RemoteBackend(service.url)  # type: ignore[attr-defined]
            sampling = Sampling(temperature=1.0, seed=number, max_tokens=24)
            texts[number] = tokens_of(rounds_of(Engine(remote, parse(TREES)), sampling))
            remote.close()

        threads = [threading.Thread(target=decode, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert service.worker.shared > 0
    for number, tokens in texts.items():
        sampling = Sampling(temperature=1.0, seed=number, max_tokens=24)
        assert tokens == plain_tokens(ToyBackend(), sampling)


def test_a_client_at_fault_does_not_spoil_the_pass_of_another() -> None:
    worker = TargetWorker(ToyBackend())
    good, closed = (worker.backend.open([0, 1]) for _ in range(2))
    worker.call(closed.close)
    gate = threading.Event()
    busy = threading.Event()

    def block() -> None:
        busy.set()
        gate.wait()

    threading.Thread(target=worker.call, args=(block,)).start()
    busy.wait()  # else the worker may take all three at once
    found: list[object] = []

    def ask(session: object) -> None:
        try:
            found.append(worker.score([TreeInput(session, Tree(0))], ()))  # type: ignore[arg-type]
        except ValueError as error:
            found.append(str(error))

    threads = [threading.Thread(target=ask, args=(session,)) for session in (good, closed)]
    for thread in threads:
        thread.start()
    while worker.jobs.qsize() < 2:
        time.sleep(0.001)
    gate.set()
    for thread in threads:
        thread.join()
    worker.close()
    assert "the session is closed" in found
    assert [len(one[0]) for one in found if isinstance(one, list)] == [1]


def test_a_client_that_leaves_frees_its_sessions() -> None:
    target = ToyBackend()
    with target_server(target) as service:
        remote = RemoteBackend(service.url)  # type: ignore[attr-defined]
        remote.open([0, 1, 2] * 20)
        assert target.memory.used > 0
        remote.close()
        until = time.monotonic() + 5
        while target.memory.used and time.monotonic() < until:
            time.sleep(0.01)
    assert target.memory.used == 0


def test_a_session_that_is_dropped_is_freed_before_the_next_call() -> None:
    with remote_target(ToyBackend()) as backend:
        session = backend.open([0, 1, 2] * 20)
        assert backend.memory.used > 0
        del session
        assert backend.memory.used == 0


def test_a_limit_of_the_server_is_not_changed_by_clients() -> None:
    target = ToyBackend()
    target.memory.limit(64)
    with target_server(target, limited=True) as service:
        remote = RemoteBackend(service.url)  # type: ignore[attr-defined]
        remote.memory.limit(1024)
        assert remote.memory.blocks == 4
        remote.close()


def test_a_server_that_dies_ends_the_request_with_a_sentence() -> None:
    with target_server(ToyBackend()) as service:
        remote = RemoteBackend(service.url)  # type: ignore[attr-defined]
        session = remote.open([0, 1])
    start = time.monotonic()
    with pytest.raises(
        SapwoodError, match=r"the server at tcp://.* (closed the connection|is gone)"
    ):
        remote.score([TreeInput(session, Tree(0))])
    assert time.monotonic() - start < 5
    remote.close()


def test_nobody_there_is_one_sentence() -> None:
    with pytest.raises(LinkError, match=r"no server answers at tcp://127\.0\.0\.1:9"):
        RemoteBackend("tcp://127.0.0.1:9")


def test_an_output_of_an_earlier_pass_is_refused() -> None:
    with remote_target(ToyBackend()) as backend:
        session = backend.open([0, 1])
        [old] = backend.score([TreeInput(session, Tree(0))])
        [new] = backend.score([TreeInput(session, Tree(1))])
        assert new.logits(0).shape == (3,)
        with pytest.raises(ValueError, match="out of date"):
            old.logits(0)
        with pytest.raises(SapwoodError, match="hidden states"):
            new.hidden([0], [1])
        with pytest.raises(SapwoodError, match="hidden states"):
            backend.watch([1])
