"""A small server of OpenAI's protocol over a toy model that speculates, rightly or with one planted fault.

The model knows 24 words; its law depends on the last three. It drafts four tokens ahead from a law
that is near the target's, and checks them by rejection sampling. Each fault is one that was seen in
an engine people use.
"""

import hashlib
import json
import math
import random
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray

NAMES = """
amber birch cedar dusk ember fern gale heath iris jade kelp lark moss nook oak pine quartz reed sage thorn umber vale
willow yew
"""
WORDS = tuple(f" {word}" for word in NAMES.split())
DRAFT = 4  # tokens ahead
KNOWN = 3  # last words on which the law depends
FAULTS = {  # name -> the check that must fail
    "argmax": "law",  # drafted tokens are verified greedily whatever the temperature
    "accept-if-p>=q": "law",
    "no-residual": "law",  # a refused token is replaced by a draw from p
    "unverified-first": "greedy",  # the first drafted token of a round is kept unseen
    "cold": "temperature",  # drafted tokens are verified at temperature 1
    "min_p": "min_p",  # ignored inside a draft, as are the next four
    "top_p": "top_p",
    "top_k": "top_k",
    "logit_bias": "logit_bias",
    "penalties": "penalties",  # what the draft itself said is not counted
    "logprob-0": "logprobs",
    "draft-logprobs": "logprobs",  # of the drafter, where a drafted token was kept
    "lenient": "greedy",  # at temperature 0 a token near the best is good enough
    "seed": "seed",  # ignored
    "one-seed": "independence",  # always the same where none is given
    "late-stop": "stop",  # looked for at the end of a round only
    "late-end": "max_tokens",  # the same with lengths
}


class Law:
    """A distribution of the next token, with what drawing from it needs."""

    def __init__(self, probs: FloatArray) -> None:
        self.array = probs
        self.probs: list[float] = probs.tolist()
        # of 24 numbers, plain Python is quicker than numpy
        self.sums = list(accumulate(self.probs))
        self.last = max(place for place, prob in enumerate(self.probs) if prob)
        self.best = self.probs.index(max(self.probs))

    def pick(self, uniform: float) -> int:
        return min(bisect_left(self.sums, uniform), self.last)


@cache
def tables() -> dict[str, FloatArray]:
    """The target's and the drafter's laws after every three words: drawn at once, in 0.1 s."""
    noise = np.random.default_rng(1)
    shape = (len(WORDS),) * KNOWN
    made = noise.dirichlet([0.25] * len(WORDS), (2, *shape)) * 0.98 + 0.02 / len(WORDS)
    target, own = made
    return {"target": target, "draft": 0.4 * target + 0.6 * own}


def probs_after(kind: str, context: tuple[int, ...]) -> FloatArray:
    """The law after the last three words, or after fewer and the first word in their place."""
    found: FloatArray = tables()[kind][(0,) * (KNOWN - len(context)) + context]
    return found


def encode(text: str) -> list[int]:
    known = {word.strip(): place for place, word in enumerate(WORDS)}
    return [
        known.get(word, int(hashlib.sha256(word.encode()).hexdigest(), 16) % len(WORDS))
        for word in text.split()
    ]


SHAPING = ("temperature", "top_k", "top_p", "min_p")
MISSHAPING = {"cold", "top_k", "top_p", "min_p"}  # faults of these; others share laws with none
# options whose effect depends on more of the text, beside `repeat_penalty`
COUNTING = ("logit_bias", "frequency_penalty", "presence_penalty")


def shaped(
    logits: FloatArray, faulty: str, heat: float, most: int, mass: float, least: float
) -> FloatArray:
    """The law that temperature and truncations make of logits."""
    if heat == 0:
        best: FloatArray = np.eye(len(WORDS))[int(np.argmax(logits))]
        return best
    probs: FloatArray = np.exp((logits - logits.max()) / (1.0 if faulty == "cold" else heat))
    probs /= probs.sum()
    if most and faulty != "top_k":
        probs[probs < np.sort(probs)[-most]] = 0
    if mass and faulty != "top_p":
        order = np.argsort(-probs)
        probs[order[int(np.searchsorted(np.cumsum(probs[order]), mass)) + 1 :]] = 0
    if least and faulty != "min_p":
        probs[probs < least * probs.max()] = 0
    probs /= probs.sum()
    return probs


@lru_cache(100_000)
def raw_law(kind: str, context: tuple[int, ...]) -> Law:
    return Law(probs_after(kind, context))


@lru_cache(100_000)
def cached(kind: str, context: tuple[int, ...], *options: Any) -> Law:
    return Law(shaped(np.log(probs_after(kind, context)), *options))


