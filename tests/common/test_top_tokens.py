"""The best tokens of a row on the host: exact, with ties by the lowest id, and without torch."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.output import TorchOutput
from sapwood.common.top_tokens import top_tokens


@pytest.mark.parametrize(("vocab", "count"), [(5, 8), (64, 3), (1000, 8), (4097, 20)])
def test_the_best_tokens_are_those_of_a_full_sort(vocab: int, count: int) -> None:
    noise = np.random.default_rng(vocab)
    rows = np.round(noise.standard_normal((4, vocab)), 1).astype(np.float32)  # with many ties
    tokens, logps = top_tokens(rows, count)
    exact = rows.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    for row, best, logp in zip(exact, tokens, logps, strict=True):
        assert best.tolist() == np.argsort(-row, kind="stable")[:count].tolist()
        assert logp == pytest.approx(row[best], abs=1e-5)


def test_on_a_cpu_no_thread_of_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("threads of torch wait for those of the last pass")

    output = TorchOutput(torch.tensor([[0.0, 3.0, 1.0, 2.0]]))
    for name in ("topk", "logsumexp", "argmax"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    assert output.topk(2)[0].tolist() == [[1, 3]]
    assert output.argmax().tolist() == [1]
