"""Finds out which mismatches are harmless, and fits the judge that excuses them (arXiv 2504.20039).

AutoJudge swaps the drafted token in, lets the target write on, and asks whether the final answer
changed. Free text has no final answer to compare, so the label here is cheaper and says less: a mismatch
is harmless if the target, reading the drafted token in place of its own, finds its way back into the same
words within a few tokens (a run of equal tokens, a shift of a few allowed), and if it gave the drafted token
a fair probability in the first place. Tokens named strict, such as digits and ends of text, are never
harmless: a wrong number often leaves the rest of a sentence as it was. The label knows nothing of truth,
and the judge is as good as the label.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import BoolArray, FloatArray
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.nets import Bundle, begin, numbers, sigmoid
from sapwood.protocols import Session, Work
from sapwood.records import Outcome
from sapwood.sampling import Sampling, softmax
from sapwood.train.recording import Over, Progress, Record, collect, join, never, silent
from sapwood.train.rounds import describe, held_out, play
from sapwood.train.small import Fit, Plan, Report, calibration, leaning, log_loss, minimise, odds, ranking
from sapwood.tree import Tree
from sapwood.verifiers.judge import KIND

PLAN = Plan(epochs=200, batch=128, rate=3e-3, decay=0.1)
TOGETHER = 8  # continuations that are written in one pass


@dataclass(frozen=True)
class Rule:
    """When a mismatch counts as harmless."""

    run: int = 6  # equal tokens that count as the same words
    shift: int = 3  # tokens by which they may have moved, in either text
    fair: float = 0.02  # least probability the target gave to the drafted token
    strict: Collection[int] = ()  # tokens that are never harmless, said or drafted

    @property
    def window(self) -> int:
        """Tokens that the target writes after the drafted one."""
        return self.run + self.shift

    @property
    def digest(self) -> str:
        """The same for the same rule."""
        said = json.dumps([self.run, self.shift, self.fair, sorted(self.strict)])
        return hashlib.sha256(said.encode()).hexdigest()


@dataclass(frozen=True)
class Mismatch:
    """A drafted token that the target did not say."""

    position: int  # in prompt and text
    token: int
    chance: float  # that the target gave to it


@dataclass(frozen=True)
class Cases(Record):
    """Mismatches that were put to the test."""

    states: FloatArray  # [cases, width] the target's final state at the drafted token
    harmless: BoolArray  # [cases]


def mine(
    engine: Engine,  # of a lossless recipe that drafts
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,  # at temperature 0
    *,
    layer: int,  # whose input the judge reads: `final_layer`
    rule: Rule | None = None,
    most: int = 4000,  # cases after which no further prompt is begun
    path: Path | None = None,  # where the cases are kept, so that an interrupted search goes on
    over: Over = never,
    progress: Progress = silent,
) -> Cases:
    """Decode the prompts, and see at every mismatch where the drafted token would have led."""
    if not sampling.greedy:
        raise SapwoodError(f"mismatches are looked for at temperature 0, not {sampling.temperature:g}")
    engine.target.watch([layer])
    how = rule or Rule()

    def each(index: int) -> list[Cases]:
        return [
            Cases(np.array([index]), state[None], np.array([label]))
            for state, label in tested(engine, prompts[index], sampling, layer, how)
        ]

    notes = describe(engine, prompts, sampling, layer) | {"rule": how.digest}
    found = collect(Cases, each, len(prompts), path, notes, most=most, over=over, progress=progress)
    if not found:
        raise SapwoodError("no mismatch was found; give more prompts, or a recipe that drafts")
    return join(found)


def tested(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, layer: int, rule: Rule
) -> Iterator[tuple[FloatArray, bool]]:
    """The target's state at every mismatch of one text, and whether it was harmless."""
    text, mismatches = decode(engine, prompt, sampling)
    full = [one for one in mismatches if one.position + rule.window + 1 <= len(text)]
    for case, state, words in continued(engine, text, full, layer, rule.window):
        yield state, harmless(case, words, text, rule)


