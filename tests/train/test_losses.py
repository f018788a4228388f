"""The loss against soft labels: its value, its slope by differences, its pieces, and what it leaves alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sapwood.errors import SapwoodError
from sapwood.train import losses
from sapwood.train.eagle3 import sharpen
from sapwood.train.losses import DIVERGENCES, check_divergence, compare, measure, soft_cross

torch.set_num_threads(1)


def made(
    rows: int, vocab: int, width: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """States, output head, labels, weights and the labels' first choices."""
    torch.manual_seed(seed)
    states = torch.randn(rows, width, dtype=dtype)
    head = torch.randn(vocab, width, dtype=dtype)
    probs = torch.randn(rows, vocab, dtype=dtype).softmax(-1)
    weights = torch.rand(rows, dtype=dtype)
    return states, head, probs, weights, probs.argmax(-1)


def slowly(states: Tensor, head: Tensor, probs: Tensor, weights: Tensor) -> Tensor:
    """The formula, row by row and token by token."""
    total = torch.zeros((), dtype=states.dtype)
    for state, label, weight in zip(states, probs, weights, strict=True):
        logs = (head @ state).log_softmax(0)
        for token in range(len(head)):
            total = total - weight * label[token] * logs[token]
    return total


# ------------------------------------------------------------------------------------------ value
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 2), (6, 3, 4), (7, 11, 5)])
def test_the_loss_is_the_weighted_cross_entropy(shape: tuple[int, int, int]) -> None:
    states, head, probs, weights, best = made(*shape)
    loss, right = soft_cross(states, head, probs, weights, best)
    assert float(loss) == pytest.approx(float(slowly(states, head, probs, weights)))
    agree = ((states @ head.t()).argmax(-1) == best).double()
    assert float(right) == pytest.approx(float((agree * weights).sum()))


def test_hand_computed_values() -> None:
    states = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    head = torch.tensor([[0.0], [torch.log(torch.tensor(3.0))]], dtype=torch.float64)
    probs = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    loss, right = soft_cross(states, head, probs, weights, torch.tensor([0, 1]))
    # row 0: both tokens have chance 1/2; row 1: chances are 1/4 and 3/4
    wanted = torch.log(torch.tensor(2.0)) + 2 * torch.log(torch.tensor(4 / 3))
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    assert float(right) == 3.0


def test_the_least_loss_is_the_entropy_of_the_label() -> None:
    _, _, probs, weights, best = made(4, 6, 6)
    head = torch.eye(6, dtype=torch.float64)
    loss, right = soft_cross(probs.log(), head, probs, weights, best)
    entropy = -(probs * probs.log()).sum(-1)
    assert float(loss) == pytest.approx(float((weights * entropy).sum()))
    assert float(right) == pytest.approx(float(weights.sum()))


def test_large_logits_do_not_overflow() -> None:
    states, head, probs, weights, best = made(3, 5, 2, dtype=torch.float32)
    loss, _ = soft_cross(states * 1e4, head, probs, weights, best)
    assert torch.isfinite(loss)


# ------------------------------------------------------------------------------------------ slope
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_the_slope_is_that_of_differences(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "PIECE", piece)
    states, head, probs, weights, best = made(4, 5, 3)
    states.requires_grad_()
    head.requires_grad_()
    loss, _ = soft_cross(states, head, probs, weights, best)
    loss.backward()  # type: ignore[no-untyped-call]
    for tensor in (states, head):
        assert tensor.grad is not None
        for place in range(tensor.numel()):
            moved = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    tensor.view(-1)[place] += step
                    moved.append(float(slowly(states, head, probs, weights)))
                    tensor.view(-1)[place] -= step
            slope = (moved[0] - moved[1]) / 2e-6
            assert float(tensor.grad.view(-1)[place]) == pytest.approx(slope, abs=1e-6)


def test_the_slope_of_a_multiple_is_the_multiple() -> None:
    states, head, probs, weights, best = made(3, 4, 2)
    grads = []
    for factor in (1.0, -2.5):
        own = states.clone().requires_grad_()
        (soft_cross(own, head, probs, weights, best)[0] * factor).backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        grads.append(own.grad)
    torch.testing.assert_close(grads[1], -2.5 * grads[0])


def test_a_borrowed_head_is_not_taught() -> None:
    states, head, probs, weights, best = made(3, 4, 2)
    states.requires_grad_()
    soft_cross(states, head, probs, weights, best)[0].backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert head.grad is None


def test_agreement_teaches_nothing() -> None:
    states, head, probs, weights, best = made(3, 4, 2)
    states.requires_grad_()
    loss, right = soft_cross(states, head, probs, weights, best)
    assert loss.requires_grad
    assert not right.requires_grad


def test_rows_of_no_weight_teach_nothing() -> None:
    states, head, probs, weights, best = made(4, 5, 3)
    weights[1] = weights[3] = 0.0
    states.requires_grad_()
    soft_cross(states, head, probs, weights, best)[0].backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert not states.grad[[1, 3]].any()
    assert states.grad[[0, 2]].abs().sum() > 0


