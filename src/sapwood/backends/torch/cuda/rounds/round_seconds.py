"""Captures the steps of rounds before the first request, and times them.

The seconds of the device are known before a round is run, so its shape can be chosen by them.
"""

from collections.abc import Callable, Collection
from functools import partial

import numpy as np
import torch

from sapwood.backends.torch.cuda.draft.batch_draft import BATCHES
from sapwood.backends.torch.cuda.draft.draft_buffers import DeviceTimer
from sapwood.backends.torch.cuda.pass_inputs import LADDER, MAX_ROWS, PassShape, bucket, step_up
from sapwood.backends.torch.cuda.rounds.device_rounds import MOST_REQUESTS, DeviceRounds, levels_of
from sapwood.backends.torch.cuda.rounds.launched_round import ResultColumns, result_columns
from sapwood.backends.torch.cuda.tree_rows import ManyTrees
from sapwood.core.tree import Tree
from sapwood.core.types import TreeShape

TIMED = 3  # replays that are timed together
CAPTURED = 2  # runs after which a step is captured
BRANCHES = 2  # children of a node of the trees that passes are timed over
USUAL = 0.6  # length of a usual text, as a share of the longest one of its bucket


class RoundSeconds:
    """Seconds of rounds on the device, by the steps that were captured for them."""

    def __init__(self, rounds: DeviceRounds) -> None:
        self.rounds = rounds
        self.passes: dict[tuple[PassShape, int], float] = {}  # by the rows of a tree
        self.verdicts: dict[tuple[int, ResultColumns], float] = {}  # by requests
        # of whole rounds that were asked for, by levels, requests and longest text
        self.known: dict[tuple[tuple[int, ...], int, int], float | None] = {}

    # ------------------------------------------------------------------------------- warm-up
    @torch.inference_mode()
    def capture(self, shape: TreeShape, count: int, longest: int, watched: Collection[int]) -> None:
        """Capture and time the steps of rounds of so many requests; padding takes their places."""
        rounds = self.rounds
        sizes = rounds.level_sizes(shape)
        if sizes is None:
            return
        each = 1 + min(shape.nodes, sizes.size - 1)
        if count * each > MAX_ROWS:
            return
        draft = rounds.builder.batch(count)
        draft.ensure_buffers(sizes)
        network = rounds.network
        network.buffers = network.buffer_sets[0]
        passed = rounds.pass_shape(count, each, longest)
        network.ready(passed, watched)
        rounds.check_steps()
        buffer = rounds.args_of(draft.requests)
        buffer.words.copy_(buffer.blank(draft.padding())[0])
        columns = result_columns(sizes.depth, each)
        # of batches of this size; smaller ones have captured steps of their own
        drawn = [rows for rows in LADDER if count // 2 * each < rows <= passed.rows]
        captured = [
            drafted := rounds.draft_step(draft, sizes),
            verified := rounds.verify_step(draft, columns, 0),
            *(rounds.verify_step(draft, columns, rows) for rows in drawn),
            rounds.step_of(
                ("place", draft.requests, passed, each, True),
                partial(rounds.place, draft, passed, each, whole=True),
            ),
        ]
        for step in captured:
            if not step.steady:
                for _ in range(CAPTURED):
                    step()
        rounds.place(draft, passed, each, whole=False)  # compiles it
        if (draft.requests, sizes) not in rounds.draft_seconds:
            rounds.draft_seconds[draft.requests, sizes] = self._time(drafted)
        if (draft.requests, columns) not in self.verdicts:
            self.verdicts[draft.requests, columns] = self._time(verified)
        if (passed, each) not in self.passes and not network.pool.used:
            network.inputs.send(usual_trees(count, each, longest, network.pool.slots), passed)
            run = partial(network.launch, (passed, 0, 0), partial(network.step, passed))
            for _ in range(CAPTURED):
                run()
            self.passes[passed, each] = self._time(run)

    def _time(self, step: Callable[[], None]) -> float:
        """Seconds of a captured step on the device."""
        device = self.rounds.device
        timer = DeviceTimer(device)
        timer.start()
        for _ in range(TIMED):
            step()
        timer.stop()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return timer.seconds() / TIMED

    # ------------------------------------------------------------------------------- a round
    def of(self, shape: TreeShape, requests: int, longest: int) -> float | None:
        """Seconds of a round of so many requests; None if it was not timed or does not fit."""
        bound = bucket(longest + shape.nodes + 1)
        name = levels_of(shape), requests, bound
        if name not in self.known:
            self.known[name] = self._sum(shape, requests, bound)
        return self.known[name]

    def _sum(self, shape: TreeShape, requests: int, longest: int) -> float | None:
        rounds = self.rounds
        sizes = rounds.level_sizes(shape)
        if sizes is None or requests > MOST_REQUESTS:
            return None
        each = 1 + min(shape.nodes, sizes.size - 1)
        if requests * each > MAX_ROWS:
            return None
        size = step_up(requests, BATCHES)
        parts = (
            rounds.draft_seconds.get((size, sizes)),
            self._pass(requests, each, longest),
            self.verdicts.get((size, result_columns(sizes.depth, each))),
        )
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def _pass(self, requests: int, each: int, longest: int) -> float | None:
        """Seconds of a pass over so many trees: between those of the batches that were timed."""
        above = step_up(requests, BATCHES)
        below = above if above == requests else above // 2
        found = [
            self.passes.get((self.rounds.pass_shape(count, each, longest), each))
            for count in (below, above)
        ]
        less, more = found
        if less is None or more is None:
            return None
        share = (requests - below) / (above - below) if above > below else 0.0
        return less + share * (more - less)


def usual_trees(requests: int, rows: int, longest: int, slots: int) -> ManyTrees:
    """The rows of a pass over full trees behind usual texts, one in each KV sequence."""
    tree = Tree(0)
    for node in range(1, rows):
        tree.add((node - 1) // BRANCHES, node, 0.5, sampled=True)
    lengths = np.full(requests, int(USUAL * longest))
    return ManyTrees.of([tree] * requests, slots * np.arange(requests), lengths)
