"""The examination of a recipe: exactly on toy targets, then on a real model.

On a toy every random act is enumerated, so the law of the output is computed and not sampled. On the model, greedy
texts and seeded ones are compared with plain decoding's token by token; where a recipe promises the law alone, its
tokens are tested against the target's law at their place, read off passes of its own, and against samples of plain
decoding.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.backends.toy import Toy
from sapwood.bench import provenance
from sapwood.bench.measure import decode
from sapwood.bench.ties import Divergence, explain
from sapwood.certify.laws import RANKS
from sapwood.certify.report import LEVEL, Check, Report
from sapwood.certify.statistics import Test, against_laws, two_samples
from sapwood.controllers.fixed import Fixed
from sapwood.drafters.model import Model
from sapwood.errors import SapwoodError
from sapwood.protocols import Backend
from sapwood.recipe import Recipe
from sapwood.records import Guarantee
from sapwood.sampling import Sampler, Sampling
from sapwood.testing.departure import departure
from sapwood.testing.exact import law_error

if TYPE_CHECKING:
    from sapwood.api import LLM

EXACT = 1e-12  # largest error of a law that arithmetic explains
SMALL = Fixed(nodes=4, depth=2, width=2)  # small enough to enumerate, large enough to branch and to be cut
HORIZON = 3  # tokens of a text whose law is computed
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.1, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
)
SALTS = ("target", "other")


@dataclass
class Trial:
    """A recipe on a model."""

    llm: "LLM"
    recipe: Recipe
    prompts: Sequence[Sequence[int]]
    samples: int = 48  # sampled answers to each prompt
    length: int = 8  # tokens of each
    longer: int = 48  # tokens of a greedy answer
    tick: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.engine, self.plain = self.llm.bind(self.recipe), self.llm.with_recipe("plain").engine
        self.target: Backend = self.llm.target

    def pair(self, prompt: Sequence[int], sampling: Sampling) -> tuple[list[int], list[int]]:
        """What plain decoding and the recipe say."""
        ends = self.llm.text.eos if self.llm.text is not None else ()
        wish = replace(sampling, stop_ids=ends)
        return decode(self.plain, prompt, wish).tokens, decode(self.engine, prompt, wish).tokens


def examine(name: str, trial: Trial | None, recipe: Recipe, level: float = LEVEL, about: Any = None) -> Report:
    """The report on a recipe; without a trial, on toys alone."""
    start = time.monotonic()
    checks = [exact_check(recipe)]
    if trial is not None:
        checks += [same_check(trial, "greedy", Sampling(max_tokens=trial.longer), 1), sampled_check(trial)]
    facts = {"spelling": str(recipe), "guarantee": recipe.guarantee.value, **(about or {})}
    facts |= {"command": provenance.command(), "commit": provenance.commit()}
    report = Report(f"recipe {name}", facts, checks, level).judge()
    report.seconds = time.monotonic() - start
    return report


# ---------------------------------------------------------------------------------------- on toys
def exact_check(recipe: Recipe) -> Check:
    """The law of the output, computed."""
    check = Check("exact law", "on toy targets the law of the output is the target's own, every random act enumerated")
    try:
        twin = replace(recipe, drafter=Model(model=Toy("draft"), draws=recipe.drafter.draws), controller=SMALL)
        if recipe.guarantee is Guarantee.LOSSY:
            gaps = departure(twin, horizon=2)
            found = f"it departs by design: by a total variation of {gaps.max():.4f} on a toy"
            return check.settle(good=False, found=found, departure=gaps.tolist())
        errors = [
            law_error(twin, Toy(salt), Sampling(**way, max_tokens=HORIZON + 1), horizon=HORIZON)
            for salt in SALTS
            for way in WAYS
        ]
    except SapwoodError as error:
        return check.skip(f"a part of it cannot run on a toy: {error}")
    found = f"the largest error of {len(errors)} laws over {HORIZON} tokens is {max(errors):.1e}"
    caught = f"an error of {EXACT:.0e} in any probability would have been caught for certain, on a toy draft model"
    return check.settle(good=max(errors) <= EXACT, found=found, power=caught, errors=errors)


# ---------------------------------------------------------------------------------------- on a model
def same_check(trial: Trial, name: str, sampling: Sampling, runs: int) -> Check:
    """Texts that must be plain decoding's own, token by token."""
    check = Check(name, "the text is that of plain decoding, token by token")
    parted, equal, tokens = list[Divergence](), 0, 0
    for place, prompt in enumerate(trial.prompts):
        for seed in range(runs):
            wish = replace(sampling, seed=sampling.seed + seed)
            plain, ours = trial.pair(prompt, wish)
            found = explain(trial.target, f"prompt {place}, seed {seed}", prompt, plain, ours, wish)
            equal += found is None
            tokens += len(plain)
            parted += [found] if found is not None else []
            trial.tick(f"{name} texts")
    faults = [one for one in parted if not one.tie]
    seen = f"{equal} of {equal + len(parted)} texts are equal, over {tokens} tokens"
    seen += f"; {len(parted) - len(faults)} part at a tie" if len(parted) > len(faults) else ""
    seen += f"; {faults[0].prompt} parts at token {faults[0].position + 1} by {faults[0].gap}" if faults else ""
    caught = f"a fault at {min(1.0, 4.6 / tokens):.2%} of the tokens would have been caught with 99%"
    gaps = [{"prompt": one.prompt, "position": one.position, "gap": one.gap, "tie": one.tie} for one in parted]
    return check.settle(good=not faults, found=seen, power=caught, partings=gaps)


