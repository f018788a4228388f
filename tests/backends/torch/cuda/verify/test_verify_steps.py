"""The steps of a verdict in torch: hashed noise, keyed draws, the walk and the features of its path, number by number."""

import math

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft.device_tree import LONGEST, ROWS, RoundBuffer
from sapwood.backends.torch.cuda.verify.device_verifier import (
    LADDER,
    LEVELS,
    STEPS,
    NoiseBuffers,
    TorchVerifySteps,
    VerifyInputs,
    best,
    gather_features,
    kernels,
    keyed_draw,
    lengthened,
    noise,
    sample_rows,
    shifted,
    signed,
    walk,
)
from sapwood.core.tree import Tree

CPU = torch.device("cpu")
MASK = (1 << 64) - 1


@pytest.fixture
def round_buffer() -> RoundBuffer:
    return RoundBuffer(CPU)


def random_tree(seed: int, nodes: int, vocab: int) -> Tree:
    random = np.random.default_rng(seed)
    tree = Tree(0)
    while len(tree) < nodes:
        parent = int(random.integers(max(0, len(tree) - 4), len(tree)))
        tree.add(parent, int(random.integers(vocab)), 0.5, sampled=bool(random.integers(2)))
    return tree


def put(tree: Tree, round_buffer: RoundBuffer) -> None:
    for name in ("tokens", "parents", "depths"):
        round_buffer.field(name)[: len(tree)] = torch.from_numpy(getattr(tree, name))


# ------------------------------------------------------------------------------------------- words
def test_signed_words_have_the_same_bits() -> None:
    for word in (0, 1, (1 << 63) - 1, 1 << 63, MASK, MASK + 5, -1):
        assert signed(word) & MASK == word & MASK
        assert -(1 << 63) <= signed(word) < 1 << 63


@pytest.mark.parametrize("bits", [1, 12, 30, 63])
def test_shifting_fills_with_zeros(bits: int) -> None:
    words = [0, 1, (1 << 63) - 1, 1 << 63, MASK, 0x9E3779B97F4A7C15]
    found = shifted(torch.tensor([signed(word) for word in words]), bits)
    assert found.tolist() == [word >> bits for word in words]


