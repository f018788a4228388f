"""The whole growth of an EAGLE-3 tree on the device: text rows, levels, the best nodes; one graph per form.

The body of a growth is an ordinary function over buffers that stay where they are. What changes from
round to round, lengths included, reaches it in one small transfer, so that a captured growth is right
for any text. It grows the tree that policy `beam` grows step by step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sapwood.arrays import FloatArray
from sapwood.backends.torch.fused.built import build_checked, build_grown
from sapwood.backends.torch.fused.capture import Captured, Memory
from sapwood.backends.torch.fused.desk import TEXT, Desk, Inbox, Stopwatch, angles_of, kernels, listed
from sapwood.backends.torch.fused.foreseen import Foreseen
from sapwood.backends.torch.fused.layer import Form, describe, form_of
from sapwood.backends.torch.fused.plain import HOME, LAST, NEW, NODES, ROOT_AT, ROOT_TOKEN, SEAT, TEXT_ROWS
from sapwood.backends.torch.fused.readiness import prepare
from sapwood.backends.torch.fused.reading import read
from sapwood.backends.torch.fused.seats import Pool, Seat
from sapwood.backends.torch.fused.stream import Stream
from sapwood.backends.torch.fused.tree import OPENED, ROWS, Claim, DeviceTree, Parcel, Round, Sequel
from sapwood.records import Levels, Outcome
from sapwood.tree import CAPACITY, Tree

POSITIONS = 8192  # for which angles are made at first
TIMED = 8  # one growth in so many is timed


class Grower:
    """Grows trees of one head on the device that holds it."""

    text = TEXT

    def __init__(self, net: Any, embedding: Tensor) -> None:
        self.device, self.layer = embedding.device, describe(net, embedding)
        self.vocab = len(self.layer.vocabulary)
        self.pool, self.parcel, self.inbox = Pool(self.layer), Parcel(self.device), Inbox(self.device)
        self.ops, self.angles = kernels(self.device), angles_of(self.layer, POSITIONS)
        self.thoughts = self.parcel.thoughts = embedding.new_zeros(TEXT, self.layer.fuse.shape[1])
        self.parcel.layers = tuple(net.config.features)
        self.desk: Desk | None = None
        self.captured: dict[tuple[Form, bool], Captured] = {}  # by form, and whether it follows a verdict
        self.memory = Memory()  # that all captured growths share
        self.age = 0  # of the pool when they were captured
        self.clock = Stopwatch(self.device)
        self.took: dict[Form, float] = {}  # seconds of each form, as last measured
        self.growths = 0
        self.foreseen: Foreseen | None = None

    def seat(self, text: int) -> Seat:
        """Room for the rows of one request whose text has so many."""
        return Seat(self.pool, text)

    def form(self, levels: Levels) -> Form | None:
        """The form of these levels; None where it is more than the buffers are made for."""
        form = form_of(levels.depth, levels.beam, min(levels.width, self.vocab))
        fits = form.size <= CAPACITY and form.opened <= OPENED and levels.nodes < ROWS and form.beam <= ROWS
        return form if fits else None

    def prepare(self, several: Sequence[Levels]) -> None:
        """Capture growths of these levels, so that no text has to wait for that."""
        prepare(self, several)

    def grow(
        self,
        seat: Seat,
        features: Tensor | Claim,
        tokens: Sequence[int],
        committed: int,
        levels: Levels,
        source: int = 0,
    ) -> Tree:
        """Read new text, features [rows, width] and the token after each, the root last; and grow a tree from it."""
        form, foreseen = self.form(levels), self.foreseen
        assert form is not None
        assert 0 < len(tokens) <= TEXT
        nodes, lines, self.foreseen = min(levels.nodes, form.size - 1), levels.lines(source), None
        begun = foreseen is not None and foreseen.begins(self.parcel, features, tokens, committed)
        if foreseen is not None and begun and foreseen.asks(seat, form, nodes, lines):
            self.parcel.claim, queued = None, foreseen.queued
            watch: Callable[[], float] = partial(float, foreseen.left(self.parcel))
        else:
            queued = None
            self._prepare(seat, form, committed)
            self._place(features)
            self._tell(seat, tokens, committed, nodes, lines)
            self.inbox.send()
            self.inbox.mark()
            watch = self._run(form)
        seat.text += len(tokens)
        return self._trees(form, nodes, source, watch, queued)

    def read(self, seat: Seat, features: Tensor, tokens: Sequence[int], first: int) -> None:
        """Read the beginning of a text that is too long for a growth; its first row stands at position `first`."""
        self._make_room(seat.text + len(tokens), first + len(tokens))
        read(self.ops, self.layer, self.angles, seat, features.contiguous(), tokens, first)

    def foresee(self, seat: Seat, committed: int, levels: Levels, source: int = 0) -> float:
        """Have the next tree grow as soon as the device knows the verdict on this one; the seconds that will take."""
        form = self.form(levels)
        if form is None or not self._ready(form):
            return 0.0
        nodes, lines = min(levels.nodes, form.size - 1), levels.lines(source)
        self._prepare(seat, form, committed + TEXT)
        if not self._ready(form):  # the room was not there
            return 0.0
        runner = self.parcel.runner
        home = None if runner is None else runner.home(nodes + 1, form.depth)
        self._tell(seat, (0,), committed, nodes, lines, home or 0)  # sent by the growth itself
        stamp, seconds = self.parcel.stamp, self.took[form]
        self.foreseen = Foreseen(seat, seat.text, committed, form, nodes, lines, stamp, seconds)
        self.foreseen.runner = None if home is None else runner
        self.parcel.sequel = Sequel(stamp, partial(self._go_on, self.foreseen))
        return seconds

    def _go_on(self, foreseen: Foreseen) -> None:
        """Grow what was foreseen from what the verdict says, and run it."""
        self.step(foreseen.form, follows=True)()
        self.inbox.mark()
        self.growths += 1
        foreseen.begun = True
        if foreseen.runner is not None:
            tell = partial(self.ops.proceed, self.parcel, self.inbox.facts, foreseen.runner.network.facts.there)
            foreseen.queued = foreseen.runner.queue(self.parcel, foreseen.nodes + 1, tell)

    def _ready(self, form: Form) -> bool:
        """True where such a growth needs no preparation and its seconds are known."""
        step = self.captured.get((form, False))
        return form in self.took and self.age == self.pool.age and step is not None and step.steady

    def _prepare(self, seat: Seat, form: Form, committed: int) -> None:
        """Room for a growth whose root lies there at most."""
        self._make_room(seat.text + TEXT + form.opened, committed + form.depth)
        self._desk(form)

    def claim(self, outcome: Outcome) -> Claim | None:
        """The features of the accepted path, where the verdict has left them for the next growth."""
        tree = outcome.tree
        ours = isinstance(tree, DeviceTree) and tree.turn.parcel is self.parcel
        return tree.turn.claim() if ours and tree.turn.path == outcome.verdict.path else None  # type: ignore[attr-defined]

    @torch.inference_mode()
    def _place(self, features: Tensor | Claim) -> None:
        """Put features where the growth reads them, unless they lie there."""
        if isinstance(features, Tensor) or not features.here:
            self.parcel.vacate()
            given = features if isinstance(features, Tensor) else features.tensor()
            self.thoughts[: len(given)] = given
        self.parcel.claim = None

    @torch.inference_mode()
    def _run(self, form: Form) -> Callable[[], float]:
        """Run a growth; how to ask for its seconds once the device has passed it."""
        step, self.growths = self.step(form), self.growths + 1
        if form in self.took and self.growths % TIMED:
            step()
            return partial(self.took.__getitem__, form)
        ready = step.steady
        self.clock.start()
        step()
        self.clock.stop()
        return partial(self._timed, form, ready)

    def _timed(self, form: Form, ready: bool) -> float:
        """Seconds of the growth that was measured last; kept where it prepared nothing."""
        seconds = self.clock.seconds()
        if ready:
            self.took[form] = seconds
        return seconds

    def _make_room(self, rows: int, positions: int) -> None:
        """So many rows in every seat, and angles of so many positions."""
        self.pool.make_room(rows)
        if positions > self.angles.shape[0]:
            self.angles = angles_of(self.layer, 2 * positions)
            self.captured.clear()

    def _tell(
        self, seat: Seat, tokens: Sequence[int], committed: int, nodes: int, lines: FloatArray | None, home: int = 0
    ) -> None:
        new = len(tokens)
        facts = {NEW: new, ROOT_AT: committed, TEXT_ROWS: seat.text, SEAT: seat.index}
        facts |= {NODES: nodes, LAST: new - 1, ROOT_TOKEN: tokens[-1], HOME: home}
        self.inbox.tell(listed(facts, tokens), lines)

    def _desk(self, form: Form) -> Desk:
        rows = max(TEXT, form.beam)
        if self.desk is None or self.desk.x.shape[0] < rows:
            self.captured.clear()
            self.desk = Desk(self.layer, rows, OPENED)
        return self.desk

    def step(self, form: Form, *, follows: bool = False) -> Captured:
        """The growth of this form; one that follows a verdict begins with what that says."""
        if self.age != self.pool.age:
            self.captured.clear()
            self.age = self.pool.age
        name = form, follows
        if name not in self.captured:
            depths, ranks = (torch.from_numpy(column).to(self.device) for column in (form.depths, form.ranks))
            body = partial(self.follow if follows else self.body, form, depths, ranks)
            known = follows or form in self.took  # then all its kernels are loaded
            self.captured[name] = Captured(body, self.device, self.memory, ready=known)
        return self.captured[name]

    # ------------------------------------------------------------------------------ what is captured
    def follow(self, form: Form, depths: Tensor, ranks: Tensor) -> None:
        """One growth from what a verdict says."""
        self.inbox.send()
        self.ops.onward(self.parcel, self.inbox.facts, self.inbox.tokens)
        self.body(form, depths, ranks)

    def body(self, form: Form, depths: Tensor, ranks: Tensor) -> None:
        """One growth; depths and ranks [size] are those of the grown nodes."""
        self._text(form)
        for depth in range(1, form.depth):
            self._level(form, depth)
        self.ops.cut(self.parcel, self.inbox.facts, depths, ranks, form.depth)

    def _text(self, form: Form) -> None:
        """Rows of the new text; the last one, the root's, goes through the whole layer."""
        desk, layer, ops, inbox = self._open_desk(), self.layer, self.ops, self.inbox
        x, base = desk.x[:TEXT], desk.base[:TEXT]
        ops.project(self.thoughts, layer.fuse, desk.states[:TEXT])
        ops.pair(layer, inbox.tokens, desk.states[:TEXT], x, base)
        ops.project_heads(layer, x, inbox.facts, self.angles, self.pool.keys, self.pool.values, desk.query, 0, 0)
        last = inbox.facts[LAST : LAST + 1]
        torch.index_select(base, 0, last, out=desk.root_base)
        torch.index_select(desk.query[:TEXT], 0, last, out=desk.root_query)
        self._speak(form, desk.root_query, desk.root_base, None, None, 0)

    def _level(self, form: Form, depth: int) -> None:
        """Choose the best nodes at this depth, run the head on them and add their children."""
        desk, layer, ops, inbox, parcel = self._open_desk(), self.layer, self.ops, self.inbox, self.parcel
        rows, above, before = form.rows(depth), form.rows(depth - 1), form.before(depth)
        first, stop = form.first(depth), form.first(depth + 1)
        opened, sees = parcel.field("opened")[before : before + rows], desk.sees[depth % 2, :rows]
        ops.select(
            layer,
            parcel.field("grown_reach")[first:stop],
            parcel.field("grown_tokens")[first:stop],
            first,
            form.width,
            desk.outputs[(depth - 1) % 2, :above],
            desk.sees[(depth - 1) % 2, :above] if depth > 1 else None,
            before,
            desk.x[:rows],
            desk.base[:rows],
            opened,
            sees,
        )
        keys, values = self.pool.keys, self.pool.values
        ops.project_heads(layer, desk.x[:rows], inbox.facts, self.angles, keys, values, desk.query, depth, before)
        self._speak(form, desk.query[:rows], desk.base[:rows], sees, opened, depth)

    def _speak(
        self, form: Form, query: Tensor, base: Tensor, sees: Tensor | None, owners: Tensor | None, depth: int
    ) -> None:
        """The rest of the layer for rows at this depth, and their children."""
        desk, layer, ops, rows = self._open_desk(), self.layer, self.ops, len(query)
        gated, read, logits = desk.gated[:rows], desk.read[:rows], desk.logits[:rows]
        middle = Stream(desk.middle[:rows], layer.mlp_norm, desk.margins[0])
        outputs = Stream(desk.outputs[depth % 2, :rows], layer.norm, desk.margins[1])
        count = form.before(depth) + rows if depth else 0
        ops.attend(layer, query, self.inbox.facts, self.pool.keys, self.pool.values, sees, read, count)
        ops.project(read, layer.out, middle, residual=base)
        ops.project(middle, layer.gate_up, gated, gate=True)
        ops.project(gated, layer.down, outputs, residual=middle.x)
        ops.project(outputs, layer.head, logits)
        ops.leaders(
            layer,
            logits,
            self.inbox.facts,
            self.inbox.table,
            owners,
            depth + 1,
            form.width,
            form.first(depth + 1),
            self.parcel,
        )

    def _open_desk(self) -> Desk:
        assert self.desk is not None
        return self.desk

    # ------------------------------------------------------------------------------------ the result
    def _trees(self, form: Form, nodes: int, source: int, watch: Callable[[], float], queued: Any) -> Tree:
        """The grown tree, with what is to be checked of it; both still lie on the device."""
        turn, mark = Round.begin(self.parcel, form.depth), 1 << source
        turn.queued = queued
        grown = DeviceTree(turn, form.size, partial(build_grown, form, mark))
        grown.pruned = checked = DeviceTree(turn, nodes + 1, partial(build_checked, form, nodes + 1, mark))
        checked.watch = watch
        return grown
