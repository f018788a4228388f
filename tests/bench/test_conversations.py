"""Conversations turn by turn, and prompts that are made longer."""

from dataclasses import replace
from typing import Any

import pytest

from sapwood.bench.conversations import (
    NEAR,
    Conversation,
    ConversationTurn,
    before,
    lengthened,
)
from sapwood.bench.prompts import RandomPrompt
from sapwood.bench.suites import BenchPrompt
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()
PLAIN_TEXT = replace(TEXT, template=None)  # a model without a chat template
INFO = BackendInfo("toy", "toy", TEXT.size, 600)
THREE = BenchPrompt("p", "c", "c", "one", ("two", "three"))


def heard(*answers: str, prompt: BenchPrompt = THREE, text: Tokenizer = TEXT) -> Conversation:
    talk = Conversation(prompt, INFO, text)
    for answer in answers:
        talk.add_answer(text.encode(answer, whole=False))
    return talk


# ------------------------------------------------------------------------------------------ turns
def test_turns_are_named_by_their_number() -> None:
    names = [ConversationTurn(THREE, turn, [], "").name for turn in range(3)]
    assert names == ["p", "p#2", "p#3"]


def test_history_grows_by_an_answer_and_a_turn() -> None:
    assert heard().current() is THREE
    assert heard("A").current().content == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "two"},
    ]
    content: Any = heard("A", "B").current().content
    assert [message["content"] for message in content] == ["one", "A", "two", "B", "three"]
    assert [message["role"] for message in content] == ["user", "assistant"] * 2 + ["user"]


def test_without_a_template_history_is_joined_by_blank_lines() -> None:
    talk = heard("A", "B", text=PLAIN_TEXT)
    assert talk.current().content == "one\n\nA\n\ntwo\n\nB\n\nthree"
    assert talk.next_turn().tokens == TEXT.encode("one\n\nA\n\ntwo\n\nB\n\nthree", whole=False)


def test_a_turn_shows_its_words_with_special_tokens() -> None:
    turn = heard("A").next_turn()
    assert turn.turn == 1
    assert turn.tokens == heard("A").current().tokens(INFO, TEXT)
    assert turn.text == TEXT.show(turn.tokens)
    assert turn.text.startswith("<bos><user>one")


def test_tokens_without_a_tokenizer_have_no_words() -> None:
    noise = BenchPrompt("r", "c", "c", RandomPrompt(1, 8))
    talk = Conversation(noise, BackendInfo("toy", "toy", 5, 60), None)
    turn = talk.next_turn()
    assert (turn.text, len(turn.tokens)) == ("", 8)
    talk.add_answer([1, 2, 3])
    assert talk.answers == [""]


def test_the_first_turn_is_always_asked() -> None:
    tight = BackendInfo("toy", "toy", TEXT.size, 5)
    long = BenchPrompt("p", "c", "c", "far too many words", ("more",))
    assert Conversation(long, tight, TEXT).fits_context  # asking says what is wrong
    with pytest.raises(SapwoodError, match="prompt p: the prompt has"):
        Conversation(long, tight, TEXT).next_turn()


def test_a_talk_ends_where_its_history_is_too_long() -> None:
    talk = heard("A")
    assert talk.fits_context
    talk.info = BackendInfo("toy", "toy", TEXT.size, len(talk.next_turn().tokens))
    assert not talk.fits_context


def test_turns_are_counted() -> None:
    assert heard().turns == 3
    assert Conversation(replace(THREE, later=()), INFO, TEXT).turns == 1


# ----------------------------------------------------------------------------------------- longer
def test_nothing_is_filled_up_unless_asked() -> None:
    assert lengthened(THREE, None, INFO, TEXT) is THREE


@pytest.mark.parametrize("text", [TEXT, PLAIN_TEXT], ids=["template", "plain"])
@pytest.mark.parametrize("length", [60, 100, 251, 500])
def test_a_filled_prompt_is_nearly_as_long_as_asked(length: int, text: Tokenizer) -> None:
    longer = lengthened(THREE, length, INFO, text)
    count = len(longer.tokens(INFO, text))
    assert length - NEAR <= count <= length
    assert str(longer.content).endswith("\n\none")
    assert str(longer.content).startswith("Delivery 1: ")
    assert longer.later == THREE.later
    assert longer == lengthened(THREE, length, INFO, text)  # the same every time


def test_a_longer_filler_begins_with_a_shorter_one() -> None:
    short, long = (str(lengthened(THREE, size, INFO, TEXT).content) for size in (100, 300))
    assert long.startswith(short.removesuffix("\n\none"))


def test_a_prompt_that_is_nearly_full_stays_as_it_is() -> None:
    have = len(THREE.tokens(INFO, TEXT))
    for more in range(NEAR + 1):
        assert lengthened(THREE, have + more, INFO, TEXT) == THREE
    with pytest.raises(SapwoodError) as caught:
        lengthened(THREE, have - 1, INFO, TEXT)
    assert str(caught.value) == (
        f"prompt p has {have} tokens, more than context {have - 1}; give more, or leave its suite out"
    )


def test_noise_is_drawn_anew_in_its_length() -> None:
    info = BackendInfo("toy", "toy", 50, 600)
    noise = BenchPrompt("r", "c", "c", RandomPrompt(3, 64))
    longer = lengthened(noise, 200, info, None)
    assert longer.content == RandomPrompt(3, 200)
    assert longer.tokens(info, None)[:64] == noise.tokens(info, None)


def test_a_conversation_is_filled_up_before_its_first_user() -> None:
    talk: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "two"},
    ]
    prompt = BenchPrompt("p", "c", "c", talk)
    found: Any = before(prompt, "FILL").content
    assert [message["content"] for message in found] == ["be brief", "FILL\n\none", "A", "two"]
    assert talk[1]["content"] == "one"  # the prompt itself is left alone
    longer = lengthened(prompt, 200, INFO, TEXT)
    assert 200 - NEAR <= len(longer.tokens(INFO, TEXT)) <= 200


def test_a_conversation_without_a_user_is_filled_up_at_its_beginning() -> None:
    prompt = BenchPrompt("p", "c", "c", [{"role": "system"}])
    found: Any = before(prompt, "FILL").content
    assert found == [{"role": "system", "content": "FILL\n\n"}]
