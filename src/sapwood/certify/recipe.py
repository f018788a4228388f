"""Test of a recipe: exactly on toy targets, then on a real model.

On a toy every random choice is enumerated, so the output distribution is computed and not sampled.
On the model, greedy texts and seeded ones are compared with plain decoding's token by token; if a
recipe guarantees LAW alone, its tokens are tested against the target's probs at their position,
from passes of its own, and against samples of plain decoding.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sapwood.backends.toy import ToyBackend
from sapwood.bench import provenance
from sapwood.bench.measure import decode
from sapwood.bench.ties import Divergence, explain
from sapwood.certify.distribution_tests import RANKS
from sapwood.certify.report import LEVEL, CertifyReport, Check
from sapwood.certify.statistics import StatisticalTest, against_probs, two_samples
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.types import Guarantee
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe
from sapwood.testing.divergence import departure
from sapwood.testing.exact import law_error

if TYPE_CHECKING:
    from sapwood.llm import LLM

EXACT = 1e-12  # largest error of a probability that arithmetic explains
SMALL = Fixed(nodes=4, depth=2, width=2)  # small enough to enumerate, large enough to be pruned
HORIZON = 3  # tokens of a text whose distribution is computed
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.1, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
)
SALTS = ("target", "other")


@dataclass
class RecipeUnderTest:
    """A recipe on a model, with prompts and sample sizes."""

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
        """Outputs of plain decoding and of the recipe."""
        ends = self.llm.text.eos if self.llm.text is not None else ()
        options = replace(sampling, stop_ids=ends)
        return decode(self.plain, prompt, options).tokens, decode(
            self.engine, prompt, options
        ).tokens


def examine(
    name: str,
    trial: RecipeUnderTest | None,
    recipe: Recipe,
    level: float = LEVEL,
    about: Any = None,
) -> CertifyReport:
    """The report on a recipe; without a trial, on toys alone."""
    start = time.monotonic()
    checks = [exact_check(recipe)]
    if trial is not None:
        checks += [
            same_check(trial, "greedy", Sampling(max_tokens=trial.longer), 1),
            sampled_check(trial),
        ]
    facts = {"spelling": str(recipe), "guarantee": recipe.guarantee.value, **(about or {})}
    facts |= {"command": provenance.command(), "commit": provenance.commit()}
    report = CertifyReport(f"recipe {name}", facts, checks, level).decide()
    report.seconds = time.monotonic() - start
    return report


# ---------------------------------------------------------------------------------- on toys
def exact_check(recipe: Recipe) -> Check:
    """Check of the exact output distribution on toy targets."""
    check = Check(
        "exact law",
        "on toy targets the output distribution is the target's own, every random act enumerated",
    )
    try:
        twin = replace(
            recipe,
            drafter=DraftModel(model=ToyBackend("draft"), draws=recipe.drafter.draws),
            controller=SMALL,
        )
        if recipe.guarantee is Guarantee.LOSSY:
            gaps = departure(twin, horizon=2)
            found = f"it departs by design: by a total variation of {gaps.max():.4f} on a toy"
            return check.settle(good=False, found=found, departure=gaps.tolist())
        errors = [
            law_error(
                twin, ToyBackend(salt), Sampling(**way, max_tokens=HORIZON + 1), horizon=HORIZON
            )
            for salt in SALTS
            for way in WAYS
        ]
    except SapwoodError as error:
        return check.skip(f"a part of it cannot run on a toy: {error}")
    found = (
        f"the largest error of {len(errors)} distributions over {HORIZON} tokens "
        f"is {max(errors):.1e}"
    )
    caught = (
        f"an error of {EXACT:.0e} in any probability would have been caught for certain, "
        "on a toy draft model"
    )
    return check.settle(good=max(errors) <= EXACT, found=found, power=caught, errors=errors)


# ------------------------------------------------------------------------------- on a model
def same_check(trial: RecipeUnderTest, name: str, sampling: Sampling, runs: int) -> Check:
    """Check of texts that must be plain decoding's own, token by token."""
    check = Check(name, "the text is that of plain decoding, token by token")
    parted = list[Divergence]()
    equal = 0
    tokens = 0
    for place, prompt in enumerate(trial.prompts):
        for seed in range(runs):
            options = replace(sampling, seed=sampling.seed + seed)
            plain, ours = trial.pair(prompt, options)
            found = explain(
                trial.target, f"prompt {place}, seed {seed}", prompt, plain, ours, options
            )
            equal += found is None
            tokens += len(plain)
            parted += [found] if found is not None else []
            trial.tick(f"{name} texts")
    faults = [one for one in parted if not one.tie]
    seen = f"{equal} of {equal + len(parted)} texts are equal, over {tokens} tokens"
    seen += f"; {len(parted) - len(faults)} part at a tie" if len(parted) > len(faults) else ""
    seen += (
        f"; {faults[0].prompt} parts at token {faults[0].position + 1} by {faults[0].gap}"
        if faults
        else ""
    )
    caught = (
        f"a fault at {min(1.0, 4.6 / tokens):.2%} of the tokens would have been caught with 99%"
    )
    gaps = [
        {"prompt": one.prompt, "position": one.position, "gap": one.gap, "tie": one.tie}
        for one in parted
    ]
    return check.settle(good=not faults, found=seen, power=caught, partings=gaps)


