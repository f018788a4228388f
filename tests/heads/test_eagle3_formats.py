"""Heads as other tools write and read them, and the checker of their folders."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sapwood.errors import SapwoodError
from sapwood.heads import eagle3_formats, eagle3_validator, files
from sapwood.heads.eagle3 import Eagle3Config
from sapwood.heads.medusa import MedusaConfig, MedusaHeads
from sapwood.heads.medusa_files import read_medusa, rename_medusa
from sapwood.heads.target_info import TargetInfo
from tests.helpers import tiny_models
from tests.helpers.head_folders import CONFIG, FACTS, alter, edit, foreign, make, narrow, same


# ---------------------------------------------------------------------------------------- dialects
@pytest.mark.parametrize("dialect", eagle3_formats.DIALECTS)
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, features=(1, 3, 6)),
        replace(CONFIG, draft_vocab=61),
    ],
    ids=["default", "other layers", "whole vocabulary"],
)
def test_both_dialects_pass_the_checker_and_come_back(
    dialect: str, config: Eagle3Config, tmp_path: Path
) -> None:
    head = make(config)
    eagle3_formats.write(head, tmp_path, dialect, "some/model", FACTS)
    assert eagle3_validator.check(tmp_path) == []
    found, embedding = eagle3_formats.read(tmp_path, FACTS)
    assert embedding is None
    assert found.config == config
    assert same(head, found)


def test_a_narrow_head_brings_its_embedding(tmp_path: Path) -> None:
    config = replace(CONFIG, target_width=40)
    wide = replace(FACTS, width=40)
    table = torch.randn(61, 32).half().float()
    for dialect in eagle3_formats.DIALECTS:
        folder = tmp_path / dialect
        eagle3_formats.write(make(config), folder, dialect, "some/model", wide, table)
        assert eagle3_validator.check(folder) == []
        found, embedding = eagle3_formats.read(folder, wide)
        assert embedding is not None
        assert torch.equal(embedding, table)
        assert found.config == config
    with pytest.raises(SapwoodError, match="of its own"):
        files.load(tmp_path / "eagle")
    with pytest.raises(SapwoodError, match="not as wide as its target"):
        eagle3_formats.write(make(config), tmp_path, "eagle", "some/model", wide)


def test_our_own_folder_is_eagles_dialect(tmp_path: Path) -> None:
    files.save(make(), tmp_path)
    assert eagle3_validator.check(tmp_path) == []
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["architectures"] == ["LlamaForCausalLMEagle3"]
    assert "eagle_config" not in record
    assert "target_hidden_size" not in record
    assert record["rope_theta"] == record["rope_parameters"]["rope_theta"] == 50_000.0


def test_ids_of_layers_mean_outputs_to_eagle_and_inputs_to_speculators(tmp_path: Path) -> None:
    other = replace(CONFIG, features=(1, 3, 6))
    eagle3_formats.write(make(other), tmp_path / "e", "eagle", "m", FACTS)
    eagle3_formats.write(make(other), tmp_path / "s", "speculators", "m", FACTS)
    eagle = json.loads((tmp_path / "e" / "config.json").read_text())
    speculators = json.loads((tmp_path / "s" / "config.json").read_text())
    assert eagle["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 5]
    assert speculators["eagle_aux_hidden_state_layer_ids"] == [1, 3, 6]
    edit(tmp_path / "e", lambda record: record.pop("sapwood"))
    assert eagle3_formats.read(tmp_path / "e", FACTS)[0].config.features == (1, 3, 6)


def test_features_that_are_the_default_of_another_depth_are_named(tmp_path: Path) -> None:
    deeper = replace(FACTS, layers=12)
    eagle3_formats.write(make(), tmp_path, "eagle", "m", deeper)
    edit(tmp_path, lambda record: record.pop("sapwood"))
    assert eagle3_formats.read(tmp_path, deeper)[0].config.features == CONFIG.features


def test_a_folder_of_another_tool_is_read(tmp_path: Path) -> None:
    head = foreign(tmp_path)

    def older(record: dict[str, Any]) -> None:
        for key in (
            "head_dim",
            "rope_parameters",
            "architectures",
            "attention_bias",
            "torch_dtype",
        ):
            record.pop(key)
        record["eagle_aux_hidden_state_layer_ids"] = [1, 3, 4]
        record["rope_scaling"] = None

    edit(tmp_path, older)
    alter(tmp_path, lambda t: t.update({"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    alter(tmp_path, lambda t: t.pop("t2d"))
    found, _ = eagle3_formats.read(tmp_path, FACTS)
    assert found.config == CONFIG
    assert same(head, found)


def test_shards_and_sixteen_bits_of_the_other_kind_are_read(tmp_path: Path) -> None:
    head = foreign(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    brain = {name: t.bfloat16() if t.is_floating_point() else t for name, t in tensors.items()}
    for part in (1, 2):
        half = {name: tensor for i, (name, tensor) in enumerate(brain.items()) if i % 2 == part - 1}
        save_file(half, tmp_path / f"model-0000{part}-of-00002.safetensors")
    (tmp_path / "model.safetensors").unlink()
    found, _ = eagle3_formats.read(tmp_path, FACTS)
    assert torch.equal(found.fc.weight, head.fc.weight.half().bfloat16().float())


def test_rotary_base_in_the_new_place_only(tmp_path: Path) -> None:
    foreign(tmp_path)
    edit(tmp_path, lambda record: record.pop("rope_theta"))
    assert eagle3_formats.read(tmp_path, FACTS)[0].config.shape.theta == 50_000.0
    edit(tmp_path, lambda record: record.pop("rope_parameters"))
    assert eagle3_formats.read(tmp_path, FACTS)[0].config.shape.theta == 10_000.0


def test_a_whole_vocabulary_needs_no_maps(tmp_path: Path) -> None:
    head = foreign(tmp_path, replace(CONFIG, draft_vocab=61))
    alter(tmp_path, lambda t: (t.pop("d2t"), t.pop("t2d")))
    edit(tmp_path, lambda record: record.pop("draft_vocab_size"))
    assert eagle3_validator.check(tmp_path) == [
        "draft_vocab_size is None, not a whole number from 1 to 61",
        eagle3_validator.NO_SIZES,
    ]
    assert same(head, eagle3_formats.read(tmp_path, FACTS)[0])


def test_what_speculators_leaves_out_means_norm_before_residual(tmp_path: Path) -> None:
    eagle3_formats.write(make(), tmp_path, "speculators", "m", FACTS)
    assert not eagle3_formats.read(tmp_path, FACTS)[0].config.norm_before_residual
    edit(tmp_path, lambda record: record.pop("norm_before_residual"))
    assert eagle3_formats.read(tmp_path, FACTS)[0].config.norm_before_residual


def test_eagle_has_no_word_for_norm_before_residual(tmp_path: Path) -> None:
    config = replace(CONFIG, norm_before_residual=True)
    with pytest.raises(SapwoodError, match="use 'speculators'"):
        eagle3_formats.write(make(config), tmp_path, "eagle", "m", FACTS)
    files.save(make(config), tmp_path / "ours")
    assert files.load(tmp_path / "ours").config == config
    assert any(
        "norm_before_residual" in fault for fault in eagle3_validator.check(tmp_path / "ours")
    )
    eagle3_formats.write(make(config), tmp_path / "s", "speculators", "m", FACTS)
    assert eagle3_validator.check(tmp_path / "s") == []


STRANGE: list[tuple[str, Callable[[Path], object]]] = [
    ("sets norm_output", lambda f: edit(f, lambda r: r.update(norm_output=True))),
    (
        "sets norm_before_fc",
        lambda f: edit(f, lambda r: r.update(eagle_config={"norm_before_fc": True})),
    ),
    ("sets fc_norm", lambda f: edit(f, lambda r: r.update(fc_norm=True))),
    ("sets attention_bias", lambda f: edit(f, lambda r: r.update(attention_bias=True))),
    ("sliding_attention", lambda f: edit(f, lambda r: r.update(layer_types=["sliding_attention"]))),
    (
        "use_aux_hidden_state",
        lambda f: edit(f, lambda r: r.update(eagle_config={"use_aux_hidden_state": False})),
    ),
    ("has 2 layers", lambda f: edit(f, lambda r: r.update(num_hidden_layers=2))),
    ("activation 'gelu'", lambda f: edit(f, lambda r: r.update(hidden_act="gelu"))),
    ("scales its rotary", lambda f: edit(f, lambda r: r.update(rope_scaling={"type": "yarn"}))),
    ("two values of rope_theta", lambda f: edit(f, lambda r: r.update(rope_theta=1e4))),
    ("has no hidden_size", lambda f: edit(f, lambda r: r.pop("hidden_size"))),
    ("hidden_size '32'", lambda f: edit(f, lambda r: r.update(hidden_size="32"))),
    (
        "names the layers",
        lambda f: edit(f, lambda r: r.update(eagle_aux_hidden_state_layer_ids=[1, 3, 4, 7])),
    ),
    (
        "reads layer 78",
        lambda f: edit(f, lambda r: r.update(eagle_aux_hidden_state_layer_ids=[1, 3, 77])),
    ),
    ("target of width 40", lambda f: edit(f, lambda r: r.update(target_hidden_size=40))),
    ("target of vocabulary 62", lambda f: edit(f, lambda r: r.update(vocab_size=62))),
    (
        "in no dialect",
        lambda f: edit(f, lambda r: (r.pop("draft_vocab_size"), r.pop("architectures"))),
    ),
    (
        "speculator of type 'mtp'",
        lambda f: edit(f, lambda r: r.update(speculators_model_type="mtp")),
    ),
    (
        "no transformer_layer_config",
        lambda f: edit(f, lambda r: r.update(speculators_model_type="eagle3")),
    ),
    ("lacks the tensor 'd2t'", lambda f: alter(f, lambda t: t.pop("d2t"))),
    ("must hold offsets, not ids", lambda f: alter(f, lambda t: t["d2t"].add_(torch.arange(20)))),
    ("names a token twice", lambda f: alter(f, lambda t: t["d2t"].copy_(-torch.arange(20)))),
    ("does not match its 'd2t'", lambda f: alter(f, lambda t: t["t2d"].logical_not_())),
    ("'d2t' of floats", lambda f: alter(f, lambda t: t.update(d2t=t["d2t"].float()))),
    ("not lists", lambda f: alter(f, lambda t: t.update(d2t=t["d2t"][None].clone()))),
    (
        "of shape .3, 32., not",
        lambda f: alter(f, lambda t: t.update({"embed_tokens.weight": torch.ones(3, 32)})),
    ),
    ("'fc.bias' that such", lambda f: alter(f, lambda t: t.update({"fc.bias": torch.ones(32)}))),
]


@pytest.mark.parametrize(("sentence", "change"), STRANGE, ids=[sentence for sentence, _ in STRANGE])
def test_what_is_not_supported_is_one_sentence(
    sentence: str, change: Callable[[Path], object], tmp_path: Path
) -> None:
    foreign(tmp_path)
    eagle3_formats.read(tmp_path, FACTS)
    change(tmp_path)
    with pytest.raises(SapwoodError, match=sentence) as caught:
        eagle3_formats.read(tmp_path, FACTS)
    assert str(tmp_path) in str(caught.value)


def test_facts_of_models_with_other_words() -> None:
    assert TargetInfo.of({"n_embd": 3, "n_layer": 4, "vocab_size": 5}, "gpt2") == TargetInfo(
        3, 4, 5
    )
    inner = {"hidden_size": 3, "num_hidden_layers": 4, "vocab_size": 5, "eos_token_id": 6}
    found = TargetInfo.of({"architectures": ["A"], "text_config": inner}, "seeing")
    assert found == TargetInfo(3, 4, 5, ("A",), {"eos_token_id": 6})
    with pytest.raises(SapwoodError, match="'odd' has no num_hidden_layers"):
        TargetInfo.of({"hidden_size": 3, "vocab_size": 5}, "odd")
    assert TargetInfo.of(tiny_models.make("llama").config.to_dict(), "tiny").width == 32


def test_transformers_reads_the_layer_as_it_was_meant(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    files.save(make(), tmp_path)
    config: Any = LlamaConfig.from_pretrained(tmp_path)
    assert config.rope_parameters["rope_theta"] == 50_000.0
    assert config.tie_word_embeddings is False
    assert config.draft_vocab_size == 20


# ----------------------------------------------------------------------------------------- checker
FAULTS: list[tuple[str, Callable[[Path], object]]] = [
    ("norm.weight is missing", lambda f: alter(f, lambda t: t.pop("norm.weight"))),
    (
        "fc.bias does not belong",
        lambda f: alter(f, lambda t: t.update({"fc.bias": torch.ones(32)})),
    ),
    (
        "fc.weight has shape [32, 64], not [32, 96]",
        lambda f: alter(f, lambda t: narrow(t, "fc.weight", 64)),
    ),
    (
        "norm.weight is stored as F32",
        lambda f: alter(f, lambda t: t.update({"norm.weight": torch.ones(32)})),
    ),
    ("d2t is stored as I32", lambda f: alter(f, lambda t: t.update(d2t=t["d2t"].int()))),
    ("t2d is stored as U8", lambda f: alter(f, lambda t: t.update(t2d=t["t2d"].byte()))),
    ("outside of the vocabulary", lambda f: alter(f, lambda t: t["d2t"].add_(torch.arange(20)))),
    ("do not ascend", lambda f: alter(f, lambda t: t["d2t"].copy_(-2 * torch.arange(20) + 19))),
    ("t2d does not hold", lambda f: alter(f, lambda t: t["t2d"].logical_not_())),
    ("d2t is missing", lambda f: alter(f, lambda t: t.pop("d2t"))),
    ("tie_word_embeddings", lambda f: edit(f, lambda r: layer(r).update(tie_word_embeddings=True))),
    ("rope_theta is None", lambda f: edit(f, lambda r: layer(r).pop("rope_theta"))),
    (
        "beside 50000.0",
        lambda f: edit(f, lambda r: layer(r)["rope_parameters"].update(rope_theta=1e4)),
    ),
    ("num_hidden_layers is 2", lambda f: edit(f, lambda r: layer(r).update(num_hidden_layers=2))),
    (
        "cannot share 3 key heads",
        lambda f: edit(f, lambda r: layer(r).update(num_key_value_heads=3)),
    ),
    ("head_dim is None", lambda f: edit(f, lambda r: layer(r).pop("head_dim"))),
    ("draft_vocab_size is 99", lambda f: edit(f, lambda r: r.update(draft_vocab_size=99))),
    ("target_hidden_size is 32", lambda f: edit(f, lambda r: r.update(target_hidden_size=32))),
    ("architectures is ['Llama']", lambda f: edit(f, lambda r: r.update(architectures=["Llama"]))),
    ("neither float16 nor bfloat16", lambda f: edit(f, lambda r: r.update(torch_dtype="float32"))),
    (
        "not low, middle, high",
        lambda f: edit(f, lambda r: r.update(eagle_aux_hidden_state_layer_ids=[5, 4, 2])),
    ),
    (
        "not three layers",
        lambda f: edit(f, lambda r: r.update(eagle_aux_hidden_state_layer_ids=[5, 4])),
    ),
    ("model.safetensors cannot be read", lambda f: os.truncate(f / "model.safetensors", 999)),
    ("config.json cannot be read", lambda f: (f / "config.json").unlink()),
    ("not an object", lambda f: (f / "config.json").write_text("3")),
]
SPECULATORS_FAULTS: list[tuple[str, Callable[[Path], object]]] = [
    (
        "norm_before_residual is missing",
        lambda f: edit(f, lambda r: r.pop("norm_before_residual")),
    ),
    (
        "speculators_model_type is 'mtp'",
        lambda f: edit(f, lambda r: r.update(speculators_model_type="mtp")),
    ),
    (
        "transformer_layer_config is missing",
        lambda f: edit(f, lambda r: r.pop("transformer_layer_config")),
    ),
    ("not complete", lambda f: edit(f, lambda r: r["speculators_config"].pop("verifier"))),
    (
        "verifier has no name",
        lambda f: edit(f, lambda r: r["speculators_config"]["verifier"].update(name_or_path="")),
    ),
    (
        "algorithm is 'x'",
        lambda f: edit(f, lambda r: r["speculators_config"].update(algorithm="x")),
    ),
    ("speculators_version is missing", lambda f: edit(f, lambda r: r.pop("speculators_version"))),
    (
        "layers.0.hidden_norm.weight is missing",
        lambda f: alter(f, lambda t: t.pop("layers.0.hidden_norm.weight")),
    ),
]
EVERY = [
    *[(dialect, *fault) for dialect in eagle3_formats.DIALECTS for fault in FAULTS],
    *[("speculators", *fault) for fault in SPECULATORS_FAULTS],
    (
        "eagle",
        "SpecForge and SGLang understand",
        lambda f: edit(f, lambda r: r.update(norm_output=False)),
    ),
]


def layer(record: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the decoder layer."""
    return cast(dict[str, Any], record.get("transformer_layer_config", record))


