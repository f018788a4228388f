"""From a model's name to trained drafters in their folders: data, training, files, pictures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapwood import trained
from sapwood.backends.torch.load import load
from sapwood.backends.torch.model import TorchBackend
from sapwood.errors import SapwoodError
from sapwood.heads import files
from sapwood.heads.facts import TargetFacts
from sapwood.paths import cache_folder
from sapwood.text import Text
from sapwood.train import checkpoint, curves, ranks
from sapwood.train import corpus as corpora
from sapwood.train.corpus import Corpus, finished_shards
from sapwood.train.course import Course
from sapwood.train.kinds import course
from sapwood.train.loop import Loop, LoopSettings, Notes, Stopped, pairs, remembered
from sapwood.train.prompts import mark
from sapwood.train.several import Several, of_one
from sapwood.train.target import Teacher
from sapwood.train.vocabulary import coverage

DATA_SHARE = 0.2  # of the minutes, spent on letting the target write
RANKED = 4  # batches by which the ranks of independent guesses are measured
BATCH = {"cuda": 32_768, "cpu": 2048}  # tokens of a training batch, by device


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked for."""

    kinds: tuple[str, ...]  # kinds, or their spellings with options; several are taught on the same passes
    model: str = "smollm2"
    minutes: float = 20.0  # in all
    steps: int | None = None  # exactly so many instead of as many as fit the minutes
    prompts: Path | None = None
    tokens: int | None = None  # of answers in the corpus; None: as many as fit their share of the minutes
    data: Path | None = None  # the corpus' folder
    out: Path | None = None  # the drafter's folder; of several drafters, the folder of their folders
    seed: int = 0
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told about a job, and who may end it."""

    say: Callable[[str], None] = lambda _: None
    data: Callable[[Any], None] = lambda _: None  # told how the corpus grows
    steps: Callable[[Notes], None] = lambda _: None  # told after every point of the curve
    stop: Callable[[], bool] = lambda: False


def run(job: Job, watch: Watch) -> list[dict[str, Any]]:
    """Make the data, train, and write the heads; return a record of each."""
    courses, began = courses_of(job), time.monotonic()  # a misspelling fails before anything slow
    options: dict[str, Any] = {"device": job.device, "dtype": job.dtype, "threads": job.threads}
    backend, folder = load(job.model, **options, progress=watch.say, stock=True)
    homes = homes_of(job, [one.kind for one in courses])
    checkpoint.check_homes(homes)
    state = homes[0] / "state.safetensors"
    texts = again(job, state) if state.is_file() else read(job, backend, Text.load(folder), watch)
    teacher = Teacher(backend)
    left = job.minutes * 60 - (time.monotonic() - began)
    settings = LoopSettings(steps=job.steps, seconds=left, tokens=BATCH[teacher.device.type], seed=job.seed)
    whole: Any = courses[0] if len(courses) == 1 else Several(courses)
    watch.say(f"training {', '.join(one.kind for one in courses)} on {len(texts)} texts")
    loop = Loop(whole, teacher, texts, settings, state, watch.steps, watch.stop, asked=asked(job))
    head, notes = loop.run()
    records = []
    for index, (one, taught) in enumerate(pairs(whole, head)):
        own = notes if len(courses) == 1 else of_one(notes, index)
        records.append(keep(job, index, homes[index], taught, own, about(one, texts, taught, teacher), teacher, folder))
        if one.kind in ranks.ANSWERS:  # what the policy `sparse` makes its tree from
            ranks.save(homes[index], ranks.measure(taught, teacher, loop.some(RANKED)))
    state.unlink()
    return records


def courses_of(job: Job) -> tuple[Course, ...]:
    """The courses that were asked for."""
    if not job.kinds:
        raise SapwoodError("name at least one kind to train, such as eagle3")
    courses = tuple(course(kind) for kind in job.kinds)
    check_apart(job, [one.kind for one in courses])
    return courses


def check_apart(job: Job, names: Sequence[str]) -> None:
    """Refuse two of one kind where each would have the same folder."""
    if job.out is None and len(set(names)) < len(names):
        raise SapwoodError("two of one kind would overwrite each other; train them apart, or give --out")


def homes_of(job: Job, names: Sequence[str]) -> list[Path]:
    """Where each of these kinds goes."""
    if job.out is None:
        return [trained.home(name, job.model) for name in names]
    if len(names) == 1:
        return [job.out]
    return [job.out / (name if names.count(name) == 1 else f"{name}-{index}") for index, name in enumerate(names)]


def data_of(job: Job) -> Path:
    """The corpus' folder."""
    return job.data or cache_folder() / "corpora" / trained.safe(trained.named(job.model))


