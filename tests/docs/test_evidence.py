"""Tables of rules say what their records say."""

import json
from pathlib import Path
from typing import Any

import pytest
from tools import evidence

PLACE: dict[str, Any] = {
    "command": "python benchmarks/x.py s.jsonl --threads 1 --seconds 9 --json /a/x.json",
    "commit": "0123abc",
    "machine": {"cpu": "a processor"},
    "model": {"name": "smollm2", "dtype": "int8", "device": "cpu"},
}
TEMPERATURE: dict[str, Any] = {
    **PLACE,
    "settings": {
        "temperatures": [0.0, 1.0],
        "places": 4,
        "draws": 2,
        "suite": "s.jsonl",
        "drafter": "eagle3",
    },
    "rows": [
        {"temperature": 0.0, "tree": "two", "draws": "topk", "rule": "match"},
        {"temperature": 1.0, "tree": "two", "draws": "swor", "rule": "rrs"},
    ],
    "orders": [
        {
            "temperature": 1.0,
            "tree": "two",
            "better": "swor rrs",
            "worse": "iid mss",
            "source": "a paper",
            "mean": 0.05,
            "low": low,
            "high": high,
        }
        for low, high in ((0.01, 0.09),)
    ],
}
for place, row in enumerate(TEMPERATURE["rows"]):
    row |= {"tokens_per_pass": 1.5 + place, "low": 1.25, "high": 1.75 + place, "prompts": 3}
DIRECTIONS: dict[str, Any] = {
    **PLACE,
    "settings": {"suite": "s.jsonl", "tokens": 32},
    "elsewhere": {"pearl": "time"},
    "missing": ["bild"],
    "rows": [
        {
            "recipe": "swift",
            "paper": "2410.06916",
            "claim": "siblings help",
            "measure": "tokens per pass",
            "temperature": 0.0,
            "prompts": 8,
            "gain": 0.25,
            "low": 0.1,
            "high": 0.4,
            "sign": "agrees",
            "means": {"tokens per pass": [1.25, 1.0]},
            "nodes_per_pass": [9.0, 1.5],
        }
    ],
}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / evidence.RESULTS
    folder.mkdir(parents=True)
    (folder / evidence.TEMPERATURE).write_text(json.dumps(TEMPERATURE))
    (folder / evidence.DIRECTIONS).write_text(json.dumps(DIRECTIONS))
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    return folder


def test_rules_stand_beside_the_one_of_temperature_0(records: Path) -> None:
    assert evidence.rules_by_temperature().splitlines()[2:] == [
        "| 2 children | swor | `rrs` | 1.500 (1.25 to 1.75) | 2.500 (1.25 to 2.75) |"
    ]


@pytest.mark.parametrize(
    ("low", "high", "mark"),
    [(0.01, 0.09, "holds"), (-0.02, 0.1, "within noise"), (-0.2, -0.1, "opposite")],
)
def test_an_order_holds_if_the_whole_interval_does(low: float, high: float, mark: str) -> None:
    assert evidence.gain_cell({"mean": 0.05, "low": low, "high": high}).endswith(f", {mark}")


def test_directions_show_claim_measurement_and_sign(records: Path) -> None:
    text = evidence.directions()
    assert "Signs of 1 rules: agrees: 1, within noise: 0, opposite: 0." in text
    assert (
        "| `swift` | [2410.06916](https://arxiv.org/abs/2410.06916) | siblings help | tokens per "
        "pass | 1.25 / 1.00 | +25% (+10% to +40%) | agrees | 1.25 / 1.00 | 9.0 / 1.5 |" in text
    )
    assert "- `bild`: not measured yet.\n- `pearl`: time.\n" in text
    assert evidence.direction(DIRECTIONS, "swift", "gain") == 0.25


