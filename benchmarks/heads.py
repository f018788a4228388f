"""Every kind of head, trained for equal minutes on equal data at about equal parameters.

    python benchmarks/heads.py --work FOLDER [--model smollm2] [--minutes 20] [--kinds clover,...]
        [--json benchmarks/results/heads.json]

The model writes the texts and answers held-out prompts once; then every kind of the training
registry is built with about as many weights as the others and trained, one after the other. Then
all are scored: tokens per pass by size of tree, by replaying the answers; `--workers` processes
share this, and load the model while the texts are written. A kind that was finished before is not
trained again, and one that was stopped goes on; a kind that fails is named in the record, and the
others go on.

`--beside RECORD` adds the rows to those of an earlier run: every row says which run it is from, and
kinds that are in both tell how far scores of the two can be compared.

The record is written again after every kind. `--limit-seconds` ends the whole command in time: what
texts and scores leave of it is divided among the heads, each at most `--minutes`. `--clock
processor` gives every head the same processor time instead of the same wall time, for machines that
others use too; a GPU's work is not in it. `--install` puts heads of kinds that the model has no
part of where recipes find them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.head_runs import merged

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import find_device, load
from sapwood.bench import provenance
from sapwood.bench.measure import decode
from sapwood.bench.suites import gather
from sapwood.common import drafter_store
from sapwood.core.array_types import IntArray
from sapwood.core.sampling import Sampling
from sapwood.engine.outputs import collect
from sapwood.errors import SapwoodError
from sapwood.heads import files
from sapwood.heads.target_info import TargetInfo
from sapwood.llm import LLM
from sapwood.recipes import resolve
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.replay import NOT_RECORDED, TracePlayer
from sapwood.train import corpus as corpora
from sapwood.train import ranks
from sapwood.train.corpus import Corpus
from sapwood.train.job import RANKED
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.registry import OBJECTIVES, objective
from sapwood.train.teacher import Teacher

# they make models, or rows of the verifying pass, which a replay does not have
NO_HEADS = {
    *("medusa2", "cllm", "draft-model", "boosted-draft-model"),
    *("pard", "distillspec", "skd", "fastdraft"),
    *("gated-masks", "streams", "ppd"),
}
# kinds whose drafter runs the target once more in every round
TWO_PASSES = {"mask-rows", "hidden-transfer"}
TREES = {
    "chain of 4": "chain + match + fixed(nodes=4, depth=4, width=1)",
    "tree of 16": "best(estimator=raw) + match + fixed(nodes=16, depth=6, width=8)",
    "tree of 48": "best(estimator=raw) + match + fixed(nodes=48, depth=6, width=8)",
}
SIZED = ("inner", "blocks")  # options that set a head's size, the first that a kind has
PROBE = {"inner": 136, "blocks": 1}
OUTPUT = "lm_head"  # output matrices of a head's own are not counted for its size
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.monotonic, "processor": time.process_time}
BETWEEN = 3.0  # seconds between two trainings: a head is built, measured and saved
WAIT = 1.0  # seconds between two looks at scoring processes
WARM_UP = 5  # steps of an uncounted training on a GPU, which loads its kernels
STARTED = time.monotonic()

Say = Callable[[str], None]


@dataclass(frozen=True)
class HeadsSettings:
    """Options of the comparison."""

    work: Path  # texts, answers and heads
    model: str = "smollm2"
    kinds: tuple[str, ...] = ()  # empty: all of the registry
    minutes: float = 20.0  # of training, for each
    parameters: int = 5_500_000  # of each head, about
    vocabulary: int = 16_384  # tokens the heads can propose
    texts: int = 200_000  # tokens of the training texts
    texts_seconds: float | None = None  # at most, for making them
    prompts: Path | None = None  # of the training texts
    suite: str = "chat,edit,json"  # held-out prompts
    limit: int = 24
    max_tokens: int = 96
    batch: int = 2048  # tokens of a training batch
    clock: str = "wall"
    device: str | None = None
    dtype: str | None = None  # of the scores
    threads: int | None = None
    workers: int = 1  # processes that score
    limit_seconds: float | None = None  # of the whole command
    score_seconds: float = 120.0  # of these, kept for the scores
    install: bool = False  # make the heads those of the model, where it has none
    beside: Path | None = None  # record of an earlier run, whose rows are kept

    @property
    def on_gpu(self) -> bool:
        """True if the model runs on a CUDA device."""
        return find_device(self.device).type == "cuda"

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        spent = time.monotonic() - STARTED
        return float("inf") if self.limit_seconds is None else self.limit_seconds - spent

    def home(self, kind: str) -> Path:
        """The folder of a head."""
        return self.work / kind


def kinds_of(settings: HeadsSettings) -> list[str]:
    """The kinds to compare."""
    return list(settings.kinds) or [kind for kind in OBJECTIVES if kind not in NO_HEADS]


# ------------------------------------------------------------------------------------------- sizes
def sized(kind: str, teacher: Teacher, counts: IntArray, settings: HeadsSettings) -> Any:
    """The objective of a kind whose head has about the wanted number of parameters."""
    made: Any = objective(kind)
    names = {field.name for field in fields(made)}
    if "vocabulary" in names:
        made = replace(made, vocabulary=min(settings.vocabulary, teacher.vocab))
    option = next((name for name in SIZED if name in names), None)
    if option is None:
        return made
    head = replace(made, **{option: PROBE[option]}).build(teacher, counts)
    if option == "blocks":
        more = replace(made, blocks=2).build(teacher, counts)
        each = max(1, parameters(more) - parameters(head))
        blocks = 1 + round((settings.parameters - parameters(head)) / each)
        return replace(made, blocks=max(1, blocks))
    return replace(made, inner=inner_for(head, settings.parameters))


def inner_for(head: torch.nn.Module, wanted: int) -> int:
    """The inner width, a multiple of 8, with which a head of the probe's width has this size."""
    probe = PROBE["inner"]
    powers: dict[int, float] = {}  # of the inner width -> their coefficient
    for name, weight in head.named_parameters():
        if OUTPUT not in name:
            power = list(weight.shape).count(probe)
            powers[power] = powers.get(power, 0.0) + weight.numel() / probe**power

    def size(inner: int) -> float:
        return sum(each * float(inner) ** power for power, each in powers.items())

    return min(range(8, 4097, 8), key=lambda inner: abs(size(inner) - wanted))


