"""The CUDA path's network as a backend; on a machine without CUDA in Triton's interpreter."""

from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.hf.support import check_tree
from sapwood.backends.torch.load import on_cuda
from sapwood.core.protocols import PrefillChunk, TreeInput
from sapwood.core.tree import Tree
from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.testing import backend_contract
from tests.helpers import tiny_models
from tests.helpers.int8_targets import (
    CPU_ONLY,
    EVERY_KERNEL,
    EXPERTS,
    EXTENDED,
    LLAMA_LIKE,
    RELATED,
)
from tests.helpers.triton_mode import CUDA, DEVICE, chosen, require

require()

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.draft.device_tree import DeviceTree, RoundBuffer, RoundUse
from sapwood.backends.torch.cuda.kernels import (
    autotune,
)
from sapwood.backends.torch.cuda.kernels.prenorm import NormScale
from sapwood.backends.torch.cuda.kernels.qkv import HeadSizes
from sapwood.backends.torch.cuda.pass_inputs import (
    MAX_ROWS,
    SingleTree,
    pack,
    split_passes,
    tiles_for,
)
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.backends.torch.cuda.verify.device_sampler import DeviceSampler

pytestmark = pytest.mark.usefixtures("wide_tiles")

NAMES = tuple(name for name in (*LLAMA_LIKE, *RELATED, *EXTENDED, *EXPERTS) if name not in CPU_ONLY)
CLOSE = 2e-3 if CUDA else 1e-4
MANY = 21 if CUDA else 7  # nodes of a tree


@pytest.fixture(scope="module", params=chosen(NAMES, EVERY_KERNEL))
def pair(request: pytest.FixtureRequest) -> tuple[TorchBackend, CudaBackend]:
    """The same model twice: as it is, and fused."""
    model = tiny_models.make(request.param).to(DEVICE)
    return TorchBackend(model, request.param), CudaBackend(model, request.param)


def test_fused_equals_stock(pair: tuple[TorchBackend, CudaBackend]) -> None:
    stock, fused = pair
    rng = np.random.default_rng(1)
    for nodes in (1, MANY):
        start = backend_contract.text(stock, rng, 11)
        tree = backend_contract.random_tree(stock, rng, nodes)
        found, wanted = (
            backend_contract.run(backend, backend.open(start), tree) for backend in (fused, stock)
        )
        backend_contract.agree(found, wanted, CLOSE, "the fused pass must equal the model's own")
    assert fused.info.vocab == stock.info.vocab
    assert fused.info.name == "fused"


@pytest.mark.slow
@pytest.mark.parametrize("check", backend_contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name", NAMES if CUDA else ("qwen2-mixed",)
)  # in the interpreter the one with most kinds
def test_waist(name: str, check: backend_contract.Check, backends: dict[str, CudaBackend]) -> None:
    if name not in backends:
        backends[name] = CudaBackend(tiny_models.make(name).to(DEVICE), name)
    check(backends[name], np.random.default_rng(0), CLOSE)


@pytest.fixture(scope="module")
def backends() -> dict[str, CudaBackend]:
    """Backends that tests share."""
    return {}


