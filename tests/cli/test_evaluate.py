"""`sapwood evaluate`: the engine's own tokens per pass, by category, and one-sentence errors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.cli.main import main
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.heads import files
from sapwood.heads.target_info import TargetInfo
from sapwood.llm import LLM
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.medusa import MedusaObjective
from sapwood.train.teacher import Teacher
from tests.helpers import byte_tokenizer
from tests.helpers.byte_model import save_byte_model

LONGEST = 12  # tokens of an answer
PROMPTS = [("letters", "abc"), ("numbers", "1, 2, 3"), ("letters", "xyz"), ("numbers", "7 + 7")]


@dataclass(frozen=True)
class Place:
    """Folders that tests share."""

    model: Path
    head: Path
    medusa: Path
    suite: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A two-layer model, two heads that were never trained, and a file of prompts."""
    root: Path = tmp_path_factory.mktemp("evaluate")
    found = Place(root / "model", root / "head", root / "medusa", root / "prompts.jsonl")
    model = save_byte_model(found.model)
    teacher = Teacher(TorchBackend(model, "tiny"))
    facts = TargetInfo.of(model.config.to_dict(), "tiny")
    counts = np.ones(byte_tokenizer.SIZE, np.int64)
    for course, folder in (
        (Eagle3Objective(vocabulary=byte_tokenizer.SIZE, inner=48), found.head),
        (MedusaObjective(heads=2, vocabulary=40), found.medusa),
    ):
        torch.manual_seed(1)
        files.save(course.build(teacher, counts), folder, facts=facts)
    lines = [json.dumps({"category": kind, "prompt": prompt}) for kind, prompt in PROMPTS]
    found.suite.write_text("\n".join(lines))
    return found


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


def asked(place: Place, *more: str) -> list[str]:
    """The command, as far as tests share it."""
    options = {"model": place.model, "suite": place.suite, "device": "cpu", "max-tokens": LONGEST}
    return [
        "evaluate",
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        *more,
    ]


def rate(llm: LLM, prompt: str) -> tuple[int, float]:
    """Tokens of the engine's answer, and tokens per pass of rounds whose trees are never made smaller."""
    said = llm.generate(prompt, max_tokens=LONGEST).tokens
    assert llm.text is not None
    tokens = llm.text.chat([{"role": "user", "content": prompt}])
    left = len(said)
    for passes, outcome in enumerate(
        llm.engine.rounds(tokens, Sampling(max_tokens=10 * LONGEST), KeyedRng(0)), 1
    ):
        left -= len(outcome.tokens)
        if left <= 0:
            return len(said), len(said) / passes
    raise AssertionError("the answer ended early")


def test_the_record_holds_the_rates_of_the_engine(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    trees = ["--tree", "1,1,1", "--tree", "30,3,8"]
    assert main(asked(place, str(place.head), *trees, "--json")) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    for tree in found["trees"]:
        nodes, depth, beam = tree["nodes"], tree["depth"], tree["beam"]
        parts: dict[str, Any] = {
            "drafter": f"eagle3(head='{place.head}')",
            "policy": f"beam(beam={beam}, estimator=raw)",
            "controller": f"fixed(nodes={nodes}, depth={depth}, width={beam})",
        }
        llm = LLM(str(place.model), "eagle3", device="cpu", dtype="float32", **parts)
        played = [(kind, *rate(llm, prompt)) for kind, prompt in PROMPTS]
        means = {
            name: np.mean([rate for kind, _, rate in played if kind == name])
            for name in ("letters", "numbers")
        }
        assert tree["categories"] == pytest.approx(means)
        assert tree["tokens_per_pass"] == pytest.approx(np.mean(list(means.values())))
        assert found["tokens"] == sum(count for _, count, _ in played)
    small, large = found["trees"]
    assert 1 <= small["tokens_per_pass"] < large["tokens_per_pass"]
    assert (found["prompts"], found["dtype"], found["head"]) == (4, "float32", str(place.head))


def test_the_table_has_a_line_for_each_tree(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(asked(place, str(place.head), "--limit", "2")) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert [line[:3] for line in lines if line and line[0].isdigit() and len(line) == 6] == [
        ["6", "6", "1"],
        ["16", "6", "8"],
        ["32", "8", "10"],
        ["64", "16", "10"],
    ]
    assert "letters" in out
    assert "2 greedy answers" in out
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{root}/none"], "has no config.json; name the folder of a trained head"),
        ([], "no trained eagle3 for"),
        (["{root}/medusa"], "holds a medusa head, and only eagle3 heads are evaluated"),
        (["{root}/head", "--tree", "64"], "--tree '64' must be NODES,DEPTH,BEAM"),
        (["{root}/head", "--tree", "0,1,1"], "nodes=0 must be from 1 to 1023"),
        (["{root}/head", "--tree", "9,1,999"], "tokens that the head can draft"),
        (["{root}/head", "--max-tokens", "0"], "max_tokens=0 must be at least 1"),
        (["{root}/head", "--suite", "{root}/none"], "is no file that can be read"),
        (["{root}/head", "--dtype", "int8"], "has no weights to train with"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], sentence: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("{root}", str(place.model.parent)) for word in arguments]
    assert main(asked(place, *words)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_a_trace_of_plain_decoding_scores_any_head(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(place.model.parent / "trace.jsonl")
    model = ["--model", str(place.model), "--device", "cpu", "--dtype", "float32"]
    limits = ["--suite", str(place.suite), "--limit", "1", "--max-tokens", str(LONGEST)]
    assert main(["trace", "record", trace, "--recipe", "plain", *limits, *model]) == 0
    capsys.readouterr()
    heads = {"eagle3": place.head, "medusa": place.medusa}
    spelled = "; ".join(
        f"{kind}(head='{folder}') + beam + match + fixed(nodes=9, depth=2)"
        for kind, folder in heads.items()
    )
    assert main(["replay", trace, "--no-oracle", "--recipes", spelled, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"]
    assert [row["skipped"] for row in found["rows"]] == [None] * 4
    assert [row["tokens_per_pass"] >= 1 for row in found["rows"]] == [True] * 4
