"""Training data on disk: made shard by shard, can be stopped and continued at any moment.

`corpus.json` holds the settings of the data. A shard holds `tokens` (all sequences, one after the
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

from sapwood.backends.torch.backend import TorchBackend
from sapwood.core.array_types import BoolArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train.generate import Generator, TextGenerator, nothing
from sapwood.train.prompts import ChatFrame, PromptFile, mark, read
from sapwood.train.shards import DataSettings, PromptAnswer, ShardWriter, digest

FORMAT = 1  # of corpus.json and the shards
SETTINGS = "corpus.json"
SIZES = {"cuda": 8192}  # prompts of a shard by kind of device
SIZE = 32  # on other devices
TURN_SHARE = 0.4  # of the time left for a shard, the most that writing its user turns may take

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class DataProgress:
    """Progress of making the data."""

    done: int  # answer tokens, those of the shard in work included
    goal: int | None  # answer tokens wanted
    rate: float  # answer tokens per second since work began
    left: float | None  # seconds to go, if known
    note: str = ""  # a remark for the user
    # tokens of user turns that the target wrote for the shard in work, before its answers
    asked: int = 0


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
        """Number of occurrences of each token of the vocabulary in answers."""
        return np.bincount(self.tokens[self.answered], minlength=vocab)

    @property
    def written(self) -> int:
        """Number of tokens of all answers."""
        return int(len(self.tokens) - self.answers.sum())


# ----------------------------------------------------------------------------------- making
def make(
    backend: TorchBackend,
    text: Tokenizer,
    folder: Path,
    *,
    prompts: Path | None = None,  # JSONL of the user's own prompts
    tokens: int | None = None,  # stop at this many answer tokens
    seconds: float | None = None,  # or after this many seconds: the last shard is cut there
    seed: int = 0,
    settings: DataSettings | None = None,
    progress: Callable[[DataProgress], None] = nothing,
    generator: TextGenerator | None = None,  # None: one of the backend's own modules
) -> Corpus:
    """Make or continue a corpus until it holds `tokens` answer tokens or `seconds` have passed."""
    if tokens is None and seconds is None:
        raise SapwoodError(
            "training data needs an end; give a number of tokens, of seconds, or both"
        )
    begin = time.monotonic()
    settings = settings or DataSettings()
    frame = ChatFrame.of(text, backend.info.model)
    # prompts are checked before any file is written
    longest = settings.most(backend.info.context)
    found = read(prompts, frame, longest) if prompts else PromptFile(())
    size = prepare(
        folder, describe(backend, prompts, seed, settings), SIZES.get(backend.device.type, SIZE)
    )
    corpus = Corpus.open(folder)
    clock = DataClock(begin, tokens, seconds, corpus.written, progress)
    if clock.over(corpus):
        return corpus
    generator = generator or Generator(
        backend, longest=min(settings.longest, backend.info.context), note=clock.note
    )
    writer = ShardWriter(generator, frame, (), backend.info.context, size, seed, settings)
    if left_out := [
        f"{n} {why}" for n, why in ((found.long, "too long"), (found.repeated, "repeated")) if n
    ]:
        clock.note(f"of the prompts in {prompts}, {' and '.join(left_out)} are left out")
    writer.prompts = found.items
    writer.folder = folder
    writer.over = clock.late
    writer.turns_over = clock.turns_late
    writer.seen.update(digest(corpus.sequence(i)[: corpus.answers[i]]) for i in range(len(corpus)))
    try:
        while not clock.over(corpus):
            corpus = grow(corpus, writer, folder, clock)
    finally:
        generator.close()
    return corpus


def grow(corpus: Corpus, writer: ShardWriter, folder: Path, clock: "DataClock") -> Corpus:
    """The corpus with one more shard, which is on disk then."""
    clock.begin_shard()
    earlier = earlier_answers(folder, corpus.shards, writer.frame.text)
    chats = writer.shard(
        corpus.shards,
        earlier,
        lambda made: clock.tick(corpus.written + made),
        lambda made: clock.tick(corpus.written, asked=made),
    )
    shard = pack(chats)
    store(folder, shard_path(folder, corpus.shards), save(shard), corpus.shards)
    writer.finish(corpus.shards)
    clock.laps += 1
    return Corpus(
        np.concatenate([corpus.tokens, shard["tokens"]]),
        np.concatenate([corpus.starts, corpus.starts[-1] + shard["starts"][1:]]),
        np.concatenate([corpus.answers, shard["answers"]]),
        corpus.shards + 1,
    )


class DataClock:
    """Time and token budget of making data, and its progress reports."""

    def __init__(
        self,
        begin: float,
        tokens: int | None,
        seconds: float | None,
        written: int,
        progress: Callable[[DataProgress], None],
    ) -> None:
        self.begin = begin
        self.tokens = tokens
        self.seconds = seconds
        self.progress = progress
        self.before = self.done = written
        self.laps = 0  # shards made since the beginning
        self.shard = 0.0  # seconds of work when the present shard began

    @property
    def spent(self) -> float:
        """Seconds of work."""
        return time.monotonic() - self.begin

    def over(self, corpus: Corpus) -> bool:
        """True with enough tokens, or if another shard would end more than half of it too late."""
        if self.tokens is not None and corpus.written >= self.tokens:
            return True
        if self.seconds is None:
            return False
        lap = self.spent / self.laps if self.laps else 0.0
        return self.spent + lap / 2 >= self.seconds and corpus.shards > 0

    def begin_shard(self) -> None:
        """Begin a shard: a part of the time that is left is for its user turns."""
        self.shard = self.spent

    def late(self) -> bool:
        """True when all time is spent."""
        return self.seconds is not None and self.spent >= self.seconds

    def turns_late(self) -> bool:
        """True when the time for a shard's user turns is spent."""
        if self.seconds is None:
            return False
        return self.spent >= self.shard + TURN_SHARE * (self.seconds - self.shard)

    def tick(self, done: int, note: str = "", asked: int = 0) -> None:
        """Report progress."""
        self.done = done
        rate = (done - self.before) / max(self.spent, 1e-9)
        lefts = [] if self.seconds is None else [max(0.0, self.seconds - self.spent)]
        if self.tokens is not None and rate > 0:
            lefts.append(max(0, self.tokens - done) / rate)
        self.progress(DataProgress(done, self.tokens, rate, min(lefts, default=None), note, asked))

    def note(self, remark: str) -> None:
        """Report a remark."""
        self.tick(self.done, remark)


