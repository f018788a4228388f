"""A corpus on disk: what its arrays mean, what is refused, and when making it ends."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from sapwood.errors import SapwoodError
from sapwood.train.corpus import (
    SETTINGS,
    Corpus,
    DataClock,
    DataProgress,
    finished_shards,
    pack,
    prepare,
    read_shard,
    settings_in,
    shard_path,
    store,
)
from sapwood.train.shards import PromptAnswer

chats = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=1, max_size=5),
        st.lists(st.integers(0, 9), max_size=5),
    ),
    min_size=1,
    max_size=6,
)
WANTED: dict[str, Any] = {"format": 1, "model": "tiny", "seed": 0, "size": None, "warm": [0.8]}


def answers(made: list[tuple[list[int], list[int]]]) -> list[PromptAnswer]:
    return [PromptAnswer([*prompt, *answer], len(prompt)) for prompt, answer in made]


def written(folder: Path, *shards: list[tuple[list[int], list[int]]]) -> Path:
    prepare(folder, WANTED, 8)
    for number, made in enumerate(shards):
        shard_path(folder, number).write_bytes(save(pack(answers(made))))
    return folder


def corpus_of(made: list[tuple[list[int], list[int]]]) -> Corpus:
    part = pack(answers(made))
    return Corpus(part["tokens"], part["starts"], part["answers"], 1)


# ---------------------------------------------------------------------------------------- meaning
@given(chats)
def test_prompts_and_answers_come_back(made: list[tuple[list[int], list[int]]]) -> None:
    found = corpus_of(made)
    assert len(found) == len(made)
    for index, (prompt, answer) in enumerate(made):
        tokens = found.sequence(index).tolist()
        assert tokens == prompt + answer
        assert tokens[int(found.answers[index]) :] == answer
    assert found.lengths.tolist() == [len(prompt) + len(answer) for prompt, answer in made]
    assert found.written == sum(len(answer) for _, answer in made)
    said = [token for _, answer in made for token in answer]
    assert found.counts(12).tolist() == [said.count(token) for token in range(12)]
    assert found.tokens[found.answered].tolist() == said


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    first: list[tuple[list[int], list[int]]] = [([1], [2, 3]), ([4, 5], [6])]
    second: list[tuple[list[int], list[int]]] = [([7], [8])]
    found = Corpus.open(written(tmp_path, first, second))
    whole = corpus_of(first + second)
    assert found.shards == 2
    assert found.tokens.tolist() == whole.tokens.tolist()
    assert found.starts.tolist() == whole.starts.tolist()
    assert found.answers.tolist() == whole.answers.tolist()


def test_a_corpus_that_was_only_begun_is_empty(tmp_path: Path) -> None:
    found = Corpus.open(written(tmp_path))
    assert (len(found), found.written, found.shards) == (0, 0, 0)
    assert found.counts(5).tolist() == [0] * 5


def test_shards_after_a_gap_do_not_count(tmp_path: Path) -> None:
    written(tmp_path, [([1], [2])], [([3], [4])], [([5], [6])])
    shard_path(tmp_path, 1).unlink()
    assert [path.name for path in finished_shards(tmp_path)] == ["shard-00000.safetensors"]
    assert Corpus.open(tmp_path).tokens.tolist() == [1, 2]


# ----------------------------------------------------------------------------------------- damage
@pytest.mark.parametrize("what", ["noise", "cut", "short", "missing"])
def test_a_damaged_shard_is_named(what: str, tmp_path: Path) -> None:
    written(tmp_path, [([1], [2, 3])])
    path = shard_path(tmp_path, 0)
    part = load(path.read_bytes())
    if what == "noise":
        path.write_bytes(b"\1" * 40)
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif what == "short":
        path.write_bytes(save({**part, "tokens": part["tokens"][:-1]}))
    else:
        path.write_bytes(save({key: value for key, value in part.items() if key != "answers"}))
    with pytest.raises(
        SapwoodError, match="is damaged; delete it and the shards after it, they are"
    ):
        read_shard(path)


def test_a_folder_without_settings_holds_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(SapwoodError, match=r"holds no corpus \(corpus.json cannot be read\)"):
        Corpus.open(tmp_path)
    (tmp_path / SETTINGS).write_text("{oops")
    with pytest.raises(SapwoodError, match=r"is damaged; delete .* and make the corpus again"):
        Corpus.open(tmp_path)
    (tmp_path / SETTINGS).write_text("[1]")
    assert settings_in(tmp_path) == {}


# --------------------------------------------------------------------------------------- settings
def test_a_corpus_keeps_the_size_it_began_with(tmp_path: Path) -> None:
    assert prepare(tmp_path / "c", WANTED, 8) == 8
    assert prepare(tmp_path / "c", WANTED, 99) == 8  # another device goes on with it
    assert prepare(tmp_path / "c", {**WANTED, "size": 8}, 99) == 8
    with pytest.raises(SapwoodError, match="was made with size=8, not 9; use another folder"):
        prepare(tmp_path / "c", {**WANTED, "size": 9}, 99)
    assert prepare(tmp_path / "d", {**WANTED, "size": 5}, 8) == 5


@pytest.mark.parametrize(("key", "value"), [("model", "other"), ("seed", 1), ("warm", [1.0])])
def test_a_corpus_of_something_else_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    prepare(tmp_path, WANTED, 8)
    with pytest.raises(SapwoodError) as caught:
        prepare(tmp_path, {**WANTED, key: value}, 8)
    assert f"was made with {key}={WANTED[key]!r}, not {value!r}" in str(caught.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SapwoodError, match=r"cannot be made \(Not a directory\); choose another"):
        prepare(tmp_path / "file" / "inner", WANTED, 8)


# ------------------------------------------------------------------------------------------- disk
def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shard-00000.safetensors"
    store(tmp_path, path, b"one", 0)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]

    def refuse(number: int) -> None:
        def failing(*_: Any) -> None:
            raise OSError(number, "some reason")

        monkeypatch.setattr(os, "replace", failing)

    refuse(errno.ENOSPC)
    with pytest.raises(SapwoodError, match=r"has no room for 2.0 MiB; free some: the 3 finished"):
        store(tmp_path, path, bytes(2 << 20), 3)
    refuse(errno.EIO)
    with pytest.raises(SapwoodError, match=r"cannot be written \(some reason\); mend that"):
        store(tmp_path, path, b"two", 3)
    assert path.read_bytes() == b"one"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


# ------------------------------------------------------------------------------------------ clock
class Watch:
    """A clock that is set by hand, and what was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.told: list[DataProgress] = []
        monkeypatch.setattr("sapwood.train.corpus.time.monotonic", lambda: self.now)

    def clock(self, tokens: int | None, seconds: float | None, written: int = 0) -> DataClock:
        return DataClock(0.0, tokens, seconds, written, self.told.append)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_enough_tokens_end_the_work(watch: Watch) -> None:
    some = corpus_of([([1], [2, 3, 4])])
    assert watch.clock(3, None).over(some)
    assert not watch.clock(4, None).over(some)
    watch.now = 1e9
    assert not watch.clock(4, None).over(some)


