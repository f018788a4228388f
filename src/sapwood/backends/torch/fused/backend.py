"""Token trees on a CUDA device: a fused network behind the waist, with sessions in its pool."""

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sapwood.arrays import FloatArray, IntArray
from sapwood.backends.torch.fused.answers import Answer, join
from sapwood.backends.torch.fused.attention import WORD
from sapwood.backends.torch.fused.fetch import in_order
from sapwood.backends.torch.fused.graphs import Lone
from sapwood.backends.torch.fused.network import Fused
from sapwood.backends.torch.fused.pool import Seat
from sapwood.backends.torch.fused.queued import Queued, Runner
from sapwood.backends.torch.fused.session import FusedSession
from sapwood.backends.torch.fused.tree import ROWS, DeviceTree, aboard
from sapwood.backends.torch.llama import Llama, describe
from sapwood.backends.torch.model import TorchBackend, check_apart
from sapwood.backends.torch.network import Rows
from sapwood.backends.torch.scores import TorchScores
from sapwood.errors import SapwoodError
from sapwood.protocols import Chunk, Memory, Scores, Work
from sapwood.tree import ROOT, Tree

STALE = "these scores are of a text that has moved on, and a pass has taken their place; read them before the next pass"


class FusedScores(TorchScores):
    """Rows of the last pass, in buffers that the next one overwrites: then they are copied, if they still count."""

    waited: float | None = None  # seconds that the host waited for a pass which needed nothing of it

    def __init__(self, answer: Answer, rows: slice, session: FusedSession, network: Fused | None = None) -> None:
        assert answer.logits is not None
        assert answer.best is not None
        if rows.stop - rows.start < answer.logits.shape[0]:
            kept = {layer: states[rows] for layer, states in answer.kept.items()}
            answer = Answer(answer.logits[rows], answer.best[rows], None, kept)
        assert answer.logits is not None
        super().__init__(answer.logits, answer.kept, static=rows.start == 0)
        assert answer.best is not None
        self.best = answer.best  # best token of each row, on the device
        self._network, self._span, self._stale = network, rows, False
        self._session, self._length = weakref.ref(session), session.length

    @property
    def device_logits(self) -> torch.Tensor:
        """Logits on the device, [n, vocab]."""
        return self._logits

    def argmax(self) -> IntArray:
        """Best next token of each row, [n]; the lowest id wins a tie."""
        if self._best is None:
            if self._stale:
                raise ValueError(STALE)
            network, rows = self._network, self._span
            self._best = self.best.cpu().numpy().copy() if network is None else network.told()[rows].copy()
        return self._best

    def follow(self, tree: Tree, temperature: float, key: Callable[[int], int]) -> tuple[tuple[int, ...], int] | None:
        """Path and bonus by the target's own tokens, where they can be drawn on the device."""
        if temperature == 0 or self._network is None or isinstance(tree, DeviceTree):
            found = super().follow(tree, temperature, key)
            if isinstance(tree, DeviceTree) and tree.turn.queued is not None:
                self.waited = tree.turn.parcel.waited
            return found
        said = self._network.sayer.say(tree.depths, temperature, key)
        if said is None:
            return None
        path = [ROOT]
        while (child := tree.child(path[-1], int(said[path[-1]]))) is not None:
            path.append(child)
        return tuple(path), int(said[path[-1]])

    def logits(self, row: int) -> FloatArray:
        """Raw logits of this row, float32 [vocab]."""
        return super().logits(row).copy()  # the buffer changes

    def leave(self) -> None:
        """Make room for the next pass: keep a copy while the session still stands where it was scored."""
        session, self._network = self._session(), None
        if session is not None and session.length == self._length:
            self._given, self.best = self._logits.clone(), self.best.clone()
            self.__dict__["_logits"], self._static = self._given, False
            self._hidden = {layer: states.clone() for layer, states in self._hidden.items()}
        else:
            self._given, self._hidden, self._stale = self._gone, {}, True
            self.__dict__.pop("_logits", None)

    def _gone(self) -> torch.Tensor:
        raise ValueError(STALE)


