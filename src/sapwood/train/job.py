"""A training job from a model's name to drafters in their folders: data, training, files."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import load
from sapwood.backends.torch.resolve_model import PACKED
from sapwood.common import drafter_store
from sapwood.common.cache_dir import cache_folder
from sapwood.common.fingerprint import Fingerprint
from sapwood.errors import SapwoodError
from sapwood.heads import files
from sapwood.heads.target_info import TargetInfo
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train import checkpoint, curves, ranks
from sapwood.train import corpus as corpora
from sapwood.train.corpus import Corpus, finished_shards
from sapwood.train.draft_model import Student
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.gain import KINDS, measured_gain
from sapwood.train.generate import TextGenerator
from sapwood.train.labels import VocabHead
from sapwood.train.loop import (
    LoopSettings,
    RunState,
    TrainingLoop,
    TrainingStopped,
    pairs,
    remembered,
)
from sapwood.train.multi_objective import MultiObjective, of_one
from sapwood.train.objective import Objective
from sapwood.train.pooled_generate import PooledGenerator
from sapwood.train.prompts import mark
from sapwood.train.registry import objective
from sapwood.train.teacher import Teacher
from sapwood.train.tuned_target import TunedTarget
from sapwood.train.vocabulary import coverage

DATA_SHARE = 0.2  # of the minutes, spent on generating text with the target
RANKED = 4  # batches on which the acceptance of ranks is measured
BATCH = {"cuda": 32_768, "cpu": 2048}  # most tokens of a training batch, by device
LEAST = 256  # fewest tokens of a training batch
PROBE = 256  # tokens of a forward pass that measures the speed of the machine
STEP_COST = 4.0  # time of a training step over the time of a forward pass over its tokens
STEP_S = 10.0  # seconds that a step may take: a kill loses one step
# options of an EAGLE-3 head on a CPU: cheaper steps, of which more fit into the minutes
SMALL: dict[str, Any] = {"unroll": 3, "vocabulary": 6144}
SMALL_INNER = 2  # width of its MLP in widths of the target
GAIN_SHARE = 0.1  # of the minutes, for measuring what was gained
NO_GAIN = "auto was slower with it than without it when it was trained"
GAIN_S = 60.0  # and at most so many seconds, besides loading the model


@dataclass(frozen=True, slots=True)
class TrainJob:
    """Options of `sapwood train`."""

    # kinds, or spellings with options; several are trained on the same passes
    kinds: tuple[str, ...]
    model: str = "smollm2"
    minutes: float = 20.0  # in all
    steps: int | None = None  # exactly this many instead of as many as fit the minutes
    prompts: Path | None = None
    # of answers in the corpus; None: as many as fit their share of the minutes
    tokens: int | None = None
    data: Path | None = None  # the corpus' folder
    # the drafter's folder; of several drafters, the folder of their folders
    out: Path | None = None
    seed: int = 0
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class JobObserver:
    """Callbacks of a job: messages, progress, and a request to stop."""

    say: Callable[[str], None] = lambda _: None
    data: Callable[[Any], None] = lambda _: None  # progress of the corpus
    steps: Callable[[RunState], None] = lambda _: None  # after every point of the curve
    stop: Callable[[], bool] = lambda: False


def run(job: TrainJob, watch: JobObserver) -> list[dict[str, Any]]:
    """Make the data, train, write the heads and measure their gain; return a record of each."""
    began = time.monotonic()
    records = train(job, watch, began)
    gc.collect()  # the model is loaded once more, as recipes run it
    for record in records:
        if record["kind"] not in KINDS:
            continue
        watch.say(f"measuring what {record['kind']} has gained")
        left = max(0.0, job.minutes * 60 - (time.monotonic() - began))
        options = {"device": job.device, "dtype": job.dtype, "threads": job.threads}
        folder = Path(record["out"])
        kept = job.out is None  # where recipes look for it
        gain = measured_gain(
            job.model, record["kind"], folder, min(left, GAIN_S), found=kept, **options
        )
        record["gain"] = None if gain is None else asdict(gain)
        record["set_aside"] = kept and gain is not None and not gain.pays
        if record["set_aside"]:
            drafter_store.set_aside(folder, NO_GAIN)
    return records


def train(job: TrainJob, watch: JobObserver, began: float) -> list[dict[str, Any]]:
    """Make the data, train, and write the heads; return a record of each."""
    # a misspelling fails before anything slow
    objectives = objectives_of(job)
    options: dict[str, Any] = {"device": job.device, "dtype": job.dtype, "threads": job.threads}
    backend, folder = load(job.model, **options, progress=watch.say, stock=True)
    measuring = gain_seconds(job.minutes * 60, time.monotonic() - began)
    homes = homes_of(job, [one.kind for one in objectives], backend.info.weights)
    checkpoint.check_homes(homes)
    state = homes[0] / "state.safetensors"
    texts = (
        again(job, state, backend.info.weights)
        if state.is_file()
        else read(job, backend, Tokenizer.load(folder), watch)
    )
    teacher = Teacher(backend)
    batch = batch_tokens(teacher, state)
    if teacher.device.type == "cpu":
        objectives = tuple(
            smaller(one, kind, teacher) for one, kind in zip(objectives, job.kinds, strict=True)
        )
    left = job.minutes * 60 - measuring - (time.monotonic() - began)
    settings = LoopSettings(steps=job.steps, seconds=max(left, 0.0), tokens=batch, seed=job.seed)
    whole: Any = objectives[0] if len(objectives) == 1 else MultiObjective(objectives)
    watch.say(f"training {', '.join(one.kind for one in objectives)} on {len(texts)} texts")
    loop = TrainingLoop(
        whole,
        teacher,
        texts,
        settings,
        state,
        watch.steps,
        watch.stop,
        asked=asked(job) | {"batch": batch},
    )
    head, notes = loop.run()
    records = []
    for index, (one, taught) in enumerate(pairs(whole, head)):
        own = notes if len(objectives) == 1 else of_one(notes, index)
        records.append(
            keep(
                job,
                index,
                homes[index],
                taught,
                own,
                about(one, texts, taught, teacher),
                teacher,
                folder,
            )
        )
        if one.kind in ranks.KINDS:  # for the policy `sparse`
            ranks.save(homes[index], ranks.measure(taught, teacher, loop.some(RANKED)))
    state.unlink()
    return records


def gain_seconds(total: float, loading: float) -> float:
    """Seconds reserved for measuring the gain, which loads the model once more."""
    return min(max(GAIN_SHARE * total, 3 * loading), GAIN_S + 2 * loading, total / 4)


def batch_tokens(teacher: Teacher, state: Path) -> int:
    """Tokens of a training batch: those with which a run began, else fewer on a slow machine."""
    began = remembered(state).asked.get("batch") if state.is_file() else None
    most = BATCH[teacher.device.type]
    if isinstance(began, int):
        return began
    if teacher.device.type != "cpu":
        return most
    count = min(PROBE, teacher.backend.info.context)
    tokens = torch.zeros(1, count, dtype=torch.int64)
    seconds = []
    for _ in range(2):  # the first one warms up
        start = time.monotonic()
        teacher.read(tokens, ())
        seconds.append(time.monotonic() - start)
    return fitting(most, min(seconds) / count)


def fitting(most: int, each: float) -> int:
    """Tokens of a batch whose step takes STEP_S at most, if reading one token takes `each`."""
    while most > LEAST and STEP_COST * each * most > STEP_S:
        most //= 2
    return most


def smaller(one: Objective, spelled: str, teacher: Teacher) -> Objective:
    """A head that takes less work to train, where no options are given."""
    if isinstance(one, Eagle3Objective) and spelled == one.kind:
        return replace(one, inner=SMALL_INNER * teacher.width, **SMALL)
    return one


def objectives_of(job: TrainJob) -> tuple[Objective, ...]:
    """The objectives of the job's kinds."""
    if not job.kinds:
        raise SapwoodError("name at least one kind to train, such as eagle3")
    objectives = tuple(objective(kind) for kind in job.kinds)
    check_apart(job, [one.kind for one in objectives])
    return objectives


