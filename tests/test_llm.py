"""From text to text, through the toy."""

import dataclasses
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Unpack

import pytest

import sapwood
from sapwood import LLM, Completion, Recipe, Sampling, SamplingOptions, SapwoodError
from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.core.types import Guarantee
from sapwood.engine.cost_model import flat
from sapwood.engine.output_processor import StatsCounter
from sapwood.recipes import RECIPES, resolve
from tests.helpers import byte_tokenizer
from tests.helpers.part_factory import toy_recipes

PROMPT = "Say something."
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)


def llm(recipe: str = "suffix", context: int = 512, **options: Any) -> LLM:
    return LLM(
        ToyBackend(vocab=byte_tokenizer.SIZE, context=context),
        recipe,
        text=byte_tokenizer.text(),
        **options,
    )


UNTRAINED = [name for name, made in toy_recipes().items() if made.guarantee is Guarantee.TEXT]


def plain(**options: Any) -> Completion:
    return llm("plain").generate(PROMPT, **options)


# ---------------------------------------------------------------------------------------- answers
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 3}], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("recipe", UNTRAINED)
def test_every_text_recipe_says_what_plain_decoding_says(
    recipe: str, options: dict[str, Any]
) -> None:
    wanted = plain(max_tokens=30, **options)
    model = llm(recipe)
    for _ in range(2):  # the second time, drafters remember the first
        got = model.generate(PROMPT, max_tokens=30, **options)
        assert (got.text, got.tokens, got.finish) == (wanted.text, wanted.tokens, wanted.finish)


def test_steps_add_up_to_the_completion() -> None:
    model = llm()
    whole = model.generate(PROMPT, max_tokens=30)
    steps = list(model.stream(PROMPT, max_tokens=30))
    assert "".join(step.text for step in steps) == whole.text
    assert [token for step in steps for token in step.tokens] == whole.tokens
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    assert len(steps) < len(whole.tokens)  # it remembered
    for step in steps:
        assert sum(piece.drafted for piece in step.pieces) <= step.outcome.verdict.accepted


def test_the_numbers_agree_with_each_other() -> None:
    model = llm()
    model.generate(PROMPT, max_tokens=40)
    stats = model.generate(PROMPT, max_tokens=40).stats
    assert stats.tokens == 40 == stats.accepted + stats.passes
    assert stats.tokens_per_pass == pytest.approx(40 / stats.passes)
    assert stats.waste == pytest.approx(1 - stats.accepted / stats.drafted)
    assert stats.seconds == pytest.approx(
        stats.prefill_s + stats.draft_s + stats.verify_s + stats.other_s
    )
    assert stats.tokens_per_second == pytest.approx(40 / stats.seconds)
    assert stats.speedup is None  # nothing was measured
    assert set(stats.to_json()) >= {
        "passes",
        "tokens_per_pass",
        "drafted",
        "accepted",
        "draft_s",
        "speedup",
    }


def test_time_between_steps_is_not_counted() -> None:
    begin = time.perf_counter()
    between = 0.0
    for step in llm().stream(PROMPT, max_tokens=3):
        start = time.perf_counter()
        last = step.stats
        time.sleep(0.1)
        between += time.perf_counter() - start
    assert last is not None
    assert between >= 0.1
    assert last.seconds <= time.perf_counter() - begin - between


def test_forms_of_a_prompt() -> None:
    model = llm("plain")
    text = byte_tokenizer.text()
    turn = model.generate(PROMPT, max_tokens=5).tokens
    assert model.chat(MESSAGES, max_tokens=5).tokens == turn
    assert model.generate(text.chat(MESSAGES), max_tokens=5).tokens == turn
    raw = model.generate(PROMPT, raw=True, max_tokens=5).tokens
    assert raw == model.generate(text.encode(PROMPT), max_tokens=5).tokens != turn


def test_a_backend_without_a_tokenizer_takes_tokens() -> None:
    out = LLM(ToyBackend(vocab=5), "plain").generate([1, 2], max_tokens=4)
    assert (out.text, len(out.tokens)) == ("", 4)


def test_another_recipe_on_the_same_model() -> None:
    first = llm("plain")
    other = first.with_recipe("suffix", controller="fixed(nodes=4)")
    assert other.target is first.target
    assert str(other.recipe).endswith("fixed(nodes=4)")
    assert str(first.recipe) == RECIPES["plain"].recipe