def sampled_check(trial: Trial) -> Check:
    """Sampled answers: the same text where that is promised, else the same law."""
    wish = Sampling(temperature=1.0, max_tokens=trial.length)
    if trial.recipe.guarantee is Guarantee.TEXT:
        return same_check(trial, "seeded", wish, max(2, trial.samples // 8))
    check = Check("sampled", "sampled tokens follow the target's law, and answers are spread like plain decoding's")
    laws, taken = list[FloatArray](), list[int]()
    for place, prompt in enumerate(trial.prompts):
        counts: dict[tuple[int, ...], list[int]] = {}
        for seed in range(trial.samples):
            # other seeds for plain decoding: the same would make the two samples depend on each other
            ours = decode(trial.engine, prompt, replace(wish, seed=seed)).tokens
            plain = decode(trial.plain, prompt, replace(wish, seed=seed + 1_000_003, max_tokens=2)).tokens
            for side, said in enumerate((ours, plain)):
                counts.setdefault(tuple(said[:2]), [0, 0])[side] += 1
            rows, ranks = placed(trial.target, prompt, ours, wish)
            laws += rows
            taken += ranks
            trial.tick("sampled texts")
        ours_first = [counts[said] for said in sorted(counts)]  # an order that does not tell who said it
        check.tests[f"beginnings, prompt {place}"] = two_samples(
            *(list(column) for column in zip(*ours_first, strict=True))
        )
    check.tests["tokens by rank"] = against_laws(np.array(laws), taken) if laws else Test(0.0, 0, 0, 0.0)
    return check


def placed(
    target: Backend, prompt: Sequence[int], said: Sequence[int], wish: Sampling
) -> tuple[list[FloatArray], list[int]]:
    """The target's law at each place of an answer, by rank, and the rank of the token that came."""
    session = target.open([*prompt, *said][:-1])
    read = session.reading(len(said))
    session.close()
    if read is None:
        return [], []
    sampler, laws, taken = Sampler(wish, prompt), list[FloatArray](), list[int]()
    for row, token in enumerate(said):
        law = sampler.law(read.logits(row), said[:row])
        best = np.argsort(-law, kind="stable")[:RANKS]
        laws.append(np.append(law[best], max(0.0, 1.0 - law[best].sum())))
        place = np.flatnonzero(best == token)
        taken.append(int(place[0]) if len(place) else RANKS)
    return laws, taken
