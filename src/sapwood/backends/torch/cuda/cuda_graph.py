"""A function over static buffers, run eagerly once, then captured as a CUDA graph and replayed."""

import gc
from collections.abc import Callable
from typing import Any

import torch


class GraphMemory:
    """A memory pool shared by captured steps.

    It holds a small graph of its own: torch drops a pool with its last graph.
    """

    def __init__(self) -> None:
        self.handle: Any = None
        self.keeper: Any = None

    def take(self) -> Any:
        """The pool to capture in."""
        if self.handle is None:
            cuda: Any = torch.cuda
            self.handle = cuda.graph_pool_handle()
            self.keeper = record(lambda: torch.zeros(1, device="cuda"), self.handle)
        return self.handle


def record(step: Callable[[], object], pool: Any) -> Any:
    """Capture a step as a graph.

    Not by `torch.cuda.graph`, which first runs the garbage collector: with transformers loaded that
    takes several times as long as the capture, in the middle of a text. The mode is the one that
    lets kernels be loaded meanwhile.
    """
    cuda: Any = torch.cuda  # parts of it have no types
    side = cuda.Stream()
    graph = cuda.CUDAGraph()
    active = gc.isenabled()
    side.wait_stream(cuda.current_stream())
    gc.disable()  # nothing may be freed while a stream is captured
    try:
        with cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="relaxed")
            try:
                step()
            finally:
                graph.capture_end()
    finally:
        if active:
            gc.enable()
    cuda.current_stream().wait_stream(side)
    return graph


class CapturedStep:
    """Runs a step; on a GPU the second run and those after it are replays of one graph."""

    def __init__(
        self,
        step: Callable[[], None],
        device: torch.device,
        memory: GraphMemory | None = None,
        *,
        ready: bool = False,
    ) -> None:
        self.step = step
        self.device = device
        self.memory = memory
        self.graph: Any = None
        self.ready = ready  # kernels are loaded, by the first run at the latest

    @property
    def steady(self) -> bool:
        """True when the next run captures and loads nothing."""
        return self.graph is not None or self.device.type != "cuda"

    def __call__(self) -> None:
        """Run the step."""
        if self.graph is None and (self.device.type != "cuda" or not self.ready):
            self.step()
            self.ready = True
            return
        self.capture()
        self.graph.replay()

    def capture(self) -> None:
        """Capture the graph without running it, unless it exists; the step must be ready."""
        if self.graph is None:
            torch.cuda.synchronize(self.device)
            self.graph = record(self.step, None if self.memory is None else self.memory.take())
