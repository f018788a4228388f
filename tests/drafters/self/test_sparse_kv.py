"""Drafting over a window of the keys: the first and the last ones, at their true positions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch import self_draft as variants
from sapwood.backends.torch.network import MaskBlock
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.drafters.self.sparse_kv import SparseKv
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.engine_rounds import rounds_until
from tests.helpers.random_trees import random_tree
from tests.helpers.self_draft_targets import TEXT, each_target, rows_of, target


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


@torch.inference_mode()
def slow_window(
    model: Any, text: list[int], tree: Tree, node: int, sinks: int, recent: int
) -> np.ndarray:
    """Logits at a node whose path sees the first and the last keys of a text that was read whole."""
    path = tree.spell(node)
    tokens = [*text, *path]
    committed = len(text)
    mask = torch.full((len(tokens), len(tokens)), torch.finfo(torch.float32).min).triu(1)
    mask[committed:, sinks : committed - recent] = torch.finfo(torch.float32).min
    found: np.ndarray = (
        model(torch.tensor([tokens]), attention_mask=mask[None, None]).logits[0, -1].numpy()
    )
    return found


def window_gap(sinks: int, recent: int) -> float:
    """How far a window's logits are from those of the slow reference."""
    stock = target("stock")
    tree = random_tree(9)
    made = stock.variant(sinks=sinks, recent=recent)
    found = rows_of(made, made.share_session(stock.open(TEXT)), tree)
    wanted = [
        slow_window(stock.model, TEXT, tree, node, sinks, recent) for node in range(len(tree))
    ]
    return float(np.abs(found - np.stack(wanted)).max())


@pytest.mark.parametrize(("sinks", "recent"), [(2, 8), (0, 5), (4, 20), (0, 1)])
def test_a_window_sees_the_first_and_the_last_keys_at_their_true_positions(
    sinks: int, recent: int
) -> None:
    assert window_gap(sinks, recent) < 1e-4


def test_positions_that_close_the_gap_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    close = lambda block: block.length + block.depths[block.since :]  # noqa: E731
    monkeypatch.setattr(MaskBlock, "positions", property(close))
    assert window_gap(2, 8) > 0.1


@each_target
def test_a_window_that_holds_the_whole_text_is_the_target(kind: str) -> None:
    backend = target(kind)
    tree = random_tree(9)
    session = backend.open(TEXT)
    made = backend.variant(sinks=4, recent=100)
    assert np.array_equal(
        rows_of(made, made.share_session(session), tree), rows_of(backend, session, tree)
    )


@each_target
def test_a_window_follows_the_text(kind: str) -> None:
    backend = target(kind)
    session = backend.open(TEXT[:3])
    made = backend.variant(sinks=2, recent=8)
    sliding: Any = made.share_session(session)
    for token in TEXT[3:]:
        held = sliding._length
        rows_of(made, sliding, Tree(token))
        assert min(session.length, 10) <= sliding._length <= 10 + 8 // variants.SLACK
        new = made.share_session(session)
        assert sliding.length == session.length
        if sliding._length < held:  # it began anew: the same keys as a window that opens here
            assert np.array_equal(
                rows_of(made, sliding, Tree(token)), rows_of(made, new, Tree(token))
            )
        rows_of(backend, session, Tree(token))
        session.commit([0])
    session.rewind(5)
    assert np.array_equal(
        rows_of(made, sliding, Tree(3)), rows_of(made, made.share_session(session), Tree(3))
    )


def test_the_target_over_all_its_keys_is_never_refused() -> None:
    greedy = Sampling(max_tokens=64)
    for kind in ("stock", "packed"):
        ours = rounds_until(
            target(kind), Recipe(SparseKv(), Chain(), Match(), Fixed(4, 4, 1)), TEXT[:9], 40, greedy
        )
        assert all(outcome.verdict.accepted == len(outcome.tree) - 1 for outcome in ours)
