"""A job from a model's name to small predictors in their folders: prompts, rounds, fits."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import load
from sapwood.common import drafter_store
from sapwood.common.cache_dir import cache_folder
from sapwood.common.drafter_store import CONFIG
from sapwood.common.numpy_mlp import kind_in
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.spec_parser import read
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train import job, prompts
from sapwood.train.checkpoint import try_place
from sapwood.train.corpus import SETTINGS, Corpus
from sapwood.train.fit_mlp import FitReport, FitResult
from sapwood.train.job import JobObserver, TrainJob
from sapwood.train.predictor_table import LEAST, PREDICTOR_KINDS, FitContext, PredictorOptions
from sapwood.train.recording import ArrayRecord
from sapwood.train.registry import filled

LONGEST = 1024  # tokens of a prompt; prefill of a longer one takes more time than its rounds


def run(asked: TrainJob, watch: JobObserver) -> list[dict[str, Any]]:
    """Record rounds, fit the predictors and write them; return a record of each."""
    began = time.monotonic()
    calls = [read(kind) for kind in asked.kinds]
    names = [call.name for call in calls]
    choices = [filled(PredictorOptions, call) for call in calls]
    recipes = [
        PREDICTOR_KINDS[name].recipe(options) for name, options in zip(names, choices, strict=True)
    ]
    check(asked, names)
    backend, folder = load(
        asked.model,
        device=asked.device,
        dtype=asked.dtype,
        threads=asked.threads,
        progress=watch.say,
    )
    text = Tokenizer.load(folder)
    homes = job.homes_of(asked, names, backend.info.weights)
    kept = recordings(asked)
    check_homes(homes)
    questions = prompts_of(asked, backend, text, max(one.prompts for one in choices), watch)
    records = []
    contexts = []
    for index, (name, options, home) in enumerate(zip(names, choices, homes, strict=True)):
        watch.say(f"recording rounds for {name}")
        start = time.monotonic()
        share = max(0.0, asked.minutes * 60 - (start - began)) / (len(names) - index)
        engine = Engine(backend, recipes[index], load=lambda other: load_like(asked, other))
        chosen = choose(questions, options, backend, asked.seed)
        sampling = Sampling(max_tokens=options.tokens, stop_ids=text.eos)
        contexts.append(
            FitContext(engine, text, chosen, sampling, kept, asked.seed, start + share, watch)
        )
        fit, found = PREDICTOR_KINDS[name].fit(contexts[-1])
        facts = about(engine, found, options, asked.kinds[index], asked.seed)
        records.append(keep(home, fit, facts, time.monotonic() - start))
        if backend.info.weights is not None:
            backend.info.weights.save(home)
    for context in contexts:  # last, since several may share a recording
        context.clear()
    return records


def check(asked: TrainJob, names: Sequence[str]) -> None:
    """Raise for options that predictors do not have."""
    if asked.steps is not None:
        raise SapwoodError(
            f"--steps {asked.steps} is for drafters; {names[0]} is fitted to its end, leave it out"
        )
    job.check_apart(asked, names)


def check_homes(homes: Sequence[Path]) -> None:
    """Raise if a folder holds something else, before anything slow."""
    for home in homes:
        nearest = next(place for place in (home, *home.absolute().parents) if place.exists())
        if not nearest.is_dir():
            raise SapwoodError(
                f"{nearest} is a file and holds no predictor; give a folder as --out"
            )
        if (home / CONFIG).exists() and kind_in(home) not in PREDICTOR_KINDS:
            raise SapwoodError(
                f"{home} already holds a {CONFIG} of something else; give another folder as --out"
            )
        try_place(home)


def recordings(asked: TrainJob) -> Path:
    """Folder of this model's recorded rounds until they are fitted on."""
    return cache_folder() / "rounds" / drafter_store.safe(drafter_store.named(asked.model))


def load_like(asked: TrainJob, name: str) -> TorchBackend:
    """Another model, on the same device."""
    return load(name, device=asked.device, dtype=asked.dtype, threads=asked.threads)[0]


