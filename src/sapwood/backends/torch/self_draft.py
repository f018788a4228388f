"""Self-drafting: a cheaper variant of the target that reads the target's keys and values.

A draft is written to the slots of the target's tree, after the committed text, and is overwritten
by the target's pass. So a variant never prefills, and its context is exact. A variant with a window
copies the keys that it sees, once each; it may also choose keys by the queries of the target's last
pass, which the model's own code records (`hf.key_choice`). The int8 and CUDA networks record none:
there the same number of last keys is seen instead.
"""

import copy
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Self

from torch import Tensor

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.hf.hf_network import HfNetwork
from sapwood.backends.torch.hf.key_choice import copy_chosen
from sapwood.backends.torch.kv_slots import KvLayout, KvSlots, RowSpan
from sapwood.backends.torch.network import MaskBlock, Network, PartialNetwork
from sapwood.backends.torch.session import TorchSession
from sapwood.core.protocols import Capabilities, PrefillChunk, Session, TargetOutput, TreeInput
from sapwood.core.tree import Tree

SLACK = 4  # a window grows by 1 / SLACK before it is copied again


@dataclasses.dataclass(frozen=True, slots=True)
class KeyBudget:
    """Keys that a variant sees: the first, the last, and chosen ones between them; 0: all."""

    sinks: int = 0
    recent: int = 0
    chosen: int = 0  # a multiple of `chunk`
    chunk: int = 1  # neighbouring keys that are chosen together

    @property
    def most(self) -> int:
        """Keys in sight after a choice."""
        return self.sinks + self.chosen + self.recent

    def unchosen(self) -> "KeyBudget":
        """As many keys without a choice: more of the last ones."""
        return KeyBudget(self.sinks, self.recent + self.chosen)


class SelfDraftBackend(TorchBackend):
    """A target made cheaper; see `TorchBackend.variant`."""

    def __init__(
        self, target: TorchBackend, *, skip: Collection[int], bits: int, keys: KeyBudget
    ) -> None:
        network: Network = (
            target.network
            if isinstance(target.network, PartialNetwork)
            else target.transformers_network
        )
        if skip:
            assert isinstance(network, PartialNetwork)
            network = network.skipping(skip)
        if bits:
            assert isinstance(network, PartialNetwork)
            network = network.rounded(bits)
        if keys.chosen:
            keys = keys if records(target.network) else keys.unchosen()
            network = copy.copy(network)  # its own passes are not recorded
            if isinstance(network, HfNetwork):
                network.records = False
        self.keys = keys
        super().__init__(target.model, target.info.model, network)

    @property
    def capabilities(self) -> Capabilities:
        """The model; it can share the target's sessions."""
        return dataclasses.replace(super().capabilities, share_session=self.share_session)

    def share_session(self, session: Session) -> "SharedKvSession | None":
        """A session over the target's own; None if its KV layout is different."""
        if not isinstance(session, TorchSession):
            return None
        slots = slots_for(session.slots, self.network.layout)
        if slots is None:
            return None
        return (
            WindowKvSession(session, slots, self.keys)
            if self.keys.recent
            else SharedKvSession(session, slots)
        )

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """One pass over all trees; an overwritten draft is run again from its root."""
        overwritten = [
            job.since if isinstance(job.session, SharedKvSession) and job.session.overwritten else 0
            for job in work
        ]
        jobs = [
            TreeInput(job.session, job.tree) if since else job
            for job, since in zip(work, overwritten, strict=True)
        ]
        found: list[Any] = super().score(jobs, chunks)
        return [
            scores.after(since) if since else scores
            for scores, since in zip(found, overwritten, strict=True)
        ]


def records(network: Network) -> bool:
    """Have a target's network keep the queries of its passes; False if it cannot."""
    return isinstance(network, HfNetwork) and network.record_queries()


def slots_for(slots: KvSlots, layout: KvLayout) -> KvSlots | None:
    """A session's slots for a network of this layout; None if they cannot be viewed so."""
    if slots.layout is layout:
        return slots
    return SlotView(slots, layout) if slots.contiguous and len(layout.shapes) == 1 else None


