"""Passes over roots that take their tokens from the device; without CUDA in the interpreter."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from sapwood.core.protocols import PrefillChunk, Session, TreeInput
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.root_batch import RootBatch
from sapwood.core.tree import ROOT, Tree
from tests.helpers import tiny_models
from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.pass_inputs import MAX_ROWS
from sapwood.backends.torch.cuda.verify import device_verifier, verify_kernels

pytestmark = pytest.mark.usefixtures("wide_tiles")

TEXTS = ([5, 6, 7], [9, 3, 3, 8, 1], [2])


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    return CudaBackend(tiny_models.make("llama").to(DEVICE), "llama")


def plain(backend: CudaBackend, text: Sequence[int], count: int) -> list[int]:
    """The best tokens behind a text, one pass each."""
    session = backend.open(text[:-1])
    found = [text[-1]]
    for _ in range(count):
        [output] = backend.score([TreeInput(session, Tree.of_root(found[-1]))])
        found.append(int(output.argmax()[ROOT]))
        session.commit((ROOT,))
    session.close()
    return found[1:]


def roots(sessions: Sequence[Session], tokens: Sequence[int]) -> RootBatch:
    """Greedy rows."""
    batch = RootBatch()
    for session, token in zip(sessions, tokens, strict=True):
        batch.add(session, token, 0.0, 0)
    return batch


def test_tokens_are_taken_from_the_pass_before(backend: CudaBackend) -> None:
    expected = [plain(backend, text, 3) for text in TEXTS]
    sessions = [backend.open(text[:-1]) for text in TEXTS]
    first = backend.launch_roots(roots(sessions, [text[-1] for text in TEXTS]))
    second = backend.launch_roots(roots(sessions, [-1, -2, -3]))
    # the last text has ended: the others are in other rows now
    third = backend.launch_roots(roots([sessions[1], sessions[0]], [-2, -1]))
    passes = [one.next_tokens().tolist() for one in (first, second, third)]
    assert passes[0] == [tokens[0] for tokens in expected]
    assert passes[1] == [tokens[1] for tokens in expected]
    assert passes[2] == [expected[1][2], expected[0][2]]
    assert [session.length for session in sessions] == [5, 7, 2]
    for session in sessions:
        session.close()


def test_chunks_of_prompts_run_in_the_same_pass(backend: CudaBackend) -> None:
    expected = plain(backend, TEXTS[0], 2)
    late = list(range(11, 30))
    behind = plain(backend, late, 1)
    session = backend.open(TEXTS[0][:-1])
    other = backend.start(late[:-1])
    first = backend.launch_roots(roots([session], [TEXTS[0][-1]]), [PrefillChunk(other, late[:-1])])
    second = backend.launch_roots(roots([session, other], [-1, late[-1]]))
    assert first.next_tokens().tolist() == expected[:1]
    assert second.next_tokens().tolist() == [expected[1], behind[0]]
    session.close()
    other.close()


def test_hidden_states_stay_valid(backend: CudaBackend) -> None:
    backend.watch([0, 1])
    session, other = (backend.open(text[:-1]) for text in TEXTS[:2])
    [wanted] = backend.score([TreeInput(session, Tree.of_root(TEXTS[0][-1]))])
    states = wanted.hidden([0], [0, 1]).clone()
    first = backend.launch_roots(roots([other, session], [TEXTS[1][-1], TEXTS[0][-1]]))
    backend.launch_roots(roots([other, session], [-1, -2]))
    output = first.outputs()[1]
    assert torch.equal(output.hidden([0], [0, 1]), states)
    assert output.argmax().tolist() == [first.next_tokens().tolist()[1]]
    with pytest.raises(ValueError, match="overwrote"):
        output.logits(0)
    session.close()
    other.close()


def test_too_many_rows_are_refused_before_anything_changes(backend: CudaBackend) -> None:
    session = backend.open(TEXTS[0][:-1])
    other = backend.start(range(60))
    with pytest.raises(ValueError, match="rows"):
        backend.launch_roots(
            roots([session], [TEXTS[0][-1]]), [PrefillChunk(other, [1] * MAX_ROWS)]
        )
    assert (session.length, other.length) == (len(TEXTS[0]) - 1, 0)
    session.close()
    other.close()


def test_a_launch_that_fails_commits_no_root(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(backend, TEXTS[0], 1)
    session = backend.open(TEXTS[0][:-1])

    def fails(*_: object) -> None:
        raise RuntimeError("no launch")

    with monkeypatch.context() as patch:
        patch.setattr(backend.fused, "run_shape", fails)
        with pytest.raises(RuntimeError, match="no launch"):
            backend.launch_roots(roots([session], [TEXTS[0][-1]]))
    assert session.length == len(TEXTS[0]) - 1
    again = backend.launch_roots(roots([session], [TEXTS[0][-1]]))
    assert again.next_tokens().tolist() == expected
    session.close()


def test_rows_are_drawn_with_their_own_noise() -> None:
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(0, 3, (4, 300)).astype(np.float32)).to(DEVICE)
    temperatures = [0.0, 0.8, 1.0, 0.8]
    keys = [KeyedRng(seed).key(NoiseKey(7 + seed)) for seed in range(4)]
    signed = torch.tensor([device_verifier.signed(key) for key in keys], device=DEVICE)
    warmth = torch.tensor(temperatures, dtype=torch.float64, device=DEVICE)
    drawn = []
    for ops in (verify_kernels, device_verifier):
        found = torch.zeros(4, dtype=torch.int64, device=DEVICE)
        ops.draw_rows(logits, signed, warmth, found)
        drawn.append(found.tolist())
    alone = [int(logits[0].argmax())]
    for row in range(1, 4):
        gumbel = torch.empty(1, 300, dtype=torch.float64, device=DEVICE)
        verify_kernels.noise(signed[row : row + 1], 300, gumbel)
        token = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        depth = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        verify_kernels.keyed_draw(
            logits[row : row + 1], gumbel, depth, warmth[row : row + 1], token
        )
        alone += token.tolist()
    assert drawn == [alone, alone]
    assert alone[1:] != logits[1:].argmax(-1).tolist()  # the noise decides
