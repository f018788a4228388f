"""A corpus is what it says, survives interruptions, names damage."""

import errno
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from sapwood.backends.torch.backend import TorchBackend
from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train import corpus as corpora
from sapwood.train.corpus import Corpus, DataProgress, make
from sapwood.train.shards import DataSettings
from tests.helpers import byte_tokenizer as words
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import plain_tokens

SMALL = DataSettings(
    size=10, own=0.4, derived=0.2, new=12, turn=10, long_turn=20, limit=80, longest=128
)


@functools.cache
def speaker() -> tuple[TorchBackend, Tokenizer]:
    """A model whose 61 words are words, so that what it writes by itself is text."""
    vocab = {f"word{n}{'?' if n % 7 == 3 else ''}": n for n in range(3, 59)}
    made = FastTokenizer(models.WordLevel({**vocab, "[?]": 0}, unk_token="[?]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(
        [AddedToken(word, special=True) for word in ("<bos>", "<eos>", "<user>", "<bot>")]
    )
    specials = {"bos_token": "<bos>"}
    template = "<bos><user>{{ messages[0].content }}<bot>"
    return tiny_models.backend("llama"), Tokenizer(
        made, template, (made.get_vocab()["<eos>"],), specials=specials
    )


def write_prompts(folder: Path, count: int = 7) -> Path:
    path = folder / "prompts.jsonl"
    said = [
        f"word{4 + n % 5} word{11 + n // 5 % 5} word{18 + n // 25} word10?" for n in range(count)
    ]
    path.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in said))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_corpus_is_what_it_says(tmp_path: Path) -> None:
    backend, text = speaker()
    told: list[DataProgress] = []
    settings = DataSettings(**{**vars(SMALL), "greedy": 1.0})
    made = make(
        backend,
        text,
        tmp_path / "c",
        prompts=write_prompts(tmp_path),
        tokens=200,
        settings=settings,
        progress=told.append,
    )
    read = Corpus.open(tmp_path / "c")
    for field in ("tokens", "starts", "answers", "shards"):
        assert np.array_equal(getattr(read, field), getattr(made, field))
    assert read.tokens.dtype == read.answers.dtype == np.int32
    assert read.starts.dtype == np.int64
    assert read.shards > 1
    assert read.written >= 200 > read.written - SMALL.new * 10
    assert read.counts(61).sum() == read.written == sum(read.lengths - read.answers)
    bot = text.tokenizer.token_to_id("<bot>")
    greedy = 0
    for index in range(len(read)):
        tokens = read.sequence(index).tolist()
        start = int(read.answers[index])
        assert tokens[start - 1] == bot
        assert start <= 80
        assert len(tokens) <= min(128, start + SMALL.new)
        greedy += tokens[start:] == plain_tokens(backend, tokens[:start], SMALL.new, text.eos)
    assert (
        len(read) > greedy >= len(read) - 4 * (read.shards - 1)
    )  # prompts that came before are sampled
    assert told[-1].done == read.written
    assert (told[-1].goal, told[-1].left) == (200, 0)
    assert all(state.rate >= 0 for state in told)


def test_the_mixture_holds_from_the_first_shard(tmp_path: Path) -> None:
    backend, text = speaker()
    path = write_prompts(tmp_path, 100)
    corpus = make(backend, text, tmp_path / "c", prompts=path, tokens=1, settings=SMALL)
    said = [json.loads(row)["prompt"] for row in path.read_text().splitlines()]
    own = {tuple(text.chat([{"role": "user", "content": one}])) for one in said}
    asked = [
        tuple(corpus.sequence(index)[: corpus.answers[index]].tolist())
        for index in range(len(corpus))
    ]
    assert sum(prompt in own for prompt in asked) == 4
    assert 6 < len(asked) <= 10
    assert len(set(asked)) == len(asked)


def test_every_prompt_comes_once_before_one_comes_twice(tmp_path: Path) -> None:
    backend, text = speaker()
    settings = DataSettings(size=5, new=2, own=1.0, derived=0.0, longest=128)
    corpus = make(
        backend,
        text,
        tmp_path / "c",
        prompts=write_prompts(tmp_path, 10),
        tokens=31,
        settings=settings,
    )
    asked = [
        tuple(corpus.sequence(index)[: corpus.answers[index]].tolist())
        for index in range(len(corpus))
    ]
    assert len(set(asked[:10])) == 10 == len(set(asked[10:20]))


def test_a_corpus_needs_no_prompts(tmp_path: Path) -> None:
    backend, text = speaker()
    corpus = make(backend, text, tmp_path, tokens=250, settings=SMALL)
    assert corpus.shards > 1
    assert len(corpus) > 5 * corpus.shards


class Stop(BaseException):
    """An interruption."""


