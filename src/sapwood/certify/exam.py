"""What the checks of a server share: how it can be asked, the texts it is asked about, and samples that several use."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.certify.client import Answer, Json, Refused, Said, Server
from sapwood.errors import SapwoodError

PROMPTS = (
    "The old lighthouse keeper opened the door and",
    "A short list of things to take on a long walk:",
    "In the year 2150, people travelled by",
    "My favourite recipe begins with",
    "The committee met on Tuesday to discuss",
    "Once the snow had melted, the children",
    "Three reasons to learn a language are",
    "She looked at the strange machine and said",
)
TOPS = (20, 10, 5)  # logprobs to ask for, the first that the server allows
CHOICES = 16  # of one request, where the server can
PLACES = 4  # tokens of an answer that is tested place by place
BROKEN = "\ufffd"  # half a character: such a token cannot be told from others, and does not read back
DOUBT, HUGE = 0.005, 1e9  # largest share of a law that may be unknown; stands for a weight without bound


@dataclass
class Exam:
    """A server under examination."""

    server: Server
    reference: Server | None = None  # what plain decoding says: another server, or the same with speculation off
    prompts: Sequence[str] = PROMPTS
    samples: int = 256  # sampled answers to each of a few prompts
    length: int = 8  # tokens of a sampled answer
    longer: int = 48  # tokens of a greedy answer
    slack: float = 0.1  # logprobs closer than this are called a tie: rounding may swap them
    tick: Callable[[str], None] = lambda _: None  # told what has been asked
    top: int | None = None  # logprobs of each token; None where the server gives none
    raw: bool = False  # logprobs are those before temperature and options
    choices: int = 1  # answers of one request
    why: str = ""  # why there are no logprobs
    _forks: list[tuple[str, list[Answer]]] = field(default_factory=list)
    _drawn: dict[float, list[list[Answer]]] = field(default_factory=dict)  # temperature -> answers by prompt

    def prepare(self) -> None:
        """Find out how the server can be asked."""
        self.server.choose_model()
        self._find_api()
        self._find_logprobs()
        try:
            found = self.server.ask(self.prompts[0], max_tokens=1, temperature=1.0, n=CHOICES)
            self.choices = CHOICES if len(found) == CHOICES else 1
        except Refused:
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
            except Refused as error:
                reasons.append(str(error))
        raise SapwoodError(
            f"{self.server.url} answers neither completions nor chat: {'; '.join(dict.fromkeys(reasons))}"
        )

    def _find_logprobs(self) -> None:
        for top in TOPS:
            try:
                warm, cold = (
                    self.server.one(self.prompts[0], max_tokens=1, temperature=heat, top=top) for heat in (1.0, 0.5)
                )
            except Refused as error:
                self.why = str(error)
                continue
            if warm.said and warm.said[0].top:
                self.top = top
                pairs = [(log, cold.said[0].top.get(word)) for word, log in warm.said[0].top.items()]
                self.raw = all(other is None or abs(log - other) < 0.02 * (1 + abs(log)) for log, other in pairs)
                return
            self.why = "the server sends none when asked"

    # ------------------------------------------------------------------------------- questions
    def greedy(self, server: Server, prompt: str, tokens: int, **options: Any) -> Answer:
        """The best continuation."""
        return server.one(prompt, top=self.top, temperature=0, max_tokens=tokens, **options)

    def sampled(self, heat: float) -> list[list[Answer]]:
        """Many answers to a few prompts at a temperature, by prompt; asked for once."""
        if heat not in self._drawn:
            few = self.prompts[: max(1, len(self.prompts) // 2)]
            self._drawn[heat] = [self.draw(self.server, prompt, self.samples, self.length, heat) for prompt in few]
        return self._drawn[heat]

    def forks(self) -> list[tuple[str, list[Answer]]]:
        """Texts that go on surely for one token and then in several ways, each with many answers; asked for once.

        A first token is drawn before anything is drafted. Where it is almost certain, most answers share it, and the
        second one, which was drafted, can be tested by name.
        """
        if not self._forks:
            few = [self.fork(prompt) for prompt in self.prompts[: max(1, len(self.prompts) // 2)]]
            self._forks = [(text, self.draw(self.server, text, 4 * self.samples, PLACES, 1.0)) for text in few]
        return self._forks

    def fork(self, prompt: str) -> str:
        """The prompt, or where it can be continued the place of its greedy answer at which most can be learned."""
        if self.server.chat or self.top is None:
            return prompt
        said = whole(self.greedy(self.server, prompt, self.longer).said)
        sure = [math.exp(min(max(one.top.values(), default=0.0), 0.0)) for one in said]
        # of the answers that share a first token, so many will not share the second
        worth = [one * (1 - other) for one, other in itertools.pairwise(sure)]
        best = max(range(len(worth)), key=worth.__getitem__, default=0)
        return prompt + "".join(one.text for one in said[:best])

    def draw(self, server: Server, prompt: str, count: int, tokens: int, heat: float, **options: Any) -> list[Answer]:
        """So many sampled answers to one prompt."""
        sizes = [min(self.choices, count - start) for start in range(0, count, self.choices)]
        wish: Json = {"top": self.top, "temperature": heat, "max_tokens": tokens, **options}

        def question(size: int) -> Callable[[], list[Answer]]:
            return lambda: server.ask(prompt, **wish, **({"n": size} if self.choices > 1 else {}))

        found = server.many([question(size) for size in sizes], lambda: self.tick(f"sampling at temperature {heat:g}"))
        return [answer for answers in found for answer in answers]


# ---------------------------------------------------------------------------------------- laws
def whole(said: Sequence[Said]) -> list[Said]:
    """Tokens up to the first that is half a character: from there on the text does not read back."""
    return list(itertools.takewhile(lambda one: BROKEN not in one.text, said))


def blurred(said: Said) -> bool:
    """True where tokens that look alike may hide each other in the report."""
    return any(BROKEN in word or not word for word in said.top)


def ranked(said: Said, most: int) -> tuple[list[str], list[float]]:
    """The likeliest tokens at a place and their probabilities, best first."""
    best = sorted(said.top, key=lambda word: -said.top[word])[:most]
    return best, [math.exp(min(said.top[word], 0.0)) for word in best]


def heated(probs: Sequence[float], heat: float) -> list[float] | None:
    """Probabilities of the likeliest tokens at a temperature, and of all others; None where those weigh too much."""
    rest = max(0.0, 1.0 - sum(probs))
    if heat == 1.0:
        return [*probs, rest]
    power = 1 / heat
    weights, total = [prob**power for prob in probs], sum(prob**power for prob in probs)
    # none of the others is likelier than the last of the likeliest; above temperature 1 their number would matter
    most = rest * min(probs, default=1.0) ** (power - 1) if power > 1 else rest * HUGE
    if not total or most > DOUBT * total:
        return None
    return [*(weight / total for weight in weights), 0.5 * most / total]


def law_of(said: Said, most: int, heat: float = 1.0) -> tuple[list[str], list[float]] | None:
    """The likeliest tokens, and the law over them and all others; None where the server says too little."""
    words, probs = ranked(said, len(said.top))
    if blurred(said):
        return None
    if not words or said.logprob is None or sum(probs) > 1.02 or (len(words) < most and sum(probs) < 0.98):
        return None
    law = heated(probs, heat)
    return None if law is None else (words[:most], [*law[: len(words)][:most], sum(law[: len(words)][most:]) + law[-1]])
