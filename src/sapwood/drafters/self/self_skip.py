"""Self-drafting with skipped sublayers, chosen while decoding (SWIFT, arXiv 2410.06916).

Draft & Verify (arXiv 2309.08168) finds the set offline; SWIFT and Draft on the Fly look for it on
the text that is being written. After a round another set is tried on the last emitted tokens, in
one parallel pass over the target's own keys, and takes over if it predicts more of them.

There are two searches. `bayes` is SWIFT's: random sets with a Bayesian step every 25 tries, each
compared with the best score so far, which another text may have given. `exchange` is ours: a set
differs from the best one in a few members, and both are tried on the same text, which costs a
second pass and is less often fooled. SWIFT's published code tries sets on the first tokens of an
answer; here the last ones are used. The time for a search is bounded per round, and the best set of
a model is kept between runs.

A set changes only between rounds, by emitted text, so the output keeps its distribution.
"""

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from sapwood.common.drafter_store import home
from sapwood.core.part import at_least, between
from sapwood.core.protocols import (
    Backend,
    EngineContext,
    Frontier,
    RequestContext,
    Session,
    TreeInput,
)
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import softmax
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.compose.draft_model import chain
from sapwood.drafters.heads.online import TimeAllowance
from sapwood.drafters.self.bayes_search import BayesSearch
from sapwood.drafters.self.self_base import SelfBase, made_cheaper
from sapwood.drafters.self.skip_search import Merit, SkipSearch

FEW = 8  # fewest emitted tokens on which sets are compared


class SkipRule(enum.Enum):
    """Search for the set of sublayers."""

    EXCHANGE = "exchange"  # sets near the best one, compared with it on the same text
    BAYES = "bayes"  # SWIFT's random sets and Bayesian steps, by the best score so far


@dataclass
class SelfSkip(SelfBase):
    """The target itself without some attention and MLP sublayers, chosen online."""

    # share of the sublayers between the first and the last layer that is skipped, 0 to 1
    share: float = 0.45
    search: SkipRule = SkipRule.EXCHANGE
    # for the search per round; overruns are paid back by later rounds; 0: no search
    seconds: float = 0.02
    window: int = 32  # last emitted tokens on which sets are compared, >= 1
    enough: float = 0.93  # share of these that a set must predict to end the search
    patience: int = 300  # tries without a better set that end it
    seed: int = 0

    paper: ClassVar[str] = "2410.06916"
    now = staticmethod(time.perf_counter)  # seconds; replaced when runs must be reproducible

    def __post_init__(self) -> None:
        between(0, 1, share=self.share, enough=self.enough)
        at_least(1, window=self.window, patience=self.patience)
        between(0, 60, seconds=self.seconds)

    def variant(self, target: Backend) -> Backend:
        """The target without the best set of sublayers known so far."""
        self.target = target
        info = target.info
        layers = target.capabilities.layers
        count = round(self.share * 2 * max(layers - 2, 0))
        bayes = self.search is SkipRule.BAYES
        file = f"{info.dtype}-{count}{'-bayes' if bayes else ''}.json"
        made = BayesSearch if bayes else SkipSearch
        path = home("self-skip", info.model) / file
        self.sets = made(layers, count, path, KeyedRng(self.seed))
        return made_cheaper(target, skip=self.sets.best)

    def bind(self, setting: EngineContext) -> None:
        """Make the variant; the search and its time are shared by all requests."""
        super().bind(setting)
        self.allowance = TimeAllowance(self.seconds, self.now)

    def reset(self, request: RequestContext) -> None:
        """Begin at the end of the target's session."""
        super().reset(request)
        self.session_ = request.session
        self.text_ = list(request.prompt)
        self.emitted_ = 0

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier by the target without the best set."""
        if self.inner_.scratch_ is None:
            self.inner_.backend = self.inner.backend
        super().expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Try another set on emitted text, if there is time."""
        super().observe(outcome)
        self.text_ += outcome.tokens
        self.emitted_ += len(outcome.tokens)
        if self.searching and outcome.asked and self.emitted_ > FEW:
            self.allowance.spend([partial(self._try, min(self.window, self.emitted_ - 1))])

    @property
    def searching(self) -> bool:
        """True until the best set is good enough, or no better one was found for long."""
        return bool(
            self.seconds
            and 0 < self.sets.count < len(self.sets.able)
            and not self.sets.ended(self.enough, self.patience)
            and self.inner_.shared_
        )

    def _try(self, tokens: int) -> None:
        """Score the last tokens with another set, and keep it if it is better than the best."""
        sublayers = self.sets.propose()
        candidate = made_cheaper(self.target, skip=sublayers)
        session = self.session_.fork()
        text = self.text_[-tokens - 1 :]
        session.rewind(session.length - tokens)
        try:
            found = merit(candidate, session, text)
            same = self.sets.same_text
            best = merit(self.inner.backend, session, text) if same else self.sets.merit
        finally:
            session.close()
        if self.sets.judge(sublayers, found, best):
            self.inner.backend = candidate


def merit(backend: Backend, session: Session, text: Sequence[int]) -> Merit:
    """Merit of a variant on these tokens, from a session that ends before the first."""
    share = backend.capabilities.share_session
    shared = None if share is None else share(session)
    assert shared is not None, "sets are tried on the target's own session alone"
    [scores] = backend.score([TreeInput(shared, chain(text[:-1]))])
    said = float(np.mean(scores.argmax() == np.array(text[1:])))
    chances = [softmax(scores.logits(row))[token] for row, token in enumerate(text[1:])]
    return said, float(np.mean(chances))
