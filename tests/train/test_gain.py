"""What a run says about speed: a guess on the way, a measurement at its end."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sapwood.cli.main import main
from sapwood.common import drafter_store
from sapwood.common.fingerprint import Fingerprint
from sapwood.errors import SapwoodError
from sapwood.train import gain, job
from sapwood.train.gain import Gain, expected_speedup, expected_tokens, measured_gain
from sapwood.train.job import fitting
from tests.helpers.train_runs import Place, asked

pytestmark = pytest.mark.usefixtures("quick_training")


def test_a_chain_brings_the_product_of_its_steps() -> None:
    assert expected_tokens([0.5, 0.5]) == 1 + 0.5 + 0.25
    assert expected_speedup([0.0]) == 1.0
    assert expected_speedup([1.0] * 7) == 8 / gain.LOSS


def test_the_gain_of_a_head_is_measured(place: Place) -> None:
    found = measured_gain(
        str(place.model), "eagle3", place.whole, 0.0, device="cpu", dtype="float32"
    )
    assert found is not None
    assert found.prompts == 1  # no time for more
    assert found.tokens_per_pass >= 1  # a busy machine may find that no tree pays
    assert found.speedup > 0


def test_a_run_ends_with_what_was_gained(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = []

    def measure(
        model: str, kind: str, folder: Path, seconds: float, *, found: bool, **_: object
    ) -> Gain:
        calls.append((kind, folder, found))
        return Gain(1.5, 2.25, 3, 1.1)

    monkeypatch.setattr(job, "measured_gain", measure)
    out = tmp_path / "out"
    arguments = asked(place, "--steps", "3", "--out", str(out))
    assert main(arguments) == 0
    assert "1.50x plain decoding, 2.25 tokens per pass; auto without it 1.10x" in (
        capsys.readouterr().out
    )
    assert main([*asked(place, "--steps", "3"), "--json"]) == 0
    [record] = json.loads(capsys.readouterr().out)["trained"]
    assert record["gain"] == {
        "speedup": 1.5,
        "tokens_per_pass": 2.25,
        "prompts": 3,
        "without": 1.1,
    }
    assert not record["set_aside"]
    home = Path(record["out"])
    assert calls == [("eagle3", out, False), ("eagle3", home, True)]
    assert Fingerprint.read(home) is not None


def test_a_head_that_gains_nothing_is_set_aside_until_a_better_one_is_trained(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speedups = iter((0.9, 1.2))
    monkeypatch.setattr(
        job, "measured_gain", lambda *_, **__: Gain(next(speedups), 1.0, 1, without=1.0)
    )
    model = str(place.model)
    assert main(asked(place, "--steps", "2")) == 0
    assert "it is set aside" in capsys.readouterr().out
    assert not drafter_store.has("eagle3", model)
    with pytest.raises(SapwoodError, match=r"is set aside, as auto was slower .*; train it longer"):
        drafter_store.find("eagle3", model)
    assert main(asked(place, "--steps", "3")) == 0
    assert "set aside" not in capsys.readouterr().out
    assert drafter_store.has("eagle3", model)


def test_auto_is_measured_without_a_head_that_it_would_find(place: Place) -> None:
    home = drafter_store.home("eagle3", str(place.model))
    shutil.copytree(place.whole, home)
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
    with drafter_store.ignored(home):
        assert not drafter_store.has("eagle3", str(place.model))
    found = measured_gain(str(place.model), "eagle3", home, 0.0, found=True, **options)
    assert found is not None
    assert found.without > 0
    assert drafter_store.has("eagle3", str(place.model))


@pytest.mark.parametrize(("each", "tokens"), [(1e-6, 2048), (2e-3, 1024), (4e-3, 512), (1.0, 256)])
def test_slow_machines_take_smaller_batches(each: float, tokens: int) -> None:
    assert fitting(2048, each) == tokens