class SlotView(KvSlots):
    """A sequence of the CUDA pool as KV slots that the model's own code reads and writes."""

    def __init__(self, sequence: Any, layout: KvLayout) -> None:
        self.sequence = sequence
        self.layout = layout

    @property
    def buffers(self) -> list[Tensor]:  # type: ignore[override]
        """The sequence's part of the pool, [2 * layers, heads, slots, width].

        Accepted paths that wait to be moved lie where a draft writes: they are moved first.
        """
        pool = self.sequence.pool
        pool.run_moves()
        return [pool.kept[:, self.sequence.index].transpose(1, 2)]

    @property
    def writer(self) -> Any:
        """The last writer of the tree in flight, through any view of the sequence."""
        return self.sequence.writer

    @writer.setter
    def writer(self, writer: Any) -> None:
        """Set the last writer, for all views."""
        self.sequence.writer = writer

    def reserve(self, size: int, used: int) -> None:
        """Make room for `size` slots; all keep what they hold."""
        self.sequence.reserve(size, used)


class SharedKvSession(TorchSession):
    """The target's session for a variant, which drafts on it; the target commits."""

    def __init__(self, base: TorchSession, slots: KvSlots) -> None:
        super().__init__(slots)
        self.base = base

    @property
    def length(self) -> int:
        """Committed tokens of the target's session."""
        return self.base.length

    @property
    def overwritten(self) -> bool:
        """True if another session has overwritten the draft."""
        return self.slots.writer is not self

    def place(self, rows: int, since: int = 0) -> tuple[KvSlots, int, int]:
        """Positions of a draft of so many rows, after the target's committed text."""
        return self.slots, self.length + since, self.length + rows

    def begin(self, tree: Tree, since: int) -> tuple[MaskBlock, RowSpan]:
        """Reserve the rows of a draft after the target's committed text."""
        self.base._run_deferred()
        self._length = self.base.length
        self.base.entered = None
        return super().begin(tree, since)

    def commit(self, path: Sequence[int]) -> None:
        """Drop the draft: the target has committed the accepted path with its own keys."""
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


class WindowKvSession(SharedKvSession):
    """Copies of the first, the last and chosen keys of the target's session.

    They keep their true positions, which are those of the rotary embedding in the keys.
    """

    def __init__(self, base: TorchSession, slots: KvSlots, keys: KeyBudget) -> None:
        self.keys = keys
        self.source = slots
        # a chunk more: the last keys begin where a chunk ends
        size = keys.most + keys.recent // SLACK + keys.chunk
        super().__init__(base, KvSlots(slots.layout, size))
        self.copied = 0  # tokens of the text whose keys are copied

    def place(self, rows: int, since: int = 0) -> tuple[KvSlots, int, int]:
        """No positions to reserve: its own slots grow in `begin`."""
        return self.slots, 0, 0

    def begin(self, tree: Tree, since: int) -> tuple[MaskBlock, RowSpan]:
        """Reserve the rows of a draft after the visible keys."""
        if since == 0:
            self.base._run_deferred()
            self._catch_up()
        block, span = TorchSession.begin(self, tree, since)
        return dataclasses.replace(block, gap=self.length - self._length), span

    def _catch_up(self) -> None:
        """Copy keys of newly committed tokens; a full window is built anew."""
        length = self.length
        keys = self.keys
        new = length - self.copied
        if new < 0 or self._length + new > keys.most + keys.recent // SLACK:
            self._rebuild(length)
        else:
            self.slots.take(self.source, self.copied, length, self._length)
            self._length += new
        self.copied = length

    def _rebuild(self, length: int) -> None:
        """Copy the first keys, chosen ones and the last."""
        keys = self.keys
        first = min(keys.sinks, length)
        start = max(first, length - keys.recent)
        start -= (start - first) % keys.chunk  # chunks are whole
        self.slots.take(self.source, 0, first, 0)
        count = min(keys.chosen, start - first)
        if count < start - first and count:
            copy_chosen(self.source, self.slots, range(first, start), first, count, keys.chunk)
        else:
            self.slots.take(self.source, start - count, start, first)
        self.slots.take(self.source, start, length, first + count)
        self._length = first + count + length - start