class FusedBackend(TorchBackend):
    """Scores token trees with a Llama-like model on a CUDA device."""

    runner = TorchBackend  # what runs a model that a drafter makes of the target's own layers

    def __init__(self, model: Any, name: str = "", slots: int = 0, found: Llama | None = None) -> None:
        found = found or describe(model)
        if found is None:
            raise SapwoodError(f"{name or type(model).__name__} is not Llama-like; use the torch backend for it")
        found = in_order(found)
        share(model, found)
        self.fused = Fused(found, slots)
        super().__init__(model, name, self.fused)
        self.info = dataclasses.replace(self.info, name="fused")
        self._lent: list[weakref.ref[FusedScores]] = []  # scores that still lie in the buffers of a pass

    def stage(self, tree: Tree) -> DeviceTree:
        """The same tree on the device, as if it had been grown there: what its pass costs is then all that is timed."""
        return aboard(tree, self.device)

    @property
    def memory(self) -> Memory:
        """The pool: a text takes a whole seat."""
        return self.fused.pool

    def _session(self, tokens: Sequence[int], tenant: str) -> FusedSession:
        """An empty session in a seat of the pool: nothing is kept of closed ones."""
        return FusedSession(Seat(self.fused.pool, self.fused.layout, len(tokens)))

    @torch.inference_mode()
    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """The chunks one after the other, then one pass over all trees; row i of a result is node `since + i`."""
        sessions: list[Any] = self._sessions(work)
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        self._make_room(work, chunks)
        if chunks:
            self._leave()  # their passes take the place of the last one's scores
        for chunk in chunks:
            self._read(chunk)
        if not work:
            return []
        answer = self._alone(sessions[0], work[0]) if len(work) == 1 else None
        network = self.fused if answer is not None else None  # its buffers hold the answer
        answer = answer or self._on_host(sessions, work)
        ends = list(itertools.accumulate(len(job.tree) - job.since for job in work))
        slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        found = [FusedScores(answer, rows, session, network) for rows, session in zip(slices, sessions, strict=True)]
        self._lent = [weakref.ref(scores) for scores in found]
        return list(found)

    def _make_room(self, work: Sequence[Work], chunks: Sequence[Chunk]) -> None:
        """Refuse what has no room before anything is changed; what lies on the device is not looked at for this."""
        jobs: list[Work | Chunk] = [*work, *chunks]
        rows = [len(job.tree) for job in work] + [len(chunk.tokens) for chunk in chunks]
        sessions = [self._own(job) for job in jobs]
        check_apart(sessions)
        for chunk in chunks:
            self._check_room(chunk.session.length + len(chunk.tokens))
        stops = [session.place(count)[2] for session, count in zip(sessions, rows, strict=True)]
        self.fused.pool.reserve(max(stops, default=0))

    def _alone(self, session: FusedSession, job: Work) -> Answer | None:
        """Run one whole tree of one session with few words from the host; None where it is not so simple."""
        tree, queued, session.queued = job.tree, session.queued, None
        if job.since:
            return None
        if isinstance(tree, DeviceTree) and tree.pruned is None:  # what lies there was cut for this pass
            return self._on_device(session, tree, queued)
        if len(tree) > WORD or not self._fits(session, tree.height):
            return None
        self._leave()
        session.start(tree)
        load = Lone(tree.tokens, tree.parents, tree.depths, session.seat.first, session.length, len(self.fused.windows))
        return self.fused.run_load(load, self._watched, head=True)

    def _on_device(self, session: FusedSession, tree: DeviceTree, queued: Queued | None) -> Answer | None:
        """Run a tree that lies on the device, unless that is under way."""
        if (rows := tree.rows) is None or len(tree) > ROWS or not self._fits(session, tree.turn.depth):
            return None
        self._leave()
        moved, turn, nodes = session.prepare(tree), tree.turn, len(tree)
        if queued is not None and queued.answers(turn, nodes, self._watched, self.fused):
            answer = self.fused.take_up(queued.desk, nodes, self._watched)
        else:
            first = session.seat.first
            answer = self.fused.follow(rows, turn.parcel.path, nodes, first, session.length, moved, self._watched)
        session.believe(tree)
        turn.parcel.runner = Runner(self, session, turn)
        return answer

    def _fits(self, session: FusedSession, depth: int) -> bool:
        """True when so deep a tree has room in the context and no window is shorter."""
        near = any(0 < window <= depth for window in self.fused.windows)
        return not near and session.length + depth + 1 <= self.info.context

    def _on_host(self, sessions: Sequence[FusedSession], work: Sequence[Work]) -> Answer:
        """Run trees whose columns the host knows."""
        for session in sessions:
            session.queued = None
        begun = [session.begin(job.tree, job.since) for session, job in zip(sessions, work, strict=True)]
        blocks, spans = [block for block, _ in begun], [span for _, span in begun]
        self._check_room(max(int(block.positions.max()) + 1 for block in blocks))
        self._leave()
        tokens = np.concatenate([job.tree.tokens[job.since :] for job in work])
        answer = self._answer(Rows(tokens, blocks, spans))
        for session, job in zip(sessions, work, strict=True):
            session.scored(job.tree, {})
        return answer

    def _answer(self, rows: Rows) -> Answer:
        """The answer to all rows; of several passes in memory of its own."""
        answers = self.fused.run(rows, self._watched, head=True)
        first = next(answers)
        if len(rows.tokens) == len(first.logits if first.logits is not None else ()):
            return first
        return join([first.copy(), *(answer.copy() for answer in answers)])

    def _own(self, job: Work | Chunk) -> FusedSession:
        session = super()._own(job)
        assert isinstance(session, FusedSession)
        return session

    def _leave(self) -> None:
        """Let scores that somebody still holds make room for the next pass."""
        for lent in self._lent:
            if (scores := lent()) is not None:
                scores.leave()
        self._lent = []


def share(model: Any, found: Llama) -> None:
    """Let the model's projections be views of the fused ones, so that no weight is kept twice."""
    for layer, fused in zip(model.model.layers, found.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        for whole, parts in (
            (fused.qkv, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (fused.out, (attention.o_proj,)),
            (fused.gate_up, (mlp.gate_proj, mlp.up_proj)),
            (fused.down, (mlp.down_proj,)),
        ):
            start = 0
            for part in parts:
                stop = start + len(part.weight)
                part.weight.data, start = whole[start:stop], stop
