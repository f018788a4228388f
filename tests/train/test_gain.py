"""What a run says about speed: a guess on the way, a measurement at its end."""

import json
from pathlib import Path

import pytest

from sapwood.cli.main import main
from sapwood.common.fingerprint import Fingerprint
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

    def measure(model: str, kind: str, folder: Path | None, seconds: float, **_: object) -> Gain:
        calls.append((kind, folder))
        return Gain(1.5, 2.25, 3)

    monkeypatch.setattr(job, "measured_gain", measure)
    out = tmp_path / "out"
    arguments = asked(place, "--steps", "3", "--out", str(out))
    assert main(arguments) == 0
    assert "measured on 3 prompts: 1.50x plain decoding, 2.25 tokens per pass" in (
        capsys.readouterr().out
    )
    assert main([*asked(place, "--steps", "3"), "--json"]) == 0
    [record] = json.loads(capsys.readouterr().out)["trained"]
    assert record["gain"] == {"speedup": 1.5, "tokens_per_pass": 2.25, "prompts": 3}
    assert calls == [("eagle3", out), ("eagle3", None)]
    assert Fingerprint.read(Path(record["out"])) is not None


@pytest.mark.parametrize(("each", "tokens"), [(1e-6, 2048), (2e-3, 1024), (4e-3, 512), (1.0, 256)])
def test_slow_machines_take_smaller_batches(each: float, tokens: int) -> None:
    assert fitting(2048, each) == tokens
