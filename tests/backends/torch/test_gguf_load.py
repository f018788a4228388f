"""GGUF files read as they are: no converted weights, little memory, the reference's logits."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch import load as loader
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.cpu_int8.embedding_table import EmbeddingTable
from sapwood.backends.torch.cpu_int8.network import Int8Network
from sapwood.backends.torch.gguf import INT8_WEIGHTS
from sapwood.backends.torch.gguf_blocks import NAMES, Q5_0
from sapwood.backends.torch.gguf_load import (
    converted_kinds,
    missing_reason,
    other_kinds,
    rounded_kinds,
)
from sapwood.backends.torch.resolve_model import BUILT_IN
from sapwood.common.gguf_header import read_header
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.drafters.heads.eagle import Eagle
from sapwood.drafters.heads.parallel import Parallel
from sapwood.errors import SapwoodError
from sapwood.heads.eagle import EagleConfig, EagleHead
from sapwood.heads.layers import LayerShape
from sapwood.heads.parallel import ParallelConfig, ParallelHead
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.testing import backend_contract
from sapwood.verifiers.match import Match
from tests.helpers import byte_tokenizer, other_gguf, tiny_gguf, tiny_models
from tests.helpers.engine_rounds import plain_tokens, rounds_until, tokens_of
from tests.helpers.head_checks import randomised

pytestmark = pytest.mark.skipif(not int8_gemm.available(), reason="no processor for these kernels")

TEXT = [3, 14, 15, 92, 65, 35, 89, 79]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def open_file(path: Path) -> tuple[TorchBackend, list[str]]:
    """The backend of a file, and the progress messages."""
    said: list[str] = []
    backend, _ = loader.load(str(path), device="cpu", dtype="int4", progress=said.append)
    return backend, said


def reference(path: Path) -> TorchBackend:
    """The same file dequantised to float32."""
    return loader.load(str(path), device="cpu", dtype="float32")[0]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_logits_are_near_those_of_the_dequantised_file(tmp_path: Path, kind: str) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", kind, merged=True)
    backend, said = open_file(path)
    assert backend.info.dtype == ("int4" if kind in ("Q4_0", "Q4_1") else "int8")
    assert not any("convert" in message for message in said)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    found = backend_contract.after(backend, TEXT)
    dense = reference(path)
    want = backend_contract.after(dense, TEXT)
    assert np.abs(found - want).max() < 0.03 * np.abs(want).max()
    assert backend.info.weights is not None
    assert dense.info.weights is not None
    assert backend.info.weights.matches(dense.info.weights)


def test_a_row_has_the_same_bits_in_every_pass(tmp_path: Path) -> None:
    backend, _ = open_file(tiny_gguf.write(tmp_path / "tiny.gguf", "Q4_1", merged=True))
    for check in (
        backend_contract.tree_equals_paths,
        backend_contract.chain_equals_steps,
        backend_contract.growing_equals_at_once,
        backend_contract.sessions_are_apart,
    ):
        check(backend, np.random.default_rng(0), 0.0)
    backend_contract.check_backend(backend)


def test_weights_take_little_more_memory_than_the_file(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "Q4_0", merged=True)
    network = open_file(path)[0].network
    assert isinstance(network, Int8Network)
    matrices = [tensor for tensor in read_header(path).tensors if len(tensor.shape) == 2]
    stored = sum(tensor.size for tensor in matrices if tensor.name != "token_embd.weight")
    layers = [[each.qkv, each.out, each.gate_up, each.down] for each in network.layers]
    parts = [part for layer in layers for part in layer] + [network.head]
    # widths of this small model are padded to pairs of groups, 96 to 128
    assert sum(part.packed.bytes.nbytes for part in parts) < 1.25 * stored


def test_drafters_read_the_embedding_by_rows(tmp_path: Path) -> None:
    backend, _ = open_file(tiny_gguf.write(tmp_path / "tiny.gguf", "Q8_0", merged=True))
    rows = backend.capabilities.embedding_rows()
    lazy = backend.model.get_input_embeddings()
    assert isinstance(rows, EmbeddingTable)
    assert "weight" not in vars(lazy)  # no float32 copy
    tokens = torch.tensor([5, 0, 5])
    assert torch.equal(rows[tokens], lazy.weight[tokens])


def tied_drafter(kind: str) -> Any:
    """A drafter with a random head that has no tables of its own."""
    shape = LayerShape(width=tiny_gguf.WIDTH, heads=4, kv_heads=2, head_width=16, inner=48)
    vocab = byte_tokenizer.SIZE
    if kind == "eagle":
        own = EagleConfig(shape, tiny_gguf.WIDTH, vocab, vocab, features=(tiny_gguf.LAYERS,))
        return Eagle(head=randomised(EagleHead(own), 0.15, vocab, vocab))
    config = ParallelConfig(shape, tiny_gguf.WIDTH, vocab, vocab, (0, 1, 2), depth=4)
    return Parallel(head=randomised(ParallelHead(config), 0.2, vocab, vocab))


@pytest.mark.parametrize("weights", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("kind", ["eagle", "parallel"])
def test_heads_without_tables_draft_with_an_embedding_in_blocks(
    tmp_path: Path, kind: str, weights: str
) -> None:
    backend, _ = open_file(tiny_gguf.write(tmp_path / "tiny.gguf", weights, merged=True))
    assert isinstance(backend.capabilities.embedding_rows(), EmbeddingTable)
    recipe = Recipe(tied_drafter(kind), Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=4))
    ours = rounds_until(backend, recipe, TEXT, 16, Sampling(max_tokens=16))
    assert tokens_of(ours)[:16] == plain_tokens(backend, TEXT, 16, ())
    assert all(len(outcome.grown) > 1 for outcome in ours[1:-1])


def test_the_transformers_model_is_there_when_it_is_needed(tmp_path: Path, cache: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "Q4_0", merged=True)
    backend, _ = open_file(path)
    embedding = backend.model.get_input_embeddings().weight
    head = backend.model.get_output_embeddings().weight
    assert not list(cache.rglob("*.safetensors"))
    whole = backend.model.whole  # converted now, into the same folder
    torch.testing.assert_close(embedding, whole.get_input_embeddings().weight.detach())
    torch.testing.assert_close(head, whole.lm_head.weight.detach())
    assert len(list((cache / "models").iterdir())) == 1
    again, _ = open_file(path)
    after = backend_contract.after
    np.testing.assert_array_equal(after(again, TEXT), after(backend, TEXT))


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0"])
@pytest.mark.parametrize("name", ["gemma3", "gemma2-eager", "phi3"])
def test_other_architectures_stay_as_they_are(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    other_gguf.use_byte_tokenizer(monkeypatch)
    path = other_gguf.write(tmp_path / "tiny.gguf", name, kind)
    backend, said = open_file(path)
    assert not any("convert" in message for message in said)
    assert not [*cache.rglob("*.safetensors"), *cache.rglob(INT8_WEIGHTS)]
    assert backend.info.dtype == ("int4" if kind == "Q4_0" else "int8")
    backend_contract.tree_equals_paths(backend, np.random.default_rng(0), 0.0)
    found = backend_contract.after(backend, TEXT)
    want = backend_contract.after(reference(path), TEXT)
    assert np.abs(found - want).max() < 0.03 * np.abs(want).max()


def test_experts_are_converted_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_gguf.use_byte_tokenizer(monkeypatch)
    path = other_gguf.write(tmp_path / "tiny.gguf", "qwen3-moe", "Q4_0")
    words = "tiny.gguf is converted to float32, as its experts have no products as they are"
    assert any(message.startswith(words) for message in open_file(path)[1])


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("llama", "Q4_0", "int4"),
        ("llama", "Q8_0", "int8"),
        ("phi3", "Q4_1", "int4"),
        ("qwen3-moe", "Q4_0", "int8"),
    ],
)
def test_files_of_four_bits_stay_as_they_are_by_default(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, dtype: str
) -> None:
    other_gguf.use_byte_tokenizer(monkeypatch)
    write = tiny_gguf.write if name == "llama" else partial(other_gguf.write, name=name)
    path = write(tmp_path / "tiny.gguf", kind=kind)
    backend, _ = loader.load(str(path), device="cpu")
    assert backend.info.dtype == dtype
    assert not list(cache.rglob("*.safetensors"))
    if dtype == "int4":
        assert not list(cache.rglob(INT8_WEIGHTS))


def test_the_built_in_model_runs_in_int8_by_default() -> None:
    assert loader.load(BUILT_IN, device="cpu")[0].info.dtype == "int8"


def test_other_kinds_are_converted_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(NAMES, Q5_0)
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "Q5_0", merged=True)
    backend, said = open_file(path)
    words = "tiny.gguf is converted to float32, as tensors of its kind 6 have no products here"
    assert words in said
    assert backend.info.dtype == "int4"  # quantised from the converted folder
    assert (
        other_kinds(read_header(tiny_gguf.write(tmp_path / "f.gguf"))) == "its weights are floats"
    )


def test_models_that_are_left_to_the_conversion(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "Q4_0", merged=True)
    config = open_file(path)[0].model.config
    header = read_header(path)
    assert missing_reason(config, header) == ""
    long = replace(config, max_position_embeddings=1 << 20)
    assert missing_reason(long, header) == ""  # its first tokens run
    assert "(llama) have no products" in missing_reason(None, header)
    assert "not those" in missing_reason(replace(config, intermediate_size=128), header)
    header.tensors.append(replace(header.tensors[0], name="rope_freqs.weight"))
    assert missing_reason(config, header) == "it has another tensor, rope_freqs.weight"


def test_kinds_that_are_rounded_are_named(tmp_path: Path) -> None:
    header = read_header(tiny_gguf.write(tmp_path / "tiny.gguf", "Q4_0", merged=True))
    assert rounded_kinds(header) == ""
    header.tensors[0] = replace(header.tensors[0], kind=14)
    assert rounded_kinds(header) == "its Q6_K weights in 8 bits"


def test_safetensors_are_quantised_while_they_are_read(tmp_path: Path) -> None:
    tiny_models.make("qwen2").save_pretrained(tmp_path / "model")
    backend, _ = loader.load(str(tmp_path / "model"), device="cpu", dtype="int4")
    assert backend.info.dtype == "int4"
    backend_contract.tree_equals_paths(backend, np.random.default_rng(0), 0.0)
    dense, _ = loader.load(str(tmp_path / "model"), device="cpu", dtype="float32")
    text = [3, 4, 5]
    gap = backend_contract.after(backend, text) - backend_contract.after(dense, text)
    assert np.abs(gap).max() < 0.2 * np.abs(backend_contract.after(dense, text)).max()


def test_int4_is_for_models_that_have_such_layers(tmp_path: Path) -> None:
    tiny_models.make("gpt2").save_pretrained(tmp_path / "model")
    with pytest.raises(SapwoodError, match="cannot be run in int4 here; use float32"):
        loader.load(str(tmp_path / "model"), device="cpu", dtype="int4")
    with pytest.raises(SapwoodError, match="'int4' has no weights to train with"):
        loader.load(str(tmp_path / "model"), dtype="int4", stock=True)


def test_kinds_without_products_are_named_by_their_bits(tmp_path: Path) -> None:
    header = read_header(tiny_gguf.write(tmp_path / "tiny.gguf", "Q4_0", merged=True))
    assert converted_kinds(header) == ""
    header.tensors[0] = replace(header.tensors[0], kind=16)
    assert converted_kinds(header).startswith("converted from ")