def check_apart(job: TrainJob, names: Sequence[str]) -> None:
    """Raise if two of one kind would share a folder."""
    if job.out is None and len(set(names)) < len(names):
        raise SapwoodError(
            "two of one kind would overwrite each other; train them apart, or give --out"
        )


def homes_of(job: TrainJob, names: Sequence[str], weights: Fingerprint | None = None) -> list[Path]:
    """Folder of each of these kinds."""
    if job.out is None:
        return [drafter_store.home(name, job.model, weights) for name in names]
    if len(names) == 1:
        return [job.out]
    return [
        job.out / (name if names.count(name) == 1 else f"{name}-{index}")
        for index, name in enumerate(names)
    ]


def data_of(job: TrainJob, weights: Fingerprint | None = None) -> Path:
    """Folder of the corpus: the one of these weights, else one of the model's name."""
    if job.data is not None:
        return job.data
    store = cache_folder() / "corpora"
    named = store / drafter_store.safe(drafter_store.named(job.model))
    begun = (named / corpora.SETTINGS).is_file()
    if weights is None or (begun and corpora.made_with(named) in (None, weights.digest)):
        return named
    for path in sorted(store.glob(f"*/{corpora.SETTINGS}")):
        if corpora.made_with(path.parent) == weights.digest:
            return path.parent
    if not begun:
        return named
    return store / drafter_store.safe(f"{drafter_store.named(job.model)}@{weights.digest}")


