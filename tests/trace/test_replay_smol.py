"""On the built-in model, with its trained head: a trace replays exactly, and others as they really run."""

from pathlib import Path

import pytest

from sapwood.engine.outputs import collect
from sapwood.llm import LLM
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.replay import TracePlayer, differences

pytestmark = [pytest.mark.smol, pytest.mark.slow]
PROMPTS = (
    "Name three uses of a paperclip.",
    "Repeat this: the cat sat on the mat, the cat sat on the mat.",
)


def test_a_trained_head_replays_exactly_and_predicts_others(tmp_path: Path) -> None:
    llm = LLM("smollm2", "auto")
    path = tmp_path / "t.jsonl"
    assert llm.text is not None
    with opened(path, llm, "auto", "smollm2", {"max_tokens": 24}) as book:
        for prompt in PROMPTS:
            tokens = llm.text.chat([{"role": "user", "content": prompt}])
            collect(traced(llm, tokens, book, prompt, max_tokens=24))
    trace = read(path)
    assert trace.header.drafters == ["suffix", "eagle3"]
    player = TracePlayer(trace, llm)
    assert differences(trace, player.replay_recorded()) == []
    for name in ("eagle3", "pld"):
        other = llm.with_recipe(name)
        stats = [other.generate(prompt, max_tokens=24).stats for prompt in PROMPTS]
        real = sum(one.tokens for one in stats) / sum(one.passes for one in stats)
        assert player.play(name).row()["tokens_per_pass"] == pytest.approx(real, rel=0.03), name
