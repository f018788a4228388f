"""A server of OpenAI's protocol, asked from outside.

Completions are used where the server has them, since they let a text be continued; chat where it has nothing else. No
more requests are under way at once than allowed, each has a time limit, and a server that is busy is asked again.
"""

import http.client
import json
import math
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sapwood.errors import SapwoodError

Json = dict[str, Any]
BUSY = (429, 502, 503, 504)  # answers after which one asks again
TRIES, PAUSE_S = 4, 0.5  # of a busy server: how often, and the first pause, which doubles


@dataclass(frozen=True, slots=True)
class Said:
    """One token of an answer, with what the server reports about its place."""

    text: str
    logprob: float | None = None
    top: dict[str, float] = field(default_factory=dict)  # likeliest tokens there and their log-probabilities


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice of a response."""

    text: str
    finish: str | None
    said: list[Said]  # empty where no logprobs were asked for or given
    tokens: int | None  # of the completion, by the server's own count; None where several choices share it


class Refused(SapwoodError):
    """The server would not do what it was asked."""


class Late(SapwoodError):
    """The time for all of it is over."""


@dataclass
class Server:
    """An address, a model there, and how it is to be asked."""

    url: str  # up to /v1
    model: str = ""  # empty: the first that the server lists
    key: str = ""
    extra: Json = field(default_factory=dict)  # fields of every request
    chat: bool = False
    limit: float = 60.0  # seconds of one request
    until: float = math.inf  # when all has to be over, by the monotonic clock
    workers: int = 4  # requests under way at once
    requests: int = 0
    owner: str = ""  # as the server's list of models says

    def __post_init__(self) -> None:
        parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SapwoodError(f"{self.url!r} is no address of a server; write http://HOST:PORT or .../v1")
        self.scheme, self.host, self.port = parts.scheme, parts.hostname, parts.port
        self.path = parts.path.rstrip("/") if parts.path.strip("/") else "/v1"

    # ------------------------------------------------------------------------------- the wire
    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        """One request: status and what came back, read as JSON where it is."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise Late("the time limit is over; allow more with --minutes, or ask for fewer --samples")
        timeout = min(self.limit, left)
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        more: Json = {"context": ssl.create_default_context()} if self.scheme == "https" else {}
        connection = kind(self.host, self.port, timeout=timeout, **more)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        try:
            connection.request(method, self.path + path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            content = response.read()
        except TimeoutError as error:
            raise Refused(f"the server did not answer within {timeout:.0f} s; allow more with --timeout") from error
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{self.url} cannot be reached ({error}); is the server running?") from error
        finally:
            connection.close()
        self.requests += 1
        try:
            return response.status, json.loads(content)
        except ValueError:
            return response.status, content.decode("utf-8", "replace")[:200]

    def post(self, path: str, body: Json) -> Json:
        """A request that must succeed."""
        pause = PAUSE_S
        for _ in range(TRIES):
            status, found = self.call("POST", path, body)
            if status not in BUSY:
                break
            time.sleep(pause)
            pause *= 2
        if status != 200 or not isinstance(found, dict):
            raise Refused(f"HTTP {status}: {complaint(found)}")
        return found

    def choose_model(self) -> None:
        """Take the model that was named, or the first that the server lists."""
        status, found = self.call("GET", "/models")
        listed = found.get("data", []) if status == 200 and isinstance(found, dict) else []
        models = {str(item.get("id")): item for item in listed if isinstance(item, dict)}
        if not self.model:
            if not models:
                raise SapwoodError(f"{self.url} lists no models (HTTP {status}); name one with --model")
            self.model = next(iter(models))
        self.owner = str(models.get(self.model, {}).get("owned_by", ""))

    # ------------------------------------------------------------------------------- questions
    def ask(self, prompt: str, *, top: int | None = None, **options: Any) -> list[Answer]:
        """All choices of one request; `top` asks for so many logprobs of each token."""
        body: Json = {"model": self.model, **self.extra, **options}
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
            body |= {} if top is None else {"logprobs": True, "top_logprobs": top}
        else:
            body["prompt"] = prompt
            body |= {} if top is None else {"logprobs": top}
        found = self.post("/chat/completions" if self.chat else "/completions", body)
        return answers(found, chat=self.chat)

    def one(self, prompt: str, **options: Any) -> Answer:
        """The only choice of a request."""
        return self.ask(prompt, **options)[0]

    def many(self, questions: Sequence[Callable[[], Any]], tick: Callable[[], None] = lambda: None) -> list[Any]:
        """Answers to many questions, a few at a time, in their order."""

        def done(question: Callable[[], Any]) -> Any:
            found = question()
            tick()
            return found

        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(done, questions))


def answers(found: Json, *, chat: bool) -> list[Answer]:
    """The choices of a response; a Refused error where it is of no known form."""
    try:
        choices = sorted(found["choices"], key=lambda choice: choice.get("index", 0))
        count = (found.get("usage") or {}).get("completion_tokens") if len(choices) == 1 else None
        return [Answer(*(chat_choice(choice) if chat else text_choice(choice)), count) for choice in choices]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise Refused(f"the answer is not of OpenAI's form: {type(error).__name__} {error}") from error


def text_choice(choice: Json) -> tuple[str, str | None, list[Said]]:
    """Text, finish reason and tokens of a completion."""
    logs = choice.get("logprobs") or {}
    tops = logs.get("top_logprobs") or []
    said = [
        Said(
            token,
            number(logprob),
            {word: float(log) for word, log in ((tops[at] if at < len(tops) else None) or {}).items()},
        )
        for at, (token, logprob) in enumerate(
            zip(logs.get("tokens") or [], logs.get("token_logprobs") or [], strict=False)
        )
    ]
    return choice["text"], choice.get("finish_reason"), said


def chat_choice(choice: Json) -> tuple[str, str | None, list[Said]]:
    """The same of a chat answer."""
    said = [
        Said(
            item["token"],
            number(item["logprob"]),
            {other["token"]: float(other["logprob"]) for other in item.get("top_logprobs") or []},
        )
        for item in (choice.get("logprobs") or {}).get("content") or []
    ]
    return choice["message"].get("content") or "", choice.get("finish_reason"), said


def number(value: Any) -> float | None:
    """A log-probability, which some servers leave out for a first token."""
    return None if value is None else float(value)


def complaint(found: Any) -> str:
    """What a server says is wrong, in one line."""
    if isinstance(found, dict):
        error = found.get("error", found)
        found = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(found).split())[:200]
