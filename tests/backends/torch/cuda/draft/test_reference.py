"""The plain steps of a draft against loops over single numbers in numpy."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft import reference
from sapwood.backends.torch.cuda.draft.device_tree import ROWS, RoundBuffer
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS, angles_of
from sapwood.backends.torch.cuda.draft.eagle_layer import (
    BANDS,
    CELLS,
    EDGES,
    RANKS,
    EagleWeights,
    band,
    describe,
)
from sapwood.backends.torch.cuda.draft.reference import (
    FIRST_SLOT,
    LAST,
    NEW,
    NODES,
    ROOT_AT,
    ROOT_TOKEN,
    SCALARS,
    SEQUENCE,
    TEXT_ROWS,
)
from sapwood.backends.torch.cuda.kernels.prenorm import NormBuffers, NormScale, PrenormRows
from sapwood.core.array_types import FloatArray
from sapwood.core.tree import Tree
from tests.helpers import head_folders

EPS = 1e-5


@pytest.fixture(scope="module")
def layer() -> EagleWeights:
    head = head_folders.make()
    for norm in (head.midlayer.input_layernorm, head.midlayer.hidden_norm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    torch.manual_seed(1)
    return describe(head, torch.randn(head.config.vocab, head.config.shape.width))


@pytest.fixture
def round_buffer() -> RoundBuffer:
    return RoundBuffer(torch.device("cpu"))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def facts_of(**numbers: int) -> Tensor:
    facts = torch.zeros(SCALARS, dtype=torch.int64)
    for name, number in numbers.items():
        facts[getattr(reference, name)] = number
    return facts


def normed(x: Any, weight: Any) -> FloatArray:
    """RMS norm of rows in float64."""
    rows = np.asarray(x, np.float64)
    found: FloatArray = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + EPS) * np.asarray(weight)
    return found


def close(found: Tensor, wanted: Any, tolerance: float = 1e-5) -> None:
    assert np.allclose(found.numpy(), np.asarray(wanted), atol=tolerance, rtol=1e-4)


# --------------------------------------------------------------------------------------- products
def test_a_product_adds_its_residual() -> None:
    x, weight, residual, out = noise(3, 4), noise(5, 4, seed=1), noise(3, 5, seed=2), noise(3, 5)
    reference.project(x, weight, out)
    close(out, x.numpy() @ weight.numpy().T)
    reference.project(x, weight, out, residual=residual)
    close(out, x.numpy() @ weight.numpy().T + residual.numpy())


def test_a_gate_takes_its_first_half_through_silu() -> None:
    x, weight, out = noise(3, 4), noise(10, 4, seed=1), noise(3, 5)
    reference.project(x, weight, out, gate=True)
    both = x.numpy().astype(np.float64) @ weight.numpy().T
    gate, up = both[:, :5], both[:, 5:]
    close(out, gate / (1 + np.exp(-gate)) * up)


def test_rows_before_a_norm_are_normed_with_the_whole_weight() -> None:
    weight = noise(6, seed=3) * 5  # larger than 1, so that it is divided
    scale = NormScale.of(weight, EPS)
    assert scale.lift > 1
    x = PrenormRows(noise(2, 6), scale, NormBuffers.make(weight, 2, 6))
    out = PrenormRows(noise(2, 3), scale, NormBuffers.make(weight, 2, 3))
    matrix = noise(3, 6, seed=4)
    reference.project(x, matrix, out)
    close(out.x, normed(x.x.numpy(), weight.numpy()) @ matrix.numpy().T)


@pytest.mark.parametrize("after", [False, True])
def test_tokens_and_states_are_joined(layer: EagleWeights, after: bool) -> None:
    layer = dataclasses.replace(layer, after=after)
    tokens = torch.tensor([5, 0, 60])
    states, x, base = noise(3, 32), torch.empty(3, 64), torch.empty(3, 32)
    reference.pair(layer, tokens, states, x, base)
    close(x[:, :32], normed(layer.embedding[tokens].numpy(), layer.token_norm.numpy()))
    close(x[:, 32:], normed(states.numpy(), layer.state_norm.numpy()))
    close(base, x[:, 32:].numpy() if after else states.numpy())


# --------------------------------------------------------------------------------------- selection
def test_the_best_candidates_become_rows(layer: EagleWeights) -> None:
    width, before = 3, 2
    reach = torch.tensor([0.1, 0.5, 0.2, 0.5, 0.05, 0.3], dtype=torch.float64)
    tokens = torch.tensor([10, 11, 12, 13, 14, 15])
    states = noise(2, 32)
    seen = torch.tensor([[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]], dtype=torch.int8)
    x, base = torch.empty(3, 64), torch.empty(3, 32)
    opened, sees = torch.empty(3, dtype=torch.int64), torch.empty(3, 6, dtype=torch.int8)
    reference.select(layer, reach, tokens, 40, width, states, seen, before, x, base, opened, sees)
    assert opened.tolist() == [41, 43, 45]  # of equals the earlier one first
    close(base, states[[0, 1, 1]].numpy())
    assert sees.tolist() == [[1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0]]


def test_under_the_root_a_row_sees_itself_alone(layer: EagleWeights) -> None:
    reach = torch.tensor([0.3, 0.2], dtype=torch.float64)
    x, base = torch.empty(2, 64), torch.empty(2, 32)
    opened, sees = torch.empty(2, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int8)
    tokens = torch.tensor([1, 2])
    reference.select(layer, reach, tokens, 1, 2, noise(1, 32), None, 0, x, base, opened, sees)
    assert sees.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]


# --------------------------------------------------------------------------------------- attention
def turned(x: FloatArray, position: int, layer: EagleWeights) -> FloatArray:
    """One head rotated to a position, pair by pair."""
    half = len(x) // 2
    found = np.empty(len(x))
    for pair in range(half):
        angle = position * float(layer.rates[pair])
        low, high = x[pair], x[pair + half]
        found[pair] = low * np.cos(angle) - high * np.sin(angle)
        found[pair + half] = high * np.cos(angle) + low * np.sin(angle)
    return found


@pytest.mark.parametrize("depth", [0, 2])
def test_heads_are_rotated_and_written_to_their_slots(layer: EagleWeights, depth: int) -> None:
    rows, before = 3, 4
    facts = facts_of(NEW=2 if depth else rows, ROOT_AT=20, TEXT_ROWS=5, SEQUENCE=1)
    x = noise(rows, 64, seed=5)
    keys, values = torch.zeros(2, 2, 16, 8), torch.zeros(2, 2, 16, 8)
    query = torch.zeros(rows + 1, 4, 8)
    reference.project_heads(
        layer, x, facts, angles_of(layer, 40), keys, values, query, depth, before if depth else 0
    )
    made = (x.numpy().astype(np.float64) @ layer.qkv.numpy().T).reshape(rows, 8, 8)
    for row in range(rows):
        position = 20 - 1 + depth if depth else 20 - rows + row
        slot = 5 + 2 + before + row if depth else 5 + row
        for head in range(4):
            close(query[row, head], turned(made[row, head], position, layer))
        for head in range(2):
            close(keys[1, head, slot], turned(made[row, 4 + head], position, layer))
            close(values[1, head, slot], made[row, 6 + head])
    assert not keys[0].any()
    assert (keys[1].abs().sum((0, 2)) > 0).sum() == rows
    assert not query[rows].any()


def test_rows_read_the_text_and_the_tree_rows_they_see(layer: EagleWeights) -> None:
    rows, count, end = 2, 3, 4
    facts = facts_of(NEW=1, TEXT_ROWS=end - 1, SEQUENCE=1)
    keys, values, query = noise(2, 2, 9, 8, seed=1), noise(2, 2, 9, 8, seed=2), noise(2, 4, 8)
    keys[:, :, end + count :] = float("nan")  # never written
    values[:, :, end + count :] = float("nan")
    sees = torch.tensor([[1, 0, 0, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.int8)
    read = torch.empty(rows, 32)
    reference.attend(layer, query, facts, keys, values, sees, read, count)
    for row in range(rows):
        slots = [*range(end), *(end + at for at in range(count) if sees[row, at])]
        for head in range(4):
            products = keys[1, head // 2, slots].numpy() @ query[row, head].numpy() / np.sqrt(8)
            weights = np.exp(products - products.max())
            wanted = weights / weights.sum() @ values[1, head // 2, slots].numpy()
            close(read[row, 8 * head : 8 * head + 8], wanted)


def test_the_root_reads_the_text_alone(layer: EagleWeights) -> None:
    facts = facts_of(NEW=1, TEXT_ROWS=2)
    keys, values = noise(1, 2, 9, 8, seed=1), noise(1, 2, 9, 8, seed=2)
    query, read, shorter = noise(1, 4, 8), torch.empty(1, 32), torch.empty(1, 32)
    reference.attend(layer, query, facts, keys, values, None, read, 0)
    reference.attend(layer, query, facts, keys[:, :, :3], values[:, :, :3], None, shorter, 0)
    assert torch.allclose(read, shorter, atol=1e-6)


def test_half_precision_is_rotated_in_single() -> None:
    x = noise(2, 3, 8).half()
    angles = torch.cat((torch.full((2, 4), 0.5403), torch.full((2, 4), 0.8415)), -1)
    found = reference.rotate(x, angles)
    assert found.dtype == torch.float16
    assert torch.equal(found, reference.rotate(x.float(), angles).half())
    assert reference.exact(x.double()).dtype == torch.float64


# --------------------------------------------------------------------------------------- children
def test_chances_are_looked_up_by_confidence_rank_and_band() -> None:
    table = torch.stack((torch.arange(CELLS).double() / 1e4, torch.full((CELLS,), 0.5)), -1)
    probs = torch.tensor([[0.99, 0.3, 0.2, 0.01, 0.009, 0.008, 0.007, 0.006]], dtype=torch.float64)
    for depth in (1, 5, 99):
        found = reference.chance(probs, table.double(), depth)
        for place, prob in enumerate(probs[0].tolist()):
            group = sum(prob > edge for edge in EDGES)
            cell = (group * RANKS + min(place, RANKS - 1)) * BANDS + band(depth)
            assert float(found[0, place]) == pytest.approx(min(cell / 1e4 + 0.5 * prob, 1.0))


def test_a_chance_is_at_most_one() -> None:
    table = torch.tensor([[0.9, 0.9]], dtype=torch.float64).repeat(CELLS, 1)
    assert reference.chance(torch.tensor([[0.8]], dtype=torch.float64), table, 1).item() == 1.0


def test_leaders_are_the_best_tokens_with_their_probabilities(
    layer: EagleWeights, round_buffer: RoundBuffer
) -> None:
    logits = torch.zeros(1, 20)
    logits[0, [3, 7, 11]] = torch.tensor([2.0, 3.0, 2.0])
    table = torch.tensor([[0.0, 1.0]], dtype=torch.float64).repeat(CELLS, 1)
    reference.leaders(layer, logits, facts_of(ROOT_TOKEN=9), table, None, 1, 4, 1, round_buffer)
    total = np.exp(logits.double().numpy()).sum()
    ids = [7, 3, 11, 0]  # of equals the lowest first
    assert round_buffer.field("grown_tokens")[:5].tolist() == [9, *layer.vocabulary[ids].tolist()]
    assert round_buffer.field("grown_parents")[:5].tolist() == [-1, 0, 0, 0, 0]
    wanted = np.exp(logits.double().numpy())[0, ids] / total
    close(round_buffer.field("grown_probs")[:5], [1.0, *wanted])
    close(round_buffer.field("grown_reach")[:5], [1.0, *wanted])


def test_reach_is_that_of_the_parent_times_the_chance(
    layer: EagleWeights, round_buffer: RoundBuffer
) -> None:
    round_buffer.field("grown_reach")[:5] = torch.tensor([1.0, 0.5, 0.25, 0.125, 0.1]).double()
    table = torch.tensor([[0.0, 0.5]], dtype=torch.float64).repeat(CELLS, 1)
    owners = torch.tensor([3, 1])
    reference.leaders(layer, noise(2, 20), facts_of(), table, owners, 2, 2, 5, round_buffer)
    assert round_buffer.field("grown_parents")[5:9].tolist() == [3, 3, 1, 1]
    probs = round_buffer.field("grown_probs")[5:9].numpy()
    wanted = np.array([0.125, 0.125, 0.5, 0.5]) * 0.5 * probs
    close(round_buffer.field("grown_reach")[5:9], wanted)
    assert round_buffer.field("grown_tokens")[0] == 0  # the root was written before


# ---------------------------------------------------------------------------------------- pruning
def grow(seed: int, size: int) -> Tree:
    """A random tree whose reach falls along every path, with ties."""
    random = np.random.default_rng(seed)
    tree = Tree(int(random.integers(90)))
    while len(tree) < size:
        parent = int(random.integers(max(0, len(tree) - 9), len(tree)))
        tree.add(parent, int(random.integers(90)), 0.5, rank=int(random.integers(3)), sampled=True)
    for node in range(1, size):
        tree.reach[node] = tree.reach[tree.parents[node]] * random.choice([0.5, 0.8, 1.0])
    tree.probs[:] = random.random(size)
    tree.valued = size
    return tree


def put(tree: Tree, round_buffer: RoundBuffer) -> None:
    """The grown tree on the device."""
    size = len(tree)
    for name in ("tokens", "parents", "probs", "reach"):
        round_buffer.field(f"grown_{name}")[:size] = torch.from_numpy(getattr(tree, name))


@pytest.mark.parametrize(("size", "nodes"), [(1, 0), (9, 4), (40, 39), (300, 63), (300, ROWS - 1)])
def test_the_kept_tree_is_the_one_of_largest_reach(
    round_buffer: RoundBuffer, size: int, nodes: int
) -> None:
    for name in ("tokens", "parents", "depths"):
        round_buffer.field(name).fill_(77)  # what an earlier round has left
    tree = grow(size, size)
    put(tree, round_buffer)
    columns = [torch.from_numpy(column) for column in (tree.depths, tree.ranks)]
    reference.prune(round_buffer, facts_of(NODES=nodes), columns[0], columns[1], tree.height)
    order = sorted(range(size), key=lambda node: (-tree.reach[node], node))[: nodes + 1]
    kept = tree.keep(sorted(order))
    used = nodes + 1
    assert kept.kept is not None
    assert round_buffer.field("kept")[:used].tolist() == kept.kept.tolist()
    for name in ("tokens", "parents", "depths", "ranks", "probs", "reach"):
        assert round_buffer.field(name)[:used].tolist() == getattr(kept, name).tolist(), name
        blank = -1 if name == "parents" else 0
        assert (round_buffer.field(name)[used:] == blank).all(), name
    bits = np.unpackbits(round_buffer.rows.words.numpy().view(np.uint8), axis=1, bitorder="little")
    assert np.array_equal(bits[:used, :used].astype(bool), kept.ancestors())
    assert not bits[:used, used:].any()


# ----------------------------------------------------------------------------------------- handoff
@pytest.mark.parametrize("length", [1, 2, 5, MAX_NEW_ROWS, MAX_NEW_ROWS + 3])
def test_the_next_draft_is_told_the_accepted_text(round_buffer: RoundBuffer, length: int) -> None:
    path = [0, *range(2, 2 * length, 2)]
    round_buffer.rows.tokens[:] = 100 + torch.arange(ROWS)
    verdict = round_buffer.field("verdict")
    verdict[0], verdict[1] = length, 7
    verdict[2 : 2 + length] = torch.tensor(path)
    facts = facts_of(ROOT_AT=30, TEXT_ROWS=12, NODES=9)
    tokens = torch.full((MAX_NEW_ROWS,), 55)
    reference.complete_draft_args(round_buffer, facts, tokens)
    new = min(length, MAX_NEW_ROWS)
    accepted = [100 + node for node in path[1:]]
    wanted = [*accepted[: new - 1], 7]
    assert tokens.tolist() == wanted + [0] * (MAX_NEW_ROWS - new)
    assert facts[NEW] == new
    assert facts[LAST] == new - 1
    assert facts[ROOT_AT] == 30 + length
    assert facts[ROOT_TOKEN] == 7
    assert facts[TEXT_ROWS] == 12


@pytest.mark.parametrize(
    ("path", "stay"), [([0], 1), ([0, 1, 2], 3), ([0, 1, 5], 2), ([0, 3, 4], 1), ([0, 2, 2], 1)]
)
def test_the_next_pass_is_told_what_must_be_moved(
    round_buffer: RoundBuffer, path: list[int], stay: int
) -> None:
    verdict = round_buffer.field("verdict")
    verdict[0] = len(path)
    verdict[2 : 2 + len(path)] = torch.tensor(path)
    told = torch.full((8,), 55)
    facts = facts_of(ROOT_AT=30, NODES=9)
    facts[FIRST_SLOT] = 64
    reference.write_pass_args(round_buffer, facts, told)
    assert told.tolist() == [64, 30, 10, 30 - len(path), stay, len(path), 55, 55]
    assert facts[NODES] == 9
    assert facts[SEQUENCE] == 0
