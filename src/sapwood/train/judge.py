"""Finds harmless mismatches, and fits the judge that accepts them (AutoJudge, arXiv 2504.20039).

AutoJudge inserts the drafted token, lets the target continue, and compares the final answers. Free
text has no final answer to compare, so the label here is cheaper and weaker: a mismatch is harmless
if the target, with the drafted token in place of its own, returns to the same text within a few
tokens (a run of equal tokens, a shift of a few allowed), and if it gave the drafted token a fair
probability in the first place. Tokens named strict, such as digits and ends of text, are never
harmless: a wrong number often leaves the rest of a sentence as it was. The label does not check
whether a text is true, and the judge is no better than the label.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sapwood.common.numpy_mlp import MlpBundle, as_float32, random_mlp, sigmoid
from sapwood.core.array_types import BoolArray, FloatArray
from sapwood.core.protocols import Session, TreeInput
from sapwood.core.sampling import Sampling, softmax
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.train.fit_mlp import (
    FitReport,
    FitResult,
    FitSettings,
    calibration,
    log_loss,
    minimise,
    odds,
    ranking,
    with_output_bias,
)
from sapwood.train.recording import ArrayRecord, Over, Progress, collect, join, never, silent
from sapwood.train.rounds import describe, held_out, play
from sapwood.verifiers.judge import KIND

PLAN = FitSettings(epochs=200, batch=128, rate=3e-3, decay=0.1)
TOGETHER = 8  # continuations that are generated in one pass


@dataclass(frozen=True)
class HarmlessRule:
    """Rule by which a mismatch counts as harmless."""

    run: int = 6  # equal tokens that count as the same text
    shift: int = 3  # tokens by which they may have moved, in either text
    fair: float = 0.02  # least probability the target gave to the drafted token
    strict: Collection[int] = ()  # tokens that are never harmless, the target's or drafted

    @property
    def window(self) -> int:
        """Tokens that the target generates after the drafted one."""
        return self.run + self.shift

    @property
    def digest(self) -> str:
        """A hash of the rule."""
        content = json.dumps([self.run, self.shift, self.fair, sorted(self.strict)])
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Mismatch:
    """A drafted token that is not the target's."""

    position: int  # in prompt and text
    token: int
    chance: float  # that the target gave to it


@dataclass(frozen=True)
class TestedMismatches(ArrayRecord):
    """Mismatches with their labels."""

    contents: ClassVar[str] = "mismatches"
    states: FloatArray  # [cases, width] the target's final state at the drafted token
    harmless: BoolArray  # [cases]


def mine(
    engine: Engine,  # of a lossless recipe that drafts
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,  # at temperature 0
    *,
    layer: int,  # whose input the judge reads: `final_layer`
    rule: HarmlessRule | None = None,
    most: int = 4000,  # cases after which no further prompt is begun
    path: Path | None = None,  # where the cases are kept, so that an interrupted search goes on
    over: Over = never,
    progress: Progress = silent,
) -> TestedMismatches:
    """Decode the prompts, and label every mismatch by the target's continuation after it."""
    if not sampling.greedy:
        raise SapwoodError(
            f"mismatches are looked for at temperature 0, not {sampling.temperature:g}"
        )
    engine.target.watch([layer])
    how = rule or HarmlessRule()

    def each(index: int) -> list[TestedMismatches]:
        return [
            TestedMismatches(np.array([index]), state[None], np.array([label]))
            for state, label in tested(engine, prompts[index], sampling, layer, how)
        ]

    notes = describe(engine, prompts, sampling, layer) | {"rule": how.digest}
    found = collect(
        TestedMismatches, each, len(prompts), path, notes, most=most, over=over, progress=progress
    )
    if not found:
        raise SapwoodError("no mismatch was found; give more prompts, or a recipe that drafts")
    return join(found)


def tested(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, layer: int, rule: HarmlessRule
) -> Iterator[tuple[FloatArray, bool]]:
    """The target's state at every mismatch of one text, and True if it is harmless."""
    text, mismatches = decode(engine, prompt, sampling)
    full = [one for one in mismatches if one.position + rule.window + 1 <= len(text)]
    for case, state, outputs in continued(engine, text, full, layer, rule.window):
        yield state, harmless(case, outputs, text, rule)


def decode(
    engine: Engine, prompt: Sequence[int], sampling: Sampling
) -> tuple[list[int], list[Mismatch]]:
    """Prompt and text, and the drafted tokens that were not the target's."""
    text = list(prompt)
    mismatches = []
    for outcome, _ in play(engine, prompt, sampling, None):
        text += outcome.tokens
        drafted = refused(outcome)
        if drafted is not None:
            full_probs = softmax(outcome.scores.logits(outcome.verdict.path[-1]))
            mismatches.append(Mismatch(len(text) - 1, drafted, float(full_probs[drafted])))
    return text, mismatches


