"""Adaptivity on a real pair: a drafter trained on children's stories alone, on stories and news.

    python benchmarks/pair.py [--repeats 3] [--tokens 64] [--penalty 1.0] [--json FILE]
    python benchmarks/pair.py --pictures FOLDER         draw typical trees of both texts instead

The target is TinyLlama-1.1B-Chat, the drafter stories15M (`pair_models.py` fetches both). All
recipes run in one process and take turns on each prompt; stories and news take turns too, so that
what a recipe learns from the one meets the other. Every repetition begins with new engines. Greedy
throughout; prefill is not timed. Greedy text of a model as small as this one repeats itself, which
is easy to look up; with a repetition penalty it does not, and only a drafter that knows the text is
of use.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pair_models import DRAFTER, TARGET, default_folder, make_pair, say

from sapwood.bench import provenance, table
from sapwood.bench.benchmark import check_place, write
from sapwood.bench.measure import Runs, measure
from sapwood.bench.recipe_set import PLAIN, RecipeSet
from sapwood.bench.report import ReportRow, RunGroup, report
from sapwood.bench.suites import BenchPrompt, digest, spread
from sapwood.common.tree_svg import gallery
from sapwood.core.protocols import Backend
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.model_loader import load
from sapwood.recipes import resolve

STORIES = (
    "Once upon a time, there was a little boy named Tom who had a red kite. One windy day,",
    "Lily and her cat lived in a small house near the forest. "
    "One morning, they heard a sound at the door.",
    "The little bear was sad because he could not find his blue ball. His mom said,",
    "Anna wanted to bake a cake for her grandma. She went to the kitchen and",
    "One day, a small bird fell from its nest. A kind rabbit saw the bird and",
    "Ben and Mia were playing in the park when it began to rain. They ran to a big tree and",
)
NEWS = (
    "The central bank raised its main interest rate by a quarter of a point on Thursday, "
    "saying that",
    "Shares of the carmaker fell nine percent after the company announced that",
    "The city council voted late on Monday to approve a plan that would",
    "Scientists at the university have published a study showing that the drug",
    "The prime minister told parliament that negotiations over the trade agreement",
    "Rescue workers continued to search the area on Sunday after an earthquake of magnitude 6.1",
)
KINDS = {"stories": STORIES, "news": NEWS}
WARM_UP = "Seven friends met on the bridge to count the boats."
MODEL = f"draft-model(model='{DRAFTER}')"
RECIPES = {
    PLAIN: PLAIN,
    "auto": f"merge(drafters=[suffix, {MODEL}], enough=0.8) + best(stride=8) + match "
    "+ goodput(width=6)",
    "auto, look-up alone": "suffix + best(stride=8) + match + goodput(width=6)",
    "auto, drafter alone": f"{MODEL} + best(stride=8) + match + goodput(width=6)",
    "chain of 4": f"{MODEL} + chain + match + fixed(nodes=4, depth=4, width=1)",
    "chain of 8": f"{MODEL} + chain + match + fixed(nodes=8, depth=8, width=1)",
    "beam tree of 16": f"{MODEL} + beam(beam=4) + match + fixed(nodes=16, depth=6, width=4)",
    "beam tree of 32": f"{MODEL} + beam(beam=6) + match + fixed(nodes=32, depth=7, width=6)",
    "static tree of 60": f"{MODEL} + static(shape=[4, 2, 2, 2]) + match "
    "+ fixed(nodes=60, depth=4, width=4)",
}
DRAWN = ("auto", "beam tree of 16")  # whose trees are pictured


@dataclass(frozen=True)
class Pair:
    """Both models, loaded once."""

    llm: LLM
    drafter: Backend

    @classmethod
    def open(cls, folder: Path, threads: int | None) -> "Pair":
        """Load the models and measure the target's cost anew."""
        target, small = make_pair(folder, say)
        llm = LLM(str(target), PLAIN, threads=threads, progress=say)
        drafter, _ = load(str(small), None, device=None, dtype=None, threads=threads, progress=say)
        llm.profile.measure(llm.target, say, quick=True)
        return cls(llm, drafter)

    def engines(self, wanted: Sequence[str]) -> dict[str, Engine]:
        """A new engine for each recipe."""
        target, curve = self.llm.target, self.llm.profile.curve
        return {
            name: Engine(target, resolve(RECIPES[name]), curve, lambda _: self.drafter)
            for name in wanted
        }

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text to continue, without a chat template."""
        assert self.llm.text is not None
        return self.llm.text.encode(text)


def prompts() -> list[BenchPrompt]:
    """Stories and news in turn."""
    return list(
        spread(
            [
                BenchPrompt(f"{kind}:{at}", kind, kind, text)
                for kind in KINDS
                for at, text in enumerate(KINDS[kind], 1)
            ]
        )
    )


# -------------------------------------------------------------------------------- measuring
def run(
    pair: Pair, wanted: Sequence[str], sampling: Sampling, repeats: int
) -> tuple[list[ReportRow], dict[str, Any]]:
    """The rows of all repetitions together, and the speedups of each by recipe and kind of text."""
    asked = prompts()
    texts = [pair.tokens(str(prompt.content)) for prompt in asked]
    warm_up = pair.tokens(WARM_UP)
    done: list[Runs] = []
    for repeat in range(1, repeats + 1):
        done.append(measure(pair.engines(wanted), texts, sampling, warm_up))
        say(f"repetition {repeat} of {repeats}, stories / news: {brief(speedups(asked, done[-1]))}")
    together = {name: [one for runs in done for one in runs[name]] for name in wanted}
    recipe_set = RecipeSet(pair.engines(wanted))
    rows = report(pair.llm.target, recipe_set, asked * repeats, texts * repeats, together, sampling)
    return rows, {name: [speedups(asked, runs)[name] for runs in done] for name in wanted}


def speedups(asked: Sequence[BenchPrompt], runs: Runs) -> dict[str, dict[str, float]]:
    """Plain decoding's seconds per token over each recipe's, by kind of text."""
    places = {
        kind: [at for at, prompt in enumerate(asked) if prompt.category == kind] for kind in KINDS
    }
    return {
        name: {
            kind: round(
                RunGroup([own[at] for at in some], [runs[PLAIN][at] for at in some]).speedup, 3
            )
            for kind, some in places.items()
        }
        for name, own in runs.items()
    }


def brief(found: Mapping[str, Mapping[str, float]]) -> str:
    """Speedups in one line."""
    return ", ".join(
        f"{name} {each['stories']:.2f} / {each['news']:.2f}" for name, each in found.items()
    )


def measured(options: argparse.Namespace) -> None:
    """Measure, print the tables and write the record."""
    busy = provenance.load()
    pair = Pair.open(options.folder, options.threads)
    wanted = list(dict.fromkeys([PLAIN, *options.recipes]))
    sampling = Sampling(max_tokens=options.tokens, repetition_penalty=options.penalty)
    rows, each = run(pair, wanted, sampling, options.repeats)
    info = pair.llm.target.info
    if options.json is not None:
        record = {
            "machine": provenance.machine(info, busy),
            "target": TARGET,
            "drafter": DRAFTER,
            "dtype": info.dtype,
            "prompts": digest(prompts()),
            "tokens": options.tokens,
            "repetition_penalty": options.penalty,
            "speedups": each,
            "command": provenance.command(),
            "commit": provenance.commit(),
            "rows": [asdict(row) for row in rows],
        }
        write(options.json, record)
    table.show(rows, f"{TARGET} with {DRAFTER}, {info.dtype} on {info.device}")


# --------------------------------------------------------------------------------- pictures
def pictured(options: argparse.Namespace) -> None:
    """Draw the typical round of an adaptive and of a fixed recipe on each kind of text."""
    pair = Pair.open(options.folder, options.threads)
    sampling = Sampling(max_tokens=options.tokens, repetition_penalty=options.penalty)
    options.pictures.mkdir(parents=True, exist_ok=True)
    engines = pair.engines(DRAWN)
    seen: dict[tuple[str, str], list[Outcome]] = {
        (kind, name): [] for kind in KINDS for name in DRAWN
    }
    for prompt in prompts():
        for name, engine in engines.items():
            seen[prompt.category, name] += rounds(
                engine, pair.tokens(str(prompt.content)), sampling
            )
    assert pair.llm.text is not None
    for kind in KINDS:
        shown = [(name, typical(seen[kind, name])) for name in DRAWN]
        drawn = gallery(
            [(caption(name, one), one.tree, one.verdict) for name, one in shown],
            pair.llm.text.spell,
        )
        path = options.pictures / f"pair-{kind}.svg"
        path.write_text(drawn, encoding="utf-8")
        say(f"wrote {path}")


def rounds(engine: Engine, prompt: list[int], sampling: Sampling) -> list[Outcome]:
    """All rounds of a request."""
    found: list[Outcome] = []
    with closing(engine.rounds(prompt, sampling, KeyedRng(0))) as running:
        for outcome in running:
            found.append(outcome)
            if sum(len(one.tokens) for one in found) >= sampling.max_tokens:
                break
    return found


def typical(found: Sequence[Outcome]) -> Outcome:
    """The median round, by the size of its tree and then by its accepted tokens."""
    return sorted(found, key=lambda one: (len(one.tree), one.verdict.accepted))[len(found) // 2]


def caption(name: str, one: Outcome) -> str:
    """Caption of a picture."""
    return f"{name}: {len(one.tree) - 1} drafted, {one.verdict.accepted} accepted"


# ------------------------------------------------------------------------------------- main
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=default_folder(), help="where the models are, or are to be"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--penalty", type=float, default=1.0, help="repetition penalty; 1 is none")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--json", type=Path, help="write the record to this file")
    parser.add_argument("--pictures", type=Path, help="draw into this folder instead of measuring")
    options = parser.parse_args(arguments)
    try:
        if options.json is not None:
            check_place(options.json)
        (measured if options.pictures is None else pictured)(options)
    except SapwoodError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
