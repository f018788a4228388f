"""Training data on disk: made shard by shard, stopped at any moment, continued where it stopped.

`corpus.json` says what the data is made with. A shard holds `tokens` (all sequences, one after the
other), `starts` (where each begins, and the end) and `answers` (where in each the answer begins).
"""

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sapwood.arrays import BoolArray, IntArray
from sapwood.backends.torch.model import TorchBackend
from sapwood.errors import SapwoodError
from sapwood.text import Text
from sapwood.train.generate import Generator, nothing
from sapwood.train.prompts import Frame, Prompts, mark, read
from sapwood.train.shards import Chat, DataSettings, Writer, digest

FORMAT = 1  # of corpus.json and the shards
SETTINGS = "corpus.json"
SIZES = {"cuda": 8192}  # prompts of a shard by kind of device
SIZE = 32  # on other devices

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Progress:
    """How far the data is."""

    done: int  # answer tokens, those of the shard in work included
    goal: int | None  # answer tokens wanted
    rate: float  # answer tokens per second since work began
    left: float | None  # seconds to go, where that is known
    note: str = ""  # something that was noticed on the way
    asked: int = 0  # tokens of turns that the target wrote for the shard in work, which its answers follow


@dataclass(frozen=True)
class Corpus:
    """Prompts with the target's answers."""

    tokens: Tokens  # all sequences, one after the other
    starts: IntArray  # [sequences + 1] where each begins, and the end of all
    answers: Tokens  # [sequences] where in each the answer begins
    shards: int = 0

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        """Read every finished shard of a folder."""
        settings_in(folder)
        paths = finished_shards(folder)
        parts = [read_shard(path) for path in paths]
        lengths = [np.diff(part["starts"]) for part in parts]
        return cls(
            np.concatenate([np.empty(0, np.int32), *(part["tokens"] for part in parts)]),
            np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum(),
            np.concatenate([np.empty(0, np.int32), *(part["answers"] for part in parts)]),
            len(paths),
        )

    def __len__(self) -> int:
        return len(self.answers)

    def sequence(self, index: int) -> Tokens:
        """Prompt and answer of this number."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sequence."""
        return np.diff(self.starts)

    @cached_property
    def answered(self) -> BoolArray:
        """True at tokens that the target wrote as an answer, [tokens]."""
        begin = np.repeat(self.starts[:-1] + self.answers, self.lengths)
        answered: BoolArray = np.arange(len(self.tokens)) >= begin
        return answered

    def counts(self, vocab: int) -> IntArray:
        """How often each token of the vocabulary occurs in answers."""
        return np.bincount(self.tokens[self.answered], minlength=vocab)

    @property
    def written(self) -> int:
        """Tokens of all answers."""
        return int(len(self.tokens) - self.answers.sum())


# ------------------------------------------------------------------------------------------ making
def make(
    backend: TorchBackend,
    text: Text,
    folder: Path,
    *,
    prompts: Path | None = None,  # JSONL of the user's own prompts
    tokens: int | None = None,  # stop at so many answer tokens
    seconds: float | None = None,  # or after so many seconds of work, within half a shard
    seed: int = 0,
    settings: DataSettings | None = None,
    progress: Callable[[Progress], None] = nothing,
) -> Corpus:
    """Make or continue a corpus until it holds `tokens` answer tokens or `seconds` have passed."""
    if tokens is None and seconds is None:
        raise SapwoodError("training data needs an end; give a number of tokens, of seconds, or both")
    begin, settings = time.monotonic(), settings or DataSettings()
    frame = Frame.of(text, backend.info.model)
    found = read(prompts, frame, settings.most(backend.info.context)) if prompts else Prompts(())  # before any file
    size = prepare(folder, describe(backend, prompts, seed, settings), SIZES.get(backend.device.type, SIZE))
    corpus = Corpus.open(folder)
    clock = Clock(begin, tokens, seconds, corpus.written, progress)
    if clock.over(corpus):
        return corpus
    generator = Generator(backend, longest=min(settings.longest, backend.info.context), note=clock.note)
    writer = Writer(generator, frame, (), backend.info.context, size, seed, settings)
    if left_out := [f"{n} {why}" for n, why in ((found.long, "too long"), (found.repeated, "repeated")) if n]:
        clock.note(f"of the prompts in {prompts}, {' and '.join(left_out)} are left out")
    writer.prompts = found.items
    writer.seen.update(digest(corpus.sequence(i)[: corpus.answers[i]]) for i in range(len(corpus)))
    try:
        while not clock.over(corpus):
            corpus = grow(corpus, writer, folder, clock)
    finally:
        generator.close()
    return corpus


def grow(corpus: Corpus, writer: Writer, folder: Path, clock: "Clock") -> Corpus:
    """The corpus with one more shard, which is on disk then."""
    earlier = earlier_answers(folder, corpus.shards, writer.frame.text)
    chats = writer.shard(
        corpus.shards,
        earlier,
        lambda made: clock.tick(corpus.written + made),
        lambda made: clock.tick(corpus.written, asked=made),
    )
    shard = pack(chats)
    store(folder, shard_path(folder, corpus.shards), save(shard), corpus.shards)
    clock.laps += 1
    return Corpus(
        np.concatenate([corpus.tokens, shard["tokens"]]),
        np.concatenate([corpus.starts, corpus.starts[-1] + shard["starts"][1:]]),
        np.concatenate([corpus.answers, shard["answers"]]),
        corpus.shards + 1,
    )