def parameters(head: torch.nn.Module) -> int:
    """Weights of a head without an output matrix of its own."""
    return sum(weight.numel() for name, weight in head.named_parameters() if OUTPUT not in name)


# ------------------------------------------------------------------------------------------ texts
def answers(settings: HeadsSettings, llm: LLM) -> Path:
    """The trace of the model's greedy answers to the held-out prompts; made once."""
    path = settings.work / "answers.jsonl"
    if not path.is_file():
        record_answers(path, llm, settings)
    return path


def record_answers(path: Path, llm: LLM, settings: HeadsSettings) -> None:
    """Have a model answer the held-out prompts."""
    prompts = [
        prompt.tokens(llm.target.info, llm.text)
        for prompt in gather(settings.suite, (), settings.limit)
    ]
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    options: dict[str, Any] = {"max_tokens": settings.max_tokens}
    with opened(part, llm, "plain", llm.target.info.model, options) as writer:
        for number, prompt in enumerate(prompts):
            collect(traced(llm, list(prompt), writer, f"prompt {number + 1}", **options))
    part.rename(path)


def opened_model(settings: HeadsSettings) -> LLM:
    """The model as answers and scores use it: on a GPU by transformers' code, for every drafter."""
    if not settings.on_gpu:
        options: dict[str, Any] = {"dtype": settings.dtype, "threads": settings.threads}
        return LLM(settings.model, "plain", device=settings.device, **options)
    backend, folder = load(settings.model, device=settings.device, dtype=settings.dtype, stock=True)
    return LLM(backend, "plain", text=Tokenizer.load(folder))


