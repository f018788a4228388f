"""Trees of several requests drafted together, against those that each request has alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sapwood.backends.torch.cuda.draft import reference, tree_builder
from sapwood.backends.torch.cuda.draft.batch_draft import BATCHES
from sapwood.backends.torch.cuda.draft.eagle_layer import CELLS
from sapwood.backends.torch.cuda.draft.feature_rows import PassFeatureRows
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.torch.cuda.kernels.prenorm import PrenormRows
from sapwood.backends.torch.cuda.pass_inputs import step_up
from sapwood.core.tree import Tree
from sapwood.core.types import TreeShape
from sapwood.core.whole_tree import TreeJob
from tests.helpers import triton_mode
from tests.helpers.eagle_heads import tame_head
from tests.helpers.triton_mode import DEVICE

COLUMNS = ("tokens", "parents", "depths", "ranks", "sources", "probs", "reach", "expanded")
TEXTS = (3, 1, 7, 2, 5)  # rows of new text of each request


def project_by_rows(x: Any, weight: Any, out: Any, **options: Any) -> None:
    """`reference.project`, row by row: a product of many rows may round otherwise."""
    residual = options.pop("residual", None)
    goal = out.x if isinstance(out, PrenormRows) else out
    given = x.x if isinstance(x, PrenormRows) else x
    for row in range(len(given)):
        one = slice(row, row + 1)
        normed = PrenormRows(x.x[one], x.scale, x.norm_buffers) if given is not x else x[one]
        base = None if residual is None else residual[one]
        PROJECT(normed, weight, goal[one], residual=base, **options)


PROJECT = reference.project


def linear_by_rows(x: Any, weight: Any) -> Any:
    return torch.cat([torch.mv(weight, row)[None] for row in x])


@pytest.fixture(params=["reference", "kernels"])
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two ways to run the steps of a draft."""
    if request.param == "kernels":
        triton_mode.require()
        from sapwood.backends.torch.cuda.draft import draft_kernels

        triton_mode.few_programs(monkeypatch)
        monkeypatch.setattr(tree_builder, "kernels", lambda device: draft_kernels)
    else:
        if DEVICE != "cpu":
            pytest.skip("products of torch on a GPU depend on the number of rows")
        monkeypatch.setattr(reference, "project", project_by_rows)
        monkeypatch.setattr(F, "linear", linear_by_rows)
        monkeypatch.setattr(tree_builder, "kernels", lambda device: reference)
    return str(request.param)


def make_builder() -> CudaTreeBuilder:
    torch.manual_seed(3)
    head = tame_head().to(DEVICE)
    return CudaTreeBuilder(head, torch.randn(61, 32, device=DEVICE))


class Texts:
    """Random features and tokens of several requests, the same for every builder."""

    def __init__(self, builder: CudaTreeBuilder, requests: int) -> None:
        self.builder = builder
        self.random = torch.Generator().manual_seed(5)
        self.caches = [builder.open(40) for _ in range(requests)]
        self.ends = [0] * requests
        for number in range(1, requests, 2):  # every other one has text already
            rows = 9 + number
            builder.read(self.caches[number], *self.text(rows), 0)
            self.ends[number] = rows

    def text(self, rows: int) -> tuple[torch.Tensor, list[int]]:
        features = torch.randn(rows, self.builder.hidden_states.shape[1], generator=self.random)
        tokens = torch.randint(61, (rows,), generator=self.random).tolist()
        return features.to(DEVICE), tokens

    def jobs(self, shapes: Sequence[TreeShape], texts: Sequence[int]) -> list[TreeJob]:
        made = []
        for number, (shape, rows) in enumerate(zip(shapes, texts, strict=True)):
            self.ends[number] += rows
            made.append(
                TreeJob(
                    self.builder,
                    self.caches[number],
                    [self.text(rows)],
                    self.ends[number],
                    shape,
                    number % 3,
                )
            )
        return made


