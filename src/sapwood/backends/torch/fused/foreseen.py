"""A growth that is on its way before the host knows the text it begins from.

The device walks the verdict; the new text's tokens, their number and the place of the root follow from it
there. So the next growth can be queued behind the verdict, and the host learns, commits and prepares the
next pass while it runs. Whether what was foreseen is what the next round asks for is seen when it asks; if
not, it is grown anew, and what ran in vain has changed nothing that counts.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sapwood.arrays import FloatArray
from sapwood.backends.torch.fused.desk import TEXT
from sapwood.backends.torch.fused.layer import Form
from sapwood.backends.torch.fused.seats import Seat
from sapwood.backends.torch.fused.tree import Claim, Parcel


@dataclass(slots=True)
class Foreseen:
    """What was asked for, and from where."""

    seat: Seat
    text: int  # rows of the seat's text before the verdict
    committed: int  # position of the root before it
    form: Form
    nodes: int
    lines: FloatArray | None
    stamp: int  # of the round whose verdict it follows
    seconds: float  # that such a growth takes
    begun: bool = False
    runner: Any = None  # queues the pass over the tree, where that can be
    queued: Any = None  # that pass

    def begins(self, parcel: Parcel, features: Tensor | Claim, tokens: Sequence[int], committed: int) -> bool:
        """True where this growth has begun from this text."""
        known = isinstance(features, Claim) and features.here and features.parcel is parcel
        counted = len(tokens) <= TEXT and committed == self.committed + len(tokens) and self.seat.text == self.text
        return self.begun and known and counted and self.stamp == parcel.stamp and tokens[-1] == int(parcel.there[1])

    def asks(self, seat: Seat, form: Form, nodes: int, lines: FloatArray | None) -> bool:
        """True where it is the growth that is asked for."""
        same = lines is self.lines or (lines is not None and np.array_equal(lines, self.lines))  # type: ignore[arg-type]
        return same and (seat, form, nodes) == (self.seat, self.form, self.nodes)

    def left(self, parcel: Parcel) -> float:
        """Seconds that the device still needs for it."""
        return max(self.seconds - (time.perf_counter() - parcel.judged), 0.0)