def texts_of(settings: HeadsSettings, backend: Any, text: Tokenizer) -> Corpus:
    """The training texts; made or continued."""
    return corpora.make(
        backend,
        text,
        settings.work / "texts",
        prompts=settings.prompts,
        tokens=settings.texts,
        seconds=settings.texts_seconds,
    )


# --------------------------------------------------------------------------------------- training
def train(
    kind: str, teacher: Teacher, corpus: Corpus, settings: HeadsSettings, minutes: float
) -> dict[str, Any]:
    """Train one kind, or go on with it; write the head and return its row without scores."""
    home = settings.home(kind)
    home.mkdir(parents=True, exist_ok=True)
    made = sized(kind, teacher, corpus.counts(teacher.vocab), settings)
    loop = TrainingLoop(
        made,
        teacher,
        corpus,
        LoopSettings(seconds=60 * minutes, tokens=settings.batch),
        home / "state.safetensors",
        now=CLOCKS[settings.clock],
    )
    head, notes = loop.run()
    config = teacher.model.config.get_text_config().to_dict()
    files.save(head, home, {"kind": kind}, facts=TargetInfo.of(config, settings.model))
    if kind in ranks.KINDS:
        ranks.save(home, ranks.measure(head, teacher, loop.some(RANKED)))
    return {
        "kind": kind,
        "objective": str(made),
        "parameters": parameters(head),
        "output_parameters": sum(
            weight.numel() for name, weight in head.named_parameters() if OUTPUT in name
        ),
        "bytes": (home / "model.safetensors").stat().st_size,
        "minutes": round(notes.spent / 60, 3),
        "steps": notes.step,
        "tokens": notes.tokens,
        "loss": notes.curve[-1].loss,
        "agreement": notes.curve[-1].agreement,
        # minutes, loss, and the share of first choices at the next place
        "curve": [
            [round(point.seconds / 60, 4), point.loss, point.agreement[0]] for point in notes.curve
        ],
    }


def train_all(settings: HeadsSettings, llm: LLM, say: Say, write: Callable[[], None]) -> Corpus:
    """Train every kind that is not trained yet, as far as the time goes; the texts."""
    if settings.on_gpu and settings.dtype is None:
        backend, text = llm.target, llm.text
    else:
        backend, folder = load(
            settings.model, device=settings.device, threads=settings.threads, stock=True
        )
        text = Tokenizer.load(folder)
    assert isinstance(text, Tokenizer)
    assert isinstance(backend, TorchBackend)
    teacher = Teacher(backend)
    corpus = texts_of(settings, backend, text)
    say(f"{len(corpus)} texts, {corpus.written} answer tokens, {settings.left:.0f} s left")
    wanted = [kind for kind in kinds_of(settings) if not row_file(settings, kind).is_file()]
    if wanted and settings.on_gpu:
        warm_up(wanted[0], teacher, corpus, settings)
    minutes = share_of_time(settings, len(wanted))
    for kind in wanted:
        if settings.left < settings.score_seconds / 2 + 60 * minutes:
            note_failure(settings, kind, "no time was left")
            continue
        say(f"training {kind} for {60 * minutes:.1f} s, {settings.left:.0f} s left")
        with failures(settings, kind, say):
            store(row_file(settings, kind), train(kind, teacher, corpus, settings, minutes))
        write()
    return corpus


def share_of_time(settings: HeadsSettings, kinds: int) -> float:
    """Minutes for each head: those asked for, or an equal share of what the limit leaves."""
    if settings.limit_seconds is None or not kinds:
        return settings.minutes
    each = (settings.left - settings.score_seconds) / kinds - BETWEEN
    return min(settings.minutes, max(each, 1.0) / 60)


def warm_up(kind: str, teacher: Teacher, corpus: Corpus, settings: HeadsSettings) -> None:
    """A short training that nothing is kept of: the first head must not wait for kernels."""
    with tempfile.TemporaryDirectory() as folder, failures(settings, kind, lambda _: None):
        made = sized(kind, teacher, corpus.counts(teacher.vocab), settings)
        state = Path(folder) / "state.safetensors"
        loop = LoopSettings(steps=WARM_UP, tokens=settings.batch)
        TrainingLoop(made, teacher, corpus, loop, state).run()


