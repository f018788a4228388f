"""One pass of a batch: what is scored, what is timed, and what is said of a pass that was shared."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.protocols import PrefillChunk, TargetOutput, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import ALONE, BackendInfo, BatchLoad, SharedPass
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.batch import Batch
from sapwood.engine.cost_model import flat
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.scheduler_harness import Stage, Timed


class Device(ToyBackend):
    """A toy that counts how often the host waits for its last output."""

    waits = 0
    device = "cpu"

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, device=self.device)

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        found = super().score(work, chunks)
        for output in found:
            self.watch_output(output, output is found[-1])
        return found

    def watch_output(self, output: Any, last: bool) -> None:
        real = output.argmax

        def argmax() -> Any:
            assert last, "the last output is ready when all are"
            self.waits += 1
            return real()

        output.argmax = argmax


def batch(sizes: Sequence[tuple[int, int]], device: str = "cpu") -> tuple[Batch, Device]:
    """A batch of trees of so many nodes after so many committed tokens; the clock counts calls."""
    target = Device()
    target.device = device
    clock = itertools.count().__next__
    found = Batch(target, flat(), [], [], 0, lambda: float(clock()))
    for nodes, length in sizes:
        tree = Tree(0)
        for node in range(nodes):
            tree.add(node, 1, 0.5)
        found.inputs[object()] = TreeInput(target.open([0] * length), tree)  # type: ignore[index]
    return found, target


def chunk(target: ToyBackend, count: int) -> PrefillChunk:
    return PrefillChunk(target.start([0] * count, ""), [0] * count)


@pytest.mark.parametrize(
    ("device", "trees", "read", "waits"),
    [("cuda", 2, 0, 1), ("cuda", 1, 3, 1), ("cuda", 1, 0, 0), ("cuda", 0, 3, 0), ("cpu", 2, 0, 0)],
)
def test_a_device_is_waited_for_where_a_pass_is_shared(
    device: str, trees: int, read: int, waits: int
) -> None:
    found, target = batch([(2, 4)] * trees, device)
    done = found.score([chunk(target, read)] if read else [])
    assert target.waits == waits
    assert done.seconds == 1.0
    assert (len(done.outputs), done.prefill, done.whole) == (trees, read, True)


def test_a_shared_pass_counts_rows_and_what_they_saw() -> None:
    found, target = batch([(2, 10), (0, 2)])
    done = found.score([chunk(target, 5)])
    assert done.shared == SharedPass(2, 4, 5, (3 * 10 + 1 * 2) // 4, 1.0)
    assert [request for request, _ in done.outputs] == list(found.inputs)


def test_a_pass_of_one_tree_is_not_shared() -> None:
    found, _ = batch([(2, 10)])
    assert found.score([]).shared is None
    found, target = batch([(2, 10)])
    assert found.score([chunk(target, 1)]).shared is not None
    found, target = batch([])
    assert found.score([chunk(target, 1)]).shared is None


def test_trees_that_fail_alone_leave_the_others_in_a_pass_of_pieces() -> None:
    found, target = batch([(2, 4), (1, 4), (3, 4)])
    first, second, third = found.inputs
    broken = found.inputs[second].tree

    class Faulty(Device):
        def score(self, work: Any, chunks: Any = ()) -> Any:
            if any(each.tree is broken for each in work):
                raise RuntimeError("no")
            return super().score(work, chunks)

    target.__class__ = Faulty
    done, failed = found.score_apart()
    assert [request for request, _ in done.outputs] == [first, third]
    assert [(request, str(error)) for request, error in failed] == [(second, "no")]
    assert not done.whole
    assert list(found.inputs) == [first, third]
    assert done.shared == SharedPass(2, 7, 0, 0, 1.0)
    assert found.inputs[first].tree.tokens[ROOT] == 0


def test_a_pass_in_pieces_settles_nothing() -> None:
    found, _ = batch([(1, 2), (1, 2)])
    done, _ = found.score_apart()

    class Entries:
        entries = [1]  # noqa: RUF012

        def settle(self, *rest: Any) -> None:
            raise AssertionError("its seconds say nothing")

    found.stats = [Entries()]  # type: ignore[list-item]
    found.settle(done, measured=True)
    assert Entries.entries == []


def test_a_request_that_is_left_out_is_neither_scored_nor_counted() -> None:
    found, _ = batch([(1, 2), (1, 2)])
    first, second = found.inputs
    found.requests = [first, second]
    found.without(first)
    assert (list(found.inputs), found.requests) == ([second], [second])
    found.without(first)  # once is enough
    assert (list(found.inputs), found.requests) == ([second], [second])


def test_a_request_that_stays_alone_is_told_so_once() -> None:
    loads: list[BatchLoad] = []

    class Told(Fixed):
        def join(self, load: BatchLoad) -> None:
            loads.append(load)

    stage = Stage(ToyBackend(), Recipe(Ngram(), Chain(), Match(), Told(nodes=2)))
    stage.ask([0, 1, 2], Sampling(max_tokens=6))
    stage.run()
    assert loads == [ALONE]
    stage.ask([0, 1, 2], Sampling(max_tokens=6))
    stage.ask([1, 2], Sampling(max_tokens=6))
    stage.run()
    assert 2 in [load.trees for load in loads]


@pytest.mark.parametrize("total", [0, 1, 5])
def test_all_trees_of_a_pass_share_its_nodes(total: int) -> None:
    recipe = Recipe(DraftModel(model=ToyBackend()), Best(), Match(), Goodput(nodes=9, slack=1.0))
    stage = Stage(Timed(), recipe)  # rows cost nothing
    for prompt in ([0, 1, 2], [1, 2]):
        stage.ask(prompt, Sampling(max_tokens=99))
    stage.run(3)
    found = Batch(stage.target, stage.cost, [*stage.pool.running], [], 0, stage.now)
    assert len(found.requests) == 2
    assert not [*found.draft(99, 99), *found.prune(total)]
    assert sum(len(tree_input.tree) - 1 for tree_input in found.inputs.values()) == total