def asked(job: TrainJob) -> dict[str, Any]:
    """Options of the texts, as kept in a state."""
    return {"prompts": mark(job.prompts), "tokens": job.tokens}


def again(job: TrainJob, state: Path, weights: Fingerprint | None = None) -> Corpus:
    """The texts with which the run of this state began."""
    began = remembered(state).asked
    for name, value in asked(job).items():
        if value is None or name not in began or value == began[name]:
            continue
        was = (
            "without"
            if began[name] is None
            else "with other"
            if name == "prompts"
            else f"with {began[name]} as"
        )
        raise SapwoodError(
            f"the run in {state} began {was} --{name}, and its texts stay as they are, so "
            f"{getattr(job, name)} cannot be heeded; "
            f"leave --{name} out to go on, or give another --out and --data"
        )
    folder = data_of(job, weights)
    if not finished_shards(folder):
        raise SapwoodError(
            f"the texts that the run in {state} began with are gone from {folder}; "
            "bring them back, name their folder as --data, or delete the state to begin anew"
        )
    return Corpus.open(folder)


def read(job: TrainJob, backend: TorchBackend, text: Tokenizer, watch: JobObserver) -> Corpus:
    """The corpus of this model, made or continued."""
    folder = data_of(job, backend.info.weights)
    seconds = None if job.tokens is not None else job.minutes * 60 * DATA_SHARE
    options: dict[str, Any] = {"tokens": job.tokens, "seconds": seconds, "seed": job.seed}
    options |= {"prompts": job.prompts, "generator": fast_generator(job, backend)}
    found = corpora.make(backend, text, folder, progress=watched(watch), **options)
    if not len(found):
        raise SapwoodError(f"the corpus in {folder} is empty; give more --minutes, or --tokens")
    return found


def fast_generator(job: TrainJob, backend: TorchBackend) -> TextGenerator | None:
    """A generator with the network that recipes run, if that is quicker than float32 modules."""
    if backend.device.type != "cpu" or job.dtype is not None:
        return None
    fast, _ = load(job.model, device=job.device, threads=job.threads)
    if fast.network.precision not in PACKED:
        return None
    return PooledGenerator(fast)


def watched(watch: JobObserver) -> Callable[[Any], None]:
    """A callback that reports the corpus' progress, and raises when the job is to stop."""

    def report(pace: Any) -> None:
        watch.data(pace)
        if watch.stop():
            raise TrainingStopped("stopped while the model was writing its texts")

    return report


def about(one: Objective, texts: Corpus, head: Any, teacher: Teacher) -> dict[str, Any]:
    """Facts about a run for its files."""
    info = teacher.backend.info
    facts: dict[str, Any] = {
        "kind": one.kind,
        "model": info.model,
        "dtype": info.dtype,
        "device": info.device,
    }
    facts |= {"texts": len(texts), "answer_tokens": texts.written}
    if isinstance(head, VocabHead):
        share = coverage(texts.counts(teacher.vocab), head.vocabulary)
        facts |= {"draft_vocabulary": len(head.vocabulary), "coverage": round(share, 4)}
    facts["parameters"] = sum(weight.numel() for weight in head.parameters())
    return facts


def keep(
    job: TrainJob,
    index: int,
    home: Path,
    head: Any,
    notes: RunState,
    facts: dict[str, Any],
    teacher: Teacher,
    folder: Path,
) -> dict[str, Any]:
    """Write one drafter with its curves; return its record."""
    facts = facts | {"spelling": job.kinds[index], "seed": job.seed, "steps": notes.step}
    out = home
    if isinstance(head, Student):  # a whole model, with the tokenizer of the target's folder
        head.save(home, folder, facts)
    elif isinstance(head, TunedTarget):  # another model: nothing here is for the target itself
        out = head.save(home, folder, facts)
    else:
        config = teacher.model.config.get_text_config().to_dict()
        files.save(head, home, facts, facts=TargetInfo.of(config, job.model))
    weights = teacher.backend.info.weights
    if weights is not None and out == home:
        weights.save(home)
    curves.write(home, notes, facts)
    drafter_store.bring_back(home)  # an earlier one may have been set aside
    return {"out": str(out), "seconds": notes.spent, "loss": notes.curve[-1].loss, **facts}
