"""Kernels between draft and pass of a batch write what their reference in torch writes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import RoundFields
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.reference import (
    FIRST_SLOT,
    NEW,
    ROOT_AT,
    SCALARS,
    TEXT_ROWS,
    words,
)
from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.rounds import round_reference
from sapwood.backends.torch.cuda.rounds.round_reference import (
    ARGS,
    BEFORE,
    CARRY,
    SEED,
    TEMPERATURE,
)
from sapwood.backends.torch.cuda.tree_rows import shape_of_trees
from sapwood.core.rng import KeyedRng, NoiseKey
from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.rounds import round_kernels

REQUESTS = 4
LIVE = 3
EACH = 6  # rows of a request
SLOTS = 40  # of a KV sequence


class Case:
    """Random arguments, trees and verdicts of a batch, on one device."""

    def __init__(self, device: str) -> None:
        draw = np.random.default_rng(5)
        self.device = device
        self.args = torch.from_numpy(draw.integers(0, 50, (REQUESTS, ARGS)))
        self.args[:, BEFORE] = torch.tensor([2, -1, 0, -1])
        self.args[:, SEED] = torch.tensor([3, -7, 1 << 40, 0])
        heat = torch.tensor([0.0, 0.5, 1.0, 0.0], dtype=torch.float64)
        self.args[:, TEMPERATURE] = heat.view(torch.int64)
        self.carry = torch.from_numpy(draw.integers(1, 16, (8, CARRY)))
        self.scalars = torch.zeros(REQUESTS, SCALARS, dtype=torch.int64)
        self.scalars[:, ROOT_AT] = torch.tensor([9, 12, 7, 1])
        self.scalars[:, FIRST_SLOT] = torch.tensor([0, 2 * SLOTS, SLOTS, 3 * SLOTS])
        self.scalars[:, NEW] = torch.tensor([2, 1, 3, 1])
        self.scalars[:, TEXT_ROWS] = torch.tensor([5, 8, 2, 0])
        self.live = torch.tensor([LIVE])
        self.fields = RoundFields.make(torch.device("cpu"), REQUESTS)
        parents = torch.tensor([[-1, 0, 0, 1, 1, 3], [-1, 0, 1, 2, 3, 4], [-1, 0, 0, 0, 2, 4]])
        depths = torch.tensor([[0, 1, 1, 2, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 1, 1, 2, 3]])
        for request in range(LIVE):
            own = self.fields.of_request(request)
            own.rows.parents.fill_(-1)
            own.field("tokens")[:EACH] = torch.arange(EACH) + 10 * request
            own.field("parents")[:EACH] = parents[request]
            own.field("depths")[:EACH] = depths[request]
            words(own, 5)
        self.target_tokens = torch.from_numpy(draw.integers(0, 40, REQUESTS * EACH))
        # accepted: a path with a gap, all of a chain, and the root alone
        self.target_tokens[: 2 * EACH] = torch.tensor([1, 4, 0, 0, 9, 0, *range(11, 16), 39])
        self.fields = self.moved(self.fields)
        for name in ("args", "carry", "scalars", "live", "target_tokens"):
            setattr(self, name, getattr(self, name).to(device))

    def moved(self, fields: RoundFields) -> RoundFields:
        return RoundFields(fields.words.to(self.device), fields.seen.to(self.device))

    def zeros(self, *size: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self.device)


def both(step: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The results of a step by the kernels and by the reference."""
    made = []
    for ops, device in ((round_kernels, DEVICE), (round_reference, "cpu")):
        made.append([result.cpu() for result in step(ops, Case(device))])
    return made[0], made[1]


def same(found: tuple[list[Tensor], list[Tensor]]) -> None:
    for ours, wanted in zip(*found, strict=True):
        assert torch.equal(ours, wanted)


