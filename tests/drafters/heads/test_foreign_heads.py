"""Heads of other trainers draft like our own: by the folder's name alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sapwood.controllers.fixed import Fixed
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.heads.medusa import Medusa
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.heads import eagle3_formats
from sapwood.heads.target_info import TargetInfo
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.foreign_heads import PROMPT, drafted_trees, foreign_head, six_layer_target


@pytest.mark.parametrize("dialect", ["eagle", "speculators"])
def test_an_exported_head_drafts_as_before(dialect: str, tmp_path: Path) -> None:
    backend = six_layer_target()
    made = foreign_head()
    facts = TargetInfo.of(backend.model.config.to_dict(), "tiny")
    eagle3_formats.write(made, tmp_path / dialect, dialect, "tiny", facts)
    config = json.loads((tmp_path / dialect / "config.json").read_text())
    config.pop("sapwood", None)  # as another trainer would have left it
    (tmp_path / dialect / "config.json").write_text(json.dumps(config))
    coarse = made.half().float()  # what a file in float16 keeps
    assert drafted_trees(Eagle3(head=str(tmp_path / dialect)), backend) == drafted_trees(
        Eagle3(head=coarse), backend
    )


def test_a_head_with_an_embedding_of_its_own_uses_it(tmp_path: Path) -> None:
    backend = six_layer_target()
    made = foreign_head()
    facts = TargetInfo.of(backend.model.config.to_dict(), "tiny")
    torch.manual_seed(5)
    other = torch.randn(61, 32)
    eagle3_formats.write(made, tmp_path, "eagle", "tiny", facts, embedding=other)
    drafter = Eagle3(head=str(tmp_path))
    recipe = Recipe(drafter, Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=3))
    bound: Any = Engine(backend, recipe).recipe.drafter
    assert torch.equal(bound.embedding, other.half().float())


def test_medusa_heads_of_another_trainer(tmp_path: Path) -> None:
    backend = six_layer_target()
    torch.manual_seed(1)
    tensors = {}
    for number in range(2):
        tensors[f"{number}.0.linear.weight"] = 0.1 * torch.randn(32, 32)
        tensors[f"{number}.0.linear.bias"] = 0.1 * torch.randn(32)
        tensors[f"{number}.1.weight"] = torch.randn(61, 32)
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1})
    )
    [(tokens, parents), *_] = drafted_trees(Medusa(head=str(tmp_path)), backend)
    session = backend.open(PROMPT[:-1])
    backend.watch([6])
    state = backend.open(PROMPT[:-1]).prefill_output(1)
    assert state is not None
    thought = state.hidden([0], [6])[0]
    inner = thought + torch.nn.functional.silu(
        tensors["0.0.linear.weight"] @ thought + tensors["0.0.linear.bias"]
    )
    best = (tensors["0.1.weight"] @ inner).topk(3).indices.tolist()
    assert sorted(
        token for token, parent in zip(tokens, parents, strict=True) if parent == 0
    ) == sorted(best)
    session.close()


def test_a_folder_that_is_no_head_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    recipe = Recipe(Eagle3(head=str(tmp_path)), Beam(), Match(), Fixed())
    with pytest.raises(SapwoodError, match="no dialect that is known"):
        Engine(six_layer_target(), recipe)