@pytest.mark.parametrize("when", [0.1, 0.5, 0.9])
def test_an_interrupted_corpus_ends_up_the_same(tmp_path: Path, when: float) -> None:
    backend, text = speaker()
    path = write_prompts(tmp_path)
    whole = make(
        backend, text, tmp_path / "whole", prompts=path, tokens=250, seed=4, settings=SMALL
    )

    def stop(state: DataProgress) -> None:
        if state.done > when * whole.written:
            raise Stop

    with pytest.raises(Stop):
        make(
            backend,
            text,
            tmp_path / "cut",
            prompts=path,
            tokens=250,
            seed=4,
            settings=SMALL,
            progress=stop,
        )
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) < whole.shards
    for tokens in (120, 250):
        make(backend, text, tmp_path / "cut", prompts=path, tokens=tokens, seed=4, settings=SMALL)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    other = make(
        backend, text, tmp_path / "other", prompts=path, tokens=250, seed=5, settings=SMALL
    )
    assert not np.array_equal(other.tokens, whole.tokens)


def test_time_ends_the_work_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, text = speaker()
    ticks = iter(range(10**9))
    monkeypatch.setattr("sapwood.train.corpus.time.monotonic", lambda: next(ticks) / 10)
    first = make(backend, text, tmp_path, seconds=0, settings=SMALL)
    assert first.shards == 1  # never nothing
    assert make(backend, text, tmp_path, seconds=0, settings=SMALL).shards == 1
    more = make(backend, text, tmp_path, seconds=60, tokens=10**9, settings=SMALL)
    assert 1 < more.shards < 60


def test_what_does_not_match_is_named(tmp_path: Path) -> None:
    backend, text = speaker()
    path = write_prompts(tmp_path)
    folder = tmp_path / "c"
    make(backend, text, folder, prompts=path, tokens=1, settings=SMALL)
    before = contents(folder)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"seed": 9}, "seed=0, not 9"),
        ({"prompts": None}, "prompts="),
        ({"settings": DataSettings(**{**vars(SMALL), "new": 9})}, "new=12, not 9"),
    ]
    for change, wrong in changes:
        with pytest.raises(SapwoodError, match=wrong):
            make(
                backend,
                text,
                folder,
                **{"prompts": path, "tokens": 9999, "settings": SMALL, **change},
            )
    with pytest.raises(SapwoodError, match="needs an end"):
        make(backend, text, folder, prompts=path, settings=SMALL)
    with pytest.raises(SapwoodError, match="cannot be read"):
        make(backend, text, folder, prompts=tmp_path / "none", tokens=9, settings=SMALL)
    assert contents(folder) == before


def test_the_size_of_shards_stays_what_it_was(tmp_path: Path) -> None:
    backend, text = speaker()
    (tmp_path / "corpus.json").write_text(
        json.dumps(
            {**corpora.describe(backend, None, 0, DataSettings(new=4, longest=128)), "size": 6}
        )
    )
    corpus = make(backend, text, tmp_path, tokens=1, settings=DataSettings(new=4, longest=128))
    assert len(corpus) <= 6


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, text = speaker()
    folder = tmp_path / "c"
    make(backend, text, folder, tokens=1, settings=SMALL)
    before = contents(folder)
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write(self, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(
            SapwoodError, match=r"no room for 0\.0 MiB; free some: the 1 finished shards stay"
        ):
            make(backend, text, folder, tokens=200, settings=SMALL)
    # a slow machine has kept some further answers before the disk was full
    assert before.items() <= contents(folder).items()
    assert make(backend, text, folder, tokens=200, settings=SMALL).written >= 200
    (tmp_path / "file").write_text("")
    with pytest.raises(SapwoodError, match="cannot be made"):
        make(backend, text, tmp_path / "file" / "c", tokens=1, settings=SMALL)


def test_damage_is_named(tmp_path: Path) -> None:
    backend, text = speaker()
    with pytest.raises(SapwoodError, match="holds no corpus"):
        Corpus.open(tmp_path)
    make(backend, text, tmp_path, tokens=1, settings=SMALL)
    shard = tmp_path / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(SapwoodError, match=r"shard-00000.*damaged"):
        Corpus.open(tmp_path)
    (tmp_path / "corpus.json").write_text("{")
    with pytest.raises(SapwoodError, match="damaged"):
        Corpus.open(tmp_path)


def test_a_model_that_writes_nothing_usable_says_so(tmp_path: Path) -> None:
    backend = TorchBackend(
        tiny_models.make("llama", vocab_size=words.SIZE), "bytes"
    )  # random bytes are no text
    with pytest.raises(SapwoodError, match="bring prompts of your own"):
        make(
            backend,
            words.text(),
            tmp_path,
            tokens=1,
            settings=DataSettings(size=1, derived=0, turn=3, longest=128),
        )


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"own": 1.5}, "own"),
        ({"own": 0.9, "derived": 0.2}, "own"),
        ({"warm": ()}, "warm"),
        ({"new": 0}, "new"),
        ({"longest": 9}, "longest"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SapwoodError, match=wrong):
        DataSettings(**change)
