"""From a model's name to small predictors in their folders: prompts, recorded rounds, fits, reports."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sapwood import trained
from sapwood.backends.torch.load import load
from sapwood.backends.torch.model import TorchBackend
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.nets import kind_in
from sapwood.paths import cache_folder
from sapwood.sampling import Sampling
from sapwood.spelling import read
from sapwood.text import Text
from sapwood.train import job, prompts
from sapwood.train.corpus import SETTINGS, Corpus
from sapwood.train.job import Job, Watch
from sapwood.train.kinds import filled
from sapwood.train.recording import Record
from sapwood.train.small import Fit, Report
from sapwood.train.studies import LEAST, STUDIES, Desk, Options
from sapwood.trained import CONFIG

LONGEST = 1024  # tokens of a prompt; reading a longer one takes more time than its rounds


def run(asked: Job, watch: Watch) -> list[dict[str, Any]]:
    """Record rounds, fit the predictors and write them; return a record of each."""
    began = time.monotonic()
    calls = [read(kind) for kind in asked.kinds]
    names, choices = [call.name for call in calls], [filled(Options, call) for call in calls]
    recipes = [STUDIES[name].recipe(options) for name, options in zip(names, choices, strict=True)]
    check(asked, names)
    backend, folder = load(
        asked.model, device=asked.device, dtype=asked.dtype, threads=asked.threads, progress=watch.say
    )
    text, homes, kept = Text.load(folder), job.homes_of(asked, names), recordings(asked)
    check_homes(homes)
    questions = prompts_of(asked, backend, text, max(one.prompts for one in choices), watch)
    records, desks = [], []
    for index, (name, options, home) in enumerate(zip(names, choices, homes, strict=True)):
        watch.say(f"recording rounds for {name}")
        start = time.monotonic()
        share = max(0.0, asked.minutes * 60 - (start - began)) / (len(names) - index)
        engine = Engine(backend, recipes[index], load=lambda other: load_like(asked, other))
        chosen = choose(questions, options, backend, asked.seed)
        sampling = Sampling(max_tokens=options.tokens, stop_ids=text.eos)
        desks.append(Desk(engine, text, chosen, sampling, kept, asked.seed, start + share, watch))
        fit, found = STUDIES[name].fit(desks[-1])
        facts = about(engine, found, options, asked.kinds[index], asked.seed)
        records.append(keep(home, fit, facts, time.monotonic() - start))
    for desk in desks:  # last, since several may share a recording
        desk.clear()
    return records


def check(asked: Job, names: Sequence[str]) -> None:
    """Refuse what a predictor cannot follow."""
    if asked.steps is not None:
        raise SapwoodError(f"--steps {asked.steps} is for drafters; {names[0]} is fitted to its end, leave it out")
    job.check_apart(asked, names)


def check_homes(homes: Sequence[Path]) -> None:
    """Refuse places that hold something else, before anything slow."""
    for home in homes:
        nearest = next(place for place in (home, *home.absolute().parents) if place.exists())
        if not nearest.is_dir():
            raise SapwoodError(f"{nearest} is a file and holds no predictor; give a folder as --out")
        if (home / CONFIG).exists() and kind_in(home) not in STUDIES:
            raise SapwoodError(f"{home} already holds a {CONFIG} of something else; give another folder as --out")


def recordings(asked: Job) -> Path:
    """Where rounds of this model are kept until they are fitted on."""
    return cache_folder() / "rounds" / trained.safe(trained.named(asked.model))


def load_like(asked: Job, name: str) -> TorchBackend:
    """Another model, on the same device."""
    return load(name, device=asked.device, dtype=asked.dtype, threads=asked.threads)[0]


def prompts_of(asked: Job, backend: TorchBackend, text: Text, wanted: int, watch: Watch) -> list[tuple[int, ...]]:
    """Prompts of the user's file, or of the texts that the model wrote."""
    if asked.prompts is not None:
        frame = prompts.Frame.of(text, asked.model)
        found = [one.tokens for one in prompts.read(asked.prompts, frame, min(LONGEST, backend.info.context)).items]
    else:
        texts = texts_of(asked, backend, text, wanted, watch)
        found = [tuple(texts.sequence(index)[:end].tolist()) for index, end in enumerate(texts.answers.tolist())]
    return [tokens for tokens in found if len(tokens) <= LONGEST]


def texts_of(asked: Job, backend: TorchBackend, text: Text, wanted: int, watch: Watch) -> Corpus:
    """The corpus as it is where it is large enough or a recording of it has begun, else made or continued."""
    folder, begun = job.data_of(asked), any(recordings(asked).glob("*.safetensors"))
    if (folder / SETTINGS).is_file() and len(found := Corpus.open(folder)) >= (LEAST if begun else wanted):
        return found
    return job.read(asked, backend, text, watch)


def choose(
    questions: Sequence[tuple[int, ...]], options: Options, backend: TorchBackend, seed: int
) -> list[tuple[int, ...]]:
    """As many prompts as were asked for, in a mixed order, each with room for its answer."""
    room = backend.info.context - options.tokens
    fitting = [tokens for tokens in questions if len(tokens) <= room]
    if len(fitting) < LEAST:
        raise SapwoodError(
            f"a fit needs at least {LEAST} prompts of at most {min(LONGEST, room)} tokens, "
            f"and there {'is' if len(fitting) == 1 else 'are'} {len(fitting)}; give more with --prompts"
        )
    order = np.random.default_rng(seed).permutation(len(fitting))[: options.prompts]
    return [fitting[index] for index in order]


# ------------------------------------------------------------------------------------------- files
def about(engine: Engine, found: Record, options: Options, spelling: str, seed: int) -> dict[str, Any]:
    """What the files say of a fit."""
    info = engine.target.info
    facts: dict[str, Any] = {"model": info.model, "dtype": info.dtype, "device": info.device, "threads": info.threads}
    facts |= {"recipe": str(engine.recipe), "prompts": len(np.unique(found.prompt)), "tokens": options.tokens}
    return facts | {"rows": len(found), "spelling": spelling, "seed": seed}


def keep(home: Path, fit: Fit, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Write one predictor with its report; return its record."""
    fit.save(home, about=facts)
    report = {"kind": fit.report.kind, "facts": facts, "seconds": round(seconds, 1), "report": fit.report.to_json()}
    (home / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    (home / "training.md").write_text(page(fit.report, facts, seconds))
    return {"kind": fit.report.kind, "out": str(home), "seconds": seconds, "loss": fit.report.after, **facts}


def page(report: Report, facts: dict[str, Any], seconds: float) -> str:
    """The fit on one page."""
    lines = [f"# {report.kind} for {facts['model']}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += [
        f"| minutes | {seconds / 60:.1f} |",
        f"| learned from, tested on | {report.rows}, {report.held} |",
        "",
        "On prompts that were held out:",
        "",
        "| | |",
        "|---|---|",
        f"| loss of the best constant answer | {report.before:.4f} |",
        f"| loss | {report.after:.4f} |",
    ]
    lines += [f"| {name} | {value:.4g} |" for name, value in report.scores.items()]
    return "\n".join(lines) + "\n"
