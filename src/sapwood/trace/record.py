"""Records the rounds of requests while they are decoded.

A round is recorded after its clock has stopped, so recording does not change the recorded times.
"""

import gzip
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from sapwood.bench import provenance
from sapwood.core.protocols import Session, TargetOutput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.input_processor import read_sampling
from sapwood.engine.output_processor import StepBuilder, within
from sapwood.engine.outputs import Step
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.recipes.drafter_names import drafter_names
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.trace.rounds import (
    Json,
    TracedEnd,
    TracedProbs,
    TracedPrompt,
    TracedRound,
    TraceHeader,
    budgeted,
)

if TYPE_CHECKING:
    from sapwood.llm import LLM

TOP = 10  # top tokens of each row: as many as the drafters that learn from probs use by default
READ = 256  # last tokens of a prompt whose probs are kept


class TraceWriter:
    """Writes the lines of a trace to a file."""

    def __init__(self, file: TextIO, text: Tokenizer | None, top: int = TOP) -> None:
        self.file = file
        self.text = text
        self.top = top
        self.known: set[int] = set()  # tokens whose text was written
        self.prompts = 0

    def write(self, line: Json, tokens: Iterable[int] = ()) -> None:
        """Append a line, with the text of tokens that none before it had."""
        if self.text is not None and (fresh := sorted(set(tokens) - self.known)):
            line["words"] = {str(token): self.text.spell(token) for token in fresh}
            self.known.update(fresh)
        self.file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
        self.file.flush()  # an interrupted run leaves complete lines

    def ask(self, name: str, prompt: Sequence[int], sampling: Sampling, session: Session) -> int:
        """Begin a prompt whose session was just opened; return its number."""
        probs = None
        if (read := session.prefill_output(min(READ, len(prompt) - 1))) is not None:
            probs = TracedProbs(*read.topk(self.top))
        asked = TracedPrompt(
            self.prompts, name, list(map(int, prompt)), sampling.seed, sampling.max_tokens, probs
        )
        self.write(asked.to_json(), [*asked.tokens, *(() if probs is None else probs.tokens.flat)])
        self.prompts += 1
        return asked.prompt

    def round(self, prompt: int, decoding: RequestDecoder, outcome: Outcome, kept: int) -> None:
        """Write one round, of which `kept` tokens stayed."""
        grown, tree = outcome.grown, outcome.tree
        checked = tree.kept if tree is not grown else np.arange(len(tree))
        if checked is None or len(checked) != len(tree):  # pruned on a device: the rest is unknown
            grown = tree
            checked = np.arange(len(tree))
        probs = TracedProbs(*outcome.scores.topk(self.top))
        ranks, logps = target_ranks(outcome)
        line = TracedRound(
            prompt=prompt,
            context=outcome.context,
            budget=budgeted(decoding.budget),
            asked=outcome.asked,
            grown=grown,
            checked=checked.tolist(),
            probs=probs,
            ranks=ranks,
            logps=logps,
            verdict=outcome.verdict,
            tokens=outcome.tokens,
            kept=kept,
            times=outcome.times,
            beside=outcome.scores.overlaps_host,
        )
        self.write(line.to_json(), [*grown.tokens.tolist(), *outcome.tokens, *probs.tokens.flat])


def target_ranks(outcome: Outcome) -> tuple[list[int], list[float]]:
    """Rank and log prob of each checked node's token under the target's probs at its parent."""
    tree, scores = outcome.tree, outcome.scores
    ranks = [0] * len(tree)
    logps = [0.0] * len(tree)
    for parent in np.unique(tree.parents[1:]).tolist():
        logits, total = logits_and_logsumexp(scores, parent)
        for child in tree.children(parent):
            mine = logits[tree.tokens[child]]
            ranks[child], logps[child] = int((logits > mine).sum()), float(mine - total)
    return ranks, logps


def logits_and_logsumexp(scores: TargetOutput, row: int) -> tuple[Any, float]:
    """Raw logits of a row, [vocab], and their logsumexp."""
    logits = scores.logits(row).astype(np.float64)
    peak = logits.max()
    return logits, float(peak + np.log(np.exp(logits - peak).sum()))


@contextmanager
def opened(
    path: Path, llm: "LLM", recipe: str, model: str, sampling: Json, top: int = TOP
) -> Iterator[TraceWriter]:
    """An open trace: the header is written, prompts may follow."""
    try:
        begin: Any = gzip.open if path.suffix == ".gz" else open
        file = begin(path, "wt", encoding="utf-8")
    except OSError as error:
        raise SapwoodError(
            f"the trace cannot be written to {path} ({error.strerror}); name another file"
        ) from error
    with file:
        writer = TraceWriter(file, llm.text, min(top, llm.target.info.vocab))
        writer.write(header(llm, recipe, model, sampling).to_json())
        yield writer


def header(llm: "LLM", recipe: str, model: str, sampling: Json) -> TraceHeader:
    """The header of a trace."""
    info, made = llm.target.info, llm.recipe
    facts = {
        "machine": provenance.machine(info, provenance.load()),
        "command": provenance.command(),
    }
    return TraceHeader(
        recipe=recipe,
        spelling=str(made),
        guarantee=made.guarantee.value,
        model=model,
        info=info,
        sampling={name: value for name, value in sampling.items() if value not in (None, [], ())},
        curve=llm.profile.curve,
        measured=llm.profile.measured,
        drafters=drafter_names(made.drafter, info),
        provenance={**facts, "commit": provenance.commit()},
    )


def traced(
    llm: "LLM", prompt: list[int], writer: TraceWriter, name: str = "", /, **options: Any
) -> Iterator[Step]:
    """Decode one request as `LLM.stream` does, and record its rounds."""
    info = llm.target.info
    text = llm.text
    engine = llm.engine
    sampling = within(read_sampling(options, info, text), info.context - len(prompt))
    start = time.perf_counter()
    decoding = RequestDecoder(engine, prompt, sampling, KeyedRng(sampling.seed))
    prefill = time.perf_counter() - start  # seconds, counted by the first step
    builder = StepBuilder(engine, prompt, sampling, text, measured=llm.profile.measured)
    output = ""
    step = None
    try:
        number = writer.ask(name, prompt, sampling, decoding.session)
        while step is None or not step.done:
            start = time.perf_counter() - (prefill if step is None else 0.0)
            [scores] = engine.target.score([decoding.draft()])
            step = builder.step(decoding.finish_round(scores), start, first=step is None)
            output += step.text
            writer.round(number, decoding, step.outcome, len(step.pieces))
            yield step
        assert step.stats is not None
        writer.write(TracedEnd(number, str(step.finish), output, step.stats.to_json()).to_json())
    finally:
        decoding.close()
    llm.profile.keep()
