"""Smaller choices of tests: of every test function the first parameters, or also the last."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

LONG = ("slow", "smol", "gpu")  # marks of tests that are left out of a choice
# files and tests that are left out of a quick run, since they take seconds
NOT_QUICK = {
    "tests/server/test_playground_chat.py": "starts a browser",
    "tests/certify/test_certify_baseline.py": "draws thousands of samples",
    "tests/server/test_several_models.py": "starts servers",
    "tests/backends/torch/test_other_processors.py": "starts processes",
    "tests/server/test_limits.py": "waits for limits",
    "tests/trace/test_trace_page.py": "starts a browser",
    "tests/train/test_gain.py": "trains heads",
    "tests/bench/test_all_recipes.py": "runs every recipe",
    "tests/backends/torch/cpu_int8/test_block_gemm.py": "compiles for up to a minute",
    "tests/backends/torch/cpu_int8/test_int8_gemm.py": "compiles for up to a minute",
    "tests/backends/torch/cpu_int8/test_tree_builder.py": "compiles for up to a minute",
    "tests/backends/torch/cpu_int8/test_int8_network.py": "compiles for up to a minute",
    "tests/backends/torch/cpu_int8/test_overlapped_pass.py": "compiles for up to a minute",
    "tests/backends/torch/cpu_int8/test_sinks_and_experts.py": "compiles for up to a minute",
    "tests/backends/torch/test_expert_load.py": "compiles for up to a minute",
    "tests/backends/torch/test_gguf_load.py": "compiles for up to a minute",
    "tests/benchmarks/test_gpu_benchmark.py": "runs a whole benchmark",
    "tests/certify/test_certify_recipe.py": "draws thousands of samples",
    "tests/certify/test_certify_server.py": "draws thousands of samples",
    "tests/docs/test_site.py": "decodes with a profiler",
    "tests/drafters/heads/test_online.py": "trains while it decodes",
    "tests/drafters/lookup/test_lookup.py::test_the_law_is_the_targets": "enumerates large trees",
    "tests/engine/test_tree_builder_contract.py::test_compiled_cpu_code": "compiles for a minute",
    "tests/peers/test_peer_process.py": "starts processes",
    "tests/policies/test_rsd.py::test_the_stochastic_beam_is_a_sample_without_replacement": "draws",
    "tests/server/test_clients.py": "starts a server",
    "tests/server/test_playground_page.py": "starts a browser",
    "tests/structured_output/test_random_schemas.py": "compiles hundreds of grammars",
    "tests/test_external_method.py": "starts processes",
    "tests/test_install.py": "starts processes",
    "tests/test_startup.py": "starts processes",
    "tests/test_lossless.py::test_merged_drafters_keep_the_law": "enumerates large trees",
    "tests/trace/test_trace_replay.py": "decodes every trace again",
    "tests/train/test_early_exit_parallel_recurrent.py": "trains heads",
    "tests/benchmarks/test_heads_benchmark.py": "trains heads",
    "tests/train/test_text_layers.py": "trains heads",
    "tests/train/test_draft_model.py": "trains draft models",
    "tests/bench/test_report_page.py": "starts a browser",
    "tests/test_conventions.py": "parses every file; `make check` has it",
    "tests/test_layers.py": "parses every file; `make check` has it",
    "tests/test_size.py": "parses every file; `make check` has it",
    "tests/train/test_student_texts.py": "trains draft models",
    "tests/train/test_evaluate.py": "decodes with every size of tree",
    "tests/train/test_head_losses.py": "trains heads",
    "tests/train/test_ltd.py": "fits predictors",
    "tests/train/test_predictor_command.py": "fits predictors",
    "tests/train/test_train_command.py": "trains heads",
    "tests/train/test_train_interruptions.py": "trains heads",
    "tests/train/test_train_refusals.py": "trains heads",
}

# test functions that take about 0.3 seconds or more with their first parameters
SLOW_TESTS = frozenset(Path(__file__).with_name("slow_tests.txt").read_text().split())


def quick(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """What a person runs while working."""

    def long(item: pytest.Item) -> bool:
        name = item.nodeid.partition("[")[0]
        file = name.partition("::")[0]
        return name in SLOW_TESTS or name in NOT_QUICK or file in NOT_QUICK

    return representatives((item for item in items if not long(item)), last=False)


def representatives(items: Iterable[pytest.Item], *, last: bool = True) -> list[pytest.Item]:
    """The first, and the last, parameters of every test function that is not marked as long."""
    groups: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in LONG):
            name = item.originalname if isinstance(item, pytest.Function) else item.name
            groups[item.parent, name].append(item)
    ends = (0, -1) if last else (0,)
    return [group[end] for group in groups.values() for end in ends[: len(group)]]
