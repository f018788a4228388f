"""Every architecture through the contract of the waist."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import CHUNK, TorchBackend
from sapwood.backends.torch.hf.support import check_tree
from sapwood.core.protocols import TreeInput
from sapwood.core.tree import Tree
from sapwood.errors import SapwoodError
from sapwood.testing import backend_contract, prefill_contract
from tests.helpers import tiny_models


@pytest.mark.parametrize("check", backend_contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_waist(name: str, check: backend_contract.Check) -> None:
    check(tiny_models.backend(name), np.random.default_rng(0), 1e-4)


@pytest.mark.parametrize("check", prefill_contract.LIMITED, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["llama", "qwen2-mixed", "deepseek"])
def test_memory(name: str, check: prefill_contract.Limited) -> None:
    check(
        TorchBackend(tiny_models.make(name), name),
        tiny_models.backend(name),
        np.random.default_rng(0),
        1e-4,
    )


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_backend_equals_the_bare_model(name: str) -> None:
    backend = tiny_models.backend(name)
    tokens = backend_contract.text(backend, np.random.default_rng(3), 20)
    with torch.inference_mode():
        wanted = backend.model(torch.tensor([tokens])).logits[0, -4:].numpy()
    [scores] = backend.score(
        [TreeInput(backend.open(tokens[:-4]), backend_contract.line(tokens[-4:]))]
    )
    assert np.stack([scores.logits(row) for row in range(4)]) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    backend_contract.check_backend(TorchBackend(tiny_models.make("llama", dtype)), tolerance=0.3)


def test_a_model_that_ignores_the_mask_is_refused() -> None:
    model = tiny_models.make("llama")
    forward = model.model.forward
    model.model.forward = lambda *_, attention_mask=None, **rest: forward(
        attention_mask=None, **rest
    )
    check_tree(tiny_models.backend("llama"))
    with pytest.raises(SapwoodError, match="branches"):
        check_tree(TorchBackend(model))


def test_long_prompts_are_read_in_chunks() -> None:
    backend = TorchBackend(tiny_models.make("llama", max_position_embeddings=3 * CHUNK))
    tokens = backend_contract.text(backend, np.random.default_rng(0), CHUNK + 40)
    with torch.inference_mode():
        wanted = backend.model(torch.tensor([tokens])).logits[0, -1].numpy()
    [scores] = backend.score([TreeInput(backend.open(tokens[:-1]), Tree(tokens[-1]))])
    assert scores.logits(0) == pytest.approx(wanted, abs=1e-4)


def test_sessions_grow_beyond_their_first_room() -> None:
    backend = TorchBackend(tiny_models.make("gpt2", max_position_embeddings=1000))
    session = backend.open([1, 2])
    tokens = backend_contract.text(backend, np.random.default_rng(0), 600)
    for start in range(0, 600, 60):
        backend.score([TreeInput(session, backend_contract.line(tokens[start : start + 60]))])
        session.commit(range(60))
    found = backend_contract.run(backend, session, Tree(7))
    backend_contract.agree(
        found[0],
        backend_contract.after(backend, [1, 2, *tokens, 7]),
        1e-4,
        "growth must keep what was committed",
    )


def test_the_context_is_a_limit() -> None:
    backend = tiny_models.backend("gpt2")
    full = [1] * backend.info.context
    backend.open(full)
    with pytest.raises(SapwoodError, match="does not fit"):
        backend.open([*full, 1])
    with pytest.raises(SapwoodError, match="does not fit"):
        backend.score([TreeInput(backend.open(full), Tree(1))])


def test_since_must_name_nodes_in_the_tail() -> None:
    backend = tiny_models.backend("llama")
    tree = backend_contract.line([1, 2, 3])
    session = backend.open([5, 6])
    with pytest.raises(ValueError, match="only 0 nodes"):
        backend.score([TreeInput(session, tree, 1)])
    backend.score([TreeInput(session, backend_contract.line([1, 9]))])
    with pytest.raises(ValueError, match="not those scored"):
        backend.score([TreeInput(session, tree, 2)])
    with pytest.raises(ValueError, match="nothing to score"):
        backend.score([TreeInput(session, tree, 3)])
    with pytest.raises(ValueError, match="one tree per session"):
        backend.score([TreeInput(session, tree), TreeInput(session, tree)])


def test_hidden_states_come_on_request() -> None:
    model = tiny_models.make("llama")
    plain = TorchBackend(model)
    rich = TorchBackend(model)
    rich.watch([0, 2])
    assert "hidden" in rich.info.provides
    tree = backend_contract.line([3, 4, 5])
    [scores] = rich.score([TreeInput(rich.open([1, 2]), tree)])
    with torch.inference_mode():
        states = model(torch.tensor([[1, 2, 3, 4, 5]]), output_hidden_states=True).hidden_states
    wanted = torch.cat([states[0][0, [4, 2]], states[2][0, [4, 2]]], -1)
    assert torch.allclose(scores.hidden([2, 0], [0, 2]), wanted, atol=1e-5)
    [scores] = plain.score([TreeInput(plain.open([1, 2]), tree)])
    with pytest.raises(ValueError, match="watch"):
        scores.hidden([0], [1])
    with pytest.raises(SapwoodError, match="has 2 layers"):
        plain.watch([3])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_waist_on_cuda(name: str) -> None:
    backend_contract.check_backend(
        TorchBackend(tiny_models.make(name).to("cuda"), name), tolerance=2e-3
    )