def alone(builder: CudaTreeBuilder, job: TreeJob, shape: TreeShape) -> Tree:
    """The tree of a job by the draft of one request."""
    [(features, tokens)] = job.unread
    tree = builder.grow(job.cache, features, tokens, job.committed, shape, job.source)
    tree.load()
    assert tree.pruned is not None
    tree.pruned.load()
    return tree


def assert_equal(ours: Tree, theirs: Tree) -> None:
    assert len(ours) == len(theirs)
    for name in COLUMNS:
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name


def assert_both_equal(ours: Tree, theirs: Tree) -> None:
    assert_equal(ours, theirs)
    assert ours.pruned is not None
    assert theirs.pruned is not None
    assert_equal(ours.pruned, theirs.pruned)
    assert np.array_equal(ours.pruned.kept, theirs.pruned.kept)  # type: ignore[arg-type]


@pytest.mark.parametrize(("depth", "beam", "width"), [(3, 2, 3), (1, 4, 5)])
def test_each_request_has_the_tree_that_it_has_alone(
    ops: str, depth: int, beam: int, width: int
) -> None:
    shapes = [TreeShape(nodes, depth, beam, width) for nodes in (4, 1, 7)]
    builders = [make_builder() for _ in range(2)]
    both = [Texts(builder, len(shapes)) for builder in builders]
    for texts in (TEXTS[:3], (1, 2, 1)) if ops == "reference" else (TEXTS[:3],):
        ours, theirs = (one.jobs(shapes, texts) for one in both)
        trees = builders[0].build_batch(ours)
        assert not any(job.unread for job in ours)
        for tree, job, shape in zip(trees, theirs, shapes, strict=True):
            assert_both_equal(tree, alone(builders[1], job, shape))
        assert [job.cache.text for job in ours] == [job.cache.text for job in theirs]


def test_each_request_keeps_its_own_depth(ops: str) -> None:
    shapes = [TreeShape(6, 1, 3, 4), TreeShape(9, 3, 3, 4)]
    builders = [make_builder() for _ in range(2)]
    ours, theirs = (Texts(builder, 2).jobs(shapes, (2, 3)) for builder in builders)
    trees = builders[0].build_batch(ours)
    assert [tree.height for tree in trees] == [1, 3]
    for tree, job, shape in zip(trees, theirs, shapes, strict=True):
        assert_both_equal(tree, alone(builders[1], job, shape))


def test_each_request_has_its_own_acceptance_table(ops: str) -> None:
    table = np.stack((np.linspace(0.1, 0.3, CELLS), np.linspace(0.9, 0.4, CELLS)), 1)
    shapes = [
        TreeShape(5, 2, 2, 3, lines=lines)
        for lines in (lambda source: table, lambda source: None, lambda source: table)
    ]
    builders = [make_builder() for _ in range(2)]
    ours, theirs = (Texts(builder, 3).jobs(shapes, (2, 1, 1)) for builder in builders)
    for tree, job, shape in zip(builders[0].build_batch(ours), theirs, shapes, strict=True):
        assert_both_equal(tree, alone(builders[1], job, shape))


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "project", project_by_rows)
    monkeypatch.setattr(F, "linear", linear_by_rows)
    monkeypatch.setattr(tree_builder, "kernels", lambda device: reference)


SHAPE = TreeShape(5, 2, 2, 3)
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="drafts by torch alone")


@on_cpu
@pytest.mark.parametrize("requests", [1, 2, 5, 9])
def test_any_number_of_requests(by_rows: None, requests: int) -> None:
    shapes = [SHAPE] * requests
    texts = [1 + 3 * number % 16 for number in range(requests)]
    builders = [make_builder() for _ in range(2)]
    ours, theirs = (Texts(builder, requests).jobs(shapes, texts) for builder in builders)
    trees = builders[0].build_batch(ours)
    assert list(builders[0].batches) == [step_up(requests, BATCHES)]
    for tree, job in zip(trees, theirs, strict=True):
        assert_both_equal(tree, alone(builders[1], job, SHAPE))


