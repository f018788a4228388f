"""The verdict on the device against the host's own draws and walk."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft.device_tree import (
    DeferredMove,
    DeviceTree,
    RoundBuffer,
    RoundUse,
    ints,
)
from sapwood.backends.torch.cuda.verify import device_verifier
from sapwood.backends.torch.output import TorchOutput
from sapwood.core.array_types import IntArray
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import Tree
from sapwood.verifiers.match import follow
from tests.helpers.triton_mode import DEVICE

VOCAB = 37


@pytest.fixture(params=["plain", "kernels"], autouse=True)
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both ways to do the steps; kernels on a CUDA device or in Triton's interpreter."""
    if request.param == "plain":
        monkeypatch.setattr(
            device_verifier, "kernels", lambda device: device_verifier.TorchVerifySteps
        )
    else:
        from tests.helpers.triton_mode import require

        require()
        from sapwood.backends.torch.cuda.verify import verify_kernels

        monkeypatch.setattr(device_verifier, "kernels", lambda device: verify_kernels)
    return request.param


def bush(seed: int, rows: int) -> Tree:
    """A random tree with twins, of few tokens, so that walks go far."""
    noise = np.random.default_rng(seed)
    tree = Tree(3)
    while len(tree) < rows:
        parent = int(noise.integers(max(0, len(tree) - 6), len(tree)))
        tree.add(parent, int(noise.integers(VOCAB)), 0.5, sampled=bool(noise.integers(2)))
    return tree


def to_device_tree(tree: Tree, round_buffer: RoundBuffer) -> DeviceTree:
    """The same tree on the device."""
    size = len(tree)
    for name in ("tokens", "parents", "depths"):
        round_buffer.field(name)[:size] = torch.from_numpy(getattr(tree, name)).to(DEVICE)
    turn = RoundUse.begin(round_buffer, tree.height)
    return DeviceTree(turn, size, partial(rebuild, size))


def rebuild(size: int, words: IntArray) -> Tree:
    tokens, parents, depths = (ints(words, name, size) for name in ("tokens", "parents", "depths"))
    return Tree.from_columns(tokens, parents, depths, np.ones(size))


