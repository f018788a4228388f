"""The state of a training run in one file: whole, replaced at once, refused where it is of something else."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from sapwood.errors import SapwoodError
from sapwood.train.checkpoint import check_homes, notes_in, remembered, restore, save, write


def head(seed: int = 0, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 2), nn.LayerNorm(2))


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    first, second = model.children()
    return [
        AdamW(first.parameters(), lr=0.1),
        SGD(second.parameters(), lr=0.1, momentum=0.9),
    ]


def learn(model: nn.Module, optimizers: list[Optimizer], steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(inputs) ** 2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def weights(model: nn.Module) -> list[float]:
    found: list[float] = []
    for weight in model.parameters():
        found += weight.detach().flatten().tolist()
    return found


# ------------------------------------------------------------------------------------- round trip
def test_a_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole = head()
    own = optimizers_of(whole)
    learn(whole, own, 6)
    first = head()
    some = optimizers_of(first)
    learn(first, some, 3)
    save(tmp_path / "state", first, some, {"step": 3})
    second = head(seed=9)
    others = optimizers_of(second)
    restore(tmp_path / "state", second, others)
    assert weights(second) == weights(first)
    learn(second, others, 3, first=3)
    assert weights(second) == weights(whole)


def test_without_what_optimizers_remember_the_end_would_be_another(tmp_path: Path) -> None:
    whole = head()
    own = optimizers_of(whole)
    learn(whole, own, 3)
    save(tmp_path / "state", whole, own, {})
    learn(whole, own, 3, first=3)
    second = head()
    restore(tmp_path / "state", second, [])
    fresh = optimizers_of(second)
    learn(second, fresh, 3, first=3)
    assert weights(second) != weights(whole)


def test_each_optimizer_remembers_its_own(tmp_path: Path) -> None:
    model = head()
    own = optimizers_of(model)
    learn(model, own, 2)
    save(tmp_path / "state", model, own, {})
    tensors = load_file(tmp_path / "state")
    names = {name.split("/")[-1] for name in tensors if name.startswith("optimizer/0/")}
    assert names == {"step", "exp_avg", "exp_avg_sq"}
    found = remembered(own[1], 1, tensors)
    assert sorted(found["state"]) == [0, 1]
    assert set(found["state"][0]) == {"momentum_buffer"}
    assert found["param_groups"] == own[1].state_dict()["param_groups"]


def test_notes_come_back(tmp_path: Path) -> None:
    notes = {"run": "some run", "step": 3, "curve": [{"loss": 0.5}], "plan": None}
    save(tmp_path / "deep" / "state", head(), [], notes)
    assert notes_in(tmp_path / "deep" / "state") == notes


def test_numbers_of_half_precision_stay_as_they_are(tmp_path: Path) -> None:
    model = head().half()
    save(tmp_path / "state", model, [], {})
    second = head(seed=4).half()
    restore(tmp_path / "state", second, [])
    assert weights(second) == weights(model)
    assert load_file(tmp_path / "state")["head/0.weight"].dtype == torch.float16


# ---------------------------------------------------------------------------------------- damage
@pytest.mark.parametrize("content", [b"", b"not a state at all", b"\xff" * 64])
def test_what_is_no_state_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    for call in (lambda: notes_in(path), lambda: restore(path, head(), [])):
        with pytest.raises(SapwoodError, match=r"is no training state .* delete it to begin anew"):
            call()


def test_a_file_of_tensors_without_notes_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(SapwoodError, match="is no training state"):
        notes_in(path)
    save_file({"x": torch.zeros(1)}, path, {"notes": "{oops"})
    with pytest.raises(SapwoodError, match="is no training state"):
        notes_in(path)
    save_file({"x": torch.zeros(1)}, path, {"notes": json.dumps([1, 2])})
    assert notes_in(path) == {}


def test_a_file_that_is_not_there_is_no_state(tmp_path: Path) -> None:
    with pytest.raises(SapwoodError, match="is no training state"):
        notes_in(tmp_path / "nowhere")


def test_a_state_of_another_head_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "state", head(width=5), [], {})
    with pytest.raises(SapwoodError, match=r"is of another head: size mismatch for 0.weight") as it:
        restore(tmp_path / "state", head(), [])
    assert "\n" not in str(it.value)
    assert str(it.value).endswith("delete it to begin anew")


# ------------------------------------------------------------------------------------------- disk
def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")

    def broken(place: Path) -> None:
        place.write_text("half")
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(SapwoodError) as caught:
        write(path, broken)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["state"]
    said = str(caught.value)
    assert "Input/output error; what was saved before is intact, check the folder" in said


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "x"), OSError("I/O error: No space left on device")]
)
def test_a_full_disk_is_named_as_such(tmp_path: Path, error: OSError) -> None:
    def full(place: Path) -> None:
        raise error

    with pytest.raises(
        SapwoodError, match=r"the disk is full; .* free some space and run the same"
    ):
        write(tmp_path / "state", full)


def test_a_state_is_written_beside_and_then_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    whole = os.replace

    def replace(source: Any, target: Any) -> None:
        seen.append((Path(source).name, Path(target).name))
        whole(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path / "state", lambda place: place.write_text("new"))
    assert seen == [("state.new", "state")]
    assert (tmp_path / "state").read_text() == "new"


def test_places_that_no_head_can_be_written_to_are_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for folder in (file, file / "inner" / "most"):
        with pytest.raises(SapwoodError, match=rf"{file} is a file and holds no trained drafter"):
            check_homes([tmp_path / "fine", folder])
    check_homes([tmp_path / "new" / "folder"])
    assert not (tmp_path / "new").exists()