def asked(job: Job) -> dict[str, Any]:
    """What the texts are asked for with, as a state remembers it."""
    return {"prompts": mark(job.prompts), "tokens": job.tokens}


def again(job: Job, state: Path) -> Corpus:
    """The texts that the run of this state began with."""
    began = remembered(state).asked
    for name, value in asked(job).items():
        if value is None or name not in began or value == began[name]:
            continue
        was = "without" if began[name] is None else "with other" if name == "prompts" else f"with {began[name]} as"
        raise SapwoodError(
            f"the run in {state} began {was} --{name}, and its texts stay as they are, so {getattr(job, name)} cannot "
            f"be heeded; leave --{name} out to go on, or give another --out and --data"
        )
    folder = data_of(job)
    if not finished_shards(folder):
        raise SapwoodError(
            f"the texts that the run in {state} began with are gone from {folder}; bring them back, "
            "name their folder as --data, or delete the state to begin anew"
        )
    return Corpus.open(folder)


def read(job: Job, backend: TorchBackend, text: Text, watch: Watch) -> Corpus:
    """The corpus of this model, made or continued."""
    folder = data_of(job)
    seconds = None if job.tokens is not None else job.minutes * 60 * DATA_SHARE
    options: dict[str, Any] = {"tokens": job.tokens, "seconds": seconds, "seed": job.seed}
    found = corpora.make(backend, text, folder, prompts=job.prompts, progress=watched(watch), **options)
    if not len(found):
        raise SapwoodError(f"the corpus in {folder} is empty; give more --minutes, or --tokens")
    return found


def watched(watch: Watch) -> Callable[[Any], None]:
    """Pass on how the corpus grows, and end it when asked to; the shard in work is made again later."""

    def tell(pace: Any) -> None:
        watch.data(pace)
        if watch.stop():
            raise Stopped("stopped while the model was writing its texts")

    return tell


def about(one: Course, texts: Corpus, head: Any, teacher: Teacher) -> dict[str, Any]:
    """What the files say of a run."""
    info = teacher.backend.info
    facts: dict[str, Any] = {"kind": one.kind, "model": info.model, "dtype": info.dtype, "device": info.device}
    facts |= {"texts": len(texts), "answer_tokens": texts.written}
    if hasattr(head, "vocabulary"):
        share = coverage(texts.counts(teacher.vocab), head.vocabulary)
        facts |= {"draft_vocabulary": len(head.vocabulary), "coverage": round(share, 4)}
    facts["parameters"] = sum(weight.numel() for weight in head.parameters())
    return facts


def keep(
    job: Job, index: int, home: Path, head: Any, notes: Notes, facts: dict[str, Any], teacher: Teacher, folder: Path
) -> dict[str, Any]:
    """Write one drafter with its pictures; return its record."""
    facts = facts | {"spelling": job.kinds[index], "seed": job.seed, "steps": notes.step}
    if hasattr(head, "save"):  # a whole model, with the tokenizer of the target's folder
        head.save(home, folder, facts)
    else:
        config = teacher.model.config.get_text_config().to_dict()
        files.save(head, home, facts, facts=TargetFacts.of(config, job.model))
    curves.write(home, notes, facts)
    return {"out": str(home), "seconds": notes.spent, "loss": notes.curve[-1].loss, **facts}
