"""The texts of a model are those of its weights, under any name."""

from pathlib import Path

import numpy as np
import pytest

from sapwood.common.fingerprint import EMBEDDING, Fingerprint, TensorSample
from sapwood.train.corpus import prepare
from sapwood.train.job import TrainJob, data_of


def fingerprint(seed: int) -> Fingerprint:
    noise = np.random.default_rng(seed)
    sample = TensorSample.of((96, 64), noise.standard_normal((8, 64)).astype(np.float32))
    return Fingerprint({EMBEDDING: sample})


def begin(folder: Path, model: str, weights: str | None) -> None:
    prepare(folder, {"model": model, "weights": weights, "size": None}, 4)


def test_texts_are_found_by_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    one, other = fingerprint(0), fingerprint(1)
    folder = data_of(TrainJob((), model="first"), one)
    begin(folder, "first", one.digest)
    assert data_of(TrainJob((), model="second"), one) == folder
    begin(folder, "second", one.digest)  # goes on with it
    changed = data_of(TrainJob((), model="first"), other)
    assert changed != folder
    begin(changed, "first", other.digest)
    assert data_of(TrainJob((), model="first"), other) == changed
    assert data_of(TrainJob((), model="first"), one) == folder


def test_texts_without_a_fingerprint_go_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    folder = data_of(TrainJob((), model="first"))
    begin(folder, "first", None)
    assert data_of(TrainJob((), model="first"), fingerprint(0)) == folder
    begin(folder, "first", fingerprint(0).digest)
