"""The CUDA path's network as a backend; on a machine without CUDA in Triton's interpreter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.load import on_cuda
from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.torch.support import check_tree
from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.protocols import Chunk, Work
from sapwood.testing import waist
from sapwood.tree import Tree
from tests import tiny
from tests.interpreted import CUDA, DEVICE, require

require()

from sapwood.backends.torch.fused import plans, tune  # noqa: E402
from sapwood.backends.torch.fused.backend import FusedBackend  # noqa: E402
from sapwood.backends.torch.fused.graphs import MOST, Lone, cut_for, loads, pack  # noqa: E402
from sapwood.backends.torch.fused.plans import LIBRARY, Plan  # noqa: E402
from sapwood.backends.torch.fused.qkv import Heads  # noqa: E402
from sapwood.backends.torch.fused.sayer import Sayer  # noqa: E402
from sapwood.backends.torch.fused.session import FusedSession  # noqa: E402
from sapwood.backends.torch.fused.stream import Scale  # noqa: E402
from sapwood.backends.torch.fused.tree import DeviceTree, Parcel, Round  # noqa: E402

NAMES = ("llama", "mistral", "qwen2", "qwen2-mixed", "qwen3")
CLOSE = 2e-3 if CUDA else 1e-4


@pytest.fixture(autouse=True)
def wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs: the interpreter's time goes by their number."""
    if not CUDA:
        monkeypatch.setattr(plans, "first_guess", lambda m, *more: Plan(plans.row_tile(m), 256, 256))


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> tuple[TorchBackend, FusedBackend]:
    """The same model twice: as it is, and fused."""
    model = tiny.make(request.param).to(DEVICE)
    return TorchBackend(model, request.param), FusedBackend(model, request.param)


def test_fused_equals_stock(pair: tuple[TorchBackend, FusedBackend]) -> None:
    stock, fused = pair
    rng = np.random.default_rng(1)
    for nodes in (1, 21):
        start, tree = waist.text(stock, rng, 11), waist.random_tree(stock, rng, nodes)
        found, wanted = (waist.run(backend, backend.open(start), tree) for backend in (fused, stock))
        waist.agree(found, wanted, CLOSE, "the fused pass must equal the model's own")
    assert fused.info.vocab == stock.info.vocab
    assert fused.info.name == "fused"


