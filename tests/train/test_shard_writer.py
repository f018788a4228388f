"""Shards of training data with a generator that says what it is told to: mixture, order, heat, room."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sapwood.errors import SapwoodError
from sapwood.train.decode_state import TextToContinue
from sapwood.train.prompts import ChatFrame, TrainPrompt
from sapwood.train.shards import LEAST, DataSettings, PromptAnswer, ShardWriter, digest
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()
FRAME = ChatFrame.of(TEXT, "tiny")
BOT = TEXT.special_tokens()["<bot>"]


class Speaker:
    """Turns are numbered sentences, answers repeat the key they were asked with."""

    def __init__(self, turn: Callable[[int], str] | None = None) -> None:
        self.turn = turn or (lambda at: f" is the meaning of word number {at} here?")
        self.asked: list[TextToContinue] = []
        self.turns = 0

    def run(
        self,
        asks: Sequence[TextToContinue],
        ends: Sequence[int],
        tick: Callable[[int], None],
        **_: object,
    ) -> list[list[int]]:
        said = []
        for ask in asks:
            if ask.tokens[-1] == BOT:
                self.asked.append(ask)
                said.append([*TEXT.encode(str(ask.key), whole=False), byte_tokenizer.EOS])
            else:
                self.turns += 1
                said.append([*TEXT.encode(self.turn(self.turns), whole=False), ends[0]])
        tick(sum(map(len, said)))
        return [tokens[: max(ask.new, 1)] for ask, tokens in zip(asks, said, strict=True)]


def writer(speaker: Any = None, own: int = 0, seed: int = 0, **options: Any) -> ShardWriter:
    settings = DataSettings(**{"new": 30, "turn": 60, "limit": 200, "longest": 256, **options})
    prompts = FRAME.prompts([f"my own prompt number {at}" for at in range(own)])
    generator: Any = speaker or Speaker()
    return ShardWriter(generator, FRAME, prompts, 400, 20, seed, settings)


def words(chat: PromptAnswer) -> str:
    """The user's words."""
    return TEXT.decode(chat.tokens[: chat.answer])


def shard(made: ShardWriter, index: int = 0, earlier: Sequence[str] = ()) -> list[PromptAnswer]:
    return made.shard(index, earlier, lambda _: None)


# ---------------------------------------------------------------------------------------- mixture
def test_a_shard_holds_its_shares() -> None:
    made = writer(own=40, derived=0.2)
    found = shard(made)
    kinds = Counter("own" if words(one).startswith("my own") else "other" for one in found)
    assert kinds["own"] >= 10
    assert len(found) == 20
    assert len({tuple(one.tokens[: one.answer]) for one in found}) == 20


def test_without_prompts_of_the_user_all_are_the_models() -> None:
    found = shard(writer(derived=0.0))
    assert len(found) == 20
    assert not any("my own" in words(one) for one in found)
    assert all("is the meaning of word number" in words(one) for one in found)


def test_the_users_prompts_all_come_before_one_comes_again() -> None:
    made = writer(own=25, derived=0.0)
    visits: Counter[str] = Counter()
    for index in range(5):  # ten of twenty-five in each
        found = [words(one) for one in shard(made, index) if words(one).startswith("my own")]
        assert len(found) == 10
        visits.update(found)
    assert len(visits) == 25
    assert set(visits.values()) == {2}


def test_the_order_of_prompts_depends_on_the_visit_and_the_seed() -> None:
    first, second, other = (
        [one.words for one, _ in made._own(0, 25)]
        for made in (writer(own=25), writer(own=25), writer(own=25, seed=1))
    )
    assert first == second != other
    assert sorted(first) == sorted(other)
    twice = writer(own=25)._own(0, 50)
    assert [visit for _, visit in twice] == [0] * 25 + [1] * 25
    assert [one.words for one, _ in twice[25:]] != first


# ----------------------------------------------------------------------------------- determinism
def test_a_shard_is_a_function_of_its_number_and_the_seed() -> None:
    first, second = (
        shard(writer(own=9), 3, ["An earlier answer that says a thing."]) for _ in "ab"
    )
    assert first == second
    assert first != shard(writer(own=9), 4, ["An earlier answer that says a thing."])
    assert first != shard(writer(own=9, seed=1), 3, ["An earlier answer that says a thing."])


