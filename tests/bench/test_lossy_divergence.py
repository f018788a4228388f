"""The benchmark says how far a lossy recipe departs from plain decoding."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.bench.divergence import count_departures
from sapwood.bench.measure import decode
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.sampling import Sampler, Sampling
from sapwood.engine.loop import Engine
from sapwood.llm import LLM
from sapwood.recipes import resolve

# benchmark
TARGET: Any = ToyBackend(vocab=5, context=200)
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]
LOOSE = "recycling + static(shape=[2, 1]) + bild + fixed"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=90),
        Sampling(temperature=0.8, seed=4, max_tokens=90),
        Sampling(
            temperature=0.8, seed=4, repetition_penalty=1.3, frequency_penalty=0.2, max_tokens=90
        ),
    ],
    ids=range(3),
)
def test_plain_text_does_not_stray_and_every_other_token_does(sampling: Sampling) -> None:
    said = decode(Engine(TARGET, resolve("plain")), PROMPT, sampling).tokens
    assert count_departures(TARGET, PROMPT, said, sampling) == 0  # over more than one pass
    other = [*said[:40], (said[40] + 1) % 5]
    assert count_departures(TARGET, PROMPT, other, sampling) == 1
    assert count_departures(TARGET, PROMPT, [*other, 3, 3, 3], sampling) <= 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_strays_is_counted_after_the_same_text(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=2, max_tokens=50)
    said = decode(Engine(TARGET, resolve(LOOSE)), PROMPT, sampling).tokens
    count = 0
    for place, token in enumerate(said):
        probs = probs_after("target", 5, (*PROMPT, *said[:place]))
        best = int(np.argmax(probs))
        if temperature:
            best = KeyedRng(2).pick(
                Sampler(sampling, PROMPT).probs(np.log(probs), []), NoiseKey(len(PROMPT) + place)
            )
        count += token != best
    assert count > 5
    assert count_departures(TARGET, PROMPT, said, sampling) == count


def test_the_benchmark_says_how_far_a_lossy_recipe_departs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(options.ModelChoice, "open", lambda self, progress: LLM(TARGET, "plain"))
    path = tmp_path / "bench.json"
    arguments = ["--suite", "random", "--limit", "2", "--max-tokens", "24", "--json", str(path)]
    assert main(["bench", "--recipes", f"recycling;{LOOSE}", *arguments]) == 0
    found = {
        (row["recipe"], row["category"]): row["departure"]
        for row in json.loads(path.read_text())["rows"]
    }
    assert found["plain", "all"] is None
    assert found["recycling", "all"] is None
    assert 0 < found[LOOSE, "all"] < 1
    said = capsys.readouterr().out
    assert "departs" in said
    assert "is lossy" in said
    assert main(["bench", "--recipes", "recycling", *arguments]) == 0
    assert "departs" not in capsys.readouterr().out