@contextmanager
def failures(settings: HeadsSettings, kind: str, say: Say) -> Iterator[None]:
    """Note the failure of one kind, so that the others go on."""
    try:
        yield
    except Exception as error:
        say(f"{kind} failed: {brief(error)}")
        note_failure(settings, kind, brief(error))
    else:
        (settings.home(kind) / "failed.txt").unlink(missing_ok=True)


def note_failure(settings: HeadsSettings, kind: str, reason: str) -> None:
    """Keep the reason why a kind has no row."""
    settings.home(kind).mkdir(parents=True, exist_ok=True)
    (settings.home(kind) / "failed.txt").write_text(reason, encoding="utf-8")


def brief(error: Exception) -> str:
    """An error as one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def row_file(settings: HeadsSettings, kind: str) -> Path:
    """The file of a trained head's row."""
    return settings.home(kind) / "row.json"


def score_file(settings: HeadsSettings, kind: str, tree: str) -> Path:
    """The file of a trained head's score with one tree."""
    return settings.home(kind) / f"score-{list(TREES).index(tree)}.json"


def store(path: Path, found: Any) -> None:
    """Write a JSON file atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def install(settings: HeadsSettings, llm: LLM, say: Say) -> None:
    """Put heads of kinds of which the model has none where recipes find them."""
    info = llm.target.info
    for kind in kinds_of(settings):
        if row_file(settings, kind).is_file() and not drafter_store.has(
            kind, info.model, info.weights
        ):
            home = drafter_store.home(kind, info.model, info.weights)
            home.mkdir(parents=True, exist_ok=True)
            for name in ("config.json", "model.safetensors", "ranks.json"):
                if (settings.home(kind) / name).is_file():
                    shutil.copyfile(settings.home(kind) / name, home / name)
            say(f"installed {kind}")


# ----------------------------------------------------------------------------------------- scores
def score(kind: str, tree: str, llm: LLM, player: TracePlayer, settings: HeadsSettings) -> float:
    """Tokens per pass of the target; a draft that runs the target counts as a pass."""
    spelling = f"{kind}(head='{settings.home(kind)}') + {TREES[tree]}"
    per_round = (
        decoded(spelling, llm, player, settings)
        if kind in NOT_RECORDED
        else replayed(spelling, player)
    )
    return per_round / (2 if kind in TWO_PASSES else 1)


def replayed(spelling: str, player: TracePlayer) -> float:
    """Tokens per round on the known answers."""
    run = player.play(spelling, resolve(spelling))
    return run.tokens / run.passes


def decoded(spelling: str, llm: LLM, player: TracePlayer, settings: HeadsSettings) -> float:
    """Tokens per round of real decoding, for drafters that no trace can replay."""
    assert llm.text is not None
    engine = llm.with_recipe(spelling).engine
    sampling = Sampling(max_tokens=settings.max_tokens, stop_ids=llm.text.eos)
    runs = [decode(engine, asked.tokens, sampling) for asked in player.trace.asked]
    return sum(len(run.tokens) for run in runs) / sum(run.passes for run in runs)


def unscored(settings: HeadsSettings) -> list[tuple[str, str]]:
    """Trained kinds and trees without scores; those whose drafter runs the target come first."""
    slow = {*TWO_PASSES, *NOT_RECORDED}
    found = [
        (kind, tree)
        for tree in reversed(TREES)
        for kind in kinds_of(settings)
        if row_file(settings, kind).is_file() and not score_file(settings, kind, tree).is_file()
    ]
    return sorted(found, key=lambda one: one[0] not in slow)


def score_all(settings: HeadsSettings, say: Say, *, shared: bool = False) -> None:
    """Score all trained kinds; if `shared`, once they are, those that no other process takes."""
    llm = opened_model(settings)
    while shared and settings.left > 0 and not trained_file(settings).is_file():
        time.sleep(WAIT)
    player = TracePlayer(read(settings.work / "answers.jsonl"), llm)
    for kind, tree in unscored(settings):
        if shared and not claimed(settings, kind, tree):
            continue
        start = time.monotonic()
        with failures(settings, kind, say):
            store(score_file(settings, kind, tree), score(kind, tree, llm, player, settings))
        say(
            f"scored {kind}, {tree} in {time.monotonic() - start:.0f} s, {settings.left:.0f} s left"
        )


def claimed(settings: HeadsSettings, kind: str, tree: str) -> bool:
    """Take a kind and a tree for this process; False if another one has it."""
    try:
        claim_file(settings, kind, tree).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def claim_file(settings: HeadsSettings, kind: str, tree: str) -> Path:
    """The file that says that a process scores this kind with this tree."""
    return settings.home(kind) / f"claimed-{list(TREES).index(tree)}"


def trained_file(settings: HeadsSettings) -> Path:
    """The file that says that all kinds are trained."""
    return settings.work / "trained"


def started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process that runs this script."""
    return subprocess.Popen([sys.executable, __file__, *words])