def test_another_shard_is_begun_where_at_least_half_of_it_fits(watch: Watch) -> None:
    some = corpus_of([([1], [2])])
    clock = watch.clock(None, 100.0)
    clock.laps = 2
    watch.now = 60.0  # thirty seconds each
    assert not clock.over(some)
    watch.now = 79.9  # forty each: the next one would end at 120
    assert not clock.over(some)
    watch.now = 80.0
    assert clock.over(some)


def test_one_shard_is_made_however_little_time_there_is(watch: Watch) -> None:
    watch.now = 50.0
    empty = Corpus(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int32))
    assert not watch.clock(None, 0.0).over(empty)
    assert watch.clock(None, 0.0).over(corpus_of([([1], [2])]))


def test_progress_tells_pace_and_time_left(watch: Watch) -> None:
    clock = watch.clock(1000, 100.0, written=100)
    watch.now = 10.0
    clock.tick(200)
    [told] = watch.told
    assert (told.done, told.goal, told.rate) == (200, 1000, 10.0)
    assert told.left == pytest.approx(80.0)  # 800 tokens at ten a second, before the 90 seconds
    clock.tick(900, asked=7)
    assert watch.told[-1].asked == 7
    assert watch.told[-1].left == pytest.approx(100 / 80)
    watch.now = 99.0
    watch.clock(None, 100.0).tick(5)
    assert watch.told[-1].left == pytest.approx(1.0)
    watch.clock(None, None).tick(5)
    assert watch.told[-1].left is None


def test_a_remark_is_passed_on_with_how_far_it_is(watch: Watch) -> None:
    clock = watch.clock(None, None, written=3)
    clock.tick(7)
    clock.note("something odd")
    assert (watch.told[-1].note, watch.told[-1].done) == ("something odd", 7)


def test_the_settings_file_is_json_that_can_be_read(tmp_path: Path) -> None:
    prepare(tmp_path, WANTED, 8)
    assert json.loads((tmp_path / SETTINGS).read_text()) == {**WANTED, "size": 8}
