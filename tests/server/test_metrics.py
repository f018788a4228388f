"""What /metrics says adds up with what was served, names nothing of a request, and feeds the dashboard."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sapwood.core.tree import HINT_NAMES, HINTS, Tree
from sapwood.core.types import Outcome, StageTimes, Verdict
from sapwood.registry import names
from sapwood.server.metrics import BANDS, DEEPEST, Metrics, origin_label
from tests.helpers.asgi_client import Served, model, served

BOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
TEXT = "the tree grows and the tree grows and the tree grows."
STEADY = "merge + best + match + fixed(nodes=16, depth=8, width=4)"  # trees that ask no clock
Sums = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)


@pytest.fixture
def tree() -> Iterator[Served]:
    with served(model(TEXT, recipe=STEADY), recipe="steady", recipes=("plain",)) as one:
        yield one


def read(one: Served) -> Sums:
    """Every sample of the page by name and labels, once the engine has rested."""
    assert one.api.engine_thread._idle.wait(10)
    answer = one.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.body.decode()))
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def total(found: Sums, name: str, **labels: str) -> float:
    """The sum of all samples of this name with these labels."""
    wanted = labels.items()
    return sum(value for (known, has), value in found.items() if known == name and wanted <= has)


def test_what_is_counted_adds_up_with_what_was_served(tree: Served) -> None:
    answers = [tree.chat(max_tokens=40).json, tree.chat(max_tokens=7).json]
    tree.chat(max_tokens=9, speculation={"recipe": "plain"})
    found = read(tree)
    said = sum(answer["usage"]["completion_tokens"] for answer in answers) + 9
    asked = 3 * answers[0]["usage"]["prompt_tokens"]
    assert total(found, "sapwood_tokens_total") == said
    assert total(found, "sapwood_prompt_tokens_total") == asked
    assert total(found, "sapwood_requests_total") == 3
    assert total(found, "sapwood_requests_total", finish="length") == 3
    for name in ("queue", "first_token", "request"):
        assert total(found, f"sapwood_{name}_seconds_count") == 3, name
    own = total(found, "sapwood_tokens_total", origin="model")
    kept = total(found, "sapwood_nodes_total", fate="accepted")
    assert own + kept == said
    assert kept > 0
    assert (
        0 < total(found, "sapwood_between_tokens_seconds_count") <= said - 3
    )  # first tokens have none before them
    assert total(found, "sapwood_grown_nodes_total") >= total(found, "sapwood_nodes_total")
    assert (
        total(found, "sapwood_pass_trees_sum") >= own
    )  # each request of a pass adds one token of the model's own
    assert total(found, "sapwood_passes_total") == total(found, "sapwood_pass_seconds_count")


def test_acceptance_and_calibration_are_counted_of_the_same_guesses(tree: Served) -> None:
    tree.chat(max_tokens=50)
    tree.chat(max_tokens=50)
    found = read(tree)
    tried = total(found, "sapwood_guesses_tried_total")
    stood = total(found, "sapwood_guesses_accepted_total")
    assert tried >= stood > 0
    assert total(found, "sapwood_guesses_tried_total", depth="1") > 0
    nodes = total(found, "sapwood_calibration_nodes_total")
    assert nodes >= total(found, "sapwood_calibration_accepted_total") > 0
    for band in BANDS:
        low, high = map(float, band.split("-"))
        here = total(found, "sapwood_calibration_nodes_total", chance=band)
        mean = (
            total(found, "sapwood_calibration_foreseen_total", chance=band) / here
            if here
            else (low + high) / 2
        )
        assert low - 1e-9 <= mean <= high + 1e-9


def test_gauges_say_how_things_stand(tree: Served) -> None:
    tree.chat(messages=[{"role": "user", "content": "a" * 40}])
    found = read(tree)
    for state in ("running", "prefill", "waiting"):
        assert total(found, "sapwood_requests_now", state=state) == 0, state
    assert total(found, "sapwood_kv_blocks", kind="used") == 0
    assert (
        0
        < total(found, "sapwood_kv_blocks", kind="cached")
        <= total(found, "sapwood_kv_blocks", kind="all")
    )
    assert total(found, "sapwood_kv_block_tokens") == tree.api.engine_thread.llm.target.memory.block
    assert total(found, "sapwood_draining") == 0
    assert total(found, "sapwood_preemptions_total") == 0
    assert total(found, "sapwood_tokens_per_second") > 0
    tree.api.engine_thread.draining = True
    assert total(read(tree), "sapwood_draining") == 1


def test_failures_are_counted_by_status(tree: Served) -> None:
    assert tree.chat(temperature=7).status == 400
    assert tree.chat(temperature=9).status == 400
    assert tree.get("/nowhere").status == 404
    found = read(tree)
    assert total(found, "sapwood_errors_total", code="400") == 2
    assert total(found, "sapwood_errors_total", code="404") == 1
    assert total(found, "sapwood_errors_total") == 3


def test_labels_are_words_of_ours(tree: Served) -> None:
    tree.chat(
        messages=[{"role": "user", "content": "a secret plan"}], max_tokens=30, user="Mallory"
    )
    tree.get("/secret-place")
    closed = {
        "origin": {*names("drafter"), "model", "several"},
        "drafter": set(names("drafter")),
        "depth": {*map(str, range(1, DEEPEST)), f"{DEEPEST}+"},
        "chance": set(BANDS),
        "fate": {"accepted", "refused"},
        "finish": {"stop", "length"},
        "stage": {"draft", "verify", "other"},
        "state": {"running", "prefill", "waiting"},
        "kind": {"used", "cached", "all"},
    }
    for name, labels in read(tree):
        for label, value in labels:
            if label in closed:
                assert value in closed[label], (name, label, value)
            else:
                assert label in ("le", "code", "block_size", "num_gpu_blocks"), (name, label)
                assert re.fullmatch(r"[0-9.+Infe-]+", value), (name, value)
    page = tree.get("/metrics").body.decode()
    assert not re.search("secret|Mallory|toy", page)


def test_the_page_needs_the_key() -> None:
    with served(keys=("a-long-enough-key",)) as one:
        assert one.get("/metrics").status == 401
        assert one.get("/metrics", ("authorization", "Bearer a-long-enough-key")).status == 200


def test_a_guess_of_several_drafters_counts_for_each_and_is_one_token() -> None:
    assert origin_label(0, {0: "a", 1: "b"}) == "model"
    assert origin_label(0b10, {0: "a", 1: "b"}) == "b"
    assert origin_label(0b11, {0: "a", 1: "b"}) == "several"
    assert origin_label(1 << HINTS, {0: "a", **HINT_NAMES}) == "grammar"
    with served() as one:
        metrics = Metrics(one.api.engine_thread)
        tree = Tree(5)
        child = tree.add(0, 7, 0.5, source=0)
        tree.add(0, 7, 0.5, source=1)
        tree.add(0, 8, 0.2, source=1)
        tree.add(child, 9, 0.5, source=1)  # below an accepted node, refused
        tree.add(2, 9, 0.5, source=0)  # below a refused one: never put to the question
        outcome = Outcome(tree, tree, Verdict((0, child), 3), None, 4, StageTimes(0.1, 0.2, 0.0))  # type: ignore[arg-type]
        metrics._count_drafts(outcome, {0: "a", 1: "b"})
        counted = {
            (kind, *sample.labels.values()): sample.value
            for kind, counter in (("tried", metrics.tried), ("accepted", metrics.accepted))
            for family in counter.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }
    assert counted == {
        ("tried", "a", "1"): 1,
        ("tried", "b", "1"): 2,
        ("tried", "b", "2"): 1,
        ("accepted", "a", "1"): 1,
        ("accepted", "b", "1"): 1,
    }
    assert np.array_equal(tree.sources[1:3], [3, 2])


def test_the_dashboard_asks_for_metrics_that_exist(tree: Served) -> None:
    tree.chat(max_tokens=50)
    tree.get("/nowhere")
    known = {name for name, _ in read(tree)}
    asked = set[str]()
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            found = set(re.findall(r"\bsapwood_\w+", target["expr"]))
            assert found, panel["title"]
            asked |= found
    assert asked <= known, f"unknown to the server: {sorted(asked - known)}"
    shown = {
        name
        for name in known
        if name.startswith("sapwood_") and not re.search("_(created|count|sum|bucket)$", name)
    }
    assert shown - asked <= {"sapwood_kv_block_tokens"}, f"on no panel: {sorted(shown - asked)}"


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus"
)
def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    rules: list[dict[str, str]] = []
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1h")
            rules.append({"record": f"sapwood:panel{len(rules)}", "expr": expression})
    place = tmp_path / "rules.yml"
    place.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(place)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
    config = BOARD.with_name("prometheus.yml")
    assert (
        subprocess.run(["promtool", "check", "config", str(config)], capture_output=True).returncode
        == 0
    )
