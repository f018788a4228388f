"""Drafting with fewer bits: weights in whole steps, less and less exact."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cpu_int8.linear import Int8Linear, SplitLinear, unpack
from sapwood.backends.torch.hf.submodel import coarse
from tests.helpers.random_trees import random_tree
from tests.helpers.self_draft_targets import TEXT, each_target, rows_of, target


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


def largest(weight: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each row, [rows, 1]."""
    return weight.abs().amax(1, keepdim=True)


@pytest.mark.parametrize("seed", range(8))
def test_fewer_bits_round_weights_to_whole_steps(seed: int) -> None:
    weight = torch.randn(5, 33, generator=torch.Generator().manual_seed(seed))
    steps = largest(weight) / 7
    counts = coarse(weight, 4) / steps
    assert (counts - counts.round()).abs().max() < 1e-5
    assert (counts - weight / steps).abs().max() <= 0.5 + 1e-5
    fine = SplitLinear(weight)
    same = fine.rounded(8)
    assert type(same) is Int8Linear
    assert same.packed is fine.packed  # the same weights, rows in fewer bits
    # packing rounds once more, to steps of a 127th of a row's largest weight: a tolerance that does
    # not grow with that weight fails where it is large
    wanted = coarse(unpack(fine.packed), 4)
    gaps = (unpack(fine.rounded(4).packed) - wanted).abs() / (largest(wanted) / 127)
    assert gaps.max() <= 0.5 + 1e-5


@each_target
def test_fewer_bits_say_less_and_less_exactly(kind: str) -> None:
    backend = target(kind)
    tree = random_tree(24)
    exact = rows_of(backend, backend.open(TEXT), tree)
    gaps = []
    for bits in (8, 6, 4, 2):
        made = backend.variant(bits=bits)
        session = made.share_session(backend.open(TEXT)) or made.open(TEXT)
        gaps.append(float(np.abs(rows_of(made, session, tree) - exact).mean()))
    assert 0 < gaps[0] < gaps[1] < gaps[2] < gaps[3]


def test_a_float_target_on_a_cpu_drafts_in_packed_weights_with_keys_of_its_own() -> None:
    stock = target("stock")
    made = stock.variant(bits=8)
    assert made.info.dtype == "int8"
    assert made.share_session(stock.open(TEXT)) is None
    assert stock.variant(bits=8).model is stock.model
    assert target("packed").variant(bits=8).share_session(target("packed").open(TEXT)) is not None