def test_prompts_that_came_before_are_not_asked_again() -> None:
    made = writer(Speaker(lambda at: " is always the same long question?"), derived=0.0, opened=0.0)
    found = shard(made)
    assert len(found) == 1
    with pytest.raises(SapwoodError, match="the model wrote no usable prompt for itself"):
        shard(made, 1)


# ------------------------------------------------------------------------------------------- turns
@pytest.mark.parametrize(
    ("said", "reason"), [("", "empty"), ("hm?", "short"), (" round and" * 40, "in circles")]
)
def test_turns_that_are_no_good_are_left_out(said: str, reason: str) -> None:
    made = writer(
        Speaker(lambda at: said), opened=0.0, derived=0.0, turn=500, limit=1000, longest=1280
    )
    made.context = 2000
    with pytest.raises(SapwoodError, match="no usable prompt"):
        shard(made)


def test_written_turns_have_room_for_their_answers() -> None:
    made = writer(limit=60, longest=100)
    assert made.most == 60
    made.context = 80
    assert made.longest == 80
    assert made.most == 80 - LEAST
    for one in shard(made):
        assert one.answer <= made.most
        assert len(one.tokens) <= 80


def test_long_prompts_are_left_out() -> None:
    made = writer()
    long = TrainPrompt(tuple(range(201)), "x")
    fits = TrainPrompt(tuple(range(200)), "y")
    assert made._fresh([long, fits, fits]) == [fits]


# ----------------------------------------------------------------------------------------- answers
def test_the_first_visit_is_often_cold_and_later_ones_never() -> None:
    made = writer(greedy=0.5, warm=(0.7, 1.0))
    asked = [(TrainPrompt((1, BOT), "x"), visit) for visit in (0, 1) for _ in range(200)]
    speaker: Any = made.generator
    made._answered(0, asked, lambda _: None)
    heats = [ask.temperature for ask in speaker.asked]
    first, later = Counter(heats[:200]), Counter(heats[200:])
    assert 70 < first[0.0] < 130
    assert later[0.0] == 0
    assert set(later) == {0.7, 1.0}
    assert len({ask.key for ask in speaker.asked}) == 400


def test_an_answer_begins_where_its_prompt_ends() -> None:
    made = writer(new=5)
    prompt = TrainPrompt((1, 2, BOT), "x")
    [found] = made._answered(0, [(prompt, 0)], lambda _: None)
    assert found.answer == 3
    assert found.tokens[:3] == [1, 2, BOT]
    assert len(found.tokens) == 8
    made.context = 6
    [short] = made._answered(0, [(prompt, 0)], lambda _: None)
    assert len(short.tokens) == 6


def test_progress_hears_of_questions_and_answers() -> None:
    asking: list[int] = []
    answering: list[int] = []
    writer(derived=0.0).shard(0, (), answering.append, asking.append)
    assert len(asking) == len(answering) == 1
    assert min(asking[0], answering[0]) > 0


def test_passages_are_taken_from_earlier_answers() -> None:
    made = writer(derived=0.5)
    tasks = made._derived(
        0, 40, ["A most unusual earlier answer, which is long enough."], ["Why me?"]
    )
    assert tasks
    assert all("unusual" in task for task in tasks)
    assert made._derived(0, 40, [], []) == []
    turns = made._derived(0, 40, [], ["A turn that stands in for a passage, as it must."])
    assert turns
    assert all("stands in" in task for task in turns)


# ------------------------------------------------------------------------------------------- marks
def test_marks_tell_prompts_apart() -> None:
    assert digest([1, 2, 3]) == digest((1, 2, 3))
    assert len({digest(tokens) for tokens in ([], [0], [0, 0], [1], [256], [1, 0])}) == 6


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"own": 0.9, "derived": 0.2}, r"own \+ derived=1.1 must be from 0 to 1"),
        ({"greedy": -0.1}, "greedy=-0.1 must be from 0 to 1"),
        ({"new": 0}, "new=0 must be at least 1"),
        ({"longest": 63}, "longest=63 must be at least 64"),
        ({"warm": ()}, "must hold at least one temperature"),
        ({"warm": (0.5, 0.0)}, "each above 0"),
        ({"size": -1}, "size=-1 must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SapwoodError, match=reason):
        DataSettings(**options)
