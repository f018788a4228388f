"""Look-ahead rows in a pass: the nodes keep their output, rows are apart and never committed."""

from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.core.lookahead import LookaheadRows
from sapwood.core.protocols import TreeInput
from sapwood.core.tree import Tree
from sapwood.heads.mask_rows import MaskRowsConfig
from sapwood.heads.ppd import PpdHead
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text

COUNTS = [2, 0, 3, 1]


def small_tree(root: int, tokens: tuple[int, int, int]) -> Tree:
    """A root with two children, the second of them with a child."""
    tree = Tree(root)
    tree.add(0, tokens[0], 0.5)
    tree.add(0, tokens[1], 0.25)
    tree.add(2, tokens[2], 0.5)
    return tree


def make_head(vocab: int = 61) -> PpdHead:
    torch.manual_seed(2)
    head = PpdHead(MaskRowsConfig(32, vocab, 3)).to(torch.float64)
    torch.nn.init.normal_(head.embeds, std=0.5)
    return head


def float64_target() -> TorchBackend:
    return TorchBackend(tiny_models.make("llama", dtype=torch.float64), "tiny")


def rows_of(target: Any, head: Any, counts: list[int]) -> LookaheadRows:
    make = target.capabilities.lookahead
    assert make is not None
    return LookaheadRows(make(head.lookahead), target.info.vocab, counts)


def test_rows_are_chains_behind_their_nodes() -> None:
    rows = LookaheadRows(None, 9, COUNTS)
    whole = rows.added_to(small_tree(1, (2, 3, 4)))
    assert len(rows) == 6
    assert whole.parents.tolist() == [-1, 0, 0, 2, 0, 4, 2, 6, 7, 3]
    assert whole.depths.tolist() == [0, 1, 1, 2, 1, 2, 2, 3, 4, 3]
    assert whole.tokens.tolist() == [1, 2, 3, 4, 9, 10, 9, 10, 11, 9]
    assert list(rows.behind(2)) == [2, 3, 4]
    assert not rows.behind(1)
    with pytest.raises(ValueError, match="rows of 4 nodes, not of 1"):
        rows.added_to(Tree(1))


def test_the_table_gives_every_row_its_own_probs_and_the_nodes_theirs() -> None:
    toy = ToyBackend()
    tree = small_tree(1, (0, 1, 2))
    session = toy.open([2, 0])
    rows = LookaheadRows(toy.salt, toy.vocab, COUNTS)
    [alone] = toy.score([TreeInput(session, tree)])
    [found] = toy.score([TreeInput(session, tree, lookahead=rows)])
    assert alone.lookahead is None
    assert found.lookahead is not None
    assert len(found.argmax()) == len(tree)
    for node in range(len(tree)):
        assert np.array_equal(found.logits(node), alone.logits(node))
    third = np.exp(found.lookahead.logits(rows.behind(2)[1]))
    np.testing.assert_allclose(third, probs_after(toy.salt, 3, (2, 0, 1, 1, 3, 4)))
    with pytest.raises((ValueError, IndexError)):
        session.commit([0, 4])


def test_a_model_runs_rows_beside_nodes_that_keep_their_output() -> None:
    target = float64_target()
    head = make_head()
    text = make_text(6, 1)
    tree = small_tree(7, (11, 12, 13))
    plain, with_rows = target.open(text), target.open(text)
    rows = rows_of(target, head, COUNTS)
    [alone] = target.score([TreeInput(plain, tree)])
    [found] = target.score([TreeInput(with_rows, tree, lookahead=rows)])
    assert found.lookahead is not None
    for node in range(len(tree)):
        np.testing.assert_allclose(found.logits(node), alone.logits(node), rtol=1e-6)
        with torch.inference_mode():
            seen = target.model.get_input_embeddings()(torch.tensor([[*text, *tree.spell(node)]]))
            ahead = head.embeds[: COUNTS[node]]
            out = target.model(inputs_embeds=torch.cat((seen, ahead[None]), 1)).logits[0]
        for place, row in enumerate(rows.behind(node)):
            wanted = out[seen.shape[1] + place].float().numpy()
            np.testing.assert_allclose(found.lookahead.logits(row), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="cannot commit"):
        with_rows.commit([0, 4])
    for session in (plain, with_rows):
        session.commit([0, 2])
    [after], [wanted] = (target.score([TreeInput(one, Tree(5))]) for one in (with_rows, plain))
    np.testing.assert_allclose(after.logits(0), wanted.logits(0), rtol=1e-6)


def test_several_requests_share_a_pass_with_rows() -> None:
    target = float64_target()
    head = make_head()
    rows = rows_of(target, head, COUNTS)
    none = LookaheadRows(rows.model, rows.vocab, [1])
    texts = [make_text(6, 1), make_text(4, 2)]
    trees = [small_tree(7, (11, 12, 13)), Tree(3)]
    singly = [
        target.score([TreeInput(target.open(text), tree, lookahead=ahead)])[0]
        for text, tree, ahead in zip(texts, trees, (rows, none), strict=True)
    ]
    work = [
        TreeInput(target.open(text), tree, lookahead=ahead)
        for text, tree, ahead in zip(texts, trees, (rows, none), strict=True)
    ]
    for one, alone in zip(target.score(work), singly, strict=True):
        assert one.lookahead is not None
        assert alone.lookahead is not None
        np.testing.assert_allclose(one.logits(0), alone.logits(0), rtol=1e-6)
        np.testing.assert_allclose(one.lookahead.logits(0), alone.lookahead.logits(0), rtol=1e-6)
    other = rows_of(target, head, [1])
    mixed = [
        TreeInput(target.open(texts[0]), Tree(3), lookahead=other),
        TreeInput(target.open(texts[1]), Tree(3), lookahead=none),
    ]
    with pytest.raises(ValueError, match="belong to one drafter"):
        target.score(mixed)
