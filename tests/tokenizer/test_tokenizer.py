"""FastTokenizer, chat template, incremental detokenizing, stop strings."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from sapwood.errors import SapwoodError
from sapwood.tokenizer.chat_template import render
from sapwood.tokenizer.detokenizer import HOLD, LEAD, Detokenizer, StopStrings, overlap
from sapwood.tokenizer.tokenizer import Tokenizer
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()


# ----------------------------------------------------------------------------------- detokenizing
@given(st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"])))
def test_pieces_add_up_to_the_text(said: str) -> None:
    detokenizer = Detokenizer(TEXT)
    pieces = [detokenizer.push([token]) for token in TEXT.encode(said)]
    assert "".join(pieces) == said
    assert detokenizer.flush() == ""


def test_half_a_character_waits_for_its_other_half() -> None:
    detokenizer = Detokenizer(TEXT)
    assert [detokenizer.push([token]) for token in TEXT.encode("a€b")] == ["a", "", "", "€", "b"]


def test_a_prompt_may_end_inside_a_character() -> None:
    tokens = TEXT.encode("€")
    assert Detokenizer(TEXT, tokens[:2]).push(tokens[2:]) == "€"


def test_bytes_that_never_become_a_character_are_shown_late() -> None:
    detokenizer = Detokenizer(TEXT)
    broken = TEXT.encode("€")[:1]
    early = detokenizer.push(broken * HOLD)
    assert early == ""
    assert len(detokenizer.push(broken)) == HOLD + 1
    assert detokenizer.push(TEXT.encode("ok")) == "ok"
    detokenizer.push(broken)
    assert detokenizer.flush() == "\ufffd"


def test_the_window_stays_small() -> None:
    longest = 0

    class Watched(Tokenizer):
        def decode(self, tokens: Sequence[int]) -> str:
            nonlocal longest
            longest = max(longest, len(tokens))
            return super().decode(tokens)

    detokenizer = Detokenizer(Watched(byte_tokenizer.tokenizer()), TEXT.encode("a long prompt" * 9))
    detokenizer.push(TEXT.encode("字 and 👩‍👩‍👧 and so on " * 50))
    assert longest <= HOLD + LEAD + 1


def test_special_tokens_show_nothing() -> None:
    detokenizer = Detokenizer(TEXT)
    assert (
        detokenizer.push(
            [*TEXT.encode("a"), byte_tokenizer.EOS, byte_tokenizer.EOS, *TEXT.encode("b")]
        )
        == "ab"
    )


def test_a_blank_at_the_start_of_a_continuation_stays() -> None:
    pieces = FastTokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "?": 2}, "?"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces.decoder = decoders.Metaspace()
    text = Tokenizer(pieces)
    assert text.decode([0, 1]) == "one two"
    assert Detokenizer(text, [0]).push([1]) == " two"
    assert Detokenizer(text).push([1]) == "two"


# ----------------------------------------------------------------------------------- stop strings
def stopped(chunks: Sequence[str], stops: Sequence[str]) -> tuple[str, str | None]:
    found = StopStrings(stops)
    out = "".join([found.push(chunk) for chunk in chunks])
    return (out if found.hit else out + found.flush()), found.hit


@given(
    st.text("abc", max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.data(),
)
def test_chunks_do_not_matter(said: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)))))
    chunks = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    assert stopped(chunks, stops) == stopped(list(said), stops) == stopped([said], stops)


def test_text_is_cut_before_the_stop() -> None:
    assert stopped(["one\n", "\ntwo"], ["\n\n"]) == ("one", "\n\n")
    assert stopped(["one\n", "two"], ["\n\n"]) == ("one\ntwo", None)
    assert stopped(["abcd"], ["bcd", "c"]) == ("ab", "c")  # the first to be complete


def test_nothing_more_than_needed_is_held_back() -> None:
    found = StopStrings(["<end>"])
    assert found.push("a <e") == "a "
    assert found.push("m>") == "<em>"
    assert found.push("x<end>y") == "x"
    assert found.push("z") == ""
    assert overlap("aab", "abc") == 2


# --------------------------------------------------------------------------------- model folders
def test_a_folder_gives_tokenizer_template_and_ends(tmp_path: Path) -> None:
    byte_tokenizer.save(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [256, 257, "no number"]})
    )
    text = Tokenizer.load(tmp_path)
    assert text.eos == (256, 257)
    assert text.size == byte_tokenizer.SIZE
    assert text.decode(text.chat([{"role": "user", "content": "hi"}])) == "hi"
    assert text.chat([{"role": "user", "content": "hi"}]) == [256, 258, *TEXT.encode("hi"), 259]


def test_settings_of_older_folders(tmp_path: Path) -> None:
    byte_tokenizer.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    templates = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    settings = {"chat_template": templates, "bos_token": "<bos>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    text = Tokenizer.load(tmp_path)
    assert (text.template, text.eos) == ("yes", (5,))
    assert text.encode("a") == [256, *TEXT.encode("a")]
    assert text.encode("<bos>a") == [256, *TEXT.encode("a")]


def test_damaged_folders_are_one_sentence(tmp_path: Path) -> None:
    byte_tokenizer.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SapwoodError, match="no tokenizer"):
        Tokenizer.load(tmp_path)
    byte_tokenizer.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"ok \xff")
    with pytest.raises(SapwoodError, match="not UTF-8 at byte 3"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(SapwoodError, match="not JSON"):
        Tokenizer.load(tmp_path)


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(SapwoodError, match="character 1"):
        TEXT.encode("a\udcff")


# ------------------------------------------------------------------------------------- templates
def test_the_dialect_of_templates() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content | tojson }}{% endgeneration %}{% break %}{% endfor %}"
    assert render(source, [{"content": "<é>"}, {"content": "b"}]) == '"<é>"'
    assert len(render("{{ strftime_now('%Y') }}", [])) == 4


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{% if %}",
        "{{ messages[0] + 1 }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_is_one_sentence(source: str) -> None:
    with pytest.raises(SapwoodError, match="chat template refuses"):
        render(source, [{"role": "user", "content": "hi"}])


def test_no_template_no_chat() -> None:
    with pytest.raises(SapwoodError, match="no chat template"):
        Tokenizer(byte_tokenizer.tokenizer()).chat([{"role": "user", "content": "hi"}])