@contextmanager
def scoring_processes(settings: HeadsSettings, say: Say) -> Iterator[list[Any]]:
    """Processes that load the model now and score when all is trained; ended with the block."""
    trained_file(settings).unlink(missing_ok=True)
    for claim in settings.work.glob("*/claimed-*"):
        claim.unlink()
    limit = [] if settings.limit_seconds is None else ["--limit-seconds", str(settings.left)]
    count = settings.workers if settings.workers > 1 else 0
    running = [started([*sys.argv[1:], "--score", *limit]) for _ in range(count)]
    try:
        yield running
    finally:
        for one in running:
            if one.poll() is None:
                say("the limit is reached: a scoring process is ended")
                one.kill()
            one.wait()


# ------------------------------------------------------------------------------------------ record
def compare(settings: HeadsSettings, say: Say = print, path: Path | None = None) -> dict[str, Any]:
    """Train and score every kind that is not finished; the record, also written to `path`."""
    if settings.on_gpu and settings.clock != "wall":
        raise SapwoodError("a GPU's work is not in the processor's time; use --clock wall")
    busy = provenance.load()
    settings.work.mkdir(parents=True, exist_ok=True)
    made: dict[str, Any] = {}
    llm = opened_model(settings)
    origin = provenance.origin(llm.target.info, busy)

    def write() -> None:
        made.clear()
        made.update(record(settings, origin))
        if settings.beside is not None:
            earlier = json.loads(settings.beside.read_text(encoding="utf-8"))
            made.update(merged(earlier, dict(made)))
        if path is not None:
            store(path, made)

    with scoring_processes(settings, say) as running:
        answers(settings, llm)
        train_all(settings, llm, say, write)
        if settings.install:
            install(settings, llm, say)
        trained_file(settings).touch()
        while any(one.poll() is None for one in running) and settings.left > 0:
            time.sleep(WAIT)
            write()
    if not running:
        score_all(settings, say)
    write()
    for row in made["rows"]:
        say(line(row))
    return made


def record(settings: HeadsSettings, origin: dict[str, Any]) -> dict[str, Any]:
    """The record of all kinds that are finished so far."""
    rows = []
    missing: dict[str, str] = {}
    for kind in kinds_of(settings):
        scores = {tree: score_file(settings, kind, tree) for tree in TREES}
        if row_file(settings, kind).is_file() and all(file.is_file() for file in scores.values()):
            row = json.loads(row_file(settings, kind).read_text(encoding="utf-8"))
            found = {tree: json.loads(file.read_text()) for tree, file in scores.items()}
            rows.append({**row, "tokens_per_pass": found})
        else:
            failed = settings.home(kind) / "failed.txt"
            missing[kind] = failed.read_text(encoding="utf-8") if failed.is_file() else "unfinished"
    texts = Corpus.open(settings.work / "texts")
    asked = read(settings.work / "answers.jsonl").asked
    return {
        **origin,
        "command": command(settings),
        "clock": settings.clock,
        "settings": {
            name: getattr(settings, name)
            for name in ("minutes", "parameters", "vocabulary", "batch", "limit", "max_tokens")
        },
        "texts": {"texts": len(texts), "answer_tokens": texts.written},
        "prompts": {"suite": Path(settings.suite).name, "count": len(asked)},
        "target_passes_per_round": {
            row["kind"]: 2 if row["kind"] in TWO_PASSES else 1 for row in rows
        },
        "trees": TREES,
        "rows": rows,
        "missing": missing,
    }