def test_arguments_of_the_next_draft() -> None:
    def step(ops: Any, case: Case) -> list[Tensor]:
        scalars, roots = case.zeros(REQUESTS, SCALARS), case.zeros(REQUESTS)
        tokens = case.zeros(REQUESTS * MAX_NEW_ROWS)
        ops.take_args(case.args, case.carry, scalars, tokens, roots)
        return [scalars, tokens, roots]

    same(both(step))


def test_features_of_the_round_before() -> None:
    def step(ops: Any, case: Case) -> list[Tensor]:
        width = 600
        draw = torch.Generator().manual_seed(0)
        features = torch.randn(8, MAX_NEW_ROWS, width, generator=draw).to(case.device)
        goal = torch.randn(REQUESTS * MAX_NEW_ROWS, width, generator=draw).to(case.device)
        ops.take_features(case.args, features, goal)
        return [goal]

    same(both(step))


@pytest.mark.parametrize("rows", [32, 64])
@pytest.mark.parametrize(("sparse", "whole"), [(False, True), (True, True), (True, False)])
def test_inputs_of_the_pass(rows: int, sparse: bool, whole: bool) -> None:
    shape = shape_of_trees(rows, 512, True, HeadSizes(4, 2, 16), sparse=sparse)

    def step(ops: Any, case: Case) -> list[Tensor]:
        inputs = case.zeros(shape.size + rows) + 77  # of an earlier pass
        ops.place_trees(case.fields, case.scalars, case.live, inputs, shape, EACH, whole=whole)
        return [inputs]

    same(both(step))


def test_noise_keys_are_those_of_the_host() -> None:
    def step(ops: Any, case: Case) -> list[Tensor]:
        keys = case.zeros(LIVE * EACH)
        heat = case.zeros(LIVE * EACH, dtype=torch.float64)
        ops.noise_keys(case.args, case.fields, case.scalars, keys, heat, EACH)
        return [keys, heat]

    found = both(step)
    same(found)
    keys, heat = found[0]
    # row 3 of the first request is at depth 2 behind a root at position 9
    assert int(keys[3]) % 2**64 == KeyedRng(3).key(NoiseKey(12))
    assert int(keys[EACH]) % 2**64 == KeyedRng(-7).key(NoiseKey(13))
    assert heat[EACH].item() == 0.5


def verified(ops: Any, case: Case) -> None:
    ops.walk_trees(case.fields, case.target_tokens, case.live, EACH)


def test_accepted_paths() -> None:
    def step(ops: Any, case: Case) -> list[Tensor]:
        verified(ops, case)
        verdict = case.fields.field("verdict")
        return [verdict[:, :2], *(verdict[b, 2 : 2 + int(verdict[b, 0])] for b in range(LIVE))]

    found = both(step)
    same(found)
    assert found[0][1].tolist() == [0, 1, 4]
    assert found[0][2].tolist() == [0, 1, 2, 3, 4, 5]
    assert found[0][3].tolist() == [0]


def test_keys_and_values_of_accepted_paths_move() -> None:
    def step(ops: Any, case: Case) -> list[Tensor]:
        draw = torch.Generator().manual_seed(1)
        pool = torch.randn(4, REQUESTS, SLOTS, 2, 24, generator=draw).to(case.device)
        verified(ops, case)
        ops.keep_paths(pool, case.fields, case.scalars, case.live)
        return [pool]

    same(both(step))


def test_text_and_features_for_the_next_round() -> None:
    def step(ops: Any, case: Case) -> list[Tensor]:
        draw = torch.Generator().manual_seed(2)
        layers = [torch.randn(32, width, generator=draw).to(case.device) for width in (40, 40, 24)]
        features = case.zeros(8, MAX_NEW_ROWS, 104, dtype=torch.float32)
        verified(ops, case)
        ops.carry_over(case.fields, case.scalars, case.live, case.carry)
        ops.carry_features(case.fields, layers, case.live, features, EACH)
        return [case.carry[:, : 4 + 6], features]

    found = both(step)
    same(found)
    # the second request took a path of five nodes and the bonus behind it
    assert found[0][0][1].tolist() == [6, 18, 9, 39, 11, 12, 13, 14, 15, 39]