class Clock:
    """Knows when to stop, and tells how far it is."""

    def __init__(
        self,
        begin: float,
        tokens: int | None,
        seconds: float | None,
        written: int,
        progress: Callable[[Progress], None],
    ) -> None:
        self.begin, self.tokens, self.seconds, self.progress = begin, tokens, seconds, progress
        self.before = self.done = written
        self.laps = 0  # shards made since the beginning

    @property
    def spent(self) -> float:
        """Seconds of work."""
        return time.monotonic() - self.begin

    def over(self, corpus: Corpus) -> bool:
        """True when there are tokens enough, or when another shard would end later than half of it too late."""
        if self.tokens is not None and corpus.written >= self.tokens:
            return True
        if self.seconds is None:
            return False
        lap = self.spent / self.laps if self.laps else 0.0
        return self.spent + lap / 2 >= self.seconds and corpus.shards > 0

    def tick(self, done: int, note: str = "", asked: int = 0) -> None:
        """Tell how far it is."""
        self.done = done
        rate = (done - self.before) / max(self.spent, 1e-9)
        lefts = [] if self.seconds is None else [max(0.0, self.seconds - self.spent)]
        if self.tokens is not None and rate > 0:
            lefts.append(max(0, self.tokens - done) / rate)
        self.progress(Progress(done, self.tokens, rate, min(lefts, default=None), note, asked))

    def note(self, said: str) -> None:
        """Pass a remark on."""
        self.tick(self.done, said)


def earlier_answers(folder: Path, shards: int, text: Text) -> list[str]:
    """What the target answered in the last finished shard."""
    if not shards:
        return []
    part = read_shard(shard_path(folder, shards - 1))
    bounds = zip(part["starts"][:-1] + part["answers"], part["starts"][1:], strict=True)
    spans = [part["tokens"][start:stop].tolist() for start, stop in bounds]
    return [said for said in text.tokenizer.decode_batch(spans) if said.strip()]


# ----------------------------------------------------------------------------------------- on disk
def pack(chats: Sequence[Chat]) -> dict[str, Any]:
    """The arrays of a shard."""
    return {
        "tokens": np.concatenate([np.asarray(chat.tokens, np.int32) for chat in chats]),
        "starts": np.cumsum([0, *(len(chat.tokens) for chat in chats)], dtype=np.int64),
        "answers": np.asarray([chat.answer for chat in chats], np.int32),
    }


def describe(backend: TorchBackend, prompts: Path | None, seed: int, settings: DataSettings) -> dict[str, Any]:
    """What decides the content of a corpus, as it stands in its file."""
    source = {"model": backend.info.model, "seed": seed, "prompts": mark(prompts)}
    record = {"format": FORMAT, **source, **asdict(settings)}
    return dict(json.loads(json.dumps(record)))


def prepare(folder: Path, wanted: dict[str, Any], size: int) -> int:
    """Begin a corpus, or check that the one in the folder is the one wanted; prompts of a shard."""
    if not (folder / SETTINGS).is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SapwoodError(f"folder {folder} cannot be made ({error.strerror}); choose another") from error
        begun = {**wanted, "size": wanted["size"] or size}
        store(folder, folder / SETTINGS, json.dumps(begun, indent=1).encode(), 0)
    found = settings_in(folder)
    wanted = {**wanted, "size": wanted["size"] or found.get("size")}  # a GPU goes on with what a CPU began
    if odd := [key for key in wanted if found.get(key) != wanted[key]]:
        key, was, now = odd[0], found.get(odd[0]), wanted[odd[0]]
        raise SapwoodError(f"the corpus in {folder} was made with {key}={was!r}, not {now!r}; use another folder")
    return int(found["size"])


def settings_in(folder: Path) -> dict[str, Any]:
    """What the corpus in this folder is made with."""
    path = folder / SETTINGS
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SapwoodError(f"{folder} holds no corpus ({SETTINGS} cannot be read); make one first") from error
    except ValueError as error:
        raise SapwoodError(f"{path} is damaged; delete {folder} and make the corpus again") from error
    return record if isinstance(record, dict) else {}


def shard_path(folder: Path, index: int) -> Path:
    """Where the shard of this number lies."""
    return folder / f"shard-{index:05}.safetensors"


def finished_shards(folder: Path) -> list[Path]:
    """The shards from the first on, as far as there is no gap."""
    paths: list[Path] = []
    while (path := shard_path(folder, len(paths))).is_file():
        paths.append(path)
    return paths


def read_shard(path: Path) -> dict[str, Any]:
    """The arrays of a shard."""
    try:
        part = load(path.read_bytes())
        whole = len(part["answers"]) + 1 == len(part["starts"]) and part["starts"][-1] == len(part["tokens"])
    except (OSError, SafetensorError, KeyError) as error:
        raise SapwoodError(f"{path} is damaged; delete it and the shards after it, they are made again") from error
    if not whole:
        raise SapwoodError(f"{path} is damaged; delete it and the shards after it, they are made again")
    return part


def store(folder: Path, path: Path, data: bytes, finished: int) -> None:
    """Write a file whole or not at all."""
    draft = path.with_suffix(".part")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        kept = f"the {finished} finished shards stay, and the same command goes on from there"
        if error.errno == errno.ENOSPC:
            need = f"{len(data) / 2**20:.1f} MiB"
            raise SapwoodError(f"the disk of {folder} has no room for {need}; free some: {kept}") from error
        raise SapwoodError(f"{path} cannot be written ({error.strerror}); mend that: {kept}") from error