@lru_cache(100_000)
def rest(p: Law, q: Law) -> Law:
    """What is left of the target's law where a drafted token was refused."""
    left = np.maximum(p.array - q.array, 0.0)
    return Law(left / left.sum()) if left.sum() > 1e-12 else p


@lru_cache(100_000)
def top_logprobs(law: Law, top: int) -> dict[str, float]:
    return {WORDS[token]: math.log(law.probs[token]) for token in np.argsort(-law.array)[:top]}


asked: Counter[str] = Counter()  # how often each request came


lock = threading.Lock()


def unseeded(body: dict[str, Any]) -> str:
    """Noise that differs each time the same is asked, and is the same in every run of the tests.

    Drawn once for all choices of a request: when equal requests come at the same time, either may
    be the first, but together they get the same answers.
    """
    text = json.dumps(body, sort_keys=True)
    with lock:
        asked[text] += 1
        return f"{asked[text]}/{text}"


class Model:
    """One request: its options, its noise, what it has said."""

    def __init__(
        self, prompt: str, options: dict[str, Any], fault: str, noise: str, choice: int
    ) -> None:
        self.options = options
        self.fault = fault
        seed = options.get("seed")
        if seed is None and fault == "one-seed":
            self.noise = random.Random("always")
        elif seed is None or fault == "seed":
            self.noise = random.Random(f"{noise}/{choice}")
        else:
            self.noise = random.Random(f"{seed}/{choice}")
        self.text = encode(prompt)
        self.said: list[int] = []
        self.reports: list[Law] = []  # the law reported for each token
        self.penalty = options.get("repeat_penalty") or 1.0
        self.shape = [options.get(name) or 0 for name in SHAPING]
        self.counted = any(options.get(name) for name in COUNTING) or self.penalty != 1.0

    def context(self, ahead: Sequence[int]) -> tuple[int, ...]:
        """The last three tokens."""
        return tuple([*self.text[-KNOWN:], *self.said[-KNOWN:], *ahead][-KNOWN:])

    def raw(self, ahead: Sequence[int], kind: str = "target") -> Law:
        return raw_law(kind, self.context(ahead))

    def probs(self, ahead: Sequence[int], kind: str = "target") -> Law:
        """The law after options, with the fault where it touches drafted tokens."""
        faulty = self.fault if ahead and kind == "target" else ""
        options = self.options
        if not self.counted:
            shape_fault = faulty if faulty in MISSHAPING else ""
            return cached(kind, self.context(ahead), shape_fault, *self.shape)
        logits = np.log(self.raw(ahead, kind).array)
        for token in {*self.text, *self.said, *ahead}:
            logits[token] *= self.penalty  # logarithms of probabilities are negative
        if faulty != "logit_bias":
            for token, bias in (options.get("logit_bias") or {}).items():
                logits[int(token) % len(WORDS)] += bias
        for token in self.said if faulty == "penalties" else [*self.said, *ahead]:
            logits[token] -= options.get("frequency_penalty") or 0.0
        for token in set(self.said if faulty == "penalties" else [*self.said, *ahead]):
            logits[token] -= options.get("presence_penalty") or 0.0
        return Law(shaped(logits, faulty, *self.shape))

    def pick(self, law: Law) -> int:
        return law.pick(self.noise.random())

    # ------------------------------------------------------------------------------- rounds
    def say(self) -> None:
        """One round: four drafted tokens as far as they stand, and one more."""
        if not self.said:  # the prompt's own pass
            self.keep([(self.pick(self.probs([])), self.raw([]))])
            return
        drafted: list[int] = []
        for _ in range(DRAFT):
            drafted.append(self.pick(self.probs(drafted, "draft")))
        out: list[tuple[int, Law]] = []
        for place, token in enumerate(drafted):
            before = drafted[:place]
            report = self.raw(before, "draft" if self.fault == "draft-logprobs" else "target")
            kept, other = self.judge(
                place, token, self.probs(before), self.probs(before, "draft"), self.raw(before)
            )
            out.append((token if kept else other, report))
            if not kept:
                break
        else:
            out.append((self.pick(self.probs(drafted)), self.raw(drafted)))
        self.keep(out)

    def judge(self, place: int, token: int, p: Law, q: Law, raw: Law) -> tuple[bool, int]:
        """Is a drafted token kept, and what comes in its place?"""
        best = p.best
        if self.fault == "unverified-first" and place == 0:
            return True, token
        if self.options.get("temperature", 1.0) == 0:
            if self.restless():
                return False, int(np.argsort((p if max(p.probs) < 1 else raw).array)[-2])
            enough = self.fault == "lenient" and raw.probs[token] >= 0.3 * max(raw.probs)
            return token == best or enough, best
        if self.fault == "argmax":
            return token == best, best
        if self.fault == "accept-if-p>=q":
            return p.probs[token] >= q.probs[token], self.pick(rest(p, q))
        kept = self.noise.random() < min(1.0, p.probs[token] / q.probs[token])
        return kept, self.pick(p if self.fault == "no-residual" else rest(p, q))

    def restless(self) -> bool:
        """True at some tokens of a server that takes another one now and then."""
        return self.fault == "restless" and self.noise.random() < 0.1

    def keep(self, out: list[tuple[int, Law]]) -> None:
        self.said += [token for token, _ in out]
        self.reports += [report for _, report in out]

    def answer(self) -> tuple[str, str]:
        """Text and finish reason."""
        most = self.options.get("max_tokens") or 16
        stops = self.options.get("stop") or []
        while True:
            self.say()
            text = self.spoken()
            cut = self.fault == "late-stop"
            for stop in [stops] if isinstance(stops, str) else stops:
                if (found := text.find(stop)) >= 0:
                    return (text if cut else text[:found]), "stop"
            if len(self.said) >= most:
                if self.fault != "late-end":
                    del self.said[most:], self.reports[most:]
                text = self.spoken()
                return text, "length"

    def spoken(self) -> str:
        return "".join(WORDS[token] for token in self.said)


