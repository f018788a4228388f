"""Generation by the fast path of a CPU: requests of one scheduler share its passes.

The 8-bit and 4-bit networks write a text many times as fast as the float32 modules that training
reads. A text's random numbers belong to its own key and to its positions, so it does not depend on
its neighbours, and a text that was begun goes on as it would have.
"""

from collections.abc import Callable, Sequence

from sapwood.backends.torch.backend import TorchBackend
from sapwood.core.sampling import Sampling
from sapwood.engine.generate import scheduler_of
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.llm import LLM
from sapwood.train.decode_state import TextToContinue
from sapwood.train.generate import FEWEST, Tick, continued, never, nothing
from sapwood.train.journal import TextJournal, WrittenText

ROWS = 16  # texts that are written at once


class PooledText:
    """A text that is being written."""

    def __init__(self, before: list[int]) -> None:
        self.tokens = before
        self.new = 0  # tokens of this run
        self.finished = False
        self.error: Exception | None = None

    def ended(self) -> bool:
        """True after its last token; raises an error of its request."""
        if self.error is not None:
            raise self.error
        return self.finished

    def receive(self, step: Step | Exception) -> None:
        """Take the tokens of a step."""
        if isinstance(step, Exception):
            self.error = step
            return
        self.tokens = [*self.tokens, *step.tokens]
        self.new += len(step.tokens)
        self.finished = step.done


class PooledGenerator:
    """Continues texts with a backend's fast network, as `Generator` does with its modules."""

    def __init__(self, backend: TorchBackend) -> None:
        self.engine = LLM(backend, "plain").engine

    def close(self) -> None:
        """Free nothing: the memory belongs to the backend."""

    def run(
        self,
        asks: Sequence[TextToContinue],
        ends: Sequence[int],
        tick: Tick = nothing,
        *,
        journal: TextJournal | None = None,  # continued, and written at intervals
        over: Callable[[], bool] = never,  # True ends the work: texts stay as they are then
    ) -> list[list[int]]:
        """The tokens added to each text, the first of `ends` included; `tick` gets their count."""
        known = {} if journal is None else journal.texts
        texts = [PooledText(known[i].tokens if i in known else []) for i in range(len(asks))]
        for i, before in known.items():
            texts[i].finished = before.finished
        # long prompts first, as they take the most memory
        waiting = sorted(
            (i for i, text in enumerate(texts) if not text.finished),
            key=lambda i: len(asks[i].tokens),
        )
        scheduler = scheduler_of(self.engine, None, measured=False)
        running: list[PooledText] = []
        while (waiting or running) and not (over() and all(t.new >= FEWEST for t in running)):
            while waiting and len(running) < ROWS and not over():
                place = waiting.pop()
                running.append(texts[place])
                request = request_of(continued(asks[place], texts[place].tokens), ends)
                request.on_step = texts[place].receive
                scheduler.pool.add(request)
            if not running:
                break
            scheduler.advance()
            running = [text for text in running if not text.ended()]
            tick(sum(len(text.tokens) for text in texts))
            if journal is not None and journal.is_due():
                note(journal, texts)
        scheduler.pool.close(RuntimeError("the time is over"))
        if journal is not None:
            if over():  # what was cut stays cut when a killed run goes on
                for text in texts:
                    text.finished = True
            note(journal, texts)
        return [text.tokens for text in texts]


def note(journal: TextJournal, texts: Sequence[PooledText]) -> None:
    """Write the texts that were begun into the journal."""
    written = {i: WrittenText(text.tokens, text.finished) for i, text in enumerate(texts)}
    journal.note({i: text for i, text in written.items() if text.tokens or text.finished})


def request_of(ask: TextToContinue, ends: Sequence[int]) -> Request:
    """A request for a text."""
    sampling = Sampling(
        temperature=ask.temperature,
        max_tokens=max(ask.new, 1),
        stop_ids=tuple(ends),
        seed=ask.key,
    )
    return Request(tuple(ask.tokens), sampling)
