"""Keys that a draft chooses by attention: which ones, for each layer and head, and the same text."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.llama import modeling_llama

from sapwood.backends.torch.hf.key_choice import (
    RecordedQueries,
    attention,
    best_chunks,
    best_keys,
    copy_chosen,
    recording,
)
from sapwood.backends.torch.kv_slots import KvSlots
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.cascade import Cascade
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.self.sparse_kv import SparseKv
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.verifiers.match import Match
from tests.helpers.engine_rounds import rounds_until, tokens_of
from tests.helpers.self_draft_targets import DEEP, PLAIN, TEXT, rows_of, target


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------- choice
def test_attention_is_that_of_each_query_head_summed_over_its_group() -> None:
    queries, keys = noise(4, 3, 8), noise(2, 5, 8, seed=1)
    found = attention(queries, keys)
    for group in range(2):
        heads = [
            (queries[h] @ keys[group].T / 8**0.5).softmax(-1) for h in (2 * group, 2 * group + 1)
        ]
        assert torch.allclose(found[group], heads[0] + heads[1], atol=1e-6)


def test_the_chunk_that_the_newest_query_looks_at_is_retrieved() -> None:
    queries, keys = noise(2, 3, 8), 0.01 * noise(2, 32, 8, seed=1)
    keys[0, 8:12] += queries[0, -1]  # the third chunk of the first head
    keys[1, 24:28] += queries[1, -1]
    keys[1, 0:4] += 2 * queries[1, 0]  # an older query does not count
    found = best_chunks(queries, keys, 4, 4)
    assert found.tolist() == [[8, 9, 10, 11], [24, 25, 26, 27]]


def test_single_keys_are_chosen_with_their_neighbours() -> None:
    queries, keys = noise(1, 4, 8), 0.01 * noise(1, 40, 8, seed=1)
    keys[0, 20] += 9 * queries[0].mean(0)
    assert set(best_keys(queries, keys, 7)[0].tolist()) == set(range(17, 24))


def test_queries_of_the_accepted_path_alone_are_kept() -> None:
    found = RecordedQueries(range(10, 14), {0: torch.arange(4.0).reshape(1, 4, 1)})
    path = found.at([10, 12, 99])
    assert path is not None
    assert path.layers[0].flatten().tolist() == [0.0, 2.0]
    assert found.at([3]) is None


# ------------------------------------------------------------------------------------- sessions
@torch.inference_mode()
def slow_choice(model: Any, text: list[int], keys: tuple[int, int, int, int]) -> np.ndarray:
    """Logits after the last token of a text, each head attending to its chosen keys alone."""
    sinks, recent, chosen, chunk = keys

    committed = len(text) - 1
    start = committed - recent
    start -= (start - sinks) % chunk
    llama: Any = modeling_llama
    usual = llama.eager_attention_forward

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        heads, groups = query.shape[1], key.shape[1]
        middle = key[0, :, sinks:start]
        # the query of the last committed token, which the target's pass left behind
        seen = query[0, :, :committed][:, -32:]
        places = (
            best_keys(seen, middle, chosen)
            if chunk == 1
            else best_chunks(seen, middle, chosen, chunk)
        )
        allowed = torch.zeros(groups, key.shape[2], dtype=torch.bool)
        allowed[:, :sinks] = allowed[:, start:] = True
        allowed.scatter_(1, places + sinks, True)
        rows = mask.expand(1, heads, -1, -1).clone()
        hidden = ~allowed.repeat_interleave(heads // groups, 0)
        rows[0, :, -1].masked_fill_(hidden, torch.finfo(torch.float32).min)
        return usual(module, query, key, value, rows, **options)

    before = model.config._attn_implementation
    llama.eager_attention_forward = attend
    model.config._attn_implementation = "eager"
    try:
        full = torch.full((len(text), len(text)), torch.finfo(torch.float32).min).triu(1)
        found: np.ndarray = (
            model(torch.tensor([text]), attention_mask=full[None, None]).logits[0, -1].numpy()
        )
    finally:
        llama.eager_attention_forward = usual
        model.config._attn_implementation = before
    return found


@pytest.mark.parametrize("keys", [(2, 6, 8, 1), (2, 6, 8, 4), (0, 4, 12, 4), (4, 4, 4, 2)])
def test_a_draft_sees_the_keys_that_its_rule_chooses(keys: tuple[int, int, int, int]) -> None:
    stock = target("stock")
    sinks, recent, chosen, chunk = keys
    made = stock.variant(sinks=sinks, recent=recent, chosen=chosen, chunk=chunk)
    draft: Any = made.share_session(stock.open(TEXT[:-1]))
    found = rows_of(made, draft, Tree(TEXT[-1]))[0]
    assert draft._length <= sinks + chosen + recent + chunk
    assert np.abs(found - slow_choice(stock.model, TEXT, keys)).max() < 1e-4


def test_the_choice_differs_from_a_window_of_the_same_size() -> None:
    stock = target("stock")
    made = stock.variant(sinks=2, recent=6, chosen=8)
    window = stock.variant(sinks=2, recent=14)
    session = stock.open(TEXT)
    one = rows_of(made, made.share_session(session), Tree(3))
    other = rows_of(window, window.share_session(session), Tree(3))
    assert np.abs(one - other).max() > 1e-3


def test_a_forked_session_chooses_the_same_keys() -> None:
    stock = target("stock")
    made = stock.variant(sinks=2, recent=6, chosen=8)
    session = stock.open(TEXT)
    one = rows_of(made, made.share_session(session), Tree(3))
    other = rows_of(made, made.share_session(session.fork()), Tree(3))
    assert np.array_equal(one, other)


def test_where_no_queries_are_recorded_the_newest_keys_are_copied() -> None:
    stock = target("stock")
    session = stock.open(TEXT)
    source = session.slots
    source.queries = None
    copied = KvSlots(source.layout, 8)
    copy_chosen(source, copied, range(2, 30), 0, 8, 1)
    buffer, index = source.layout.keys[1]
    assert torch.equal(
        copied.buffers[buffer][index][:, :8], source.buffers[buffer][index][:, 22:30]
    )


def test_an_int8_target_sees_as_many_of_the_last_keys() -> None:
    made = target("packed").variant(sinks=2, recent=6, chosen=8, chunk=4)
    assert made.keys.recent == 14
    assert made.keys.chosen == 0


def test_recording_queries_leaves_the_target_as_it_is() -> None:
    stock = target("stock")
    stock.network.records = False  # type: ignore[attr-defined]
    tree = Tree(5)
    before = rows_of(stock, stock.open(TEXT), tree)
    stock.variant(recent=4, chosen=4)
    session = stock.open(TEXT)
    assert np.array_equal(rows_of(stock, session, tree), before)
    session.commit([0])
    assert session.slots.queries.places == [len(TEXT)]


def test_threads_record_at_the_same_time_and_others_are_left_alone() -> None:
    model = target("stock").model
    usual = model.config._attn_implementation
    inside = threading.Barrier(2)

    @torch.inference_mode()
    def queries(token: int) -> dict[int, torch.Tensor]:
        with recording(model) as found:
            inside.wait(10.0)
            model(torch.tensor([[token]]))
            inside.wait(10.0)
        return found

    with recording(model) as alone, torch.inference_mode():
        model(torch.tensor([[3]]))
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(queries, (3, 4))
    assert one.keys() == other.keys() == alone.keys() == set(range(DEEP))
    assert all(torch.equal(one[layer], alone[layer]) for layer in alone)
    assert not torch.equal(one[0], other[0])
    assert model.config._attn_implementation == usual


# ----------------------------------------------------------------------------------------- text
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_plain_decodings(chunk: int, temperature: float) -> None:
    drafter = SparseKv(sinks=2, recent=6, chosen=8, chunk=chunk)
    sampling = Sampling(max_tokens=40, temperature=temperature)
    recipe = Recipe(drafter, Chain(), Match(), Fixed(3, 3, 1))
    ours = tokens_of(rounds_until(target("stock"), recipe, TEXT, 24, sampling))[:24]
    assert ours == tokens_of(rounds_until(target("stock"), PLAIN, TEXT, 24, sampling))[:24]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_small_model_below_saves_passes_over_chosen_keys_and_changes_no_draft(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(max_tokens=40, temperature=temperature)
    upper = SparseKv(sinks=2, recent=6, chosen=8, chunk=4)
    lower = DraftModel(model=target("stock"))  # is right now and then
    calls: list[int] = []
    expand = SparseKv.expand

    def counted(self: SparseKv, *given: Any) -> None:
        calls.append(1)  # a pass of the upper level
        expand(self, *given)

    monkeypatch.setattr(SparseKv, "expand", counted)
    found = []
    passes = []
    for drafter in (upper, Cascade(drafter=upper, guesser=lower, ahead=3)):
        calls.clear()
        recipe = Recipe(drafter, Chain(), Match(), Fixed(6, 6, 1))
        rounds = rounds_until(target("stock"), recipe, TEXT, 24, sampling)
        found.append([outcome.tree.tokens.tolist() for outcome in rounds])
        passes.append(len(calls))
    assert found[0] == found[1]
    assert passes[1] < passes[0]


def test_the_recipes_choose_as_their_papers_do() -> None:
    two_levels, magic = resolve("triforce").drafter, resolve("sparse-kv").drafter
    assert isinstance(two_levels, Cascade)
    assert isinstance(two_levels.guesser, AutoDraftModel)  # a small model drafts for the target
    triforce = two_levels.drafter
    assert isinstance(triforce, SparseKv)
    assert isinstance(magic, SparseKv)
    assert (triforce.chunk, triforce.sinks + triforce.recent + triforce.chosen) == (8, 4096)
    assert (magic.chunk, magic.sinks + magic.recent + magic.chosen) == (1, 256)


def test_a_choice_that_is_no_whole_number_of_chunks_is_refused() -> None:
    with pytest.raises(SapwoodError, match="multiple of chunk=8"):
        SparseKv(chosen=12, chunk=8)