def test_a_curve_measured_for_one_recipe_is_every_recipes() -> None:
    first = llm("plain")
    other = first.with_recipe("auto")
    assert first.engine.cost is other.engine.cost is first.profile.curve
    assert first.engine.cost.rows != flat().rows


def test_a_part_that_cannot_be_bound_fails_before_the_machine_is_measured() -> None:
    first = llm("plain")
    with pytest.raises(SapwoodError, match="needs a model"):
        first.with_recipe("auto", drafter="draft-model")
    assert not first.profile.measured


# ------------------------------------------------------------------------------------------- ends
def test_a_stop_token_inside_an_accepted_path_ends_there() -> None:
    wanted = plain(max_tokens=30).tokens
    end = wanted[12]
    model = llm()
    model.generate(PROMPT, max_tokens=30)  # the next draft is right and long
    last = list(model.stream(PROMPT, max_tokens=30, stop_ids=[end]))[-1]
    out = model.generate(PROMPT, max_tokens=30, stop_ids=[end])
    assert out.tokens == wanted[: wanted.index(end) + 1]
    assert (out.finish, last.finish) == ("stop", "stop")
    assert len(last.outcome.tokens) > len(last.tokens)


def test_stop_strings_cut_the_text_at_the_same_token_under_any_recipe() -> None:
    said = plain(max_tokens=30).text
    stop = said[8:10]
    wanted = plain(max_tokens=30, stop=stop)
    assert wanted.finish == "stop"
    assert wanted.text == said[: said.index(stop)]
    model = llm()
    for _ in range(2):
        got = model.generate(PROMPT, max_tokens=30, stop=[stop, "never"])
        assert (got.text, got.tokens) == (wanted.text, wanted.tokens)


def test_the_model_may_end_by_itself_but_not_before_min_tokens() -> None:
    favour = {byte_tokenizer.EOS: 50.0}
    assert plain(logit_bias=favour).tokens == [byte_tokenizer.EOS]
    assert plain(logit_bias=favour).text == ""
    late = plain(logit_bias=favour, min_tokens=4)
    assert len(late.tokens) == 5
    assert late.tokens[-1] == byte_tokenizer.EOS


def test_stop_strings_wait_for_min_tokens() -> None:
    said = plain(max_tokens=30)
    out = plain(max_tokens=30, stop=said.text[2], min_tokens=20)
    assert len(out.tokens) > 20


def test_the_context_ends_the_text() -> None:
    prompt = byte_tokenizer.text().chat(MESSAGES)
    for recipe in ("plain", "suffix"):
        out = llm(recipe, context=40).generate(PROMPT)
        assert out.finish == "length"
        assert len(out.tokens) == 40 - len(prompt)


def test_log_probabilities_are_the_models_own_under_speculation() -> None:
    model = llm()
    prompt = byte_tokenizer.text().chat(MESSAGES)
    model.generate(PROMPT, max_tokens=20)
    out = model.generate(PROMPT, max_tokens=20, logprobs=3, temperature=0)
    assert out.stats.accepted > 0
    assert out.logprobs is not None
    for place, (found, token) in enumerate(zip(out.logprobs, out.tokens, strict=True)):
        probs = probs_after("target", byte_tokenizer.SIZE, (*prompt, *out.tokens[:place]))
        assert found.token == token
        assert found.logprob == pytest.approx(math.log(probs[token]))
        assert [other for other, _ in found.top] == probs.argsort()[::-1][:3].tolist()
    assert model.generate(PROMPT, max_tokens=2).logprobs is None


# ---------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "no tokens"),
        ([1, -1], {}, "holds -1"),
        ([1, 10**6], {}, "holds 1000000"),
        ([1, "a"], {}, "holds 'a'"),
        (7, {}, "the prompt is 7 and must be a text or a list of token ids"),
        ("word " * 200, {}, "1003 tokens.*holds 512"),
        (PROMPT, {"temperture": 1}, "unknown option 'temperture'"),
        (PROMPT, {"max_tokens": 1.5}, "whole number"),
        (PROMPT, {"seed": "a"}, "whole number"),
        (PROMPT, {"top_p": 2}, "top_p=2"),
        (PROMPT, {"stop": [""]}, "none of them empty"),
        (PROMPT, {"stop": 3}, "text or a list"),
        (PROMPT, {"stop_ids": [999]}, "holds 999"),
        (PROMPT, {"logit_bias": {1: "x"}}, "map token ids"),
        (PROMPT, {"logit_bias": {1: math.inf}}, "finite numbers"),
        (PROMPT, {"logprobs": -1}, "at least 0"),
    ],
)
def test_bad_requests_are_one_sentence(prompt: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SapwoodError, match=sentence):
        llm("plain").generate(prompt, **options)


