"""Steps run as they are at first and as replays of one graph from then on; the device is a fake."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep, GraphMemory, record

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class FakeCuda:
    """Notes what is asked of `torch.cuda`, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.pools: list[Any] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("CUDAGraph", "Stream", "current_stream", "stream", "graph_pool_handle"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "synchronize", lambda device: self.log.append("synchronize"))

    def CUDAGraph(self) -> Any:  # noqa: N802 (torch's name)
        outer = self

        class Graph:
            def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
                assert capture_error_mode == "relaxed"
                outer.pools.append(pool)
                outer.log.append("begin")

            def capture_end(self) -> None:
                outer.log.append("end")

            def replay(self) -> None:
                outer.log.append("replay")

        return Graph()

    def Stream(self) -> Any:  # noqa: N802 (torch's name)
        return FakeStream()

    def current_stream(self) -> Any:
        return FakeStream()

    @contextmanager
    def stream(self, side: Any) -> Iterator[None]:
        yield

    def graph_pool_handle(self) -> str:
        self.log.append("pool")
        return "pool"


class FakeStream:
    def wait_stream(self, other: Any) -> None:
        """Nothing runs here."""


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def counted(log: list[str]) -> Callable[[], None]:
    return lambda: log.append("step")


def test_without_a_device_a_step_is_run_every_time() -> None:
    log: list[str] = []
    step = CapturedStep(counted(log), CPU)
    assert step.steady
    for _ in range(3):
        step()
    assert log == ["step"] * 3
    assert step.graph is None


def test_the_first_run_is_plain_and_later_ones_are_replays(cuda: FakeCuda) -> None:
    step = CapturedStep(counted(cuda.log), CUDA)
    steady = [step.steady]
    step()
    assert cuda.log == ["step"]
    steady.append(step.steady)  # the next run captures
    step()
    assert cuda.log == ["step", "synchronize", "begin", "step", "end", "replay"]
    assert [*steady, step.steady] == [False, False, True]
    step()
    assert cuda.log[-1] == "replay"
    assert cuda.log.count("begin") == 1


def test_a_step_whose_kernels_are_loaded_is_captured_at_once(cuda: FakeCuda) -> None:
    step = CapturedStep(counted(cuda.log), CUDA, ready=True)
    step()
    assert cuda.log == ["synchronize", "begin", "step", "end", "replay"]


def test_capturing_runs_nothing_and_happens_once(cuda: FakeCuda) -> None:
    step = CapturedStep(counted(cuda.log), CUDA, ready=True)
    step.capture()
    step.capture()
    assert cuda.log == ["synchronize", "begin", "step", "end"]
    assert step.steady


def test_steps_share_one_pool_that_a_graph_of_its_own_keeps(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)
    memory = GraphMemory()
    steps = [CapturedStep(counted(cuda.log), CUDA, memory, ready=True) for _ in range(2)]
    for step in steps:
        step()
    assert cuda.log.count("pool") == 1
    assert cuda.pools == ["pool"] * 3  # the keeper's, and those of the two steps
    assert memory.keeper is not None
    assert memory.take() == "pool"


def test_a_step_without_shared_memory_takes_none(cuda: FakeCuda) -> None:
    CapturedStep(counted(cuda.log), CUDA, ready=True)()
    assert cuda.pools == [None]


@pytest.mark.parametrize("active", [True, False])
def test_nothing_is_collected_while_a_step_is_captured(cuda: FakeCuda, active: bool) -> None:
    before = gc.isenabled()
    seen: list[bool] = []
    try:
        gc.enable() if active else gc.disable()
        record(lambda: seen.append(gc.isenabled()), None)
        assert gc.isenabled() == active
    finally:
        gc.enable() if before else gc.disable()
    assert seen == [False]


def test_a_failing_step_ends_its_capture_and_is_not_kept(cuda: FakeCuda) -> None:
    def fail() -> None:
        raise ValueError("no such kernel")

    step = CapturedStep(fail, CUDA, ready=True)
    with pytest.raises(ValueError, match="no such kernel"):
        step()
    assert cuda.log == ["synchronize", "begin", "end"]
    assert step.graph is None
    assert gc.isenabled()
