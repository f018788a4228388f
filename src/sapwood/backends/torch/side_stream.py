"""A second CUDA stream, for a draft model that runs beside the target's passes.

Streams of torch do not wait for the default stream, so the order of what both share, the draft
model's KV cache and buffers, is made by events: the draft begins behind what was launched before
`release`, and what is launched after `join` begins behind the draft.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class SideStream:
    """A stream of a device beside the one of the calling thread."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda  # parts of it have no types
        self._cuda = cuda
        self.device = device
        self.stream = cuda.Stream(device)
        self._released = cuda.Event()
        self._drafted = cuda.Event()

    def release(self) -> None:
        """Let the draft begin behind what this thread has launched so far."""
        self._released.record(self._cuda.current_stream(self.device))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Launch on the second stream, behind what was released."""
        with self._cuda.device(self.device), self._cuda.stream(self.stream):
            self.stream.wait_event(self._released)
            try:
                yield
            finally:
                self._drafted.record(self.stream)

    def join(self) -> None:
        """Let what this thread launches from now on begin behind the draft."""
        self._cuda.current_stream(self.device).wait_event(self._drafted)
