"""Shared state of the checks of a server: its capabilities, prompts and samples."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.certify.client import Json, ReportedToken, ServerAnswer, ServerClient, ServerRefused
from sapwood.errors import SapwoodError

PROMPTS = (
    "The old lighthouse keeper opened the door and",
    "A short list of things to take on a long walk:",
    "In the year 2150, people travelled by",
    "My favourite recipe begins with",
    "The committee met on Tuesday to discuss",
    "Once the snow had melted, the children",
    "Three reasons to learn a language are",
    "She looked at the strange machine and reported",
)
TOPS = (20, 10, 5)  # numbers of logprobs to try; the first that the server allows is used
CHOICES = 16  # of one request, if the server allows it
PLACES = 4  # tokens of an answer that is tested position by position
# an incomplete character: such a token looks like others, and its text encodes to other tokens
BROKEN = "\ufffd"
UNKNOWN_MASS = 0.005  # largest probability mass that may be unknown
HUGE = 1e9  # stands for an unbounded weight


@dataclass
class CertifyContext:
    """A server under test."""

    server: ServerClient
    # plain decoding: another server, or the same with speculation off
    reference: ServerClient | None = None
    prompts: Sequence[str] = PROMPTS
    samples: int = 256  # sampled answers to each of a few prompts
    length: int = 8  # tokens of a sampled answer
    longer: int = 48  # tokens of a greedy answer
    slack: float = 0.1  # logprobs closer than this are a tie: rounding may swap them
    tick: Callable[[str], None] = lambda _: None  # called with the kind of each request
    top: int | None = None  # logprobs of each token; None if the server gives none
    raw: bool = False  # logprobs are those before temperature and options
    choices: int = 1  # answers of one request
    why: str = ""  # why there are no logprobs
    # about the server itself, set by the first checks; each reason is empty if there is none
    steady: list[str] = field(default_factory=list)  # prompts whose greedy text came twice
    unsteady: str = ""  # why greedy texts cannot be compared
    loose_logprobs: str = ""  # why logprobs of two requests cannot be compared
    penalised: str = ""  # the default penalty, and how to turn it off
    truncated: str = ""  # the default truncation, and how to turn it off
    drafts: int | None = None  # drafted tokens by the server's own count; None if it has none
    _forks: list[tuple[str, list[ServerAnswer]]] = field(default_factory=list)
    # temperature -> answers by prompt
    _drawn: dict[float, list[list[ServerAnswer]]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Find out the server's capabilities."""
        self.server.choose_model()
        self._find_api()
        self._find_logprobs()
        try:
            found = self.server.ask(self.prompts[0], max_tokens=1, temperature=1.0, n=CHOICES)
            self.choices = CHOICES if len(found) == CHOICES else 1
        except ServerRefused:
            self.choices = 1
        if self.reference is not None:
            self.reference.chat = self.server.chat
            self.reference.choose_model()

    def _find_api(self) -> None:
        reasons = []
        for chat in (self.server.chat, True):
            self.server.chat = chat
            try:
                self.server.one(self.prompts[0], max_tokens=1, temperature=0)
                return
            except ServerRefused as error:
                reasons.append(str(error))
        raise SapwoodError(
            f"{self.server.url} answers neither completions nor chat: "
            f"{'; '.join(dict.fromkeys(reasons))}"
        )

    def _find_logprobs(self) -> None:
        for top in TOPS:
            try:
                warm, cold = (
                    self.server.one(self.prompts[0], max_tokens=1, temperature=heat, top=top)
                    for heat in (1.0, 0.5)
                )
            except ServerRefused as error:
                self.why = str(error)
                continue
            if warm.reported and warm.reported[0].top:
                self.top = top
                pairs = [
                    (log, cold.reported[0].top.get(word))
                    for word, log in warm.reported[0].top.items()
                ]
                self.raw = all(
                    other is None or abs(log - other) < 0.02 * (1 + abs(log))
                    for log, other in pairs
                )
                return
            self.why = "the server sends none when asked"

    # ------------------------------------------------------------------------------ requests
    def greedy(
        self, server: ServerClient, prompt: str, tokens: int, **options: Any
    ) -> ServerAnswer:
        """The greedy continuation."""
        return server.one(prompt, top=self.top, temperature=0, max_tokens=tokens, **options)

    def sampled(self, heat: float) -> list[list[ServerAnswer]]:
        """Many answers to a few prompts at a temperature, by prompt; requested once."""
        if heat not in self._drawn:
            few = self.prompts[: max(1, len(self.prompts) // 2)]
            self._drawn[heat] = [
                self.draw(self.server, prompt, self.samples, self.length, heat) for prompt in few
            ]
        return self._drawn[heat]

    def forks(self) -> list[tuple[str, list[ServerAnswer]]]:
        """Texts with one nearly certain token and then several likely ones, with many answers.

        A first token is drawn before anything is drafted. Where it is almost certain, most answers
        share it, and the second one, which was drafted, can be tested by name. Requested once.
        """
        if not self._forks:
            few = [self.fork(prompt) for prompt in self.prompts[: max(1, len(self.prompts) // 2)]]
            self._forks = [
                (text, self.draw(self.server, text, 4 * self.samples, PLACES, 1.0)) for text in few
            ]
        return self._forks

    def fork(self, prompt: str) -> str:
        """The prompt, continued greedily to the most informative position if possible."""
        if self.server.chat or self.top is None:
            return prompt
        reported = whole(self.greedy(self.server, prompt, self.longer).reported)
        sure = [math.exp(min(max(one.top.values(), default=0.0), 0.0)) for one in reported]
        # share of the answers that have the same first token but not the same second
        worth = [one * (1 - other) for one, other in itertools.pairwise(sure)]
        best = max(range(len(worth)), key=worth.__getitem__, default=0)
        return prompt + "".join(one.text for one in reported[:best])

    def draw(
        self,
        server: ServerClient,
        prompt: str,
        count: int,
        tokens: int,
        heat: float,
        **options: Any,
    ) -> list[ServerAnswer]:
        """`count` sampled answers to one prompt."""
        sizes = [min(self.choices, count - start) for start in range(0, count, self.choices)]
        wish: Json = {"top": self.top, "temperature": heat, "max_tokens": tokens, **options}

        def question(size: int) -> Callable[[], list[ServerAnswer]]:
            return lambda: server.ask(prompt, **wish, **({"n": size} if self.choices > 1 else {}))

        found = server.many(
            [question(size) for size in sizes],
            lambda: self.tick(f"sampling at temperature {heat:g}"),
        )
        return [answer for answers in found for answer in answers]


# ---------------------------------------------------------------------------- distributions
def whole(reported: Sequence[ReportedToken]) -> list[ReportedToken]:
    """Tokens before the first incomplete character: text up to there encodes to the same tokens."""
    return list(itertools.takewhile(lambda one: BROKEN not in one.text, reported))


def ambiguous(reported: ReportedToken) -> bool:
    """True if tokens that look alike may hide each other in the report."""
    return any(BROKEN in word or not word for word in reported.top)


def ranked(reported: ReportedToken, most: int) -> tuple[list[str], list[float]]:
    """The top tokens at a position and their probabilities, best first."""
    best = sorted(reported.top, key=lambda word: -reported.top[word])[:most]
    return best, [math.exp(min(reported.top[word], 0.0)) for word in best]


def at_temperature(probs: Sequence[float], heat: float) -> list[float] | None:
    """Probabilities of the top tokens and of the rest at a temperature; None if unknown."""
    rest = max(0.0, 1.0 - sum(probs))
    if heat == 1.0:
        return [*probs, rest]
    power = 1 / heat
    weights = [prob**power for prob in probs]
    total = sum(prob**power for prob in probs)
    # no other token is likelier than the last of the top ones; above temperature 1 their number
    # would matter
    most = rest * min(probs, default=1.0) ** (power - 1) if power > 1 else rest * HUGE
    if not total or most > UNKNOWN_MASS * total:
        return None
    return [*(weight / total for weight in weights), 0.5 * most / total]


def reported_probs(
    reported: ReportedToken, most: int, heat: float = 1.0
) -> tuple[list[str], list[float]] | None:
    """The top tokens, and the probs of them and of the rest; None if too little is reported."""
    names, probs = ranked(reported, len(reported.top))
    if ambiguous(reported):
        return None
    if (
        not names
        or reported.logprob is None
        or sum(probs) > 1.02
        or (len(names) < most and sum(probs) < 0.98)
    ):
        return None
    full_probs = at_temperature(probs, heat)
    return (
        None
        if full_probs is None
        else (
            names[:most],
            [
                *full_probs[: len(names)][:most],
                sum(full_probs[: len(names)][most:]) + full_probs[-1],
            ],
        )
    )