@pytest.mark.parametrize("messages", ["hi", [], [1], [{"role": "user"}], [{"content": "hi"}]])
def test_bad_conversations_are_one_sentence(messages: Any) -> None:
    with pytest.raises(SapwoodError, match="message"):
        llm("plain").chat(messages)


def test_what_needs_a_tokenizer_says_so() -> None:
    bare = LLM(ToyBackend(vocab=5), "plain")
    with pytest.raises(SapwoodError, match="needs a tokenizer"):
        bare.generate("hi")
    with pytest.raises(SapwoodError, match="need a tokenizer"):
        bare.generate([1], stop="x")
    with pytest.raises(SapwoodError, match="needs a tokenizer"):
        bare.chat(MESSAGES)
    small = LLM(ToyBackend(vocab=5), "plain", text=byte_tokenizer.text())
    with pytest.raises(SapwoodError, match="belongs to the model"):
        small.generate("hi")


# ---------------------------------------------------------------------------------------- recipes
def test_names_spellings_and_overrides() -> None:
    assert str(resolve("pld")) == "ngram + chain + match + fixed(nodes=10, depth=10, width=1)"
    assert str(resolve("auto", estimator="raw")).endswith(
        "best(stride=8, estimator=raw) + match + goodput(width=6)"
    )
    made = resolve("suffix + best + match", controller="fixed")
    assert (
        str(resolve(made, drafter="ngram", estimator="raw"))
        == "ngram + best(estimator=raw) + match + fixed"
    )
    assert isinstance(made, Recipe)
    with pytest.raises(SapwoodError, match="takes no estimator"):
        resolve("pld", estimator="raw")
    with pytest.raises(SapwoodError, match="unknown recipe 'autoo'; did you mean auto"):
        resolve("autoo")
    with pytest.raises(SapwoodError, match="unknown family 'draftr' of 'ngram'; known: drafter"):
        resolve("auto", draftr="ngram")


def test_a_wrong_recipe_fails_before_anything_is_loaded() -> None:
    with pytest.raises(SapwoodError, match="unknown recipe"):
        LLM("no such model", "no-such-recipe")
    with pytest.raises(SapwoodError, match="recipe=3 must be a name, a spelling or a Recipe"):
        LLM("no such model", 3)  # type: ignore[arg-type]


def test_a_model_may_be_a_path(tmp_path: Path) -> None:
    with pytest.raises(SapwoodError, match=rf"there is no folder {tmp_path}/none"):
        LLM(tmp_path / "none")


def test_every_named_recipe_can_be_built() -> None:
    for entry in RECIPES.values():
        assert resolve(entry.name) == resolve(entry.recipe)


# ----------------------------------------------------------------------------------------- package
def test_public_names_come_when_called() -> None:
    for name in sapwood.__all__:
        assert getattr(sapwood, name).__name__ == name
    with pytest.raises(AttributeError):
        sapwood.nothing  # noqa: B018


def test_the_package_imports_nothing_heavy() -> None:
    code = "import sys, sapwood; print([m for m in ('torch', 'transformers', 'numpy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_stages_never_add_up_to_more_than_the_whole() -> None:
    stats = StatsCounter(passes=1, tokens=1, prefill=0.5, draft=0.3, verify=0.2, rounds=0.4).stats(
        measured=False
    )
    assert stats.seconds == pytest.approx(
        stats.prefill_s + stats.draft_s + stats.verify_s + stats.other_s
    )
    assert stats.other_s >= 0


def test_the_typed_options_are_those_of_sampling() -> None:
    typed = SamplingOptions.__annotations__
    assert list(typed) == [field.name for field in dataclasses.fields(Sampling)]
    for method in (LLM.stream, LLM.chat, LLM.stream_chat, LLM.generate):
        assert method.__annotations__["sampling"] == Unpack[SamplingOptions]
