"""Tree attention against float64, and its bits against rows that are run alone."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.triton_mode import CUDA, DEVICE, require

require()

import triton
import triton.language as tl

from sapwood.backends.torch.cuda.kernels.attention import attend
from sapwood.backends.torch.cuda.kernels.attention_tiles import (
    GROUPS,
    AttentionTiles,
    HeadSizes,
    group_of,
    units_of,
)
from sapwood.backends.torch.cuda.kernels.key_groups import group_at, start_of
from sapwood.backends.torch.cuda.kernels.open_paths import open_paths

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest output
SCALE = 0.3


@dataclass
class Text:
    """A sequence with its committed length, its slots and a tree behind them."""

    length: int
    parents: list[int]
    planes: Tensor  # [2, slots, kv heads, width]
    queries: Tensor  # [nodes, heads, width]
    since: int = 0  # nodes that an earlier pass has run

    @property
    def paths(self) -> list[list[int]]:
        found: list[list[int]] = []
        for node, parent in enumerate(self.parents):
            found.append([*(found[parent] if parent >= 0 else []), node])
        return found


def text(
    length: int,
    parents: list[int],
    heads: HeadSizes,
    dtype: torch.dtype,
    seed: int = 0,
    since: int = 0,
) -> Text:
    rng = torch.Generator().manual_seed(seed)
    nodes = len(parents)
    planes = torch.randn(2, length + nodes, heads.keys, heads.width, generator=rng)
    queries = torch.randn(nodes, heads.queries, heads.width, generator=rng)
    return Text(length, parents, planes.to(DEVICE, dtype), queries.to(DEVICE, dtype), since)


def random_parents(nodes: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return [-1, *(int(rng.integers(max(0, node - 9), node)) for node in range(1, nodes))]


def words_of(paths: list[list[int]], words: int) -> Tensor:
    found = np.zeros((len(paths), words), np.uint64)
    for row, path in enumerate(paths):
        for node in path:
            found[row, node // 64] |= np.uint64(1) << np.uint64(node % 64)
    return torch.from_numpy(found.view(np.int64)).to(DEVICE)


def run(texts: list[Text], heads: HeadSizes, tiles: AttentionTiles, window: int = 0) -> Tensor:
    """One pass over the trees of all texts."""
    slots = max(each.planes.shape[1] for each in texts)
    pool = texts[0].planes.new_zeros(2, len(texts), slots, heads.keys, heads.width)
    blocks = []
    positions: list[int] = []
    words = max(-(-len(each.parents) // 64) for each in texts)
    for index, each in enumerate(texts):
        nodes = len(each.parents)
        pool[:, index, : each.planes.shape[1]] = each.planes
        chain = each.parents == list(range(-1, nodes - 1))
        for start in range(each.since, nodes, tiles.rows):
            held = min(tiles.rows, nodes - start)
            row = len(positions) + start - each.since
            blocks.append([index * slots, each.length, row, held, nodes, int(chain)])
        positions += [each.length + len(path) - 1 for path in each.paths[each.since :]]
    blocks.append([0] * 6)  # one that is not used
    queries = torch.cat([each.queries[each.since :] for each in texts])
    out = torch.full_like(queries, torch.nan)
    table = torch.tensor(blocks, device=DEVICE).T.contiguous()
    places = torch.tensor(positions, device=DEVICE)
    ancestors = torch.cat([words_of(each.paths[each.since :], words) for each in texts])
    attend(
        queries, pool, out, heads=heads, blocks=table, positions=places, scale=SCALE, tiles=tiles,
        paths=open_paths(ancestors, places, table, tiles), window=window,
    )  # fmt: skip
    return out


def wanted(each: Text, heads: HeadSizes, window: int = 0) -> Tensor:
    group = heads.queries // heads.keys
    rows = []
    for row, path in list(enumerate(each.paths))[each.since :]:
        slots = [*range(each.length), *(each.length + node for node in path)]
        if window:
            slots = slots[-window:]
        keys, values = each.planes[:, slots].double().repeat_interleave(group, 2)
        scores = torch.einsum("hd,nhd->hn", each.queries[row].double(), keys) * SCALE
        rows.append(torch.einsum("hn,nhd->hd", scores.softmax(-1), values))
    return torch.stack(rows)


def alone(each: Text, row: int) -> Text:
    """The same row as the only one of a pass: its path is committed text."""
    path = each.paths[row]
    slots = [*range(each.length), *(each.length + node for node in path)]
    return Text(
        each.length + len(path) - 1, [-1], each.planes[:, slots], each.queries[row : row + 1]
    )


ONE = -1  # the program of a block walks the paths of its rows as well


def tiles_with(rows: int, longest: int, lead: int, *, trees: bool = True) -> AttentionTiles:
    if lead == ONE:
        return AttentionTiles(rows, 1, 0, trees)
    units = units_of(longest, lead) if lead else 2 if trees else 1
    return AttentionTiles(rows, units, lead, trees)


# committed tokens of each text, nodes of its tree, heads, window
CASES = [
    ([7], [1], HeadSizes(4, 2, 16), 0),
    ([0], [5], HeadSizes(3, 1, 20), 0),
    ([130, 0, 64], [5, 1, 3], HeadSizes(2, 1, 8), 0),
    ([63, 127], [4, 2], HeadSizes(2, 2, 16), 0),
    ([150], [6], HeadSizes(2, 2, 16), 70),
    ([41], [3], HeadSizes(4, 1, 16), 6),
]


# the interpreter takes seconds for each: one lead and one type for each case
LEADS = [0, 1, ONE, 4]
GIVEN = [(*case, LEADS[i % 4], list(CLOSE)[i % 3]) for i, case in enumerate(CASES)] + [
    (*case, lead, dtype) for case in CASES if CUDA for lead in LEADS for dtype in CLOSE
]


@pytest.mark.parametrize(("lengths", "nodes", "heads", "window", "lead", "dtype"), GIVEN)
def test_a_row_sees_its_text_and_its_ancestors(
    lengths: list[int], nodes: list[int], heads: HeadSizes, window: int, lead: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    texts = [
        text(length, random_parents(count), heads, dtype, seed)
        for seed, (length, count) in enumerate(zip(lengths, nodes, strict=True))
    ]
    tiles = tiles_with(4, max(lengths) + max(nodes), lead)
    found = run(texts, heads, tiles, window)
    close(found, torch.cat([wanted(each, heads, window) for each in texts]))


def close(found: Tensor, expected: Tensor) -> None:
    gap = (found.double() - expected).abs().max() / expected.abs().max()
    assert gap <= CLOSE[found.dtype]


@pytest.mark.parametrize("lead", LEADS if CUDA else [1, ONE])
@pytest.mark.parametrize(
    ("length", "parents", "since"),
    [
        (70, random_parents(70), 0 if CUDA else 66),
        (63, [*range(-1, 65), 64], 0 if CUDA else 65),  # paths that end in a third chunk
    ],
    ids=["many nodes", "deep"],
)
def test_a_row_sees_a_path_beyond_the_first_word(
    length: int, parents: list[int], since: int, lead: int
) -> None:
    heads = HeadSizes(1, 1, 16)
    tree = text(length, parents, heads, torch.float32, since=since)
    tiles = tiles_with(16, length + len(parents), lead)
    close(run([tree], heads, tiles), wanted(tree, heads))


def test_the_kernel_and_the_host_agree_on_groups() -> None:
    ends = [GROUPS[-1][0] + 2 * GROUPS[-1][1], *(start for start, _ in GROUPS[1:])]
    places = sorted({0, 1, 63, 64, 65, 300, 1300, 5000, *ends, *(end - 1 for end in ends)})
    positions = torch.tensor(places + [0] * (32 - len(places)), device=DEVICE)
    groups = torch.zeros_like(positions)
    starts = torch.zeros_like(positions)
    _groups[1,](positions, groups, starts, len(positions))
    assert groups.tolist() == [group_of(position) for position in positions.tolist()]
    for position, group, start in zip(
        positions.tolist(), groups.tolist(), starts.tolist(), strict=True
    ):
        assert start <= position
        assert group_of(start) == group
        assert start == 0 or group_of(start - 1) == group - 1


@triton.jit
def _groups(positions, groups, starts, count: tl.constexpr):
    at = tl.arange(0, count)
    group = group_at(tl.load(positions + at))
    tl.store(groups + at, group)
    tl.store(starts + at, start_of(group))


LENGTHS = [0, 5, 63, 64, 200, 1000, 1023, 1100, 1279, 4090, 5000] if CUDA else [5, 190]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16] if CUDA else [torch.float32])
def test_a_row_of_a_tree_has_the_bits_of_the_row_alone(length: int, dtype: torch.dtype) -> None:
    heads = HeadSizes(6, 2, 64) if CUDA else HeadSizes(2, 1, 16)
    parents = random_parents(100) if CUDA else [-1, 0, 0, 2]
    tree = text(length, parents, heads, dtype)
    longest = length + len(parents)
    several = [
        run([tree], heads, tiles_with(4, longest, lead))
        for lead in ((0, 1, 4, 16, ONE) if CUDA else (0, 1, ONE))
    ]
    for found in several[1:]:
        assert torch.equal(found, several[0])
    others = [text(70, random_parents(3), heads, dtype, 5), tree, *([tree] if CUDA else [])]
    for lead in (1, ONE):
        with_others = run(others, heads, tiles_with(16 if CUDA else 4, longest + 70, lead))
        assert torch.equal(with_others[3 : 3 + len(parents)], several[0])
    rows = range(len(parents)) if CUDA else (0, len(parents) - 1)
    for row in rows:
        one = alone(tree, row)
        tiles = tiles_with(4, longest, 1, trees=False)
        assert torch.equal(run([one], heads, tiles)[0], several[0][row]), f"row {row}"


# tokens before a prompt, its rows, and groups of the first program in both passes; the last ones
# are beyond the first groups of several chunks
PROMPTS = [(1000, 200, 0, 1), (1000, 200, 1, 1), (1300, 60, 0, 16), (5000, 60, 16, 4)]
FEW_ROWS = [(59, 9, 0, 1), (59, 9, 1, 1), (1342, 3, 0, 16)]
# texts whose open chunk goes on with a group of several
LONG = [1087, 1150, 1343, 4200] if CUDA else [1087, 1150]


@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize("window", [0, 100])
def test_the_bits_do_not_depend_on_the_program_that_walks_the_paths(
    length: int, window: int
) -> None:
    heads = HeadSizes(6, 2, 64) if CUDA else HeadSizes(2, 1, 16)
    parents = random_parents(30) if CUDA else [-1, 0, 0, 2, 2, 4]
    tree = text(length, parents, heads, torch.float16 if CUDA else torch.float32)
    chain = text(length, list(range(-1, 4)), heads, tree.planes.dtype, 3)
    longest = length + len(parents)
    first, *others = (
        run([tree, chain], heads, tiles_with(4, longest, lead), window) for lead in (0, 4, ONE)
    )
    for found in others:
        assert torch.equal(found, first)


@pytest.mark.parametrize(("start", "rows", "lead", "other"), PROMPTS if CUDA else FEW_ROWS)
def test_a_prompt_has_the_bits_of_its_rows_alone(
    start: int, rows: int, lead: int, other: int
) -> None:
    heads = HeadSizes(6, 2, 64) if CUDA else HeadSizes(2, 1, 16)
    dtype = torch.float16 if CUDA else torch.float32
    chain = text(start, list(range(-1, rows - 1)), heads, dtype)
    found = run([chain], heads, tiles_with(16 if CUDA else 4, start + rows, lead, trees=False))
    for row in range(0, rows, 7 if CUDA else 4):
        one = alone(chain, row)
        tiles = tiles_with(4, start + rows, other, trees=False)
        assert torch.equal(run([one], heads, tiles)[0], found[row])
