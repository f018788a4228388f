"""A target that drafts for itself: cheaper, and over the keys and values it has already.

A draft is written where the target's own tree will be, after the committed text, and is gone when the
target writes there. So a variant never reads the text itself, and what it reads is exact. One that sees
few keys copies those it sees, once each.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Self

from torch import Tensor

from sapwood.backends.torch.cache import Layout, Slots, Span
from sapwood.backends.torch.mask import Block
from sapwood.backends.torch.model import TorchBackend, stock
from sapwood.backends.torch.network import Divisible, Network
from sapwood.backends.torch.session import TorchSession
from sapwood.protocols import Chunk, Scores, Session, Work
from sapwood.tree import Tree

SLACK = 4  # a window grows by 1 / SLACK before it is copied anew


class Variant(TorchBackend):
    """A target made cheaper; see `TorchBackend.variant`."""

    def __init__(self, target: TorchBackend, *, skip: Collection[int], bits: int, sinks: int, recent: int) -> None:
        network: Network = target.network if isinstance(target.network, Divisible) else stock(target.model)
        if skip:
            assert isinstance(network, Divisible)
            network = network.skipping(skip)
        if bits:
            assert isinstance(network, Divisible)
            network = network.rounded(bits)
        self.sinks, self.recent = sinks, recent
        super().__init__(target.model, target.info.model, network)

    def over(self, session: Session) -> "Lens | None":
        """A session that goes on from the target's own, wherever that stands; None where its keys are not ours."""
        if not isinstance(session, TorchSession):
            return None
        slots = shown(session.slots, self.network.layout)
        if slots is None:
            return None
        return Window(session, slots, self.sinks, self.recent) if self.recent else Lens(session, slots)

    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """One pass over all of it; a draft that another one has overwritten is written again from its root."""
        lost = [job.since if isinstance(job.session, Lens) and job.session.lost else 0 for job in work]
        jobs = [Work(job.session, job.tree) if since else job for job, since in zip(work, lost, strict=True)]
        found: list[Any] = super().score(jobs, chunks)
        return [scores.after(since) if since else scores for scores, since in zip(found, lost, strict=True)]


def shown(slots: Slots, layout: Layout) -> Slots | None:
    """A session's slots as a network of this layout wants them; None where it keeps something else in them."""
    if slots.layout is layout:
        return slots
    return Seated(slots, layout) if slots.seated and len(layout.shapes) == 1 else None


class Seated(Slots):
    """A seat in the pool of fused passes, as slots that the model's own code can read and write."""

    def __init__(self, seat: Any, layout: Layout) -> None:
        self.seat, self.layout = seat, layout

    @property
    def buffers(self) -> list[Tensor]:  # type: ignore[override]
        """The seat's part of the pool, [2 * layers, heads, slots, width]."""
        return [self.seat.pool.kept[:, self.seat.index].transpose(1, 2)]

    def reserve(self, size: int, used: int) -> None:
        """Make room for `size` slots; all keep what they hold."""
        self.seat.reserve(size, used)


class Lens(TorchSession):
    """The target's session, seen by a variant: it can be drafted on, and the target commits."""

    def __init__(self, base: TorchSession, slots: Slots) -> None:
        super().__init__(slots)
        self.base = base

    @property
    def length(self) -> int:
        """Committed tokens, as the target has them."""
        return self.base.length

    @property
    def lost(self) -> bool:
        """True where somebody else wrote over the draft."""
        return self.slots.writer is not self

    def place(self, rows: int, since: int = 0) -> tuple[Slots, int, int]:
        """Where a draft of so many rows is written, after what the target has committed."""
        return self.slots, self.length + since, self.length + rows

    def begin(self, tree: Tree, since: int) -> tuple[Block, Span]:
        """Make room for the rows of a draft after what the target has committed."""
        self.base._tidy()
        self._length, self.base.entered = self.base.length, None
        return super().begin(tree, since)

    def commit(self, path: Sequence[int]) -> None:
        """Drop the draft: what stays of it, the target has committed with keys of its own."""
        self.advance(0)

    def rewind(self, length: int) -> None:
        """Refuse: the text is the target's."""
        raise ValueError("a variant drafts on the target's text and cannot rewind it")

    def fork(self) -> Self:
        """Refuse: the text is the target's."""
        raise ValueError("a variant drafts on the target's text; fork the target's session")

    def close(self) -> None:
        """Leave the target's session as it is."""
        self._slots = None


class Window(Lens):
    """The first and the last keys of the target's session, copied to slots of its own, at their true positions."""

    def __init__(self, base: TorchSession, slots: Slots, sinks: int, recent: int) -> None:
        self.sinks, self.recent, self.source = sinks, recent, slots
        super().__init__(base, Slots(slots.layout, sinks + recent + recent // SLACK))
        self.copied = 0  # tokens of the text up to which keys are here

    def place(self, rows: int, since: int = 0) -> tuple[Slots, int, int]:
        """Nothing that could be full: the slots are its own, and grow when the draft begins."""
        return self.slots, 0, 0

    def begin(self, tree: Tree, since: int) -> tuple[Block, Span]:
        """Make room for the rows of a draft after the keys that are seen."""
        if since == 0:
            self.base._tidy()
            self._catch_up()
        block, span = TorchSession.begin(self, tree, since)
        return dataclasses.replace(block, gap=self.length - self._length), span

    def _catch_up(self) -> None:
        """Copy the keys of what was committed; where there are too many, begin anew with the first and the last."""
        length, most = self.length, self.sinks + self.recent
        new = length - self.copied
        if new < 0 or self._length + new > most + self.recent // SLACK:
            first = min(self.sinks, length)
            start = max(first, length - self.recent)
            self.slots.take(self.source, 0, first, 0)
            self.slots.take(self.source, start, length, first)
            self._length = first + length - start
        else:
            self.slots.take(self.source, self.copied, length, self._length)
            self._length += new
        self.copied = length
