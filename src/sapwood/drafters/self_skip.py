"""The target without some of its attention and MLP sublayers, chosen while it decodes (SWIFT, arXiv 2410.06916).

Draft & Verify (arXiv 2309.08168) finds the set offline; SWIFT and Draft on the Fly look for it on the text
that is being written. After a round another set is tried on the last emitted tokens, in one parallel pass
over the target's own keys, and takes over where it would have said more of them. SWIFT compares scores of
different texts; here both sets read the same one, which costs a second pass and is less often fooled. Its
Bayesian steps are replaced by sets that differ from the best one in a few members. The time for this is
bounded per round, and the best set of a model is kept between runs.

A set changes between rounds alone, by text that is already out, so the law of the output holds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from sapwood.drafters.model import chain
from sapwood.drafters.online import Allowance
from sapwood.drafters.own import Own
from sapwood.drafters.skipping import Merit, Search
from sapwood.part import at_least, between
from sapwood.protocols import Backend, Frontier, Request, Session, Setting, Work
from sapwood.records import Outcome
from sapwood.rng import Keyed, Rng
from sapwood.sampling import softmax
from sapwood.trained import home
from sapwood.tree import Tree

FEW = 8  # emitted tokens before a set is judged by them


@dataclass
class SelfSkip(Own):
    """The target itself without some attention and MLP sublayers, chosen online."""

    share: float = 0.45  # of the sublayers between the first and the last layer that is skipped, 0 to 1
    seconds: float = 0.02  # for the search per round; a try that took longer is paid off by resting; 0: no search
    window: int = 32  # last emitted tokens that a set is judged by, >= 1
    enough: float = 0.93  # share of these that a set must say to end the search
    patience: int = 300  # tries without a better set that end it
    seed: int = 0

    paper: ClassVar[str] = "2410.06916"
    now = staticmethod(time.perf_counter)  # seconds; replaced where runs must repeat exactly

    def __post_init__(self) -> None:
        between(0, 1, share=self.share, enough=self.enough)
        at_least(1, window=self.window, patience=self.patience)
        between(0, 60, seconds=self.seconds)

    def variant(self, target: Any) -> Backend:
        """The target without the best set of sublayers known so far."""
        self.target = target
        info, count = target.info, round(self.share * 2 * max(target.layers - 2, 0))
        path = home("self-skip", info.model) / f"{info.dtype}-{count}.json"
        self.search = Search(target.layers, count, path, Keyed(self.seed))
        made: Backend = target.variant(skip=self.search.best)
        return made

    def bind(self, setting: Setting) -> None:
        """Make the variant; the search and its time are shared by all requests."""
        super().bind(setting)
        self.allowance = Allowance(self.seconds, self.now)

    def reset(self, request: Request) -> None:
        """Begin where the target's session stands."""
        super().reset(request)
        self.session_, self.text_, self.emitted_ = request.session, list(request.prompt), 0

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the target without the best set propose."""
        if self.inner_.scratch_ is None:
            self.inner_.backend = self.inner.backend
        super().expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Try another set on what is out, if there is time."""
        super().observe(outcome)
        self.text_ += outcome.tokens
        self.emitted_ += len(outcome.tokens)
        if self.searching and outcome.asked and self.emitted_ > FEW:
            self.allowance.spend([partial(self._try, min(self.window, self.emitted_ - 1))])

    @property
    def searching(self) -> bool:
        """True until the best set is good enough, or seems to be the best there is."""
        search = self.search
        ended = search.merit[0] > self.enough or search.stale >= self.patience
        return bool(self.seconds and 0 < search.count < len(search.able) and not ended and self.inner_.shared_)

    def _try(self, tokens: int) -> None:
        """Let another set and the best one say the last tokens, and keep the better of the two."""
        sublayers = self.search.propose()
        candidate = self.target.variant(skip=sublayers)
        session, text = self.session_.fork(), self.text_[-tokens - 1 :]
        session.rewind(session.length - tokens)
        try:
            merits = [merit(backend, session, text) for backend in (candidate, self.inner.backend)]
        finally:
            session.close()
        if self.search.judge(sublayers, *merits):
            self.inner.backend = candidate


def merit(backend: Any, session: Session, text: Sequence[int]) -> Merit:
    """How well a variant says each token of a text from those before it; the session ends before the first."""
    [scores] = backend.score([Work(backend.over(session), chain(text[:-1]))])
    said = float(np.mean(scores.argmax() == np.array(text[1:])))
    chances = [softmax(scores.logits(row))[token] for row, token in enumerate(text[1:])]
    return said, float(np.mean(chances))
