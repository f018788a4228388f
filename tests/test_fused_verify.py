"""The verdict on the device against the host's own draws and walk."""

import os
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.arrays import IntArray
from sapwood.backends.torch.fused import verify
from sapwood.backends.torch.fused.tree import DeviceTree, Owed, Parcel, Round, ints
from sapwood.backends.torch.scores import TorchScores
from sapwood.laws import PathLaws
from sapwood.rng import Keyed, Place
from sapwood.sampling import Sampler, Sampling
from sapwood.tree import Tree
from sapwood.verifiers.walk import follow
from tests.interpreted import CUDA, DEVICE

VOCAB = 37


@pytest.fixture(params=["plain", "kernels"], autouse=True)
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both ways to do the steps; kernels on a CUDA device or in Triton's interpreter."""
    if request.param == "plain":
        monkeypatch.setattr(verify, "kernels", lambda device: verify.Plain)
    else:
        if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("no CUDA device, and TRITON_INTERPRET=1 is not set")
        pytest.importorskip("triton", reason="triton is not installed")
        from tests.interpreted import require

        require()
        from sapwood.backends.torch.fused import draws

        monkeypatch.setattr(verify, "kernels", lambda device: draws)
    return request.param


def bush(seed: int, rows: int) -> Tree:
    """A random tree with twins, of few tokens, so that walks go far."""
    noise, tree = np.random.default_rng(seed), Tree(3)
    while len(tree) < rows:
        parent = int(noise.integers(max(0, len(tree) - 6), len(tree)))
        tree.add(parent, int(noise.integers(VOCAB)), 0.5, sampled=bool(noise.integers(2)))
    return tree


def aboard(tree: Tree, parcel: Parcel) -> DeviceTree:
    """The same tree on the device."""
    size = len(tree)
    for name in ("tokens", "parents", "depths"):
        parcel.field(name)[:size] = torch.from_numpy(getattr(tree, name)).to(DEVICE)
    turn = Round.begin(parcel, tree.height)
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
    parcel, lengths = Parcel(torch.device(DEVICE)), set()
    for seed in range(8):
        tree = bush(seed, 3 + 4 * seed)
        logits, rng = likely(tree, seed, dtype), Keyed(seed)
        sampler = Sampler(Sampling(temperature=temperature), [1])
        host = follow(tree, PathLaws(tree, TorchScores(logits), sampler), 70 + seed, rng)
        moved = aboard(tree, parcel)
        ours = follow(moved, PathLaws(moved, TorchScores(logits), sampler), 70 + seed, rng)
        assert ours == host
        assert moved.turn.path == host.path
        assert moved.tokens.tolist() == tree.tokens.tolist()
        lengths.add(len(host.path))
    assert len(lengths) > 1


def test_the_walked_path_stays_on_the_device() -> None:
    tree, parcel = bush(1, 20), Parcel(torch.device(DEVICE))
    moved, logits = aboard(tree, parcel), likely(tree, 4)
    states = torch.randn(20, 5, device=DEVICE)
    scores = TorchScores(logits, {2: states})
    found = scores.follow(moved, 0.0, lambda depth: 0)
    assert found is not None
    rows = moved.path_rows(found[0])
    assert rows is not None
    assert rows.tolist() == list(found[0])
    assert torch.equal(scores.hidden(found[0], [2]), states[list(found[0])])
    assert torch.equal(scores.hidden([0], [2]), states[[0]])


def test_every_row_draws_as_the_host_does() -> None:
    tree, rng, temperature = bush(5, 12), Keyed(9), 0.7
    logits = torch.randn(12, 1000, device=DEVICE)
    keys = [rng.key(Place(11 + depth)) for depth in range(tree.height + 1)]
    depths = torch.from_numpy(tree.depths.copy()).to(DEVICE)
    said = verify.say(logits, depths, temperature, keys).tolist()
    sampler = Sampler(Sampling(temperature=temperature), [1])
    laws = PathLaws(tree, TorchScores(logits), sampler)
    assert said == [laws.draw(node, 11 + int(tree.depths[node]), rng) for node in range(12)]


def test_noise_is_the_hosts() -> None:
    keys = [Keyed(seed).key(Place(seed)) for seed in (0, 1, 2**63 + 5)]
    gumbel = torch.empty(3, 100, dtype=torch.float64, device=DEVICE)
    named = torch.tensor([verify.signed(key) for key in keys], device=DEVICE)
    verify.kernels(torch.device(DEVICE)).noise(named, 100, gumbel)
    wanted = [-np.log(-np.log(Keyed(seed).noise(Place(seed), 100))) for seed in (0, 1, 2**63 + 5)]
    assert gumbel.cpu().numpy() == pytest.approx(np.stack(wanted), rel=1e-13)


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"repetition_penalty": 1.2}])
def test_other_sampling_is_the_hosts_business(options: dict[str, Any]) -> None:
    tree, parcel = bush(1, 9), Parcel(torch.device(DEVICE))
    moved = aboard(tree, parcel)
    laws = PathLaws(moved, TorchScores(likely(tree, 1)), Sampler(Sampling(temperature=0.9, **options), [1]))
    assert laws.follow(5, Keyed(0)) is None


def test_a_tree_that_was_overwritten_is_not_judged() -> None:
    tree, parcel = bush(1, 9), Parcel(torch.device(DEVICE))
    moved = aboard(tree, parcel)
    moved.load()
    aboard(bush(2, 9), parcel)
    assert moved.rows is None
    assert verify.follow(moved, likely(tree, 1), 0.0, lambda depth: 0) is None
    host = PathLaws(moved, TorchScores(likely(tree, 1)), Sampler(Sampling(), [1]))
    assert follow(moved, host, 5, Keyed(0)).path[0] == 0


def test_a_host_tree_is_walked_on_the_host() -> None:
    for seed in range(20):
        tree = bush(seed, 9)
        logits = likely(tree, seed).cpu()
        found = TorchScores(logits).follow(tree, 0.0, lambda depth: 0)
        path, said = [0], logits.argmax(-1).tolist()
        while (child := tree.child(path[-1], said[path[-1]])) is not None:
            path.append(child)
        assert found == (tuple(path), said[path[-1]])
        assert TorchScores(logits).follow(tree, 0.5, lambda depth: 0) is None


def test_what_is_owed_is_done_once_and_before_the_next_path(ops: Any) -> None:
    tree, parcel, done = bush(1, 20), Parcel(torch.device(DEVICE)), list[str]()
    parcel.owed = first = Owed(lambda: done.append("first"))
    TorchScores(likely(tree, 4)).follow(aboard(tree, parcel), 0.0, lambda depth: 0)
    assert done == ["first"]
    first.pay()
    forgiven = parcel.owed = Owed(lambda: done.append("forgiven"))
    forgiven.forgive()
    parcel.settle()
    assert done == ["first"]
    assert parcel.owed is None
