"""Packed eight-bit models: the waist's contract, and the same bits for a row whatever else is in the pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sapwood.backends.torch.architectures import describe
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import (
    attention,
    attention_plan,
    int8_gemm,
    pack,
    pointwise,
)
from sapwood.backends.torch.cpu_int8.eagle3 import Int8Eagle3
from sapwood.backends.torch.cpu_int8.linear import Int8Linear, SplitLinear
from sapwood.backends.torch.cpu_int8.quant_modules import QuantLinear, pack_linears
from sapwood.backends.torch.cpu_int8.smoothquant import channel_rms, smooth_layer
from sapwood.backends.torch.load import build
from sapwood.core.protocols import PrefillChunk, TreeInput
from sapwood.core.tree import Tree
from sapwood.errors import SapwoodError
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.heads.layers import LayerShape
from sapwood.testing import check_backend, prefill_contract
from sapwood.testing.backend_contract import line
from tests.helpers import tiny_models
from tests.helpers.int8_targets import (
    NOT_SMOOTHED,
    PACKABLE,
    TEXT,
    int8_backend,
    shuffle_blocks,
)
from tests.helpers.random_trees import random_tree
from tests.helpers.reference_llama import reference_logits


def rows_of(backend: TorchBackend, tree: Tree) -> np.ndarray:
    """The logits of every node after the text, [nodes, vocab]."""
    [scores] = backend.score([TreeInput(backend.open(TEXT), tree)])
    return np.stack([scores.logits(node) for node in range(len(tree))])


@pytest.mark.parametrize("name", PACKABLE)
def test_the_contract_of_the_waist(name: str) -> None:
    check_backend(int8_backend(name))


@pytest.mark.parametrize("name", PACKABLE)
def test_a_row_has_the_same_bits_alone_in_a_tree_and_beside_other_sessions(name: str) -> None:
    backend = int8_backend(name)
    tree = random_tree(24)
    together = rows_of(backend, tree)
    for node in range(len(tree)):
        session = backend.open(TEXT)
        for token in tree.spell(node):
            [alone] = backend.score([TreeInput(session, Tree(token))])
            session.commit([0])
        assert np.array_equal(alone.logits(0), together[node])
    other = TreeInput(backend.open(TEXT[:4]), random_tree(7, seed=1))
    [_, beside] = backend.score([other, TreeInput(backend.open(TEXT), tree)])
    assert np.array_equal(np.stack([beside.logits(node) for node in range(len(tree))]), together)


@pytest.mark.parametrize("name", ["qwen2-mixed", "smollm3", "gemma2-eager"])
def test_a_text_read_in_pieces_leaves_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = int8_backend(name)
    tree = random_tree(9)
    whole = rows_of(backend, tree)
    monkeypatch.setattr(attention_plan, "TOGETHER", 4)
    assert np.array_equal(rows_of(backend, tree), whole)


@pytest.mark.parametrize("few", [0, 1 << 30])
def test_compiled_products_and_the_matrix_library_agree_to_the_bit(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = int8_backend("llama")
    tree = random_tree(9)
    before = rows_of(backend, tree)
    monkeypatch.setattr(attention_plan, "FEW", few)
    assert np.array_equal(rows_of(backend, tree), before)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    backend = int8_backend("llama")
    tree = random_tree(33)
    before = rows_of(backend, tree)
    had = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert np.array_equal(rows_of(backend, tree), before)
    finally:
        torch.set_num_threads(had)


@pytest.mark.parametrize("name", PACKABLE)
def test_eight_bits_stay_close_to_the_reference(name: str) -> None:
    tree = random_tree(24)
    exact = rows_of(tiny_models.backend(name), tree)
    rounded = rows_of(int8_backend(name), tree)
    assert np.corrcoef(exact.ravel(), rounded.ravel())[0, 1] > 0.995


@pytest.mark.parametrize("name", sorted(set(PACKABLE) - set(NOT_SMOOTHED)))
@torch.inference_mode()
def test_even_channels_change_nothing_but_the_rounding(name: str) -> None:
    model = tiny_models.make(name)
    net = describe(model)
    tokens = torch.arange(1, 13)
    assert net is not None
    smoothed_layers = replace(net, layers=tuple(map(smooth_layer, net.layers, channel_rms(model))))
    assert not torch.equal(smoothed_layers.layers[0].gate_up, net.layers[0].gate_up)
    torch.testing.assert_close(
        reference_logits(smoothed_layers, tokens),
        reference_logits(net, tokens),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("name", NOT_SMOOTHED)
@torch.inference_mode()
def test_channels_stay_as_they_are_where_no_norm_could_take_their_scale(name: str) -> None:
    model = tiny_models.make(name)
    net = describe(model)
    assert net is not None
    for layer, rms in zip(net.layers, channel_rms(model), strict=True):
        assert smooth_layer(layer, rms) is layer


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    "name", ["phi3-partial", "olmo2", "gemma3-caps", "qwen3-moe", "gpt-oss-eager"]
)
def test_four_bits_and_a_long_context(name: str, dtype: str) -> None:
    if dtype == "int4" and not int8_gemm.available():
        pytest.skip("no processor for int4")
    model = tiny_models.make(name, max_position_embeddings=1 << 17)
    exact = TorchBackend(model, name)
    backend = build(model, name, dtype, lambda _: None)
    assert backend.info.dtype == dtype
    assert backend.info.context == min(exact.info.context, 32_768)
    tree = random_tree(9)
    want, found = (rows_of(one, tree).ravel() for one in (exact, backend))
    assert np.corrcoef(want, found)[0, 1] > (0.995 if dtype == "int8" else 0.9)


def test_a_model_that_cannot_be_packed() -> None:
    assert pack(tiny_models.make("gpt2")) is None
    with pytest.raises(SapwoodError, match="cannot be run in int8"):
        build(tiny_models.make("gpt2"), "gpt2", "int8", lambda _: None)
    assert build(tiny_models.make("gpt2"), "gpt2", None, lambda _: None).info.dtype == "float32"


# -------------------------------------------------------------------------------------- the pieces
def test_the_exponential() -> None:
    x = -np.geomspace(1e-6, 80, 1001).astype(np.float32)
    bits = np.empty(len(x), np.int32)
    y = x.copy()
    pointwise.exponentiate(y, bits)
    np.testing.assert_allclose(y, np.exp(x.astype(float)), rtol=1e-5)


def test_a_packed_product_of_whole_numbers_is_exact() -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (40, 33)).astype(np.float32)
    weight[:, 0] = 127  # so that a step is one
    rows = rng.integers(-127, 128, (5, 33)).astype(np.float32)
    made = Int8Linear(torch.from_numpy(weight))(torch.from_numpy(rows / 127))
    np.testing.assert_allclose(made.numpy() * 127, rows @ weight.T, rtol=1e-6)


def test_a_row_in_two_parts_is_nearly_exact() -> None:
    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (40, 33)).float()
    rows = torch.rand(5, 33) * 2 - 1
    weight[:, 0] = 127
    want = rows @ weight.t()
    coarse = Int8Linear(weight)(rows)
    fine = SplitLinear(weight)(rows)
    assert (fine - want).abs().max() < (coarse - want).abs().max() / 50


def test_a_packed_head_drafts_nearly_the_same() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(300, 400), nn.SiLU(), nn.Linear(400, 300, bias=False), nn.Linear(300, 8)
    )
    lean = pack_linears(net)
    x = torch.randn(7, 3, 300)
    assert isinstance(lean, nn.Sequential)
    assert [type(part) for part in lean] == [
        QuantLinear,
        nn.SiLU,
        QuantLinear,
        nn.Linear,
    ]  # the last is too small
    want = net(x)
    assert (lean(x) - want).abs().max() < 0.05 * want.std()


@torch.inference_mode()
def test_the_packed_eagle3_head_says_nearly_what_the_head_says() -> None:
    torch.manual_seed(0)
    shape = LayerShape(width=64, heads=4, kv_heads=2, head_width=16, inner=96)
    net = Eagle3Head(
        Eagle3Config(shape, target_width=48, vocab=300, draft_vocab=200, features=(0, 1, 2))
    )
    lean = Int8Eagle3(net)
    features = torch.randn(7, 3 * 48)
    embeds = torch.randn(1, 7, 64)
    positions = torch.arange(5, 12)[None]
    mask = torch.ones(7, 7).tril().bool()
    found = []
    for head in (net, lean):
        states = head.begin(features)[None]
        query, key, value = head.midlayer.project(embeds, states, positions)
        read = head.midlayer.self_attn.attend(query, key, value, mask)
        found.append(head.logits(head.midlayer.finish(states, read)[0]))
    assert (found[0] - found[1]).abs().max() < 0.1 * found[0].std()


def test_products_and_weights_of_attention_stay_exact_in_float32() -> None:
    for width in (8, 64, 80, 128, 256):
        most = attention.levels(width)
        assert most**2 * width < pointwise.EXACT
    assert (
        pointwise.EXACT // pointwise.VALUE_LEVELS - 1
    ) * pointwise.VALUE_LEVELS < pointwise.EXACT


@pytest.mark.parametrize("sink", [None, -20.0, 0.3, 2.0, 100.0])
def test_attention_against_a_slow_reference(sink: float | None) -> None:
    sinks = np.array([] if sink is None else [sink], np.float32)
    rng = np.random.default_rng(0)
    width = 16
    keys = 12
    length = 9
    q, k, v = (rng.normal(size=(rows, width)).astype(np.float32) for rows in (2, keys, keys))
    seen = np.array([[True, False, True], [True, True, False]])
    most = attention.levels(width)
    runs = np.array([[20, 6], [3, 5], [11, 1]])  # the keys lie in three stretches of slots
    slots = [20, 21, 22, 23, 24, 25, 3, 4, 5, 6, 7, 11]
    queries = np.empty((1, 2, width), np.float32)
    planes = np.full((2, 1, 30, width), np.nan, np.float32)
    steps = np.empty((1, 2), np.float32)
    sizes = np.full((2, 1, 30, 1), np.nan, np.float32)
    for r in range(2):
        steps[0, r] = attention.whole(q[r], most, queries[0, r]) * np.float32(0.25)
    for j, slot in enumerate(slots):
        sizes[0, 0, slot, 0] = attention.whole(k[j], most, planes[0, 0, slot])
        sizes[1, 0, slot, 0] = attention.whole(v[j], pointwise.VALUE_LEVELS, planes[1, 0, slot])
    products = np.empty((1, 2, keys), np.float32)
    sums = np.empty((1, 2, width), np.float32)
    results = np.empty((1, 2), np.float32)
    attention.multiply(queries, planes[0], runs, products)
    bits = np.empty(keys, np.int32)
    attention.softmax_weights(
        products, steps, sizes, runs, length, np.array([0, 3]), seen, results, bits, np.float32(0),
        sinks,
    )  # fmt: skip
    attention.gather(products, planes[1], runs, sums)
    scores = (q @ k.T).astype(float) * 0.25
    scores[0, length:][~seen[0]] = scores[1, length:][~seen[1]] = scores[1, :3] = -np.inf
    joined = np.concatenate((scores, np.full((2, 1), -np.inf if sink is None else sink)), 1)
    probs = np.exp(joined - joined.max(1, keepdims=True))
    want = (probs / probs.sum(1, keepdims=True))[:, :keys] @ v  # a sink has no value
    np.testing.assert_allclose(sums[0] * results[0][:, None], want, atol=8e-3)


@pytest.mark.parametrize("few", [0, 1 << 30])
@pytest.mark.parametrize("name", ["llama", "qwen2-mixed", "olmo3", "gemma3", "gpt-oss-eager"])
def test_where_blocks_lie_changes_no_bit(
    name: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = np.random.default_rng(0).integers(1, 60, 75).tolist()
    tree = random_tree(24)
    plain = int8_backend(name)
    torn = int8_backend(name)
    shuffle_blocks(torn, 1)
    monkeypatch.setattr(attention_plan, "FEW", few)
    for nodes in (tree, Tree(9)):
        rows = []
        for backend in (plain, torn):
            session = backend.open(text)
            [first] = backend.score([TreeInput(session, tree)])
            session.commit(tree.path(23))
            [second] = backend.score([TreeInput(session, nodes)])
            rows.append(
                [first.logits(node) for node in range(24)]
                + [second.logits(n) for n in range(len(nodes))]
            )
        assert len(session.slots.runs(75)) > 1
        assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("check", prefill_contract.LIMITED, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["llama", "qwen2-mixed"])
def test_memory(name: str, check: prefill_contract.Limited) -> None:
    check(int8_backend(name), int8_backend(name), np.random.default_rng(0), 0.0)


@pytest.mark.parametrize(
    "name",
    ["llama", "phi3-partial", "olmo2", "gemma2-eager", "gemma3", "mixtral", "gpt-oss-eager"],
)
def test_a_text_read_in_the_passes_of_others_leaves_the_same_bits(name: str) -> None:
    backend = int8_backend(name)
    tree = random_tree(24)
    whole = rows_of(backend, tree)
    session = backend.start(TEXT)
    other = backend.open(TEXT[:5])
    for start in range(0, len(TEXT), 3):
        backend.score([TreeInput(other, tree)], [PrefillChunk(session, TEXT[start : start + 3])])
    [scores] = backend.score([TreeInput(session, tree)])
    assert np.array_equal(np.stack([scores.logits(node) for node in range(len(tree))]), whole)


def test_hidden_states_of_a_known_text_are_those_of_a_read_one() -> None:
    backend = int8_backend("llama")
    free = int8_backend("llama")
    text = [*TEXT, *TEXT]
    backend.memory.limit(160)
    for each in (backend, free):
        each.watch([0, 1])
    session = backend.start(text, "one")
    backend.score((), [PrefillChunk(session, text[:20])])
    backend.score([TreeInput(session, line(text[20:]))])
    session.commit(range(len(text) - 20))
    session.close()
    again = backend.start(text, "one")
    wanted = free.open(text)
    assert again.length == 32
    backend.score((), [PrefillChunk(again, text[32:])])
    found = again.prefill_output(len(text))
    known = wanted.prefill_output(len(text))
    assert found is not None
    assert known is not None
    rows = range(len(text))
    assert torch.equal(found.hidden(rows, [0, 1, 2]), known.hidden(rows, [0, 1, 2]))
    again.close()
    assert backend.memory.cached == 2
    backend.watch([1, 2])  # the last is what the output head reads, which is always kept
    assert backend.memory.cached == 2


def test_what_lacks_a_layer_that_is_asked_for_is_not_taken_up() -> None:
    backend = int8_backend("llama")
    text = [*TEXT, *TEXT]
    backend.memory.limit(160)
    early = backend.open(text)
    backend.watch([1])
    late = backend.open(text)
    for session in (early, late):
        session.close()
    again = backend.start(text)
    assert again.length == 32
    read = again.prefill_output(32)
    assert read is not None
    assert read.hidden(range(32), [1]).shape == (32, 32)
