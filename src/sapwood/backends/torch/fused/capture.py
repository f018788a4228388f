"""A function over buffers that stay where they are: run as it is, or captured once as a CUDA graph and replayed."""

import gc
from collections.abc import Callable
from typing import Any

import torch


class Memory:
    """Memory that captured steps share.

    A small graph of its own keeps it: torch forgets a pool whose last graph is dropped, and captures there no more.
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
    """The graph of a step.

    Not by `torch.cuda.graph`, which first looks for garbage among all objects of the process: on a host with
    transformers loaded that takes several times as long as the rest, in the middle of a text.
    """
    cuda: Any = torch.cuda  # parts of it have no types
    side, graph, active = cuda.Stream(), cuda.CUDAGraph(), gc.isenabled()
    side.wait_stream(cuda.current_stream())
    gc.disable()  # nothing may be freed while a stream is captured
    try:
        with cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
    finally:
        if active:
            gc.enable()
    cuda.current_stream().wait_stream(side)
    return graph


class Captured:
    """Runs a step; on a GPU the second run and those after it are replays of one graph."""

    def __init__(
        self, step: Callable[[], None], device: torch.device, memory: Memory | None = None, *, ready: bool = False
    ) -> None:
        self.step, self.device, self.memory = step, device, memory
        self.graph: Any = None
        self.ready = ready  # what kernels need is loaded: by the first run, if not before

    @property
    def steady(self) -> bool:
        """True where the next run prepares nothing."""
        return self.graph is not None or self.device.type != "cuda"

    def __call__(self) -> None:
        """Do the step."""
        if self.graph is None and (self.device.type != "cuda" or not self.ready):
            self.step()
            self.ready = True
            return
        self.capture()
        self.graph.replay()

    def capture(self) -> None:
        """Make the graph without running it, unless it is there; the step must be ready."""
        if self.graph is None:
            torch.cuda.synchronize(self.device)
            self.graph = record(self.step, None if self.memory is None else self.memory.take())