def likely(tree: Tree, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits that like the tree's own children, with ties."""
    noise = np.random.default_rng(seed)
    logits = noise.integers(-4, 5, (len(tree), VOCAB)).astype(np.float32)
    for node in range(1, len(tree)):
        logits[tree.parents[node], tree.tokens[node]] += noise.integers(0, 6)
    return torch.from_numpy(logits).to(DEVICE, dtype)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 3.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_verdict_is_the_hosts(temperature: float, dtype: torch.dtype) -> None:
    round_buffer = RoundBuffer(torch.device(DEVICE))
    lengths = set()
    for seed in range(8):
        tree = bush(seed, 3 + 4 * seed)
        logits = likely(tree, seed, dtype)
        rng = KeyedRng(seed)
        sampler = Sampler(Sampling(temperature=temperature), [1])
        host = follow(tree, PathProbs(tree, TorchOutput(logits), sampler), 70 + seed, rng)
        moved = to_device_tree(tree, round_buffer)
        ours = follow(moved, PathProbs(moved, TorchOutput(logits), sampler), 70 + seed, rng)
        assert ours == host
        assert moved.round_use.path == host.path
        assert moved.tokens.tolist() == tree.tokens.tolist()
        lengths.add(len(host.path))
    assert len(lengths) > 1


def test_the_walked_path_stays_on_the_device() -> None:
    tree = bush(1, 20)
    round_buffer = RoundBuffer(torch.device(DEVICE))
    moved = to_device_tree(tree, round_buffer)
    logits = likely(tree, 4)
    states = torch.randn(20, 5, device=DEVICE)
    scores = TorchOutput(logits, {2: states})
    found = scores.follow(moved, 0.0, lambda depth: 0)
    assert found is not None
    rows = moved.path_rows(found[0])
    assert rows is not None
    assert rows.tolist() == list(found[0])
    assert torch.equal(scores.hidden(found[0], [2]), states[list(found[0])])
    assert torch.equal(scores.hidden([0], [2]), states[[0]])


def test_every_row_draws_as_the_host_does() -> None:
    tree = bush(5, 12)
    rng = KeyedRng(9)
    temperature = 0.7
    logits = torch.randn(12, 1000, device=DEVICE)
    keys = [rng.key(NoiseKey(11 + depth)) for depth in range(tree.height + 1)]
    depths = torch.from_numpy(tree.depths.copy()).to(DEVICE)
    said = device_verifier.sample_rows(logits, depths, temperature, keys).tolist()
    sampler = Sampler(Sampling(temperature=temperature), [1])
    all_probs = PathProbs(tree, TorchOutput(logits), sampler)
    assert said == [all_probs.draw(node, 11 + int(tree.depths[node]), rng) for node in range(12)]


def test_noise_is_the_hosts() -> None:
    keys = [KeyedRng(seed).key(NoiseKey(seed)) for seed in (0, 1, 2**63 + 5)]
    gumbel = torch.empty(3, 100, dtype=torch.float64, device=DEVICE)
    named = torch.tensor([device_verifier.signed(key) for key in keys], device=DEVICE)
    device_verifier.kernels(torch.device(DEVICE)).noise(named, 100, gumbel)
    wanted = [
        -np.log(-np.log(KeyedRng(seed).noise(NoiseKey(seed), 100))) for seed in (0, 1, 2**63 + 5)
    ]
    assert gumbel.cpu().numpy() == pytest.approx(np.stack(wanted), rel=1e-13)


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"repetition_penalty": 1.2}]
)
def test_other_sampling_is_the_hosts_business(options: dict[str, Any]) -> None:
    tree = bush(1, 9)
    round_buffer = RoundBuffer(torch.device(DEVICE))
    moved = to_device_tree(tree, round_buffer)
    all_probs = PathProbs(
        moved, TorchOutput(likely(tree, 1)), Sampler(Sampling(temperature=0.9, **options), [1])
    )
    assert all_probs.follow(5, KeyedRng(0)) is None


def test_a_tree_that_was_overwritten_is_not_judged() -> None:
    tree = bush(1, 9)
    round_buffer = RoundBuffer(torch.device(DEVICE))
    moved = to_device_tree(tree, round_buffer)
    moved.load()
    to_device_tree(bush(2, 9), round_buffer)
    assert moved.rows is None
    assert device_verifier.launch(moved, likely(tree, 1), 0.0, lambda depth: 0) is None
    host = PathProbs(moved, TorchOutput(likely(tree, 1)), Sampler(Sampling(), [1]))
    assert follow(moved, host, 5, KeyedRng(0)).path[0] == 0


def test_a_host_tree_is_walked_on_the_host() -> None:
    for seed in range(20):
        tree = bush(seed, 9)
        logits = likely(tree, seed).cpu()
        found = TorchOutput(logits).follow(tree, 0.0, lambda depth: 0)
        path = [0]
        said = logits.argmax(-1).tolist()
        while (child := tree.child(path[-1], said[path[-1]])) is not None:
            path.append(child)
        assert found == (tuple(path), said[path[-1]])
        assert TorchOutput(logits).follow(tree, 0.5, lambda depth: 0) is None


def test_what_is_owed_is_done_once_and_before_the_next_path(ops: Any) -> None:
    tree = bush(1, 20)
    round_buffer = RoundBuffer(torch.device(DEVICE))
    done = list[str]()
    round_buffer.deferred = first = DeferredMove(lambda: done.append("first"))
    TorchOutput(likely(tree, 4)).follow(to_device_tree(tree, round_buffer), 0.0, lambda depth: 0)
    assert done == ["first"]
    first.run()
    forgiven = round_buffer.deferred = DeferredMove(lambda: done.append("forgiven"))
    forgiven.cancel()
    round_buffer.run_deferred()
    assert done == ["first"]
    assert round_buffer.deferred is None