def prompts_of(
    asked: TrainJob, backend: TorchBackend, text: Tokenizer, wanted: int, watch: JobObserver
) -> list[tuple[int, ...]]:
    """Prompts of the user's file, or of the corpus."""
    if asked.prompts is not None:
        frame = prompts.ChatFrame.of(text, asked.model)
        found = [
            one.tokens
            for one in prompts.read(asked.prompts, frame, min(LONGEST, backend.info.context)).items
        ]
    else:
        texts = texts_of(asked, backend, text, wanted, watch)
        found = [
            tuple(texts.sequence(index)[:end].tolist())
            for index, end in enumerate(texts.answers.tolist())
        ]
    return [tokens for tokens in found if len(tokens) <= LONGEST]


def texts_of(
    asked: TrainJob, backend: TorchBackend, text: Tokenizer, wanted: int, watch: JobObserver
) -> Corpus:
    """The corpus: as it is if large enough or if recording has begun, else made or continued."""
    folder = job.data_of(asked, backend.info.weights)
    begun = any(recordings(asked).glob("*.safetensors"))
    if (folder / SETTINGS).is_file() and len(found := Corpus.open(folder)) >= (
        LEAST if begun else wanted
    ):
        return found
    return job.read(asked, backend, text, watch)


def choose(
    questions: Sequence[tuple[int, ...]],
    options: PredictorOptions,
    backend: TorchBackend,
    seed: int,
) -> list[tuple[int, ...]]:
    """A random choice of as many prompts as wanted, each with room for its answer."""
    room = backend.info.context - options.tokens
    fitting = [tokens for tokens in questions if len(tokens) <= room]
    if len(fitting) < LEAST:
        raise SapwoodError(
            f"a fit needs at least {LEAST} prompts of at most {min(LONGEST, room)} tokens, and "
            f"there {'is' if len(fitting) == 1 else 'are'} {len(fitting)}; "
            "give more with --prompts"
        )
    order = np.random.default_rng(seed).permutation(len(fitting))[: options.prompts]
    return [fitting[index] for index in order]


# ------------------------------------------------------------------------------------ files
def about(
    engine: Engine, found: ArrayRecord, options: PredictorOptions, spelling: str, seed: int
) -> dict[str, Any]:
    """Facts about a fit for its files."""
    info = engine.target.info
    facts: dict[str, Any] = {
        "model": info.model,
        "dtype": info.dtype,
        "device": info.device,
        "threads": info.threads,
    }
    facts |= {
        "recipe": str(engine.recipe),
        "heads": engine.recipe.drafter.head_digests,
        "prompts": len(np.unique(found.prompt)),
        "tokens": options.tokens,
    }
    return facts | {"rows": len(found), "spelling": spelling, "seed": seed}


def keep(home: Path, fit: FitResult, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Write one predictor with its report; return its record."""
    fit.save(home, about=facts)
    report = {
        "kind": fit.report.kind,
        "facts": facts,
        "seconds": round(seconds, 1),
        "report": fit.report.to_json(),
    }
    (home / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    (home / "training.md").write_text(page(fit.report, facts, seconds))
    return {
        "kind": fit.report.kind,
        "out": str(home),
        "seconds": seconds,
        "loss": fit.report.after,
        **facts,
    }


def page(report: FitReport, facts: dict[str, Any], seconds: float) -> str:
    """Summary of the fit in Markdown."""
    lines = [f"# {report.kind} for {facts['model']}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += [
        f"| minutes | {seconds / 60:.1f} |",
        f"| fitted on, tested on | {report.rows}, {report.held} |",
        "",
        "On prompts that were held out:",
        "",
        "| | |",
        "|---|---|",
        f"| loss of the best constant prediction | {report.before:.4f} |",
        f"| loss | {report.after:.4f} |",
    ]
    lines += [f"| {name} | {value:.4g} |" for name, value in report.scores.items()]
    return "\n".join(lines) + "\n"