def refused(outcome: Outcome) -> int | None:
    """The drafter's best token where the target chose another; None if it drafted none there."""
    tree = outcome.tree
    children = tree.children(outcome.verdict.path[-1])
    return int(tree.tokens[max(children, key=lambda node: tree.probs[node])]) if children else None


def continued(
    engine: Engine, text: Sequence[int], cases: Sequence[Mismatch], layer: int, window: int
) -> Iterator[tuple[Mismatch, FloatArray, list[int]]]:
    """Each case with the target's state at its token and the target's continuation."""
    base = engine.target.open(text[: cases[-1].position]) if cases else None
    # from the end: the session only ever gets shorter
    ordered = sorted(cases, key=lambda case: -case.position)
    try:
        for first in range(0, len(ordered), TOGETHER):
            assert base is not None
            yield from write(engine, base, ordered[first : first + TOGETHER], layer, window)
    finally:
        if base is not None:
            base.close()


def write(
    engine: Engine, base: Session, cases: Sequence[Mismatch], layer: int, window: int
) -> Iterator[tuple[Mismatch, FloatArray, list[int]]]:
    """A few cases in one batch, token by token."""
    sessions: list[Session] = []
    try:
        for case in cases:
            base.rewind(case.position)
            sessions.append(base.fork())
        outputs: list[list[int]] = [[case.token] for case in cases]
        states: list[FloatArray] = []
        for _ in range(window):
            work = [
                TreeInput(session, Tree(line[-1]))
                for session, line in zip(sessions, outputs, strict=True)
            ]
            scores = engine.target.score(work)
            states = states or [as_float32(score.hidden([0], [layer]))[0] for score in scores]
            for session, line, score in zip(sessions, outputs, scores, strict=True):
                session.commit([0])
                line.append(int(score.argmax()[0]))
    finally:
        for session in sessions:
            session.close()
    yield from zip(cases, states, [line[1:] for line in outputs], strict=True)


def harmless(
    case: Mismatch, outputs: Sequence[int], text: Sequence[int], rule: HarmlessRule
) -> bool:
    """True if the target returns to its own text after the drafted token."""
    own_token = text[case.position]
    if case.chance < rule.fair or case.token in rule.strict or own_token in rule.strict:
        return False
    own = list(text[case.position : case.position + rule.window + 1])
    ends = [own[start : start + rule.run] for start in range(rule.shift + 2)]
    return any(list(outputs[start : start + rule.run]) in ends for start in range(rule.shift + 1))


# ---------------------------------------------------------------------------------- fitting
def fit(
    cases: TestedMismatches,
    *,
    layer: int,
    share: float = 0.2,
    plan: FitSettings = PLAN,
    seed: int = 0,
) -> FitResult:
    """Fit the linear judge, a logistic regression over standardised states."""
    held = held_out(cases.prompt, share, seed)
    target = torch.from_numpy(cases.harmless.astype(np.float32))

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], target[index])

    states = cases.states.astype(np.float32)
    base = float(cases.harmless[~held].mean())
    net = minimise(
        with_output_bias(random_mlp([states.shape[1], 1], seed), odds(base)),
        states,
        loss,
        ~held,
        plan,
        seed,
    )
    predicted = sigmoid(net(states[held])[:, 0].astype(np.float64))
    seen = cases.harmless[held]
    report = FitReport(
        kind=KIND,
        rows=int((~held).sum()),
        held=int(held.sum()),
        before=log_loss(np.full(len(seen), base), seen),
        after=log_loss(predicted, seen),
        scores={
            "ranking": ranking(predicted, seen),
            "calibration": calibration(predicted, seen),
            **accepted_shares(predicted, seen),
        },
    )
    return FitResult(MlpBundle(KIND, {"judge": net}, {"layer": layer, "base": base}), report)


def accepted_shares(predicted: FloatArray, seen: BoolArray) -> dict[str, float]:
    """Share of mismatches accepted at some thresholds, and share of harmless ones among them."""
    found: dict[str, float] = {}
    for threshold in (0.5, 0.7, 0.9):
        chosen = predicted > threshold
        found[f"excused at {threshold}"] = float(chosen.mean())
        found[f"right at {threshold}"] = float(seen[chosen].mean()) if chosen.any() else 1.0
    return found
