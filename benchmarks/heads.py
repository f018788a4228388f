"""Every kind of head, trained for equal minutes on equal data at about equal parameters.

    python benchmarks/heads.py --work FOLDER [--model smollm2] [--minutes 20] [--kinds clover,...]
        [--json benchmarks/results/heads.json]

The model writes the texts and answers held-out prompts once; then every kind of the training
registry is built with about as many weights as the others, trained, and scored: tokens per pass by
size of tree, by replaying the answers. A kind that was finished before is not trained again, and
one that was stopped goes on. `--clock processor` gives every head the same processor time instead
of the same wall time, for machines that others use too.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from sapwood.backends.torch.load import load
from sapwood.bench import provenance
from sapwood.bench.measure import decode
from sapwood.bench.suites import gather
from sapwood.core.array_types import IntArray
from sapwood.core.sampling import Sampling
from sapwood.engine.outputs import collect
from sapwood.heads import files
from sapwood.heads.target_info import TargetInfo
from sapwood.llm import LLM
from sapwood.recipes import resolve
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.replay import NOT_RECORDED, TracePlayer
from sapwood.train import corpus as corpora
from sapwood.train.corpus import Corpus
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
    prompts: Path | None = None  # of the training texts
    suite: str = "chat,edit,json"  # held-out prompts
    limit: int = 24
    max_tokens: int = 96
    batch: int = 2048  # tokens of a training batch
    clock: str = "wall"
    device: str | None = None
    dtype: str | None = None  # of the scores
    threads: int | None = None


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
def answers(settings: HeadsSettings) -> Path:
    """The trace of the model's greedy answers to the held-out prompts; made once."""
    path = settings.work / "answers.jsonl"
    if path.is_file():
        return path
    llm = opened_model(settings)
    prompts = [
        prompt.tokens(llm.target.info, llm.text)
        for prompt in gather(settings.suite, (), settings.limit)
    ]
    part = path.with_suffix(".part")
    options: dict[str, Any] = {"max_tokens": settings.max_tokens}
    with opened(part, llm, "plain", llm.target.info.model, options) as writer:
        for number, prompt in enumerate(prompts):
            collect(traced(llm, list(prompt), writer, f"prompt {number + 1}", **options))
    part.rename(path)
    return path


def opened_model(settings: HeadsSettings) -> LLM:
    """The model as the scores use it."""
    options: dict[str, Any] = {"dtype": settings.dtype, "threads": settings.threads}
    return LLM(settings.model, "plain", device=settings.device, **options)


def texts_of(settings: HeadsSettings, backend: Any, text: Tokenizer) -> Corpus:
    """The training texts; made or continued."""
    return corpora.make(
        backend,
        text,
        settings.work / "texts",
        prompts=settings.prompts,
        tokens=settings.texts,
    )


# --------------------------------------------------------------------------------------- training
def train(kind: str, teacher: Teacher, corpus: Corpus, settings: HeadsSettings) -> dict[str, Any]:
    """Train one kind, or go on with it; write the head and return its row without scores."""
    home = settings.work / kind
    home.mkdir(parents=True, exist_ok=True)
    made = sized(kind, teacher, corpus.counts(teacher.vocab), settings)
    loop = TrainingLoop(
        made,
        teacher,
        corpus,
        LoopSettings(seconds=60 * settings.minutes, tokens=settings.batch),
        home / "state.safetensors",
        now=CLOCKS[settings.clock],
    )
    head, notes = loop.run()
    config = teacher.model.config.get_text_config().to_dict()
    files.save(head, home, {"kind": kind}, facts=TargetInfo.of(config, settings.model))
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
        "curve": [[round(point.seconds / 60, 4), point.loss] for point in notes.curve],
    }


# ----------------------------------------------------------------------------------------- scores
def scores(kind: str, llm: LLM, player: TracePlayer, settings: HeadsSettings) -> dict[str, float]:
    """Tokens per pass of the target, by tree; a draft that runs the target counts as a pass."""
    found = {}
    for name, rest in TREES.items():
        spelling = f"{kind}(head='{settings.work / kind}') + {rest}"
        per_round = (
            decoded(spelling, llm, player, settings)
            if kind in NOT_RECORDED
            else replayed(spelling, player)
        )
        found[name] = per_round / (2 if kind in TWO_PASSES else 1)
    return found


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


