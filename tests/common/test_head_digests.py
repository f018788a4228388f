"""A predictor belongs to the head it was fitted to: another head, or none, is refused."""

import json
import re
from pathlib import Path

import pytest

from sapwood.common.drafter_store import SHIPPED, file_digest, head_digest
from sapwood.common.numpy_mlp import MlpBundle, load, random_mlp
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import EngineContext
from sapwood.core.types import BackendInfo
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.policies.c2t import C2t
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.hidden_state_toy import Mindful

FITTED = ("specdec++", "c2t", "ltd", "ldlp", "judge")


def made(folder: Path, heads: dict[str, str] | None) -> str:
    net = random_mlp([3, 1], 0)
    facts = {"base": 0.5, "about": {} if heads is None else {"heads": heads}}
    MlpBundle("c2t", {"classifier": net}, facts).save(folder)
    return str(folder)


class HeadDrafter(Suffix):
    """A drafter that says it uses a head."""

    digest = ""

    @property
    def head_digests(self) -> dict[str, str]:
        return {"eagle3": self.digest} if self.digest else {}


def bind(folder: str, digest: str) -> Recipe:
    drafter = HeadDrafter()
    drafter.digest = digest
    recipe = Recipe(drafter, C2t(weights=folder), Match(), Fixed())
    return recipe.bind(EngineContext(Mindful(), flat(), no_loader))


def test_a_predictor_works_with_its_own_head(tmp_path: Path) -> None:
    bind(made(tmp_path, {"eagle3": "abc"}), "abc")


@pytest.mark.parametrize(
    ("digest", "words"), [("other", "another one is in use"), ("", "this drafter uses none")]
)
def test_another_head_or_none_is_refused_in_a_sentence(
    tmp_path: Path, digest: str, words: str
) -> None:
    folder = made(tmp_path, {"eagle3": "abc"})
    with pytest.raises(Exception, match=re.escape(words)) as error:
        bind(folder, digest)
    assert "sapwood train c2t" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_predictor_without_a_digest_goes_by_its_model(tmp_path: Path) -> None:
    bind(made(tmp_path, None), "abc")


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    info = BackendInfo("torch", "smollm2", 10, 10)
    file.write_bytes(b"one")
    one = head_digest(str(tmp_path), "eagle3", info)
    file.write_bytes(b"two")
    assert one
    assert head_digest(str(tmp_path), "eagle3", info) != one
    assert head_digest(object(), "eagle3", info) == ""
    assert head_digest(str(tmp_path / "empty"), "eagle3", info) == ""


def test_the_digest_of_a_nested_drafter_is_found() -> None:
    outer: Part = AutoHead()
    assert outer.head_digests == {}
    drafter = HeadDrafter()
    drafter.digest = "x"
    outer.drafter = drafter  # type: ignore[attr-defined]
    assert outer.head_digests == {"eagle3": "x"}


@pytest.mark.parametrize("kind", FITTED)
def test_shipped_predictors_were_fitted_to_the_shipped_heads(kind: str) -> None:
    folder = SHIPPED / "smollm2" / kind
    facts = json.loads((folder / "config.json").read_text())["about"]
    assert facts["heads"], f"{kind} does not say which head it was fitted to"
    for name, digest in facts["heads"].items():
        file = SHIPPED / "smollm2" / name / "model.safetensors"
        assert file_digest(file) == digest
    load(str(folder), kind, "smollm2", None, facts["heads"])
