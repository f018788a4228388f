"""What the plug-in expects of SGLang holds for the installed package."""

import pytest

from sapwood.guest.sglang import TreeCorpus
from tests.helpers.host_python import host_python, run_in

# of the corpus, by methods that the plug-in replaces
REPLACED = {"batch_get", "batch_put", "synchronize"}


@pytest.mark.slow
def test_the_installed_sglang_is_as_the_plug_in_expects() -> None:
    found = run_in(host_python("sglang"), "-m", "tests.helpers.sglang_contract")
    assert found["missing"] == [], "methods that SGLang calls on an algorithm"
    assert found["is_ngram"]
    assert not found["has_draft_kv"]
    assert found["overlap"]
    assert found["links"], "SGLang reads other trees from our masks"
    arguments = found["arguments"]
    assert arguments["__init__"] == ["self", "server_args", "gpu_id", "nccl_port", "target_worker"]
    for method in (
        "_prepare_for_speculative_decoding",
        "_prepare_draft_tokens",
        "_update_ngram_corpus",
    ):
        assert arguments[method] == ["self", "batch"]
    assert len(found["names"]) == 4, "fields of a request and of the relay"
    used = set(found["corpus_calls"]) - REPLACED - {"commit_external_corpus_load"}
    assert used <= set(dir(TreeCorpus)), "calls on the corpus that ours does not answer"


@pytest.mark.slow
def test_texts_are_those_of_plain_decoding_with_stand_in_kernels() -> None:
    """SGLang's scheduler, worker and memory on a CPU; its own kernels are not run."""
    found = run_in(host_python("sglang"), "-m", "tests.helpers.sglang_trial", OMP_NUM_THREADS="1")
    assert len(found["plain"]["texts"]) == 12
    assert found["sapwood"]["texts"] == found["plain"]["texts"]
    assert any(max(drafted, default=0) > 1 for drafted in found["drafted"])
    assert found["sapwood"]["passes"] < found["plain"]["passes"]
