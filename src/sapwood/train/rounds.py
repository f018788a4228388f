"""Rounds of real decoding as arrays, on which the small predictors are fitted.

Rows of rounds, of drafted nodes and of kept states lie one after the other; each round has the
number of its nodes and states.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sapwood.common.numpy_mlp import as_float32
from sapwood.core.array_types import BoolArray, FloatArray, IntArray
from sapwood.core.protocols import Backend, TargetOutput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.train.recording import ArrayRecord, Over, Progress, collect, join, never, silent

UNKNOWN = -1  # label of a node for which the round does not show the target's choice


@dataclass(frozen=True)
class RecordedRounds(ArrayRecord):
    """Recorded rounds; nodes leave the root out, and parents count from it within their round."""

    contents: ClassVar[str] = "rounds"
    prompt: IntArray  # [rounds] number of the prompt
    context: IntArray  # [rounds] committed tokens before the round
    accepted: IntArray  # [rounds] drafted tokens that stayed
    root: IntArray  # [rounds] token the round began with
    draft: FloatArray  # [rounds] seconds; the first of a prompt includes prefill
    verify: FloatArray  # [rounds] seconds
    nodes: IntArray  # [rounds] drafted nodes
    kept: IntArray  # [rounds] drafted nodes with a state
    # [rounds, width] the target's final state at the token before the root; width 0: not kept
    before: FloatArray
    tokens: IntArray  # [nodes]
    parents: IntArray  # [nodes] 0 is the root of its round
    probs: FloatArray  # [nodes] of the drafter
    labels: IntArray  # [nodes] 1: the target's text passes here, 0: it does not, or UNKNOWN
    tried: BoolArray  # [nodes] the parent was accepted
    owners: IntArray  # [states] node of its round that the state belongs to
    # [states, width] the drafter's own state at nodes that were tried and expanded
    states: FloatArray

    def trees(self) -> Iterator[Tree]:
        """The drafted trees; duplicate siblings are kept apart, as if they were sampled."""
        columns = [column.tolist() for column in (self.parents, self.tokens, self.probs)]
        for root, part in zip(self.root.tolist(), spans(self.nodes), strict=True):
            tree = Tree(root)
            for parent, token, prob in zip(*(column[part] for column in columns), strict=True):
                tree.add(parent, token, prob, sampled=True)
            yield tree

    def heights(self) -> IntArray:
        """Depth of each round's tree, [rounds]."""
        return np.array([tree.height for tree in self.trees()], np.int64)

    def held_out(self, share: float, seed: int) -> BoolArray:
        """True for the rounds to test on, [rounds]: whole prompts, no text in both parts."""
        return held_out(self.prompt, share, seed)

    def level_seconds(self) -> float:
        """Seconds of drafting one level, over all rounds but the first of each prompt."""
        heights = self.heights()
        later = np.append(False, self.prompt[1:] == self.prompt[:-1])[: len(self)] & (heights > 0)
        # the lower quartile: other load of the machine can only add to a time
        return float(np.quantile(self.draft[later] / heights[later], 0.25)) if later.any() else 0.0


def held_out(prompt: IntArray, share: float, seed: int) -> BoolArray:
    """True for the rows of this share of the prompts, at least one and not all."""
    prompts = np.unique(prompt)
    if len(prompts) < 2:
        raise SapwoodError(
            "a fit needs rows of at least two prompts, one to test on; give more prompts"
        )
    count = min(max(1, round(share * len(prompts))), len(prompts) - 1)
    return np.isin(prompt, np.random.default_rng(seed).permutation(prompts)[:count])


def spans(counts: IntArray) -> list[slice]:
    """The rows of each round among those of all rounds."""
    ends = np.cumsum(counts).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