def test_commands_are_shown_without_how_their_time_was_cut(records: Path) -> None:
    assert evidence.command_of(DIRECTIONS, "x.json") == (
        "python benchmarks/x.py s.jsonl --json benchmarks/results/x.json"
    )
    [section] = evidence.directions_section(DIRECTIONS)
    assert section.startswith("## Adaptive rules on and off\n")
    [section] = evidence.temperature_section(TEMPERATURE)
    assert "at 4 places of each of 3 prompts of s.jsonl" in section


def speed_row(recipe: str, temperature: float, prompts: int, speedup: float) -> dict[str, Any]:
    row: dict[str, Any] = {"recipe": recipe, "category": "all", "temperature": temperature}
    row |= {"prompts": prompts, "skipped": None, "departure": None}
    values = {"tokens_per_pass": 2.0, "speedup": speedup, "tokens_per_second": 100 * speedup}
    for name, value in values.items():
        row |= {name: value, f"{name}_low": 0.9 * value, f"{name}_high": 1.1 * value}
    return row


def test_recipes_by_temperature_show_intervals_and_how_many_prompts() -> None:
    rows = [
        speed_row("plain", 0.0, 4, 1.0),
        speed_row("plain", 1.0, 4, 1.0),
        speed_row("block", 0.0, 4, 2.0),
        speed_row("block", 1.0, 2, 1.5),
        speed_row("swift", 0.0, 1, 0.5),
    ]
    lossy = {**speed_row("free", 0.0, 4, 9.0), "departure": 0.1}
    left_out = {**speed_row("clover", 0.0, 0, 9.0), "skipped": "not shipped"}
    table = evidence.recipes_by_temperature({"rows": [*rows, lossy, left_out]}).splitlines()
    assert table[0] == "| recipe | T = 0 | T = 1 |"
    assert [line.split("`")[1] for line in table[2:]] == ["block", "plain", "swift"]
    assert table[2].split(" | ")[1] == (
        "2.00 (1.80 to 2.20); **2.00** (1.80 to 2.20); 200 / s (180 to 220)"
    )
    assert table[2].endswith("150 / s (135 to 165); 2 prompts |")
    assert table[4].endswith("; 1 prompt |  |")


LONG: dict[str, Any] = {
    **PLACE,
    "origins": {
        "float32": {**PLACE, "model": {**PLACE["model"], "dtype": "float32"}},
        "int8": {**PLACE, "command": "python benchmarks/x.py --dtype int8 --json /a/x.json"},
    },
    "settings": {"tokens": 32},
    "rows": [
        {
            "dtype": "float32",
            "context": 4096,
            "recipe": "plain",
            "tokens_per_pass": 1.0,
            "speedup": None,
            "nodes_per_pass": 0.0,
            "accepted_per_node": None,
            "identical": 2,
            "prompts": 2,
        },
        {
            "dtype": "int8",
            "context": 16384,
            "recipe": "triforce, 512 keys",
            "tokens_per_pass": 4.8,
            "speedup": {"mean": 1.5, "low": 1.25, "high": 1.75},
            "nodes_per_pass": 5.1,
            "accepted_per_node": 0.745,
            "identical": 1,
            "prompts": 2,
        },
    ],
}


def test_long_texts_show_speed_where_it_was_measured_and_every_command(records: Path) -> None:
    (records / evidence.LONG).write_text(json.dumps(LONG))
    assert evidence.long_context().splitlines()[2:] == [
        "| 4,096 | float32 | `plain` | 1.00 |  | 0.0 |  | 2/2 |",
        "| 16,384 | int8 | triforce, 512 keys | 4.80 | 1.50 (1.25 to 1.75) | 5.1 | 74% | 1/2 |",
    ]
    [section] = evidence.long_section(LONG)
    assert "smollm2, float32 on cpu; a processor, commit 0123abc. smollm2, int8" in section
    assert (
        f"--json {evidence.RESULTS}/{evidence.LONG}\npython benchmarks/x.py --dtype int8" in section
    )
    assert "behind the first round" in section
    counted = {**LONG, "rows": LONG["rows"][:1]}
    assert "plain decoding: not timed" in next(evidence.long_section(counted))
