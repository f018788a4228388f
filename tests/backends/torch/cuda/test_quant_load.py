"""Models with weights in 8 and 4 bits on the CUDA path; without CUDA in Triton's interpreter."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.backends.torch import quant_place
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.quant_checkpoint import CheckpointFormat
from sapwood.backends.torch.quant_weight import MINIMUM4, ZERO4, ZERO8, QuantWeight
from sapwood.common.gguf_header import read_header
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetOutput, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.recipes import resolve
from sapwood.testing import backend_contract
from tests.helpers import tiny_gguf, tiny_models
from tests.helpers.quant_checkpoints import Layout, write
from tests.helpers.triton_mode import CUDA, DEVICE, few_programs, require

require()

from sapwood.backends.torch.cuda import quant_load
from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.kernels import tile_configs
from sapwood.backends.torch.cuda.kernels.quant_product import kind_of
from sapwood.backends.torch.cuda.quant_load import load_checkpoint, load_floats
from sapwood.backends.torch.gguf import described
from sapwood.backends.torch.load import read_converted
from sapwood.backends.torch.resolve_model import QUANTISED

CLOSE = 5e-2 if CUDA else 1e-4
PLACE = torch.device(DEVICE)
ACTIVATIONS = torch.float16 if CUDA else torch.float32
NARROW = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(autouse=True, scope="module")
def wide_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        few_programs(patch)
        if not CUDA:  # few steps too: each is unrolled over its blocks
            patch.setattr(tile_configs, "first_guess", few_steps)
        yield


def few_steps(m: int, *_: Any) -> tile_configs.TileConfig:
    return tile_configs.TileConfig(tile_configs.row_tile(m), 512, 64)


def silent(message: str) -> None:
    """Discard progress messages."""


def loaded(dtype: str, name: str = "qwen2", **options: Any) -> CudaBackend:
    """A tiny model in this number format."""
    model = tiny_models.make(name, ACTIVATIONS, **options)
    return load_floats(model, name, dtype, PLACE, lambda: pytest.fail("was loaded"), silent)


def weights(backend: CudaBackend) -> dict[str, Any]:
    """The model's weights as transformers names them, of what the projections stand for."""
    found: dict[str, Tensor] = {"lm_head.weight": floats(backend.fused.model.head)}
    config = backend.model.config
    heads = [config.num_attention_heads] + 2 * [config.num_key_value_heads]
    for index, layer in enumerate(backend.fused.model.layers):
        start = f"model.layers.{index}."
        width = backend.fused.heads.width
        several = torch.split(floats(layer.qkv), [count * width for count in heads])
        names = [f"self_attn.{part}_proj" for part in "qkv"]
        gate, up = floats(layer.gate_up).chunk(2)
        names += ["self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
        several = (*several, floats(layer.out), gate, up, floats(layer.down))
        pairs = zip(names, several, strict=True)
        found |= {f"{start}{name}.weight": weight for name, weight in pairs}
    return found


def quantised(weight: Any) -> QuantWeight:
    assert isinstance(weight, QuantWeight)
    return weight


def floats(weight: Any) -> Tensor:
    return quantised(weight).floats()


def scored(backend: TorchBackend, text: list[int], tree: Tree) -> FloatArray:
    return backend_contract.run(backend, backend.open(text), tree)


def agree(found: TorchBackend, wanted: TorchBackend) -> None:
    rng = np.random.default_rng(1)
    text = backend_contract.text(wanted, rng, 9)
    tree = backend_contract.random_tree(wanted, rng, 5)
    why = "quantised weights must act as those that they stand for"
    one, two = (scored(backend, text, tree) for backend in (found, wanted))
    backend_contract.agree(one, two, CLOSE, why)


def said(backend: TorchBackend, count: int = 5) -> list[int]:
    rounds = Engine(backend, resolve("plain")).rounds(
        [1, 2, 3], Sampling(max_tokens=count + 3), KeyedRng(5)
    )
    return [
        token for _, outcome in zip(range(count), rounds, strict=False) for token in outcome.tokens
    ]


# ------------------------------------------------------------------------------- our own quantisation
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_quantised_model_is_that_of_its_restored_weights(dtype: str, name: str) -> None:
    found = loaded(dtype, name)
    model = tiny_models.make(name, ACTIVATIONS).to(PLACE)
    before = model.get_submodule("model.layers.1.mlp.down_proj").weight.clone()
    restored = weights(found)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    model.load_state_dict({**model.state_dict(), **restored})
    after = model.get_submodule("model.layers.1.mlp.down_proj").weight
    error = (after - before).abs().max() / before.abs().max()
    assert 0 < error < (0.1 if dtype == "int4" else 0.04)
    agree(found, TorchBackend(model))
    assert found.info.dtype == dtype
    assert "hidden" in found.info.provides


@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_row_of_a_tree_has_the_bits_of_the_row_alone(dtype: str) -> None:
    backend = loaded(dtype, "llama", hidden_size=64, intermediate_size=96, **NARROW)
    rng = np.random.default_rng(5)
    start = backend_contract.text(backend, rng, 6)
    tree = Tree(3)
    tip = tree.add(tree.add(0, 4, 0.5), 5, 0.5)
    tree.add(0, 6, 0.5)
    [scores] = backend.score([TreeInput(backend.open(start), tree)])
    wanted = rows_of(scores, len(tree))
    session = backend.open(start)
    for node in tree.path(tip):  # one after the other, as without a draft
        [scores] = backend.score([TreeInput(session, Tree(int(tree.tokens[node])))])
        assert np.array_equal(scores.logits(0), wanted[node])
        session.commit([0])
    other = TreeInput(backend.open(start[:3]), backend_contract.random_tree(backend, rng, 4))
    beside = backend.score([other, TreeInput(backend.open(start), tree)])[1]
    assert np.array_equal(rows_of(beside, len(tree)), wanted)


def rows_of(scores: TargetOutput, count: int) -> FloatArray:
    return np.stack([scores.logits(row) for row in range(count)])


def test_what_is_not_llama_like_is_refused() -> None:
    with pytest.raises(SapwoodError, match="cannot be run in int8 on a GPU: its layers are not"):
        loaded("int8", "gpt2")


def test_the_transformers_model_is_loaded_only_for_its_own_code() -> None:
    model = tiny_models.make("llama", ACTIVATIONS)
    calls = []

    def load() -> Any:
        calls.append(1)
        return tiny_models.make("llama", ACTIVATIONS)

    backend = load_floats(model, "llama", "int4", PLACE, load, silent)
    assert all(part.is_meta for part in model.model.layers.parameters())
    head = backend.model.get_output_embeddings().weight
    assert torch.allclose(head.float(), floats(backend.fused.model.head), atol=1e-2)
    assert torch.equal(backend.embedding_rows(), backend.fused.model.embedding)
    assert not calls
    assert backend.model.base_model is not None
    assert calls == [1]


def test_tiles_of_quantised_weights_are_known_by_their_layout() -> None:
    layer = loaded("int4", "llama").fused.model.layers[0]
    assert kind_of("gate", layer.gate_up) == "gate-4x32"
    assert kind_of("gate", torch.empty(2, 2)) == "gate"
    plans = [tile_configs.shortlist(16, 3072, 576, kind) for kind in ("gate", "gate-4x32")]
    assert all(plans)


# --------------------------------------------------------------------------------------- checkpoints
@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (Layout("awq"), "qwen2"),
        (Layout(), "llama"),
        (Layout(symmetric=True), "qwen3"),
        (Layout(version="gptq_v2", group=-1), "mistral"),
        (Layout("awq", group=32), "llama"),
    ],
)  # fmt: skip
def test_a_checkpoint_says_what_the_weights_that_it_stands_for_say(
    layout: Layout, name: str, tmp_path: Path
) -> None:
    model = write(tmp_path, layout, name, num_hidden_layers=1)
    found = read_folder(tmp_path)
    stock = TorchBackend(model.to(PLACE, ACTIVATIONS))
    layer = found.fused.model.layers[0]
    assert quantised(layer.qkv).form == ZERO4
    head = floats(found.fused.model.head).to(PLACE, ACTIVATIONS)
    stock.model.lm_head.weight = torch.nn.Parameter(head)  # the head is our own, in 8 bits
    agree(found, stock)
    assert said(found) == said(stock)
    assert found.info.dtype == "int4"