@pytest.mark.slow
@pytest.mark.parametrize("check", waist.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", NAMES if CUDA else ("qwen2-mixed",))  # in the interpreter the one with most kinds
def test_waist(name: str, check: waist.Check, backends: dict[str, FusedBackend]) -> None:
    if name not in backends:
        backends[name] = FusedBackend(tiny.make(name).to(DEVICE), name)
    check(backends[name], np.random.default_rng(0), CLOSE)


@pytest.fixture(scope="module")
def backends() -> dict[str, FusedBackend]:
    """Backends that tests share."""
    return {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    model = tiny.make("llama", dtype, head_dim=12).to(DEVICE)
    stock, fused = TorchBackend(model), FusedBackend(model)
    rng = np.random.default_rng(2)
    start, tree = waist.text(stock, rng, 9), waist.random_tree(stock, rng, 7)
    found, wanted = (waist.run(backend, backend.open(start), tree) for backend in (fused, stock))
    waist.agree(found, wanted, 0.3 if dtype is torch.bfloat16 else 0.05, "the fused pass must equal the model's own")


def test_branches_are_kept_apart() -> None:
    check_tree(FusedBackend(tiny.make("llama").to(DEVICE)))


def test_hidden_states_are_those_of_the_model() -> None:
    model = tiny.make("llama").to(DEVICE)
    backend, tokens = FusedBackend(model), [1, 2, 3, 4, 5]
    backend.watch([0, 1, 2])
    session = backend.open(tokens[:2])
    read = session.reading(2)
    [scores] = backend.score([Work(session, waist.line(tokens[2:]))])
    with torch.inference_mode():
        states = model(torch.tensor([tokens], device=DEVICE), output_hidden_states=True).hidden_states
    for layers in ([0], [1], [2, 0]):
        wanted = torch.cat([states[layer][0] for layer in layers], -1)
        assert torch.allclose(scores.hidden([2, 0], layers), wanted[[4, 2]], atol=CLOSE)
        assert read is not None
        assert torch.allclose(read.hidden([0, 1], layers), wanted[:2], atol=CLOSE)


def test_scores_outlive_a_pass_but_not_their_text() -> None:
    backend = FusedBackend(tiny.make("llama").to(DEVICE))
    backend.watch([1])
    session, other = backend.open([1, 2]), backend.open([9])
    [scores] = backend.score([Work(session, waist.line([3, 4]))])
    before, states = scores.logits(1), scores.hidden([1], [1])
    best = scores.argmax()
    backend.score([Work(other, waist.line([8, 7]))])
    assert np.array_equal(scores.logits(1), before)
    assert torch.equal(scores.hidden([1], [1]), states)
    [scores] = backend.score([Work(session, waist.line([3, 4]))])
    session.commit([0, 1])
    assert np.array_equal(scores.argmax(), best)
    backend.score([Work(other, Tree(8))])
    with pytest.raises(ValueError, match="moved on"):
        scores.logits(0)
    with pytest.raises(ValueError, match="not kept"):
        scores.hidden([0], [1])


def test_long_trees_and_prompts_take_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.backends.torch.fused.graphs.MOST", 16)
    model = tiny.make("mistral").to(DEVICE)
    stock, fused = TorchBackend(model), FusedBackend(model)
    rng = np.random.default_rng(3)
    start = waist.text(stock, rng, 21)
    trees = [waist.random_tree(stock, rng, nodes) for nodes in (3, 30, 4)]
    jobs = [[Work(backend.open(start), tree) for tree in trees] for backend in (fused, stock)]
    found, wanted = fused.score(jobs[0]), stock.score(jobs[1])
    for tree, one, two in zip(trees, found, wanted, strict=True):
        promise = "several passes must equal one"
        waist.agree(waist.table(one, len(tree)), waist.table(two, len(tree)), CLOSE, promise)
    jobs[0][1].session.commit(trees[1].path(29))
    jobs[1][1].session.commit(trees[1].path(29))
    last = [waist.run(backend, job[1].session, Tree(5)) for backend, job in zip((fused, stock), jobs, strict=True)]
    waist.agree(last[0], last[1], CLOSE, "a commit after several passes must keep the right slots")


@pytest.mark.parametrize(("name", "nodes"), [("llama", 9), ("qwen2-mixed", 70)])
def test_a_tree_on_the_device_is_scored_and_committed_there(name: str, nodes: int) -> None:
    backend = FusedBackend(tiny.make(name, sliding_window=40).to(DEVICE))
    backend.watch([1])
    rng = np.random.default_rng(4)
    start, tree = waist.text(backend, rng, 12), waist.random_tree(backend, rng, nodes)
    parcel = Parcel(torch.device(DEVICE))
    lying = DeviceTree(Round.begin(parcel, tree.height), nodes, lambda words: tree)
    parcel.rows.tokens[:nodes] = torch.from_numpy(tree.tokens)
    parcel.rows.depths[:nodes] = torch.from_numpy(tree.depths)
    parcel.rows.words[:nodes, : -(-nodes // 64)] = torch.from_numpy(pack(tree.ancestors()))
    one, two = backend.open(start), backend.open(start)
    wanted = waist.run(backend, one, tree)
    [scores] = backend.score([Work(two, lying)])
    assert "_tokens" not in lying.__dict__, "the pass must not ask for columns"
    waist.agree(waist.table(scores, nodes), wanted, CLOSE, "a tree on the device must score like any other")
    path = tree.path(nodes - 1)
    lying.turn.path = tuple(path)
    parcel.path[: len(path)] = torch.tensor(path)
    two.commit(path)
    one.commit(path)
    wanted = waist.run(backend, one, Tree(3))
    waist.agree(waist.run(backend, two, Tree(3)), wanted, CLOSE, "its path must be kept like any other")
    with pytest.raises(ValueError, match="scored"):
        two.commit([0, nodes])


def test_the_pool_grows_in_seats_and_slots() -> None:
    backend = FusedBackend(tiny.make("llama").to(DEVICE), slots=8)
    sessions = [backend.open(waist.text(backend, np.random.default_rng(seed), 7)) for seed in range(3)]
    assert backend.fused.pool.seats == 4
    before = [waist.run(backend, session, Tree(5)) for session in sessions]
    longer = backend.open(waist.text(backend, np.random.default_rng(9), 60))
    assert backend.fused.pool.slots >= 60
    for session, wanted in zip(sessions, before, strict=True):
        waist.agree(waist.run(backend, session, Tree(5)), wanted, CLOSE, "growth must keep what was committed")
    taken = len(backend.fused.pool.free)
    longer.close()
    assert len(backend.fused.pool.free) == taken + 1


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    backend = FusedBackend(tiny.make("llama").to(DEVICE), slots=32)
    backend.memory.limit(64)
    one, two = backend.open([1, 2]), backend.open([1, 2, 3])
    assert (backend.memory.used, backend.memory.blocks, backend.memory.block) == (2, 2, 32)
    assert not backend.memory.fits(1)
    with pytest.raises(OutOfMemory, match="3 seats of 32"):
        backend.open([1])
    with pytest.raises(OutOfMemory, match="2 seats of 42"):
        backend.score([Work(two, Tree(4))], [Chunk(one, [1] * 40)])
    assert (one.length, two.length, backend.memory.used) == (2, 3, 2)
    two.close()
    assert backend.memory.used == 1
    assert backend.memory.fits(32)
    backend.open([1]).close()
    one.close()
    assert backend.memory.used == 0


def test_the_models_weights_are_kept_once() -> None:
    model = tiny.make("qwen2").to(DEVICE)
    backend = FusedBackend(model)
    layer, fused = model.model.layers[1], backend.fused.model.layers[1]
    assert layer.mlp.up_proj.weight.data_ptr() == fused.gate_up[fused.gate_up.shape[0] // 2 :].data_ptr()
    assert layer.self_attn.k_proj.weight.untyped_storage().data_ptr() == fused.qkv.untyped_storage().data_ptr()


def test_loading_takes_the_fused_backend_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[object] = []
    monkeypatch.setattr(tune, "prepare", prepared.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for name, dtype, fused in (
        ("llama", torch.float16, True),
        ("llama", torch.float32, False),
        ("gpt2", torch.half, False),
    ):
        backend = on_cuda(tiny.make(name, dtype).to(DEVICE), name, lambda message: None)
        assert isinstance(backend, FusedBackend) == fused
        assert backend.network.adopt(backend.model) is backend.model
    assert len(prepared) == 1


def test_other_models_are_refused() -> None:
    with pytest.raises(SapwoodError, match="not Llama-like"):
        FusedBackend(tiny.make("gpt2"), "gpt2")


# ------------------------------------------------------------------------------------------- pieces
def test_norms_are_divided_without_loss() -> None:
    norm = torch.tensor([0.3, -5.7, 1.1], dtype=torch.float16)
    scale = Scale.of(norm, 1e-5)
    assert scale.norm.abs().max() <= 1
    assert torch.equal(scale.norm * scale.lift, norm)
    assert Scale.of(norm / 8, 1e-5).lift == 1


def test_bits_are_packed_in_words() -> None:
    mask = np.random.default_rng(0).random((3, 130)) < 0.5
    words = pack(mask)
    assert words.shape == (3, 3)
    bits = (words[:, :, None] >> np.arange(64)) & 1
    assert np.array_equal(bits.reshape(3, -1)[:, :130].astype(bool), mask)


@pytest.mark.parametrize("window", [0, 3])
def test_a_chain_is_packed_like_any_tree(window: int) -> None:
    from sapwood.backends.torch.fused.graphs import seen
    from sapwood.backends.torch.mask import Block, tail

    nodes = np.arange(9)
    block = Block(4, nodes - 1, nodes, since=2)
    assert np.array_equal(seen(block, window), tail(block, window))


def test_long_texts_are_split_until_the_device_is_busy() -> None:
    heads = Heads(32, 8, 128)
    assert cut_for(1, 1, 128, heads).splits == 1
    assert cut_for(1, 1, 512, heads).splits == 4
    assert cut_for(1, 1, 4096, heads).splits == 8
    assert cut_for(64, 32, 512, heads).splits == cut_for(64, 1, 512, heads).splits == 1
    assert cut_for(1, 1, 1 << 15, heads).splits == 32
    assert cut_for(64, 1, 1 << 15, heads).rows * 4 == 64
    assert cut_for(1, 1, 512, Heads(9, 3, 64)).rows == 4


def test_loads_hold_all_rows() -> None:
    backend = FusedBackend(tiny.make("llama").to(DEVICE))
    session = backend.open([1])
    tree = waist.random_tree(backend, np.random.default_rng(0), MOST // 8 + 3)
    block, span = session.begin(tree, 0)
    from sapwood.backends.torch.network import Rows

    [load] = loads(Rows(tree.tokens, [block], [span]), [0])
    assert load.shape(True, backend.fused.heads).rows >= len(tree)
    assert load.words.shape == (1, len(tree), 2)


@pytest.mark.parametrize("nodes", [1, 2, 13, 64])
def test_a_lone_tree_is_described_like_any_other(nodes: int) -> None:
    backend = FusedBackend(tiny.make("qwen2-mixed", sliding_window=80).to(DEVICE))
    session = backend.open([1, 2, 3])
    assert isinstance(session, FusedSession)
    tree = waist.random_tree(backend, np.random.default_rng(nodes), nodes)
    block, span = session.begin(tree, 0)
    from sapwood.backends.torch.network import Rows

    [load] = loads(Rows(tree.tokens, [block], [span]), backend.fused.windows)
    lone = Lone(tree.tokens, tree.parents, tree.depths, session.seat.first, session.length, len(backend.fused.windows))
    shape = load.shape(True, backend.fused.heads)
    assert lone.shape(True, backend.fused.heads) == shape
    hosts = [np.full(backend.fused.inbox.there.numel(), 9) for _ in range(2)]
    assert load.write(shape, hosts[0]) == lone.write(shape, hosts[1])
    empty = -(-nodes // shape.cut.rows)  # blocks from here on hold no rows, and nobody reads them
    for host in hosts:
        host[3 * shape.rows : shape.size].reshape(-1, shape.blocks)[:, empty:] = 0
    assert np.array_equal(hosts[0], hosts[1])


@pytest.mark.parametrize("temperature", [0.8, 1.3])
def test_draws_of_a_tree_on_the_host_are_those_of_the_host(temperature: float) -> None:
    from sapwood.rng import Keyed, Place
    from sapwood.sampling import softmax

    torch.manual_seed(0)
    logits, rng = 3 * torch.randn(8, 61, device=DEVICE), Keyed(7)
    sayer, depths = Sayer(logits), np.array([0, 1, 1, 2, 3, 3])
    for start in (10, 20):
        said = sayer.say(depths, temperature, lambda depth, start=start: rng.key(Place(start + depth)))  # type: ignore[misc]
        laws = [softmax(row, temperature) for row in logits.float().cpu().numpy()]
        wanted = [rng.pick(laws[row], Place(start + depth)) for row, depth in enumerate(depths.tolist())]
        assert said is not None
        assert said.tolist() == wanted
    assert sayer.say(np.arange(40), temperature, lambda depth: depth) is None


def test_decoding_draws_the_same_text_as_the_host_would(monkeypatch: pytest.MonkeyPatch) -> None:
    from sapwood.engine import Engine
    from sapwood.recipes import resolve
    from sapwood.rng import Keyed
    from sapwood.sampling import Sampling

    backend = FusedBackend(tiny.make("llama").to(DEVICE))
    asked, texts = [], []
    say = Sayer.say

    def spy(self: Sayer, *args: Any) -> Any:
        asked.append(args)
        return say(self, *args)

    monkeypatch.setattr(Sayer, "say", spy)
    for by_host in (False, True):
        if by_host:
            monkeypatch.setattr(Sayer, "say", lambda *args: None)
        rounds = Engine(backend, resolve("plain")).rounds([1, 2, 3], Sampling(max_tokens=9, temperature=0.9), Keyed(5))
        texts.append([token for _, outcome in zip(range(6), rounds, strict=False) for token in outcome.tokens])
    assert len(asked) == 6
    assert texts[0] == texts[1]


# -------------------------------------------------------------------------------------------- plans
def test_known_shapes_keep_their_plans_and_others_get_the_vendors_product_for_many_rows() -> None:
    assert plans.plan_of(5, 3072, 576, "gate") == plans.KNOWN[16, 3072, 576, "gate"]
    assert all(tile in plans.TILES for tile, *_ in plans.KNOWN)


def test_unknown_shapes_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend, timed = FusedBackend(tiny.make("llama").to(DEVICE)), []

    def fake(calls: Any, plan: Plan) -> float:
        timed.append(plan)
        calls[0](plan)
        return 1.0 if plan.library else 2.0

    monkeypatch.setattr(tune, "time", fake)
    monkeypatch.setattr(tune, "ORDER", (16, 32))
    monkeypatch.setattr(tune, "place", lambda device: tmp_path / "plans" / "one.json")
    monkeypatch.setattr(plans, "MEASURED", {})
    tune.prepare(backend.fused, seconds=0)
    assert not timed
    tune.prepare(backend.fused, seconds=1000)
    assert {key[0] for key in plans.MEASURED} == {16, 32}
    assert set(plans.MEASURED.values()) == {LIBRARY}
    measured, count = dict(plans.MEASURED), len(timed)
    plans.MEASURED.clear()
    tune.prepare(backend.fused, seconds=1000)
    assert len(timed) == count
    assert measured == plans.MEASURED


def test_a_damaged_file_of_plans_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MEASURED", {})
    (tmp_path / "one.json").write_text('[[16, 1, 1, "plain", {"rows": 16, "unknown": 1}]]')
    tune.recall(tmp_path / "one.json")
    tune.recall(tmp_path / "none.json")
    assert not plans.MEASURED


@pytest.mark.parametrize("then", ["score", "fork", "rewind", "close"])
def test_a_kept_path_is_in_its_place_when_somebody_looks(then: str) -> None:
    model = tiny.make("llama").to(DEVICE)
    stock, fused = TorchBackend(model), FusedBackend(model)
    text = [5, 6, 7]
    plain, session = stock.open(text), fused.open(text)
    best = [int(stock.score([Work(plain, waist.line([3]))])[0].argmax()[0])]
    best.append(int(stock.score([Work(plain, waist.line([3, *best]))])[0].argmax()[1]))
    tree = Tree(3)
    for token in (best[0] + 1, best[0] + 2):
        tree.add(0, token % fused.info.vocab, 0.5)
    node = tree.add(0, best[0], 0.5)
    tree.add(1, 9, 0.5)
    tip = tree.add(node, best[1], 0.5)
    scores: Any = fused.score([Work(session, staged := fused.stage(tree))])[0]
    found = scores.follow(staged, 0.0, lambda depth: 0)
    assert found is not None
    assert found[0] == (0, node, tip)
    session.commit(found[0])
    if then == "close":
        session.close()
        session = fused.open([*text, 3, *best])
    elif then == "fork":
        session = session.fork()
    elif then == "rewind":
        session.rewind(len(text) + 2)
        fused.score([Work(session, waist.line([best[1]]))])
        session.commit([0])
    plain.close()
    plain = stock.open([*text, 3, *best])
    ours, theirs = (
        target.score([Work(one, waist.line([4, 8]))])[0] for target, one in ((fused, session), (stock, plain))
    )
    assert np.allclose(ours.logits(1), theirs.logits(1), atol=CLOSE)