def logs(model: Model, top: int) -> list[dict[str, Any]]:
    """Each token with its logprob and the likeliest ones."""
    found = []
    for token, law in zip(model.said, model.reports, strict=True):
        item = {"token": WORDS[token], "logprob": math.log(law.probs[token])}
        tops = top_logprobs(law, top)
        if model.fault == "logprob-0":
            item = {"token": WORDS[token], "logprob": 0.0}
            tops = {WORDS[token]: 0.0}
        found.append({**item, "top": tops})
    return found


def respond(body: dict[str, Any], fault: str, chat: bool) -> dict[str, Any]:
    prompt = body["messages"][-1]["content"] if chat else body["prompt"]
    top = (
        (body.get("top_logprobs") or 0 if body.get("logprobs") else None)
        if chat
        else body.get("logprobs")
    )
    choices = []
    tokens = 0
    noise = unseeded(body)
    for index in range(body.get("n") or 1):
        model = Model(prompt, body, fault, noise, index)
        text, finish = model.answer()
        tokens += len(model.said)
        found = None if top is None else logs(model, top)
        choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
            content = [
                {
                    "token": item["token"],
                    "logprob": item["logprob"],
                    "top_logprobs": [
                        {"token": word, "logprob": log} for word, log in item["top"].items()
                    ],
                }
                for item in found or []
            ]
            choice["logprobs"] = None if found is None else {"content": content}
        else:
            choice["text"] = text
            if found is not None:
                choice["logprobs"] = {
                    "tokens": [item["token"] for item in found],
                    "token_logprobs": [item["logprob"] for item in found],
                    "top_logprobs": [item["top"] for item in found],
                }
        choices.append(choice)
    return {"object": "completion", "choices": choices, "usage": {"completion_tokens": tokens}}


@contextmanager
def serving(
    fault: str = "",
    *,
    refuses: Sequence[str] = (),
    chat_only: bool = False,
    defaults: dict[str, Any] | None = None,
    metrics: str = "",
) -> Iterator[str]:
    """A running server; its address.

    Fields in `refuses` are answered with an error, as some engines do; `defaults` are options of
    every request that does not name them; `metrics` is the text of /metrics.
    """
    asked.clear()  # the noise of a test does not depend on which came before it

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self, status: int, record: dict[str, Any] | str) -> None:
            content = (record if isinstance(record, str) else json.dumps(record)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.reply(200 if metrics else 404, metrics or {"error": "no metrics here"})
                return
            self.reply(200, {"data": [{"id": "toy", "owned_by": "tests"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = {**(defaults or {}), **body}
            chat = self.path.endswith("/chat/completions")
            bad = [name for name in refuses if body.get(name) is not None]
            if chat_only and not chat:
                self.reply(404, {"error": {"message": "there are only chats here"}})
            elif bad:
                self.reply(
                    400, {"error": {"message": f"{bad[0]} is not supported with speculation"}}
                )
            else:
                own = fault == "restless"  # not a fault of speculation
                spoiled = fault if own or body.get("speculation") is not False else ""
                self.reply(200, respond(body, spoiled, chat))

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
