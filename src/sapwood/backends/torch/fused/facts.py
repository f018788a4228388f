"""What the host tells a pass over a tree that lies on the device: a few numbers, sent by the pass itself."""

from typing import Any, NamedTuple

import torch


class Moved(NamedTuple):
    """Nodes of the path before that still lie where their tree was scored."""

    length: int  # committed tokens when it was
    stay: int  # nodes from the root on that lie in place
    stop: int  # nodes of the path


NOTHING = Moved(0, 0, 0)


class Facts:
    """First slot of the seat, committed tokens and rows of a pass; then what must be moved before it."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda  # parts of it have no types
        pinned = device.type == "cuda"
        self.there = torch.zeros(8, dtype=torch.int64, device=device)
        self.host = torch.zeros(8, dtype=torch.int64, pin_memory=pinned)
        self.here = self.host.numpy()
        self.read: Any = cuda.Event() if pinned else None  # when the last pass had them

    def tell(self, first: int, length: int, rows: int, moved: Moved) -> None:
        """Write what the next pass reads, once the last one has."""
        if self.read is not None:
            self.read.synchronize()
        self.here[:6] = first, length, rows, *moved

    def send(self) -> None:
        """Start the transfer; a part of the pass."""
        self.there.copy_(self.host, non_blocking=True)

    def mark(self) -> None:
        """The pass that reads them is on its way."""
        if self.read is not None:
            self.read.record()