@pytest.mark.parametrize(
    ("dialect", "fault", "damage"), EVERY, ids=[f"{d}: {fault}" for d, fault, _ in EVERY]
)
def test_the_checker_finds_each_fault(
    dialect: str, fault: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    eagle3_formats.write(make(), tmp_path, dialect, "some/model", FACTS)
    assert eagle3_validator.check(tmp_path) == []
    damage(tmp_path)
    assert any(fault in found for found in eagle3_validator.check(tmp_path))


# ------------------------------------------------------------------------------------------ medusa
def medusa(heads: int = 3, blocks: int = 2, own: bool = True) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for head in range(heads):
        for block in range(blocks):
            found[f"{head}.{block}.linear.weight"] = torch.randn(32, 32)
            found[f"{head}.{block}.linear.bias"] = torch.randn(32)
        if own:
            found[f"{head}.{blocks}.weight"] = torch.randn(61, 32)
    return found


def test_medusa_heads_get_our_names(tmp_path: Path) -> None:
    theirs = medusa()
    config, ours = rename_medusa(
        tmp_path, {"medusa_num_heads": 2, "medusa_num_layers": 2}, theirs, FACTS
    )
    assert config == {"width": 32, "vocab": 61, "heads": 3, "blocks": 2, "own_head": True}
    assert len(ours) == len(theirs)
    assert ours["heads.2.blocks.1.linear.bias"] is theirs["2.1.linear.bias"]
    assert ours["heads.0.lm_head.weight"] is theirs["0.2.weight"]
    config, ours = rename_medusa(tmp_path, {}, medusa(1, 1, own=False), FACTS)
    assert config["own_head"] is False
    assert sorted(ours) == ["heads.0.blocks.0.linear.bias", "heads.0.blocks.0.linear.weight"]


@pytest.mark.parametrize("own", [True, False])
def test_medusa_heads_of_others_fit_ours(own: bool, tmp_path: Path) -> None:
    config, ours = rename_medusa(tmp_path, {}, medusa(own=own), FACTS)
    head = files.build(MedusaHeads, MedusaConfig(**config), ours, tmp_path)
    assert torch.equal(
        head.state_dict()["heads.1.blocks.1.linear.weight"], ours["heads.1.blocks.1.linear.weight"]
    )


def test_medusa_folders_are_safetensors_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 3, "medusa_num_layers": 2}')
    (tmp_path / "medusa_lm_head.pt").touch()
    with pytest.raises(SapwoodError, match=r"medusa_lm_head\.pt, a pickle"):
        read_medusa(tmp_path, FACTS)
    save_file(
        {f"medusa_head.{name}": tensor for name, tensor in medusa().items()},
        tmp_path / "medusa_lm_head.safetensors",
    )
    config, ours = read_medusa(tmp_path, FACTS)
    assert config["heads"] == 3
    assert len(ours) == 15


