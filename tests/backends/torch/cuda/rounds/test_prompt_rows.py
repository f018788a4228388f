"""Rows of prompts behind the trees of a round."""

import numpy as np

from sapwood.backends.torch.cuda.kernels.attention_tiles import FIELDS, HeadSizes
from sapwood.backends.torch.cuda.rounds.prompt_rows import PromptRows, shape_with_prompts

HEADS = HeadSizes(4, 2, 16)
REQUESTS, EACH = 3, 5
CHUNKS = [(np.array([7, 8, 9]), 100, 4), (np.arange(20), 300, 0)]


def test_rows_of_trees_are_left_to_the_device() -> None:
    prompts = PromptRows(CHUNKS)
    shape = prompts.shape(REQUESTS, EACH, HEADS)
    host = np.full(4096, 99)
    written = prompts.behind(REQUESTS, EACH).write(shape, host)
    rows, trees = shape.rows, REQUESTS * EACH
    assert written == shape.size + rows
    tokens, positions, slots = host[: 3 * rows].reshape(3, rows)
    assert tokens[:trees].tolist() == [0] * trees
    assert set(slots[:trees].tolist()) == {-1}
    assert tokens[trees : trees + 4].tolist() == [7, 8, 9, 0]
    assert positions[trees : trees + 4].tolist() == [4, 5, 6, 0]
    assert slots[trees : trees + 4].tolist() == [104, 105, 106, 300]
    assert set(slots[trees + 23 :].tolist()) == {-1}


def test_blocks_of_prompts_follow_those_of_trees() -> None:
    prompts = PromptRows(CHUNKS)
    shape = prompts.shape(REQUESTS, EACH, HEADS)
    host = np.zeros(4096, np.int64)
    prompts.behind(REQUESTS, EACH).write(shape, host)
    blocks = host[3 * shape.rows : shape.size].reshape(FIELDS, shape.blocks)
    lines = shape.tiles.rows
    first = REQUESTS * -(-EACH // lines)
    assert not blocks[:, :first].any()
    assert blocks[:, first].tolist() == [100, 4, 15, 3, 3, 1]
    held = blocks[3, first + 1 :]
    assert held.sum() == 20
    assert held.max() <= lines
    assert set(blocks[0, first + 1 :][held > 0].tolist()) == {300}


def test_logits_are_those_of_trees_and_states_of_all() -> None:
    shape = shape_with_prompts(REQUESTS, EACH, [23], HEADS)
    assert shape.logit_rows == 16
    assert shape.rows >= REQUESTS * EACH + 23
    assert shape.keeps_states