def decode(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> tuple[list[int], list[Mismatch]]:
    """Prompt and text, and the drafted tokens that were not the target's."""
    text, mismatches = list(prompt), []
    for outcome, _ in play(engine, prompt, sampling, None):
        text += outcome.tokens
        drafted = refused(outcome)
        if drafted is not None:
            law = softmax(outcome.scores.logits(outcome.verdict.path[-1]))
            mismatches.append(Mismatch(len(text) - 1, drafted, float(law[drafted])))
    return text, mismatches


def refused(outcome: Outcome) -> int | None:
    """The drafter's best token where the target said another, if it drafted any there."""
    tree = outcome.tree
    children = tree.children(outcome.verdict.path[-1])
    return int(tree.tokens[max(children, key=lambda node: tree.probs[node])]) if children else None


def continued(
    engine: Engine, text: Sequence[int], cases: Sequence[Mismatch], layer: int, window: int
) -> Iterator[tuple[Mismatch, FloatArray, list[int]]]:
    """Each case with the target's state at its token and what the target writes after it."""
    base = engine.target.open(text[: cases[-1].position]) if cases else None
    ordered = sorted(cases, key=lambda case: -case.position)  # from the end: the session is cut shorter each time
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
    """A few cases at once, token by token."""
    sessions: list[Session] = []
    try:
        for case in cases:
            base.rewind(case.position)
            sessions.append(base.fork())
        words: list[list[int]] = [[case.token] for case in cases]
        states: list[FloatArray] = []
        for _ in range(window):
            work = [Work(session, Tree(line[-1])) for session, line in zip(sessions, words, strict=True)]
            scores = engine.target.score(work)
            states = states or [numbers(score.hidden([0], [layer]))[0] for score in scores]
            for session, line, score in zip(sessions, words, scores, strict=True):
                session.commit([0])
                line.append(int(score.argmax()[0]))
    finally:
        for session in sessions:
            session.close()
    yield from zip(cases, states, [line[1:] for line in words], strict=True)


def harmless(case: Mismatch, words: Sequence[int], text: Sequence[int], rule: Rule) -> bool:
    """Whether the target finds back into its own text after the drafted token."""
    said = text[case.position]
    if case.chance < rule.fair or case.token in rule.strict or said in rule.strict:
        return False
    own = list(text[case.position : case.position + rule.window + 1])  # begins with what the target said
    ends = [own[start : start + rule.run] for start in range(rule.shift + 2)]
    return any(list(words[start : start + rule.run]) in ends for start in range(rule.shift + 1))


# ------------------------------------------------------------------------------------------ fitting
def fit(cases: Cases, *, layer: int, share: float = 0.2, plan: Plan = PLAN, seed: int = 0) -> Fit:
    """The linear judge of harmless mismatches, a logistic regression over standardised states."""
    held = held_out(cases.prompt, share, seed)
    target = torch.from_numpy(cases.harmless.astype(np.float32))

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], target[index])

    states, base = cases.states.astype(np.float32), float(cases.harmless[~held].mean())
    net = minimise(leaning(begin([states.shape[1], 1], seed), odds(base)), states, loss, ~held, plan, seed)
    said, seen = sigmoid(net(states[held])[:, 0].astype(np.float64)), cases.harmless[held]
    report = Report(
        kind=KIND,
        rows=int((~held).sum()),
        held=int(held.sum()),
        before=log_loss(np.full(len(seen), base), seen),
        after=log_loss(said, seen),
        scores={"ranking": ranking(said, seen), "calibration": calibration(said, seen), **excuses(said, seen)},
    )
    return Fit(Bundle(KIND, {"judge": net}, {"layer": layer, "base": base}), report)


def excuses(said: FloatArray, seen: BoolArray) -> dict[str, float]:
    """At some thresholds: the share of mismatches that is excused, and how many of those were harmless."""
    found: dict[str, float] = {}
    for threshold in (0.5, 0.7, 0.9):
        chosen = said > threshold
        found[f"excused at {threshold}"] = float(chosen.mean())
        found[f"right at {threshold}"] = float(seen[chosen].mean()) if chosen.any() else 1.0
    return found
