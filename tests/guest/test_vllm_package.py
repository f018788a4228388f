"""The plug-in in an installed vLLM: the texts of plain decoding, whatever happens to requests."""

from typing import Any

import pytest

from tests.helpers.host_python import host_python, run_in

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


@pytest.fixture(scope="module")
def trial() -> Any:
    return run_in(host_python("vllm"), "-m", "tests.helpers.vllm_trial", **ENVIRONMENT)


@pytest.mark.slow
def test_texts_are_those_of_plain_decoding(trial: Any) -> None:
    assert len(trial["plain"]["texts"]) == 24
    assert trial["sapwood"]["texts"] == trial["plain"]["texts"]


@pytest.mark.slow
def test_lengths_differ_between_requests_and_steps(trial: Any) -> None:
    assert any(len(set(drafted)) > 1 for drafted in trial["drafted"])
    assert len({length for drafted in trial["drafted"] for length in drafted}) > 2
    assert trial["sapwood"]["accepted"] > 0
    assert max(max(drafted, default=0) for drafted in trial["drafted"]) <= 6


@pytest.mark.slow
def test_preempted_requests_keep_their_text(trial: Any) -> None:
    assert trial["preempted"]["preemptions"] > 0
    assert trial["preempted"]["texts"] == trial["plain"]["texts"]


@pytest.mark.slow
def test_others_go_on_when_requests_are_cancelled(trial: Any) -> None:
    texts = trial["plain"]["texts"]
    assert len(trial["cancelled"]) == 16
    assert all(text == texts[int(number)] for number, text in trial["cancelled"].items())