# ------------------------------------------------------------------------------- recording
def record(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    path: Path,
    *,
    # also keep the target's state at the inputs of this layer; `final_layer` is the last
    layer: int | None = None,
    most: int = 4000,  # rounds after which no further prompt is begun
    over: Over = never,
    progress: Progress = silent,
) -> RecordedRounds:
    """Decode the prompts and keep every round; continues an earlier call of the same arguments."""
    if layer is not None:
        engine.target.watch([layer])

    def each(index: int) -> list[RecordedRounds]:
        return [
            line(outcome, before, index)
            for outcome, before in play(engine, prompts[index], sampling, layer)
        ]

    notes = describe(engine, prompts, sampling, layer)
    found = collect(
        RecordedRounds, each, len(prompts), path, notes, most=most, over=over, progress=progress
    )
    if not found:
        raise SapwoodError("there is nothing to record: give at least one prompt")
    return join(found)


def describe(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, layer: int | None
) -> dict[str, Any]:
    """Description of a recording; only one with the same description is continued."""
    digest = hashlib.sha256(
        json.dumps([list(map(int, prompt)) for prompt in prompts]).encode()
    ).hexdigest()
    about = {
        "model": engine.target.info.model,
        "recipe": str(engine.recipe),
        "sampling": str(sampling),
    }
    return {**about, "layer": layer, "prompts": digest}


def play(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, layer: int | None
) -> Iterator[tuple[Outcome, FloatArray]]:
    """Every round of a request with the target's state before its root, to the end of the text."""
    decoding = RequestDecoder(engine, prompt, sampling, KeyedRng(sampling.seed))
    scores = decoding.session.prefill_output(1)
    row = 0
    ends = set(sampling.stop_ids)
    try:
        while not decoding.full and decoding.sampler.emitted < sampling.max_tokens:
            before = state(scores, row, layer)
            [scores] = engine.target.score([decoding.draft()])
            outcome = decoding.finish_round(scores)
            row = outcome.verdict.path[-1]
            yield outcome, before
            if ends.intersection(outcome.tokens):
                break
    finally:
        decoding.close()


def state(scores: TargetOutput | None, row: int, layer: int | None) -> FloatArray:
    """The watched state of one row, [width]; empty if none is kept."""
    if scores is None or layer is None:
        return np.empty(0, np.float16)
    found: FloatArray = as_float32(scores.hidden([row], [layer]))[0].astype(np.float16)
    return found


def line(outcome: Outcome, before: FloatArray, prompt: int) -> RecordedRounds:
    """One round as a recording of its own."""
    grown = outcome.grown
    labels, tried = labelled(outcome)
    owners = [node for node in sorted(grown.states) if node and tried[node]]
    states = [as_float32(grown.states[node]).astype(np.float16) for node in owners]
    return RecordedRounds(
        prompt=np.array([prompt]),
        context=np.array([outcome.context]),
        accepted=np.array([outcome.verdict.accepted]),
        root=grown.tokens[:1].copy(),
        draft=np.array([outcome.times.draft]),
        verify=np.array([outcome.times.verify]),
        nodes=np.array([len(grown) - 1]),
        kept=np.array([len(owners)]),
        before=before[None],
        tokens=grown.tokens[1:].copy(),
        parents=grown.parents[1:].copy(),
        probs=grown.probs[1:].copy(),
        labels=labels[1:],
        tried=tried[1:],
        owners=np.array(owners, np.int64),
        states=np.stack(states) if states else np.empty((0, 0), np.float16),
    )


def labelled(outcome: Outcome) -> tuple[IntArray, BoolArray]:
    """Label of each drafted node, and True if its parent was accepted, [n] each."""
    grown, tree = outcome.grown, outcome.tree
    hit, tried = outcome.verified_nodes()
    path = (
        np.array(outcome.verdict.path)
        if tree.kept is None
        else tree.kept[list(outcome.verdict.path)]
    )
    # hit by the target's text, but after the last verified node
    beyond = hit & ~np.isin(np.arange(len(grown)), path)
    labels = hit.astype(np.int64)
    for node in range(1, len(grown)):
        parent = grown.parents[node]
        if beyond[parent] or labels[parent] == UNKNOWN:
            labels[node] = UNKNOWN
    return labels, tried


def final_layer(target: Backend) -> int:
    """The number of the state that the target's output head reads."""
    if target.capabilities.model is None:
        raise SapwoodError(f"{target.info.model} shows no states to learn from; use a torch model")
    return target.capabilities.layers