def command(settings: HeadsSettings) -> str:
    """The command without folders of the machine."""
    words = [f"--model {settings.model}", f"--minutes {settings.minutes:g}"]
    words += [f"--parameters {settings.parameters}", f"--vocabulary {settings.vocabulary}"]
    words += [f"--texts {settings.texts}", f"--batch {settings.batch}", f"--limit {settings.limit}"]
    words += [f"--max-tokens {settings.max_tokens}", f"--clock {settings.clock}"]
    for name in ("dtype", "device", "texts_seconds", "limit_seconds"):
        value = getattr(settings, name)
        words += [] if value is None else [f"--{name.replace('_', '-')} {value}"]
    words += [f"--kinds {','.join(settings.kinds)}"] if settings.kinds else []
    words += [f"--prompts {settings.prompts.name}"] if settings.prompts else []
    words += [f"--beside {settings.beside.name}"] if settings.beside else []
    return " ".join(["python benchmarks/heads.py --work FOLDER", *words])


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    cells = [f"{row['parameters'] / 1e6:.2f} M", f"{row['minutes']:.2f} min"]
    cells += [f"loss {row['loss']:.3f}"]
    cells += [f"{name} {value:.2f}" for name, value in row["tokens_per_pass"].items()]
    return f"{row['kind']}: {', '.join(cells)}"


def settings_of(
    arguments: Sequence[str] | None = None,
) -> tuple[HeadsSettings, Path | None, bool]:
    """Settings from the command line, the file of the record, and whether only to score."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--model", default=HeadsSettings.model)
    options.add_argument("--kinds", default="")
    options.add_argument("--minutes", type=float, default=HeadsSettings.minutes)
    options.add_argument("--parameters", type=int, default=HeadsSettings.parameters)
    options.add_argument("--vocabulary", type=int, default=HeadsSettings.vocabulary)
    options.add_argument("--texts", type=int, default=HeadsSettings.texts)
    options.add_argument("--texts-seconds", type=float)
    options.add_argument("--prompts", type=Path)
    options.add_argument("--suite", default=HeadsSettings.suite)
    options.add_argument("--limit", type=int, default=HeadsSettings.limit)
    options.add_argument("--max-tokens", type=int, default=HeadsSettings.max_tokens)
    options.add_argument("--batch", type=int, default=HeadsSettings.batch)
    options.add_argument("--clock", choices=list(CLOCKS), default=HeadsSettings.clock)
    options.add_argument("--device")
    options.add_argument("--dtype")
    options.add_argument("--threads", type=int)
    options.add_argument("--workers", type=int, default=HeadsSettings.workers)
    options.add_argument("--limit-seconds", type=float)
    options.add_argument("--score-seconds", type=float, default=HeadsSettings.score_seconds)
    options.add_argument("--install", action="store_true")
    options.add_argument("--json", type=Path)
    options.add_argument("--beside", type=Path, help="record whose rows are kept")
    options.add_argument("--commit", help="of a copy of the sources without its repository")
    options.add_argument("--score", action="store_true", help=argparse.SUPPRESS)  # in a process
    given = vars(options.parse_args(arguments))
    path = given.pop("json")
    kinds = tuple(kind for kind in given.pop("kinds").split(",") if kind)
    alone = given.pop("score")
    if commit := given.pop("commit"):
        os.environ[provenance.COMMIT] = commit
    return HeadsSettings(kinds=kinds, **given), path, alone


def say(text: str) -> None:
    """Print a line at once, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


def main() -> int:
    """Compare and write the record, or score some kinds; the exit code."""
    settings, path, alone = settings_of()
    try:
        if alone:
            score_all(settings, say, shared=True)
        else:
            compare(settings, say, path)
    except SapwoodError as error:
        print(f"heads: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