@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("llama", torch.float16, {"head_dim": 12}),
        pytest.param("gemma3", torch.bfloat16, {}, marks=pytest.mark.interpreter),
        pytest.param("qwen3-moe", torch.float16, {}, marks=pytest.mark.interpreter),
        pytest.param("olmo2", torch.bfloat16, {}, marks=pytest.mark.interpreter),
        ("llama", torch.bfloat16, {"head_dim": 12}),
    ],
    ids=str,
)
def test_half_precision(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    model = tiny_models.make(name, dtype, **options).to(DEVICE)
    stock = TorchBackend(model)
    fused = CudaBackend(model)
    rng = np.random.default_rng(2)
    start = backend_contract.text(stock, rng, 9)
    tree = backend_contract.random_tree(stock, rng, 7)
    found, wanted = (
        backend_contract.run(backend, backend.open(start), tree) for backend in (fused, stock)
    )
    backend_contract.agree(
        found,
        wanted,
        0.3 if dtype is torch.bfloat16 else 0.05,
        "the fused pass must equal the model's own",
    )


def test_branches_are_kept_apart() -> None:
    check_tree(CudaBackend(tiny_models.make("llama").to(DEVICE)))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_hidden_states_are_those_of_the_model(name: str) -> None:
    model = tiny_models.make(name).to(DEVICE)
    backend = CudaBackend(model)
    tokens = [1, 2, 3, 4, 5]
    backend.watch([0, 1, 2])
    session = backend.open(tokens[:2])
    read = session.prefill_output(2)
    [scores] = backend.score([TreeInput(session, backend_contract.line(tokens[2:]))])
    with torch.inference_mode():
        states = model(
            torch.tensor([tokens], device=DEVICE), output_hidden_states=True
        ).hidden_states
    for layers in ([0], [1], [2, 0]):
        wanted = torch.cat([states[layer][0] for layer in layers], -1)
        assert torch.allclose(scores.hidden([2, 0], layers), wanted[[4, 2]], atol=CLOSE)
        assert read is not None
        assert torch.allclose(read.hidden([0, 1], layers), wanted[:2], atol=CLOSE)


def test_scores_outlive_a_pass_but_not_their_text() -> None:
    backend = CudaBackend(tiny_models.make("llama").to(DEVICE))
    backend.watch([1])
    session = backend.open([1, 2])
    other = backend.open([9])
    [scores] = backend.score([TreeInput(session, backend_contract.line([3, 4]))])
    before = scores.logits(1)
    states = scores.hidden([1], [1])
    best = scores.argmax()
    backend.score([TreeInput(other, backend_contract.line([8, 7]))])
    assert np.array_equal(scores.logits(1), before)
    assert torch.equal(scores.hidden([1], [1]), states)
    [scores] = backend.score([TreeInput(session, backend_contract.line([3, 4]))])
    session.commit([0, 1])
    assert np.array_equal(scores.argmax(), best)
    backend.score([TreeInput(other, Tree(8))])
    with pytest.raises(ValueError, match="overwrote this output"):
        scores.logits(0)
    with pytest.raises(ValueError, match="not kept"):
        scores.hidden([0], [1])


def test_long_trees_and_prompts_take_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pass_inputs", "tree_rows"):
        monkeypatch.setattr(f"sapwood.backends.torch.cuda.{module}.MAX_ROWS", 8)
    model = tiny_models.make("mistral").to(DEVICE)
    stock = TorchBackend(model)
    fused = CudaBackend(model)
    rng = np.random.default_rng(3)
    start = backend_contract.text(stock, rng, 11)
    trees = [backend_contract.random_tree(stock, rng, nodes) for nodes in (3, 10, 4)]
    jobs = [[TreeInput(backend.open(start), tree) for tree in trees] for backend in (fused, stock)]
    found = fused.score(jobs[0])
    wanted = stock.score(jobs[1])
    for tree, one, two in zip(trees, found, wanted, strict=True):
        promise = "several passes must equal one"
        backend_contract.agree(
            backend_contract.table(one, len(tree)),
            backend_contract.table(two, len(tree)),
            CLOSE,
            promise,
        )
    jobs[0][1].session.commit(trees[1].path(9))
    jobs[1][1].session.commit(trees[1].path(9))
    last = [
        backend_contract.run(backend, job[1].session, Tree(5))
        for backend, job in zip((fused, stock), jobs, strict=True)
    ]
    backend_contract.agree(
        last[0], last[1], CLOSE, "a commit after several passes must keep the right slots"
    )


@pytest.mark.parametrize(("name", "nodes"), [("llama", 4), ("qwen2-mixed", 70 if CUDA else 5)])
def test_a_tree_on_the_device_is_scored_and_committed_there(name: str, nodes: int) -> None:
    backend = CudaBackend(tiny_models.make(name, sliding_window=40).to(DEVICE))
    backend.watch([1])
    rng = np.random.default_rng(4)
    start = backend_contract.text(backend, rng, 12)
    tree = backend_contract.random_tree(backend, rng, nodes)
    round_buffer = RoundBuffer(torch.device(DEVICE))
    lying = DeviceTree(RoundUse.begin(round_buffer, tree.height), nodes, lambda words: tree)
    round_buffer.rows.tokens[:nodes] = torch.from_numpy(tree.tokens)
    round_buffer.rows.depths[:nodes] = torch.from_numpy(tree.depths)
    round_buffer.rows.words[:nodes, : -(-nodes // 64)] = torch.from_numpy(pack(tree.ancestors()))
    one = backend.open(start)
    two = backend.open(start)
    wanted = backend_contract.run(backend, one, tree)
    [scores] = backend.score([TreeInput(two, lying)])
    assert "_tokens" not in lying.__dict__, "the pass must not ask for columns"
    backend_contract.agree(
        backend_contract.table(scores, nodes),
        wanted,
        CLOSE,
        "a tree on the device must score like any other",
    )
    path = tree.path(nodes - 1)
    lying.round_use.path = tuple(path)
    round_buffer.path[: len(path)] = torch.tensor(path)
    two.commit(path)
    one.commit(path)
    wanted = backend_contract.run(backend, one, Tree(3))
    backend_contract.agree(
        backend_contract.run(backend, two, Tree(3)),
        wanted,
        CLOSE,
        "its path must be kept like any other",
    )
    with pytest.raises(ValueError, match="scored"):
        two.commit([0, nodes])


def test_the_pool_grows_in_seats_and_slots() -> None:
    backend = CudaBackend(tiny_models.make("llama").to(DEVICE), slots=8)
    sessions = [
        backend.open(backend_contract.text(backend, np.random.default_rng(seed), 7))
        for seed in range(3)
    ]
    assert backend.fused.pool.sequences == 4
    before = [backend_contract.run(backend, session, Tree(5)) for session in sessions]
    longer = backend.open(backend_contract.text(backend, np.random.default_rng(9), 60))
    assert backend.fused.pool.slots >= 60
    for session, wanted in zip(sessions, before, strict=True):
        backend_contract.agree(
            backend_contract.run(backend, session, Tree(5)),
            wanted,
            CLOSE,
            "growth must keep what was committed",
        )
    taken = len(backend.fused.pool.free)
    longer.close()
    assert len(backend.fused.pool.free) == taken + 1


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    backend = CudaBackend(tiny_models.make("llama").to(DEVICE), slots=32)
    backend.memory.limit(64)
    one = backend.open([1, 2])
    two = backend.open([1, 2, 3])
    assert (backend.memory.used, backend.memory.blocks, backend.memory.block) == (2, 2, 32)
    assert not backend.memory.fits(1)
    with pytest.raises(OutOfMemory, match="3 sequences of 32"):
        backend.open([1])
    with pytest.raises(OutOfMemory, match="2 sequences of 42"):
        backend.score([TreeInput(two, Tree(4))], [PrefillChunk(one, [1] * 40)])
    assert (one.length, two.length, backend.memory.used) == (2, 3, 2)
    two.close()
    assert backend.memory.used == 1
    assert backend.memory.fits(32)
    backend.open([1]).close()
    one.close()
    assert backend.memory.used == 0


def test_the_models_weights_are_kept_once() -> None:
    model = tiny_models.make("qwen2").to(DEVICE)
    backend = CudaBackend(model)
    layer = model.model.layers[1]
    fused = backend.fused.model.layers[1]
    assert (
        layer.mlp.up_proj.weight.data_ptr()
        == fused.gate_up[fused.gate_up.shape[0] // 2 :].data_ptr()
    )
    assert (
        layer.self_attn.k_proj.weight.untyped_storage().data_ptr()
        == fused.qkv.untyped_storage().data_ptr()
    )


def test_loading_takes_the_fused_backend_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[object] = []
    monkeypatch.setattr(autotune, "prepare", prepared.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for name, dtype, fused in (
        ("llama", torch.float16, True),
        ("llama", torch.float32, False),
        ("olmoe", torch.bfloat16, True),
        ("gpt2", torch.half, False),
    ):
        backend = on_cuda(tiny_models.make(name, dtype).to(DEVICE), name, lambda message: None)
        assert isinstance(backend, CudaBackend) == fused
        assert backend.network.convert_head(backend.model) is backend.model
    assert len(prepared) == 2


def test_other_models_are_refused() -> None:
    with pytest.raises(SapwoodError, match="kernels cannot run gpt2"):
        CudaBackend(tiny_models.make("gpt2"), "gpt2")


# ------------------------------------------------------------------------------------------- pieces
def test_norms_are_divided_without_loss() -> None:
    norm = torch.tensor([0.3, -5.7, 1.1], dtype=torch.float16)
    scale = NormScale.of(norm, 1e-5)
    assert scale.norm.abs().max() <= 1
    assert torch.equal(scale.norm * scale.lift, norm)
    assert NormScale.of(norm / 8, 1e-5).lift == 1


def test_bits_are_packed_in_words() -> None:
    mask = np.random.default_rng(0).random((3, 130)) < 0.5
    words = pack(mask)
    assert words.shape == (3, 3)
    bits = (words[:, :, None] >> np.arange(64)) & 1
    assert np.array_equal(bits.reshape(3, -1)[:, :130].astype(bool), mask)


def test_long_texts_are_shared_by_programs_until_the_device_is_busy() -> None:
    heads = HeadSizes(32, 8, 128)

    def shared(rows: int, sessions: int, longest: int) -> tuple[int, int]:
        tiles = tiles_for(rows, sessions, longest, heads, trees=False)
        return tiles.lead, tiles.units

    assert shared(1, 1, 64) == (1, 1)
    assert shared(1, 1, 512) == (1, 8)
    assert shared(1, 1, 4096) == (1, 28)
    assert shared(12, 12, 512) == (4, 5)
    assert shared(64, 32, 512) == (16, 1)
    assert shared(64, 64, 4096) == (0, 1)
    assert tiles_for(64, 1, 1 << 15, heads, trees=True).rows * 4 == 64
    assert tiles_for(1, 1, 512, HeadSizes(9, 3, 64), trees=False).rows == 4


def test_loads_hold_all_rows() -> None:
    backend = CudaBackend(tiny_models.make("llama").to(DEVICE))
    session = backend.open([1])
    tree = backend_contract.random_tree(backend, np.random.default_rng(0), MAX_ROWS // 8 + 3)
    block, span = session.begin(tree, 0)
    from sapwood.backends.torch.network import PassInput

    [load] = split_passes(PassInput(tree.tokens, [block], [span]))
    assert load.shape(True, backend.fused.heads).rows >= len(tree)
    assert load.words.shape == (len(tree), 2)


@pytest.mark.parametrize("nodes", [1, 2, 13, 64])
def test_a_lone_tree_is_described_like_any_other(nodes: int) -> None:
    backend = CudaBackend(tiny_models.make("qwen2-mixed", sliding_window=80).to(DEVICE))
    session = backend.open([1, 2, 3])
    assert isinstance(session, CudaSession)
    tree = backend_contract.random_tree(backend, np.random.default_rng(nodes), nodes)
    block, span = session.begin(tree, 0)
    from sapwood.backends.torch.network import PassInput

    [load] = split_passes(PassInput(tree.tokens, [block], [span]))
    lone = SingleTree(
        tree.tokens,
        tree.parents,
        tree.depths,
        session.sequence.first,
        session.length,
    )
    shape = lone.shape(True, backend.fused.heads)
    chain = all(piece.chain for piece in load.pieces)
    assert chain == (nodes < 3)
    assert shape.tiles.trees == (nodes > 1)  # found without a look at the tree
    if shape.tiles.trees != chain:
        assert load.shape(True, backend.fused.heads) == shape
    hosts = [np.full(backend.fused.inputs.on_device.numel(), 9) for _ in range(2)]
    assert load.write(shape, hosts[0]) == lone.write(shape, hosts[1])
    if chain:
        hosts[1][shape.size :][:nodes] = 0  # ancestor words, which nothing reads in a chain
    empty = -(-nodes // shape.tiles.rows)  # blocks from here on hold no rows, and nobody reads them
    for host in hosts:
        host[3 * shape.rows : shape.size].reshape(-1, shape.blocks)[:, empty:] = 0
    assert np.array_equal(hosts[0], hosts[1])


@pytest.mark.parametrize("temperature", [0.8, 1.3])
def test_draws_of_a_tree_on_the_host_are_those_of_the_host(temperature: float) -> None:
    from sapwood.core.rng import KeyedRng, NoiseKey
    from sapwood.core.sampling import softmax

    torch.manual_seed(0)
    logits = 3 * torch.randn(8, 61, device=DEVICE)
    rng = KeyedRng(7)
    sampler = DeviceSampler(logits)
    depths = np.array([0, 1, 1, 2, 3, 3])
    for start in (10, 20):
        said = sampler.sample(
            depths,
            temperature,
            lambda depth, start=start: rng.key(NoiseKey(start + depth)),  # type: ignore[misc]
        )
        all_probs = [softmax(row, temperature) for row in logits.float().cpu().numpy()]
        wanted = [
            rng.pick(all_probs[row], NoiseKey(start + depth))
            for row, depth in enumerate(depths.tolist())
        ]
        assert said is not None
        assert said.tolist() == wanted
    assert sampler.sample(np.arange(40), temperature, lambda depth: depth) is None


def test_decoding_draws_the_same_text_as_the_host_would(monkeypatch: pytest.MonkeyPatch) -> None:
    from sapwood.core.rng import KeyedRng
    from sapwood.core.sampling import Sampling
    from sapwood.engine.loop import Engine
    from sapwood.recipes import resolve

    backend = CudaBackend(tiny_models.make("llama").to(DEVICE))
    asked = []
    texts = []
    say = DeviceSampler.sample

    def spy(self: DeviceSampler, *args: Any) -> Any:
        asked.append(args)
        return say(self, *args)

    monkeypatch.setattr(DeviceSampler, "sample", spy)
    for by_host in (False, True):
        if by_host:
            monkeypatch.setattr(DeviceSampler, "sample", lambda *args: None)
        rounds = Engine(backend, resolve("plain")).rounds(
            [1, 2, 3], Sampling(max_tokens=9, temperature=0.9), KeyedRng(5)
        )
        texts.append(
            [
                token
                for _, outcome in zip(range(6), rounds, strict=False)
                for token in outcome.tokens
            ]
        )
    assert len(asked) == 6
    assert texts[0] == texts[1]


# -------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("then", ["score", "fork", "rewind", "close"])
def test_a_kept_path_is_in_its_place_when_somebody_looks(then: str) -> None:
    model = tiny_models.make("llama").to(DEVICE)
    stock = TorchBackend(model)
    fused = CudaBackend(model)
    text = [5, 6, 7]
    plain = stock.open(text)
    session = fused.open(text)
    best = [int(stock.score([TreeInput(plain, backend_contract.line([3]))])[0].argmax()[0])]
    best.append(
        int(stock.score([TreeInput(plain, backend_contract.line([3, *best]))])[0].argmax()[1])
    )
    tree = Tree(3)
    for token in (best[0] + 1, best[0] + 2):
        tree.add(0, token % fused.info.vocab, 0.5)
    node = tree.add(0, best[0], 0.5)
    tree.add(1, 9, 0.5)
    tip = tree.add(node, best[1], 0.5)
    scores: Any = fused.score([TreeInput(session, staged := fused.place_tree(tree))])[0]
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
        fused.score([TreeInput(session, backend_contract.line([best[1]]))])
        session.commit([0])
    plain.close()
    plain = stock.open([*text, 3, *best])
    ours, theirs = (
        target.score([TreeInput(one, backend_contract.line([4, 8]))])[0]
        for target, one in ((fused, session), (stock, plain))
    )
    assert np.allclose(ours.logits(1), theirs.logits(1), atol=CLOSE)