# ------------------------------------------------------------------------------------------ record
def compare(settings: HeadsSettings, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train and score every kind that is not finished; the record of all."""
    busy = provenance.load()
    settings.work.mkdir(parents=True, exist_ok=True)
    trace = answers(settings)
    backend, folder = load(
        settings.model, device=settings.device, threads=settings.threads, stock=True
    )
    teacher = Teacher(backend)
    corpus = texts_of(settings, backend, Tokenizer.load(folder))
    llm = opened_model(settings)
    player = TracePlayer(read(trace), llm)
    rows = []
    for kind in kinds_of(settings):
        done = settings.work / kind / "row.json"
        if not done.is_file():
            say(f"training {kind}")
            row = train(kind, teacher, corpus, settings)
            say(f"scoring {kind}")
            row["tokens_per_pass"] = scores(kind, llm, player, settings)
            done.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
        rows.append(json.loads(done.read_text(encoding="utf-8")))
        say(line(rows[-1]))
    return {
        **provenance.origin(llm.target.info, busy),
        "command": command(settings),
        "clock": settings.clock,
        "settings": {
            name: getattr(settings, name)
            for name in ("minutes", "parameters", "vocabulary", "batch", "limit", "max_tokens")
        },
        "texts": {"texts": len(corpus), "answer_tokens": corpus.written},
        "prompts": {"suite": Path(settings.suite).name, "count": len(player.trace.asked)},
        "target_passes_per_round": {
            row["kind"]: 2 if row["kind"] in TWO_PASSES else 1 for row in rows
        },
        "trees": TREES,
        "rows": rows,
    }


def command(settings: HeadsSettings) -> str:
    """The command without folders of the machine."""
    words = [f"--model {settings.model}", f"--minutes {settings.minutes:g}"]
    words += [f"--parameters {settings.parameters}", f"--vocabulary {settings.vocabulary}"]
    words += [f"--texts {settings.texts}", f"--batch {settings.batch}", f"--limit {settings.limit}"]
    words += [f"--max-tokens {settings.max_tokens}", f"--clock {settings.clock}"]
    words += [f"--dtype {settings.dtype}"] if settings.dtype else []
    words += [f"--kinds {','.join(settings.kinds)}"] if settings.kinds else []
    words += [f"--prompts {settings.prompts.name}"] if settings.prompts else []
    return " ".join(["python benchmarks/heads.py --work FOLDER", *words])


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    cells = [f"{row['parameters'] / 1e6:.2f} M", f"{row['minutes']:.2f} min"]
    cells += [f"loss {row['loss']:.3f}"]
    cells += [f"{name} {value:.2f}" for name, value in row["tokens_per_pass"].items()]
    return f"{row['kind']}: {', '.join(cells)}"


def settings_of(arguments: Sequence[str] | None = None) -> tuple[HeadsSettings, Path | None]:
    """Settings from the command line, and the file of the record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--model", default=HeadsSettings.model)
    options.add_argument("--kinds", default="")
    options.add_argument("--minutes", type=float, default=HeadsSettings.minutes)
    options.add_argument("--parameters", type=int, default=HeadsSettings.parameters)
    options.add_argument("--vocabulary", type=int, default=HeadsSettings.vocabulary)
    options.add_argument("--texts", type=int, default=HeadsSettings.texts)
    options.add_argument("--prompts", type=Path)
    options.add_argument("--suite", default=HeadsSettings.suite)
    options.add_argument("--limit", type=int, default=HeadsSettings.limit)
    options.add_argument("--max-tokens", type=int, default=HeadsSettings.max_tokens)
    options.add_argument("--batch", type=int, default=HeadsSettings.batch)
    options.add_argument("--clock", choices=list(CLOCKS), default=HeadsSettings.clock)
    options.add_argument("--device")
    options.add_argument("--dtype")
    options.add_argument("--threads", type=int)
    options.add_argument("--json", type=Path)
    given = vars(options.parse_args(arguments))
    record = given.pop("json")
    kinds = tuple(kind for kind in given.pop("kinds").split(",") if kind)
    return HeadsSettings(kinds=kinds, **given), record


def main() -> None:
    """Compare, and write the record."""
    settings, path = settings_of()
    record = compare(settings)
    if path is not None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)


if __name__ == "__main__":
    main()