def read_folder(folder: Path) -> CudaBackend:
    layout = CheckpointFormat.read(folder)
    assert layout is not None
    return load_checkpoint(folder, "tiny", layout, PLACE, ACTIVATIONS, lambda: None, silent)


def test_projections_that_were_left_in_floats_are_read_in_8_bits(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = write(tmp_path, Layout("awq"), "llama", **NARROW)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    linear = "model.layers.0.mlp.down_proj"
    plain = {name: part for name, part in tensors.items() if not name.startswith(linear)}
    plain[f"{linear}.weight"] = model.get_submodule(linear).weight.detach().half()
    save_file(plain, file, {"format": "pt"})
    layer = read_folder(tmp_path).fused.model.layers[0]
    assert quantised(layer.down).kind == "int8"
    linear = "model.layers.0.self_attn.k_proj"
    plain = {name: part for name, part in plain.items() if not name.startswith(linear)}
    plain[f"{linear}.weight"] = model.get_submodule(linear).weight.detach().half()
    save_file(plain, file, {"format": "pt"})
    with pytest.raises(SapwoodError, match="some of q_proj, k_proj, v_proj in 4 bits"):
        read_folder(tmp_path)


# -------------------------------------------------------------------------------------------- GGUF
@pytest.mark.parametrize(("kind", "form"), [("Q4_0", ZERO4), ("Q4_1", MINIMUM4), ("Q8_0", ZERO8)])
def test_a_gguf_file_says_what_its_floats_say(
    kind: str, form: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(quant_place, "missing", lambda dtype, device: "")
    monkeypatch.setattr(quant_place, "ACTIVATIONS", ACTIVATIONS)
    path = tiny_gguf.write(tmp_path / f"{kind}.gguf", kind, merged=True)
    model = read_converted(path, "tiny")
    found = quant_place.gguf_on_cuda(path, "tiny", PLACE, lambda: model, silent)
    assert found is not None
    backend, folder = found
    layer = backend.fused.model.layers[1]
    assert quantised(layer.down).form == form
    agree(backend, TorchBackend(model.to(PLACE, ACTIVATIONS)))
    assert folder == described(path, silent)
    assert backend.info.note == ""


def test_matrices_of_several_kinds_lie_together_in_8_bits(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType

    from sapwood.backends.torch.config import read_config
    from sapwood.backends.torch.cuda.quant_gguf import mixed_kinds, weight_of
    from sapwood.backends.torch.gguf_load import GgufTensors

    paths = [tiny_gguf.write(tmp_path / f"{kind}.gguf", kind) for kind in ("Q4_0", "Q8_0")]
    config: Any = read_config(tmp_path)
    several = [GgufTensors(path, read_header(path), config) for path in paths]
    matrices = [one.matrix("model.layers.0.mlp.up_proj.weight") for one in several]
    both = weight_of(matrices)
    assert both.form == ZERO8
    wanted = np.concatenate([matrix.floats() for matrix in matrices])
    assert np.abs(both.floats().numpy() - wanted).max() < 0.01 * np.abs(wanted).max()
    header = read_header(paths[0])
    assert mixed_kinds(header) == ""
    for tensor in header.tensors:
        if tensor.name == "blk.1.attn_v.weight":
            object.__setattr__(tensor, "kind", int(GGMLQuantizationType.Q6_K))
    assert mixed_kinds(header) == "1 of its fused Q4_0 matrices in 8 bits"


# ------------------------------------------------------------------------------------------- choices
@pytest.mark.parametrize(
    ("dtype", "capability", "triton", "wanted"),
    [
        ("int8", (8, 0), True, ""),
        ("fp8", (8, 9), True, ""),
        ("fp8", (8, 6), True, "'fp8' needs compute capability 8.9, and this GPU has 8.6; use int8"),
        (
            "int4",
            (7, 5),
            True,
            "'int4' needs compute capability 8.0, and this GPU has 7.5; use flo",
        ),
        (
            "int8",
            (9, 0),
            False,
            "'int8' on a GPU needs Triton, which is not installed; use float16",
        ),
    ],
)
def test_what_a_gpu_lacks_is_said_in_one_sentence(
    dtype: str,
    capability: tuple[int, int],
    triton: bool,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = object() if triton else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = quant_place.missing(dtype, PLACE)
    assert wanted in found if wanted else found == ""


@pytest.mark.parametrize(
    ("layout", "dtype", "wanted"),
    [
        (None, None, None),
        (None, "float16", None),
        (None, "int4", "floats int4"),
        (None, "fp8", "floats fp8"),
        (Layout("awq"), None, "checkpoint"),
        (Layout("awq"), "int4", "checkpoint"),
        (Layout("awq"), "int8", "floats int8"),
        (Layout("awq"), "float16", None),
        (Layout(bits=8), None, "floats int8"),
    ],
)
def test_the_way_of_a_folder_follows_from_its_layout_and_the_number_format(
    layout: Layout | None,
    dtype: str | None,
    wanted: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if layout:
        write(tmp_path, layout, "llama", **NARROW)

    def floats_loaded(model: Any, name: str, dtype: str, *rest: Any) -> str:
        return f"{model} {dtype}"

    monkeypatch.setattr(quant_load, "load_floats", floats_loaded)
    monkeypatch.setattr(quant_load, "load_checkpoint", lambda *given: "checkpoint")
    monkeypatch.setattr(quant_place, "prepared", lambda made, progress: made)

    def found() -> Any:
        return quant_place.folder_on_cuda(
            tmp_path, "tiny", PLACE, dtype, silent, lambda *given: "floats"
        )

    monkeypatch.setattr(quant_place, "missing", lambda dtype, device: "")
    assert found() == wanted
    monkeypatch.setattr(quant_place, "missing", lambda dtype, device: "no kernels")
    if wanted is None or dtype is None:
        assert found() is None
    else:
        with pytest.raises(SapwoodError, match="no kernels"):
            found()