def earlier_answers(folder: Path, shards: int, text: Tokenizer) -> list[str]:
    """The target's answers in the last finished shard."""
    if not shards:
        return []
    part = read_shard(shard_path(folder, shards - 1))
    bounds = zip(part["starts"][:-1] + part["answers"], part["starts"][1:], strict=True)
    spans = [part["tokens"][start:stop].tolist() for start, stop in bounds]
    return [answer for answer in text.tokenizer.decode_batch(spans) if answer.strip()]


# ---------------------------------------------------------------------------------- on disk
def pack(chats: Sequence[PromptAnswer]) -> dict[str, Any]:
    """The arrays of a shard."""
    return {
        "tokens": np.concatenate([np.asarray(chat.tokens, np.int32) for chat in chats]),
        "starts": np.cumsum([0, *(len(chat.tokens) for chat in chats)], dtype=np.int64),
        "answers": np.asarray([chat.answer for chat in chats], np.int32),
    }


def describe(
    backend: TorchBackend, prompts: Path | None, seed: int, settings: DataSettings
) -> dict[str, Any]:
    """Everything that decides the content of a corpus, as in its file."""
    weights = backend.info.weights
    source = {
        "model": backend.info.model,
        "weights": None if weights is None else weights.digest,
        "seed": seed,
        "prompts": mark(prompts),
    }
    record = {"format": FORMAT, **source, **asdict(settings)}
    return dict(json.loads(json.dumps(record)))


def prepare(folder: Path, wanted: dict[str, Any], size: int) -> int:
    """Begin a corpus, or check that the one in the folder matches; return prompts per shard."""
    if not (folder / SETTINGS).is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SapwoodError(
                f"folder {folder} cannot be made ({error.strerror}); choose another"
            ) from error
        begun = {**wanted, "size": wanted["size"] or size}
        store(folder, folder / SETTINGS, json.dumps(begun, indent=1).encode(), 0)
    found = settings_in(folder)
    # a shard size that is not given is the folder's: a GPU may go on with what a CPU began
    wanted = {**wanted, "size": wanted["size"] or found.get("size")}
    # weights tell a model better than its name; a corpus of an earlier version has none
    known = wanted.get("weights") is not None and found.get("weights") is not None
    skipped = "model" if known else "weights"
    if odd := [key for key in wanted if key != skipped and found.get(key) != wanted[key]]:
        key = odd[0]
        was = found.get(odd[0])
        now = wanted[odd[0]]
        raise SapwoodError(
            f"the corpus in {folder} was made with {key}={was!r}, not {now!r}; use another folder"
        )
    return int(found["size"])


def made_with(folder: Path) -> str | None:
    """Digest of the weights with which the corpus in this folder was made; None if not known."""
    try:
        found = settings_in(folder).get("weights")
    except SapwoodError:
        return None
    return found if isinstance(found, str) else None


def settings_in(folder: Path) -> dict[str, Any]:
    """Settings of the corpus in this folder."""
    path = folder / SETTINGS
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SapwoodError(
            f"{folder} holds no corpus ({SETTINGS} cannot be read); make one first"
        ) from error
    except ValueError as error:
        raise SapwoodError(
            f"{path} is damaged; delete {folder} and make the corpus again"
        ) from error
    return record if isinstance(record, dict) else {}


def shard_path(folder: Path, index: int) -> Path:
    """Path of the shard of this number."""
    return folder / f"shard-{index:05}.safetensors"


def finished_shards(folder: Path) -> list[Path]:
    """The shards from the first on, up to the first gap."""
    paths: list[Path] = []
    while (path := shard_path(folder, len(paths))).is_file():
        paths.append(path)
    return paths


def read_shard(path: Path) -> dict[str, Any]:
    """The arrays of a shard."""
    try:
        part = load(path.read_bytes())
        whole = len(part["answers"]) + 1 == len(part["starts"]) and part["starts"][-1] == len(
            part["tokens"]
        )
    except (OSError, SafetensorError, KeyError) as error:
        raise SapwoodError(
            f"{path} is damaged; delete it and the shards after it, they are made again"
        ) from error
    if not whole:
        raise SapwoodError(
            f"{path} is damaged; delete it and the shards after it, they are made again"
        )
    return part


def store(folder: Path, path: Path, data: bytes, finished: int) -> None:
    """Write a file atomically."""
    draft = path.with_suffix(".part")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        kept = f"the {finished} finished shards stay, and the same command goes on from there"
        if error.errno == errno.ENOSPC:
            need = f"{len(data) / 2**20:.1f} MiB"
            raise SapwoodError(
                f"the disk of {folder} has no room for {need}; free some: {kept}"
            ) from error
        raise SapwoodError(
            f"{path} cannot be written ({error.strerror}); mend that: {kept}"
        ) from error