def sampled_check(trial: RecipeUnderTest) -> Check:
    """Check of sampled answers: the same text if that is guaranteed, else the same distribution."""
    options = Sampling(temperature=1.0, max_tokens=trial.length)
    if trial.recipe.guarantee is Guarantee.TEXT:
        return same_check(trial, "seeded", options, max(2, trial.samples // 8))
    check = Check(
        "sampled",
        "sampled tokens follow the target's distribution, and answers that of plain decoding",
    )
    all_probs = list[FloatArray]()
    taken = list[int]()
    for place, prompt in enumerate(trial.prompts):
        counts: dict[tuple[int, ...], list[int]] = {}
        for seed in range(trial.samples):
            # other seeds for plain decoding: the two samples must be independent
            ours = decode(trial.engine, prompt, replace(options, seed=seed)).tokens
            plain = decode(
                trial.plain, prompt, replace(options, seed=seed + 1_000_003, max_tokens=2)
            ).tokens
            for side, tokens in enumerate((ours, plain)):
                counts.setdefault(tuple(tokens[:2]), [0, 0])[side] += 1
            rows, ranks = placed(trial.target, prompt, ours, options)
            all_probs += rows
            taken += ranks
            trial.tick("sampled texts")
        # sorted, so that the order is independent of the source
        ours_first = [counts[begin] for begin in sorted(counts)]
        check.tests[f"beginnings, prompt {place}"] = two_samples(
            *(list(column) for column in zip(*ours_first, strict=True))
        )
    check.tests["tokens by rank"] = (
        against_probs(np.array(all_probs), taken) if all_probs else StatisticalTest(0.0, 0, 0, 0.0)
    )
    return check


def placed(
    target: Backend, prompt: Sequence[int], output: Sequence[int], options: Sampling
) -> tuple[list[FloatArray], list[int]]:
    """The target's probs at each position of an answer by rank, and the rank of its token."""
    session = target.open([*prompt, *output][:-1])
    read = session.prefill_output(len(output))
    session.close()
    if read is None:
        return [], []
    sampler = Sampler(options, prompt)
    all_probs = list[FloatArray]()
    taken = list[int]()
    for row, token in enumerate(output):
        probs = sampler.probs(read.logits(row), output[:row])
        best = np.argsort(-probs, kind="stable")[:RANKS]
        all_probs.append(np.append(probs[best], max(0.0, 1.0 - probs[best].sum())))
        place = np.flatnonzero(best == token)
        taken.append(int(place[0]) if len(place) else RANKS)
    return all_probs, taken
