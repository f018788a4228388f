"""Trees of several requests drafted together, against those that each request has alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sapwood.backends.torch.cuda.draft import reference, tree_builder
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.torch.cuda.kernels.prenorm import PrenormRows
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