@pytest.mark.parametrize(
    ("sentence", "record", "change"),
    [
        ("medusa_num_heads 4 and holds 3", {"medusa_num_heads": 4}, lambda t: None),
        ("medusa_num_layers 1 and holds 2", {"medusa_num_layers": 1}, lambda t: None),
        ("medusa_num_heads '3'", {"medusa_num_heads": "3"}, lambda t: None),
        ("'embed' that a Medusa", {}, lambda t: t.update(embed=torch.ones(1))),
        (r"lacks the tensor for 'heads\.1\.lm_head", {}, lambda t: t.pop("1.2.weight")),
        ("is not after the last", {}, lambda t: t.update({"0.5.weight": torch.ones(61, 32)})),
        (r"of shape \[3\], not \[32\]", {}, lambda t: t.update({"0.0.linear.bias": torch.ones(3)})),
        ("of int64, not floats", {}, lambda t: t.update({"0.0.linear.bias": torch.arange(32)})),
        (
            "names 1000000000 heads",
            {},
            lambda t: t.update({"999999999.0.linear.bias": torch.ones(32)}),
        ),
        ("no Medusa heads", {}, lambda t: t.clear()),
    ],
)
def test_bad_medusa_heads_are_one_sentence(
    sentence: str,
    record: dict[str, Any],
    change: Callable[[dict[str, Tensor]], object],
    tmp_path: Path,
) -> None:
    tensors = medusa()
    change(tensors)
    with pytest.raises(SapwoodError, match=sentence):
        rename_medusa(tmp_path, record, tensors, FACTS)