@on_cpu
def test_more_requests_than_a_draft_holds(by_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_builder, "BATCHES", (1, 2))
    builders = [make_builder() for _ in range(2)]
    ours, theirs = (Texts(builder, 5).jobs([SHAPE] * 5, TEXTS) for builder in builders)
    trees = builders[0].build_batch(ours)  # the words of the first are read before the next come
    for tree, job in zip(trees, theirs, strict=True):
        assert_both_equal(tree, alone(builders[1], job, SHAPE))


@on_cpu
def test_features_are_rows_of_one_pass_or_tensors_of_their_own(by_rows: None) -> None:
    builders = [make_builder() for _ in range(2)]
    ours, theirs = (Texts(builder, 3).jobs([SHAPE] * 3, (3, 2, 4)) for builder in builders)
    states = torch.randn(9, builders[0].hidden_states.shape[1])
    (first, tokens), (second, more) = ours[0].unread[0], ours[2].unread[0]
    states[[1, 4, 8]] = first
    states[[0, 2]] = second[:2]
    ours[0].unread[0] = PassFeatureRows(states, [1, 4, 8]), tokens
    ours[2].unread[:] = [
        (PassFeatureRows(states, [0, 2]), more[:2]),
        (second[2:], more[2:]),
    ]
    for tree, job in zip(builders[0].build_batch(ours), theirs, strict=True):
        assert_both_equal(tree, alone(builders[1], job, SHAPE))
    assert torch.equal(PassFeatureRows(states, [4, 0]).tensor(), states[[4, 0]])


@on_cpu
def test_batches_and_single_drafts_take_turns_on_the_same_texts(by_rows: None) -> None:
    builders = [make_builder() for _ in range(2)]
    both = [Texts(builder, 2) for builder in builders]
    for turn in range(4):
        ours, theirs = (one.jobs([SHAPE] * 2, (2, 1 + turn)) for one in both)
        if turn % 2:
            trees = [alone(builders[0], job, SHAPE) for job in ours]
        else:
            trees = builders[0].build_batch(ours)
        for tree, job in zip(trees, theirs, strict=True):
            assert_both_equal(tree, alone(builders[1], job, SHAPE))


@on_cpu
def test_trees_that_do_not_fit_together_are_refused_before_anything_changes(by_rows: None) -> None:
    builder = make_builder()
    shapes = [TreeShape(5, 60, 1, 9), TreeShape(5, 2, 30, 30)]
    assert all(builder.fits(shape) for shape in shapes)
    jobs = Texts(builder, 2).jobs(shapes, (1, 2))
    with pytest.raises(ValueError, match="draft them one by one"):
        builder.build_batch(jobs)
    assert all(job.unread for job in jobs)
    assert [job.cache.text for job in jobs] == [0, 10]


@on_cpu
def test_words_that_were_not_read_survive_the_next_draft(by_rows: None) -> None:
    builders = [make_builder() for _ in range(2)]
    both = [Texts(builder, 2) for builder in builders]
    for_later = []
    for _ in range(2):
        ours, theirs = (one.jobs([SHAPE] * 2, (2, 1)) for one in both)
        wanted = [alone(builders[1], job, SHAPE) for job in theirs]
        for_later += list(zip(builders[0].build_batch(ours), wanted, strict=True))
    for tree, other in for_later:
        assert_both_equal(tree, other)


@on_cpu
def test_requests_that_are_not_there_write_to_the_scratch_sequence_only(by_rows: None) -> None:
    builder = make_builder()
    texts = Texts(builder, 4)
    assert builder.scratch.index not in {cache.index for cache in texts.caches}
    before = builder.pool.keys.clone()
    builder.build_batch(texts.jobs([SHAPE] * 3, (1, 2, 1)))
    changed = (builder.pool.keys != before).flatten(1).any(1)
    mine = {cache.index for cache in texts.caches[:3]} | {builder.scratch.index}
    assert set(changed.nonzero().flatten().tolist()) == mine
