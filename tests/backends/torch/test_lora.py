"""LoRA adapters: the text of the merged model, heads and caches apart, and refusals."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sapwood import LLM
from sapwood.backends.torch.lora import merged_folder, read_adapter
from sapwood.common import cache_entries, drafter_store
from sapwood.errors import SapwoodError
from tests.helpers.byte_model import save_byte_model

pytestmark = pytest.mark.usefixtures("own_cache")
RANK = 3
TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
PROMPT = [5, 9, 7, 30, 11]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("lora") / "base"
    return folder, save_byte_model(folder, max_position_embeddings=256)


def factors(model: Any, targets: tuple[str, ...] = TARGETS, rank: int = RANK) -> Tensors:
    """Random factors for some matrices of every layer, as PEFT names them."""
    torch.manual_seed(7)
    made: Tensors = {}
    for name, module in model.named_modules():
        if name.endswith(targets):
            outputs, inputs = module.weight.shape
            key = f"base_model.model.{name}"
            made[f"{key}.lora_A.weight"] = torch.randn(rank, inputs) * 0.3
            made[f"{key}.lora_B.weight"] = torch.randn(outputs, rank) * 0.3
    return made


def save(folder: Path, tensors: Tensors, **config: Any) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    given = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    return folder


def by_hand(model: Any, tensors: Tensors, scale: float) -> Any:
    """The transformers model with the products added to its own modules."""
    made = copy.deepcopy(model)
    for name, module in made.named_modules():
        key = f"base_model.model.{name}"
        if f"{key}.lora_A.weight" in tensors:
            product = tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]
            module.weight.data += scale * product
    return made.eval()


def written(model: Any, count: int = 24) -> list[int]:
    """Greedy tokens of transformers."""
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=count, do_sample=False)
    return [int(token) for token in out[0, len(PROMPT) :]]


def generated(llm: LLM, count: int = 24) -> list[int]:
    return llm.generate(PROMPT, max_tokens=count, temperature=0).tokens


@pytest.mark.parametrize("rslora", [False, True])
def test_the_text_is_that_of_the_merged_model(
    base: tuple[Path, Any], tmp_path: Path, rslora: bool
) -> None:
    folder, model = base
    tensors = factors(model)
    adapter = save(tmp_path / "style", tensors, use_rslora=rslora)
    scale = 6 / RANK**0.5 if rslora else 6 / RANK
    wanted = written(by_hand(model, tensors, scale))
    for recipe in ("plain", "suffix"):
        llm = LLM(str(folder), recipe, dtype="float32", device="cpu", threads=1, lora=str(adapter))
        assert generated(llm) == wanted
    own = LLM(str(folder), "plain", dtype="float32", device="cpu", threads=1)
    assert generated(own) == written(model) != wanted


def test_int8_is_that_of_the_merged_folder(base: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = base
    tensors = factors(model)
    adapter = save(tmp_path / "style", tensors)
    by_hand(model, tensors, 6 / RANK).save_pretrained(tmp_path / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            (tmp_path / "merged" / name).write_bytes((folder / name).read_bytes())
    wanted = LLM(str(tmp_path / "merged"), "plain", device="cpu", threads=1)
    llm = LLM(str(folder), "plain", device="cpu", threads=1, lora=str(adapter))
    assert llm.target.info.dtype == wanted.target.info.dtype
    assert generated(llm) == generated(wanted)


def test_it_has_no_head_of_its_base_and_blocks_of_its_own(
    base: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, model = base
    # so little that the samples of the fingerprint cannot tell
    adapter = save(tmp_path / "style", factors(model, ("self_attn.q_proj",)), lora_alpha=0.01)
    options: Any = {"dtype": "float32", "device": "cpu", "threads": 1}
    own = LLM(str(folder), "plain", **options)
    llm = LLM(str(folder), "plain", lora=str(adapter), **options)
    weights = own.target.info.weights
    assert weights is not None
    head = drafter_store.home("eagle3", str(folder), weights)
    head.mkdir(parents=True)
    (head / drafter_store.WEIGHTS).touch()
    weights.save(head)
    assert drafter_store.has("eagle3", own.target.info.model, own.target.info.weights)
    assert not drafter_store.has("eagle3", llm.target.info.model, llm.target.info.weights)
    assert llm.target.memory is not own.target.memory
    assert llm.target.info.model != own.target.info.model


def test_it_is_merged_once_and_listed_in_the_cache(base: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = base
    tensors = factors(model)
    adapter = save(tmp_path / "style", tensors, lora_alpha=1.25)
    before = [entry for entry in cache_entries.entries() if "adapter" in entry.what]
    said: list[str] = []
    first = merged_folder(folder, adapter, said.append)
    assert merged_folder(folder, adapter, said.append) == first
    assert len(said) == 1
    other = {name: tensor * 2 for name, tensor in tensors.items()}
    assert merged_folder(folder, save(tmp_path / "other", other), said.append) != first
    found = [entry for entry in cache_entries.entries() if "adapter" in entry.what]
    assert len(found) == len(before) + 2


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "only LORA"),
    ({"use_dora": True}, "uses use_dora"),
    ({"modules_to_save": ["lm_head"]}, "uses modules_to_save"),
    ({"rank_pattern": {"q_proj": 8}}, "uses rank_pattern"),
    ({"bias": "all"}, "trains biases"),
    ({"init_lora_weights": "pissa_niter_16"}, "pissa"),
    ({"r": 4}, "not of rank 4"),
    ({"r": 0}, "at least 1"),
    ({"lora_alpha": "x"}, "must be numbers"),
]


@pytest.mark.parametrize(("config", "words"), WRONG, ids=lambda value: str(value)[:30])
def test_other_kinds_are_refused(
    base: tuple[Path, Any], tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    adapter = save(tmp_path / "wrong", factors(base[1]), **config)
    with pytest.raises(SapwoodError, match=words) as caught:
        read_adapter(adapter)
    assert "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_are_refused(base: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = base
    good = factors(model)
    name = next(iter(good)).removesuffix(".lora_A.weight")

    def refused(label: str, tensors: Tensors, words: str) -> None:
        with pytest.raises(SapwoodError, match=words):
            merged_folder(folder, save(tmp_path / label, tensors), lambda _: None)

    refused("lonely", {f"{name}.lora_A.weight": good[f"{name}.lora_A.weight"]}, "not both")
    wide = {**good, f"{name}.lora_A.weight": torch.zeros(RANK, 99)}
    refused("wide", wide, "use the model it was made for")
    strange = {key.replace("q_proj", "x_proj"): tensor for key, tensor in good.items()}
    refused("strange", strange, "x_proj")
    refused("magnitude", {**good, f"{name}.lora_magnitude_vector": torch.zeros(4)}, "magnitude")
    refused("empty", {}, "no tensors")
    with pytest.raises(SapwoodError, match="no adapter in"):
        read_adapter(tmp_path / "missing")
    pickled = save(tmp_path / "pickled", good)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(SapwoodError, match="pickle"):
        read_adapter(pickled)
    (pickled / "adapter_model.safetensors").write_bytes(b"junk")
    with pytest.raises(SapwoodError, match="missing or damaged"):
        read_adapter(pickled)


def test_only_torch_in_one_process_has_adapters() -> None:
    cases: list[dict[str, Any]] = [{"backend": "llamacpp"}, {"tensor_parallel": 2}]
    for options in cases:
        with pytest.raises(SapwoodError, match="adapters are for models of the torch backend"):
            LLM("smollm2", "plain", lora="x", **options)
