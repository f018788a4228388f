"""Which optimizer turns which weights, and the draft vocabulary that heads begin with."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import AdamW, Muon

from sapwood.train.optimizers import optimizers
from sapwood.train.vocabulary import commonest, coverage

torch.set_num_threads(1)


class Head(nn.Module):
    """Inner matrices, outer matrices, a norm and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 8, bias=False)
        self.embed_tokens = nn.Embedding(8, 4)
        self.mlp = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.frozen = nn.Parameter(torch.zeros(4, 4), requires_grad=False)


def named(head: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    own = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    return {name for name, weight in head.named_parameters() if id(weight) in own}


def test_inner_matrices_have_one_optimizer_and_the_rest_another() -> None:
    head = Head()
    inner, outer = optimizers(head, rate=0.1, matrix_rate=0.2)
    assert isinstance(inner, Muon)
    assert isinstance(outer, AdamW)
    assert named(head, inner) == {"mlp.weight"}
    assert named(head, outer) == {
        "fc.weight",
        "fc.bias",
        "lm_head.weight",
        "embed_tokens.weight",
        "mlp.bias",
        "norm.weight",
        "norm.bias",
    }
    assert (inner.param_groups[0]["lr"], outer.param_groups[0]["lr"]) == (0.2, 0.1)
    assert outer.param_groups[0]["betas"] == (0.9, 0.95)
    assert {one.param_groups[0]["weight_decay"] for one in (inner, outer)} == {0.01}


def test_an_optimizer_without_weights_is_left_out() -> None:
    assert [type(one) for one in optimizers(nn.LayerNorm(4), 0.1, 0.2)] == [AdamW]
    assert [type(one) for one in optimizers(nn.Linear(4, 4, bias=False), 0.1, 0.2)] == [Muon]
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert optimizers(frozen, 0.1, 0.2) == []


def test_both_lower_a_loss() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    made = optimizers(head, 0.05, 0.05)
    inputs, wanted = torch.randn(2, 16, 4)
    seen = []
    for _ in range(25):
        loss = ((head(inputs) - wanted) ** 2).mean()
        seen.append(float(loss.detach()))
        for optimizer in made:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in made:
            optimizer.step()
    assert seen[-1] < 0.8 * seen[0]


# ------------------------------------------------------------------------------------- vocabulary
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 25))
def test_the_commonest_tokens_come_in_order(counts: list[int], size: int) -> None:
    found = commonest(np.array(counts), size).tolist()
    assert found == sorted(found)
    assert len(found) == min(size, len(counts))
    left = [token for token in range(len(counts)) if token not in found]
    least = min(counts[token] for token in found)
    assert all(counts[token] <= least for token in left)
    ties = [token for token in left if counts[token] == least]
    kept = [token for token in found if counts[token] == least]
    assert not ties or max(kept) < min(ties)  # of equals the lowest ids


def test_coverage_is_the_share_of_what_was_written() -> None:
    counts = np.array([1, 4, 0, 5])
    assert coverage(counts, torch.tensor([1, 3])) == pytest.approx(0.9)
    assert coverage(counts, torch.tensor([2])) == 0.0
    assert coverage(counts, commonest(counts, 99)) == 1.0
    assert coverage(np.zeros(4, np.int64), torch.tensor([0])) == 0.0