def splitmix(key: int, token: int) -> int:
    """The hash of a key and a token in whole numbers of Python."""
    word = (key + (token + 1) * 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def test_noise_is_a_hash_of_key_and_token() -> None:
    keys = [0, 7, MASK, 1 << 63]
    out = torch.empty(len(keys), 9, dtype=torch.float64)
    noise(torch.tensor([signed(key) for key in keys]), 9, out)
    for row, key in enumerate(keys):
        for token in range(9):
            uniform = ((splitmix(key, token) >> 12) + 0.5) * 2.0**-52
            wanted = -math.log(-math.log(uniform))
            assert float(out[row, token]) == pytest.approx(wanted, rel=1e-12)


# ------------------------------------------------------------------------------------------- draws
def test_the_best_token_is_the_lowest_of_equals() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    said = torch.full((4,), 9)
    best(logits, said)
    assert said.tolist() == [1, 0, 9, 9]


def test_a_draw_adds_the_noise_of_its_depth() -> None:
    random = np.random.default_rng(0)
    logits = torch.from_numpy(random.normal(size=(5, 7)).astype(np.float32))
    gumbel = torch.from_numpy(random.gumbel(size=(3, 7)))
    depths = torch.tensor([0, 2, 1, 2, 0, 0, 0])
    said = torch.full((7,), 9)
    keyed_draw(logits, gumbel, depths, torch.tensor([0.5], dtype=torch.float64), said)
    wanted = [
        int(np.argmax(logits[row].double().numpy() / 0.5 + gumbel[depths[row]].numpy()))
        for row in range(5)
    ]
    assert said.tolist() == [*wanted, 9, 9]
    assert len(set(wanted)) > 1


def test_draws_follow_the_softmax_at_their_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(3000, 1)
    said = sample_rows(logits, torch.arange(3000), 2.0, list(range(3000)))
    shares = np.bincount(said.numpy(), minlength=3) / 3000
    weights = np.exp(np.array([0.0, 0.5, 1.0]))
    assert shares == pytest.approx(weights / weights.sum(), abs=0.03)


def test_rows_of_one_depth_share_their_noise() -> None:
    logits = torch.zeros(4, 50)
    said = sample_rows(logits, torch.tensor([0, 1, 1, 0]), 1.0, [11, 12]).tolist()
    assert said[0] == said[3] != said[1] == said[2]


# ----------------------------------------------------------------------------------------- the walk
@pytest.mark.parametrize("seed", range(12))
def test_the_walk_follows_what_was_said(round_buffer: RoundBuffer, seed: int) -> None:
    tree = random_tree(seed, 5 + 4 * seed, 4)
    put(tree, round_buffer)
    random = np.random.default_rng(seed + 100)
    said = random.integers(4, size=len(tree))
    for node in range(1, len(tree)):
        if random.random() < 0.5:
            said[tree.parents[node]] = tree.tokens[node]
    walk(round_buffer, torch.from_numpy(said), len(tree))
    path = [0]
    while (child := tree.child(path[-1], int(said[path[-1]]))) is not None:
        path.append(child)
    verdict = round_buffer.field("verdict")
    assert verdict[0] == len(path)
    assert verdict[1] == said[path[-1]]
    assert verdict[2 : 2 + len(path)].tolist() == path
    assert not verdict[2 + len(path) :].any()


def test_a_chain_is_walked_to_its_end(round_buffer: RoundBuffer) -> None:
    tree = Tree(1)
    for node in range(LONGEST - 1):
        tree.add(node, 1, 0.5)
    put(tree, round_buffer)
    walk(round_buffer, torch.ones(len(tree), dtype=torch.int64), len(tree))
    verdict = round_buffer.field("verdict")
    assert verdict[0] == LONGEST
    assert verdict[2:].tolist() == list(range(LONGEST))


def test_rows_of_an_earlier_tree_are_not_walked(round_buffer: RoundBuffer) -> None:
    round_buffer.field("parents")[:5] = torch.tensor([-1, 0, 0, 0, 0])
    round_buffer.field("tokens")[:5] = torch.tensor([1, 2, 3, 4, 5])
    walk(round_buffer, torch.tensor([5, 0]), 2)  # node 4 is not of this tree
    assert round_buffer.field("verdict")[:3].tolist() == [1, 5, 0]


def test_features_of_the_path_are_put_side_by_side(round_buffer: RoundBuffer) -> None:
    round_buffer.hidden_states = torch.full((4, 5), 9.0)
    verdict = round_buffer.field("verdict")
    verdict[0] = 2
    verdict[2:4] = torch.tensor([0, 3])
    states = [torch.arange(10.0).view(5, 2), 100 + torch.arange(15.0).view(5, 3)]
    gather_features(round_buffer, states)
    wanted = torch.cat([layer[[0, 3]] for layer in states], -1)
    assert torch.equal(round_buffer.hidden_states[:2], wanted)
    root = torch.cat([layer[0] for layer in states])
    assert (round_buffer.hidden_states[2:] == root).all()  # rows behind the path repeat the root's


# ------------------------------------------------------------------------------------------ inputs
def test_rows_are_lengthened_within_their_buffer() -> None:
    buffer = torch.arange(40.0).view(10, 4)
    longer = lengthened(buffer[2:5], 6)
    assert longer.shape == (6, 4)
    assert longer.data_ptr() == buffer[2].data_ptr()
    assert torch.equal(longer, buffer[2:8])
    assert torch.equal(lengthened(buffer[2:5], 8), buffer[2:10])
    assert lengthened(buffer[2:5], 9).shape == (3, 4)  # the buffer ends before
    apart = buffer[:, :2]
    assert lengthened(apart, 12) is apart


def test_inputs_are_padded_to_few_sizes() -> None:
    buffer = torch.zeros(ROWS, 3)
    sizes = set()
    for rows in range(1, ROWS + 1):
        case = VerifyInputs(buffer[:rows], None, (), 0).padded()
        assert len(case.logits) >= rows
        sizes.add(len(case.logits))
    assert sizes == set(LADDER)


def test_a_captured_verdict_is_known_by_what_it_reads() -> None:
    buffer, other = torch.zeros(8, 3), torch.zeros(8, 3)
    leading = torch.zeros(8, dtype=torch.int64)
    case = VerifyInputs(buffer[:5], leading, (other,), 3)
    assert case.key == VerifyInputs(buffer[:5], leading, (other,), 7).key  # drawn at both
    for changed in (
        VerifyInputs(buffer[:4], leading, (other,), 3),
        VerifyInputs(other[:5], leading, (other,), 3),
        VerifyInputs(buffer[:5], None, (other,), 3),
        VerifyInputs(buffer[:5], leading, (), 3),
        VerifyInputs(buffer[:5], leading, (buffer,), 3),
        VerifyInputs(buffer[:5], leading, (other,), 0),
    ):
        assert changed.key != case.key


def test_noise_is_made_for_a_few_numbers_of_levels() -> None:
    buffers = NoiseBuffers(CPU, 6)
    for levels in range(1, STEPS + 1):
        buffers.make_noise(levels, lambda depth: 1000 + depth, 0.5)
        wanted = torch.empty(levels, 6, dtype=torch.float64)
        noise(torch.arange(1000, 1000 + levels), 6, wanted)
        assert torch.equal(buffers.gumbel[:levels], wanted)
        assert buffers.temperature.item() == 0.5
    assert sorted(buffers.captured) == sorted(LEVELS)


def test_a_cpu_takes_the_torch_steps() -> None:
    assert kernels(CPU) is TorchVerifySteps