# ----------------------------------------------------------------------------------------- pieces
@given(st.integers(1, 60))
def test_pieces_of_any_size_give_the_same(piece: int) -> None:
    states, head, probs, weights, best = made(9, 6, 3)
    whole = soft_cross(states, head, probs, weights, best)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "PIECE", piece)
        parts = soft_cross(states, head, probs, weights, best)
    assert float(parts[0]) == pytest.approx(float(whole[0]))
    assert float(parts[1]) == pytest.approx(float(whole[1]))


def test_no_rows_have_no_loss() -> None:
    states, head, probs, weights, best = made(0, 5, 3)
    states.requires_grad_()
    loss, right = soft_cross(states, head, probs, weights, best)
    loss.backward()  # type: ignore[no-untyped-call]
    assert (loss.item(), right.item()) == (0.0, 0.0)


def test_a_piece_is_compared_with_its_labels() -> None:
    states, head, probs, weights, best = made(3, 4, 2)
    logits = states @ head.t()
    loss, right, slope = measure(logits, probs, weights, best)
    assert [float(loss), float(right)] == [
        float(one) for one in compare(logits, probs, weights, best)[:2]
    ]
    torch.testing.assert_close(slope, (logits.softmax(-1) - probs) * weights[:, None])
    torch.testing.assert_close(slope.sum(-1), torch.zeros(3, dtype=torch.float64))


def test_mixed_precision_sums_in_full_precision() -> None:
    states, head, probs, weights, best = made(5, 6, 4, dtype=torch.float32)
    states.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = soft_cross(states, head, probs, weights, best)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32
    assert states.grad is not None
    assert states.grad.dtype == torch.float32
    exact = soft_cross(states.detach(), head, probs, weights, best)[0]
    assert float(loss.detach()) == pytest.approx(float(exact), rel=0.05)


# ---------------------------------------------------------------------------------------- labels
@given(st.floats(0, 1), st.integers(0, 99))
def test_a_hardened_label_moves_its_share_to_the_best_token(share: float, seed: int) -> None:
    _, _, probs, _, best = made(4, 5, 1, seed)
    found = sharpen(probs.clone(), best, share)
    torch.testing.assert_close(found.sum(-1), torch.ones(4, dtype=torch.float64))
    for row in range(4):
        for token in range(5):
            wanted = (1 - share) * float(probs[row, token]) + share * (token == int(best[row]))
            assert float(found[row, token]) == pytest.approx(wanted)


# ------------------------------------------------------------------------------------ divergences
def diverging(logits: Tensor, probs: Tensor, weights: Tensor, divergence: str) -> Tensor:
    """The formulas of DistillSpec (arXiv 2310.08461, section 3), token by token."""
    total = torch.zeros((), dtype=logits.dtype)
    for row, p, weight in zip(logits, probs, weights, strict=True):
        q = row.softmax(0)
        m = (p + q) / 2
        terms = {
            "fkl": -p * q.log(),
            "rkl": q * (q / p).log(),
            "jsd": (p * (p / m).log() + q * (q / m).log()) / 2,
            "tvd": (p - q).abs() / 2,
        }
        total = total + weight * terms[divergence].sum()
    return total


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_a_divergence_and_its_slope_are_the_formulas(
    divergence: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "PIECE", piece)
    states, head, probs, weights, best = made(5, 6, 3)
    ours = [tensor.clone().requires_grad_() for tensor in (states, head)]
    theirs = [tensor.clone().requires_grad_() for tensor in (states, head)]
    loss, _ = soft_cross(ours[0], ours[1], probs, weights, best, divergence)
    wanted = diverging(theirs[0] @ theirs[1].t(), probs, weights, divergence)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
    slopes = torch.autograd.grad(loss, ours)
    for slope, other in zip(slopes, torch.autograd.grad(wanted, theirs), strict=True):
        torch.testing.assert_close(slope, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("divergence", ["rkl", "jsd", "tvd"])
def test_a_divergence_is_least_where_both_are_alike(divergence: str) -> None:
    _, _, probs, weights, best = made(4, 6, 6)
    head = torch.eye(6, dtype=torch.float64)
    logits = probs.log().requires_grad_()
    loss, _ = soft_cross(logits, head, probs, weights, best, divergence)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    if divergence != "tvd":  # which has a corner there
        assert torch.autograd.grad(loss, logits)[0].abs().max() < 1e-12


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_token_that_the_target_never_says_has_a_finite_slope(divergence: str) -> None:
    states, head, probs, weights, best = made(3, 5, 2)
    probs[:, 0] = 0.0
    states.requires_grad_()
    loss, _ = soft_cross(states, head, probs, weights, best, divergence)
    assert torch.isfinite(torch.autograd.grad(loss, states)[0]).all()


def test_a_strange_divergence_is_refused() -> None:
    with pytest.raises(SapwoodError, match="'kl' is no divergence; take one of fkl, rkl"):
        check_divergence("kl")
