"""A tiny model to train heads for, and runs of the train command on it."""

import os
import re
import signal
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from sapwood.cli.main import main
from sapwood.cli.progress import ProgressBars
from sapwood.train import job
from sapwood.train.loop import LoopSettings
from tests.helpers import byte_tokenizer, tiny_models

LETTERS = "abcdefghijklmnopqrstuvwxyz. ABCDEFGHIJKLMNOPQRSTUVWXYZ!"
EAGLE3 = "eagle3(vocabulary=200, unroll=3, inner=48, rate=0.01, matrix_rate=0.02)"
MEDUSA = "medusa(heads=2, vocabulary=200)"
STEPS, TOKENS = 40, 1000
FEW_STEPS = 12  # where what happens to a run is the subject, not what it learns
FULL = Path("/dev/full")
HEAD, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Place:
    """Folders that tests share."""

    model: Path
    prompts: Path
    data: Path  # a finished corpus
    whole: Path  # a head from a run that nobody disturbed


def counter() -> Any:
    """A model that goes on with the next letter, whatever it is asked, and errs a little when it is warm."""
    model = tiny_models.make(
        "llama", vocab_size=byte_tokenizer.SIZE, eos_token_id=byte_tokenizer.EOS
    )
    letters = byte_tokenizer.text().encode(f"{LETTERS}a", whole=False)
    said = [*letters[:-1], byte_tokenizer.SIZE - 2, byte_tokenizer.SIZE - 1]
    after = [*letters[1:], letters[28], letters[0]]
    with torch.no_grad():
        for layer in model.model.layers:  # these only disturb
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        embedding = model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.zero_().index_add_(
            0, torch.tensor(after), 0.35 * embedding[said]
        )
    return model


def hurry(patch: pytest.MonkeyPatch, save: float = 60.0) -> None:
    """Small batches, a state as often as asked for, and no measuring at the end."""
    patch.setitem(job.BATCH, "cpu", 512)
    patch.setattr(job, "LoopSettings", partial(LoopSettings, save=save))
    patch.setattr(job, "measured_gain", lambda *_, **__: None)  # loads the model once more


def asked(
    place: Place, *more: str, teach: tuple[str, ...] = (EAGLE3,), data: Path | None = None
) -> list[str]:
    """The command, as far as tests share it."""
    options = {"model": place.model, "prompts": place.prompts, "data": data or place.data}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [
        "train",
        *teach,
        *given,
        "--tokens",
        str(TOKENS),
        "--device",
        "cpu",
        "--threads",
        "1",
        *more,
    ]


def sentence(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one sentence on which this command ends."""
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [
        line
        for line in err.splitlines()
        if not re.match("sapwood: (loading|packing|training|texts|steps) ", line)
    ]
    assert len(lines) == 1, err
    assert lines[0].startswith("sapwood: ")
    assert "Traceback" not in err
    return lines[0]


def same(one: Path, other: Path) -> bool:
    """True for heads that are alike to the last byte."""
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in (HEAD, CONFIG))


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stopped(
    place: Place, out: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """The state after two of its steps."""
    calls = count(1)

    def stop(*_: Any) -> None:
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with patch.context() as inner:
        inner.setattr(ProgressBars, "steps", stop)
        sentence(capsys, asked(place, "--steps", str(FEW_STEPS), "--out", str(out)))
    return out / "state.safetensors"
