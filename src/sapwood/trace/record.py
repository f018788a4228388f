"""Records the rounds of requests while they are decoded.

What is written is read off a round after its clock has stopped, so a traced run is as fast, by its own books, as any.
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
from sapwood.completion import Step
from sapwood.engine import Decoding, beside
from sapwood.errors import SapwoodError
from sapwood.output import Writer, within
from sapwood.part import Part
from sapwood.protocols import Scores, Session
from sapwood.records import Outcome
from sapwood.request import read_sampling
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.text import Text
from sapwood.trace.names import called
from sapwood.trace.rounds import Asked, Ended, Header, Json, Law, Round, budgeted

if TYPE_CHECKING:
    from sapwood.api import LLM

TOP = 10  # best tokens of each law: as many as the drafters that learn from laws keep by default
READ = 256  # last tokens of a prompt whose laws are kept


class Book:
    """Writes the lines of a trace to a file."""

    def __init__(self, file: TextIO, text: Text | None, top: int = TOP) -> None:
        self.file, self.text, self.top = file, text, top
        self.known: set[int] = set()  # tokens whose text was written
        self.prompts = 0

    def write(self, line: Json, tokens: Iterable[int] = ()) -> None:
        """Append a line, with the text of tokens that none before it had."""
        if self.text is not None and (fresh := sorted(set(tokens) - self.known)):
            line["words"] = {str(token): self.text.spell(token) for token in fresh}
            self.known.update(fresh)
        self.file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
        self.file.flush()  # an interrupted run leaves whole lines

    def ask(self, name: str, prompt: Sequence[int], sampling: Sampling, session: Session) -> int:
        """Begin a prompt whose session has just been opened; its number."""
        law = None
        if (read := session.reading(min(READ, len(prompt) - 1))) is not None:
            law = Law(*read.topk(self.top))
        asked = Asked(self.prompts, name, list(map(int, prompt)), sampling.seed, sampling.max_tokens, law)
        self.write(asked.to_json(), [*asked.tokens, *(() if law is None else law.tokens.flat)])
        self.prompts += 1
        return asked.prompt

    def round(self, prompt: int, decoding: Decoding, outcome: Outcome, kept: int) -> None:
        """Write one round, of which so many tokens stayed."""
        grown, tree = outcome.grown, outcome.tree
        cut = tree.kept if tree is not grown else np.arange(len(tree))
        if cut is None or len(cut) != len(tree):  # a device cut it: what it dropped is not known here
            grown, cut = tree, np.arange(len(tree))
        law = Law(*outcome.scores.topk(self.top))
        ranks, logps = liking(outcome)
        line = Round(
            prompt=prompt,
            context=outcome.context,
            budget=budgeted(decoding.budget),
            asked=outcome.asked,
            grown=grown,
            checked=cut.tolist(),
            law=law,
            ranks=ranks,
            logps=logps,
            verdict=outcome.verdict,
            tokens=outcome.tokens,
            kept=kept,
            times=outcome.times,
            beside=beside(outcome.scores),
        )
        self.write(line.to_json(), [*grown.tokens.tolist(), *outcome.tokens, *law.tokens.flat])


def liking(outcome: Outcome) -> tuple[list[int], list[float]]:
    """Rank and log-probability of each checked node's token under the target's law at its parent."""
    tree, scores = outcome.tree, outcome.scores
    ranks, logps = [0] * len(tree), [0.0] * len(tree)
    for parent in np.unique(tree.parents[1:]).tolist():
        logits, total = spoken(scores, parent)
        for child in tree.children(parent):
            mine = logits[tree.tokens[child]]
            ranks[child], logps[child] = int((logits > mine).sum()), float(mine - total)
    return ranks, logps


def spoken(scores: Scores, row: int) -> tuple[Any, float]:
    """Raw logits of a row, [vocab], and the logarithm of their sum of exponentials."""
    logits = scores.logits(row).astype(np.float64)
    peak = logits.max()
    return logits, float(peak + np.log(np.exp(logits - peak).sum()))


@contextmanager
def opened(path: Path, llm: "LLM", recipe: str, model: str, sampling: Json, top: int = TOP) -> Iterator[Book]:
    """A trace under way: the header is written, prompts may be asked."""
    try:
        begin: Any = gzip.open if path.suffix == ".gz" else open
        file = begin(path, "wt", encoding="utf-8")
    except OSError as error:
        raise SapwoodError(f"the trace cannot be written to {path} ({error.strerror}); name another file") from error
    with file:
        book = Book(file, llm.text, min(top, llm.target.info.vocab))
        book.write(header(llm, recipe, model, sampling).to_json())
        yield book


def header(llm: "LLM", recipe: str, model: str, sampling: Json) -> Header:
    """What is to run."""
    info, made = llm.target.info, llm.recipe
    facts = {"machine": provenance.machine(info, provenance.load()), "command": provenance.command()}
    return Header(
        recipe=recipe,
        spelling=str(made),
        guarantee=made.guarantee.value,
        model=model,
        info=info,
        sampling={name: value for name, value in sampling.items() if value not in (None, [], ())},
        curve=llm.profile.curve,
        measured=llm.profile.measured,
        drafters=voices(made.drafter),
        provenance={**facts, "commit": provenance.commit()},
    )


def voices(drafter: Any) -> list[str]:
    """Names of drafters by their bit in a node's sources."""
    several = [part for part in getattr(drafter, "drafters", ()) if isinstance(part, Part)]
    return [name for part in several for name in voices(part)] if several else [called(drafter)]


def traced(llm: "LLM", prompt: list[int], book: Book, name: str = "", /, **options: Any) -> Iterator[Step]:
    """Decode one request as `LLM.stream` does, and keep its rounds."""
    info, text, engine = llm.target.info, llm.text, llm.engine
    sampling = within(read_sampling(options, info, text), info.context - len(prompt))
    start = time.perf_counter()
    decoding = Decoding(engine, prompt, sampling, Keyed(sampling.seed))
    reading = time.perf_counter() - start  # seconds of the prompt, which the first step counts
    writer, said, step = Writer(engine, prompt, sampling, text, measured=llm.profile.measured), "", None
    try:
        number = book.ask(name, prompt, sampling, decoding.session)
        while step is None or not step.done:
            start = time.perf_counter() - (reading if step is None else 0.0)
            [scores] = engine.target.score([decoding.draft()])
            step = writer.step(decoding.judge(scores), start, reading=step is None)
            said += step.text
            book.round(number, decoding, step.outcome, len(step.pieces))
            yield step
        assert step.stats is not None
        book.write(Ended(number, str(step.finish), said, step.stats.to_json()).to_json())
    finally:
        decoding.close()
    llm.profile.keep()
