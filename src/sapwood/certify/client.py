"""Client of a server of OpenAI's protocol.

Completions are used if the server has them, since they let a text be continued; chat otherwise. The
number of concurrent requests is limited, each has a timeout, and a busy server is asked again.
"""

import http.client
import json
import math
import re
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sapwood.errors import SapwoodError

Json = dict[str, Any]
BUSY = (429, 502, 503, 504)  # statuses after which a request is repeated
TRIES = 4  # requests to a busy server
PAUSE_S = 0.5  # before the second, doubled each time
METRICS_S = 10.0  # longest wait for a server's metrics
TIME_OVER = "the time limit is over; allow more with --minutes, or ask for fewer --samples"
# counters of drafted tokens in a server's metrics: vLLM's, SGLang's, our own
DRAFTED = re.compile(
    r"^\S*(?:spec_decode_num_draft_tokens|num_drafted_tokens|grown_nodes)(?:_total)?"
    r"(?:\{[^}]*\})? (\S+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ReportedToken:
    """One token of an answer, with its reported logprobs."""

    text: str
    logprob: float | None = None
    top: dict[str, float] = field(default_factory=dict)  # top logprobs at its position


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """One choice of a response."""

    text: str
    finish: str | None
    reported: list[ReportedToken]  # empty if no logprobs were requested or given
    # of the completion, by the server's own count; None if several choices share it
    tokens: int | None


class ServerRefused(SapwoodError):
    """The server refused a request."""


class DeadlineReached(SapwoodError):
    """The time limit of the whole run is reached."""


@dataclass
class ServerClient:
    """Address, model and request options of a server."""

    url: str  # up to /v1
    model: str = ""  # empty: the first that the server lists
    key: str = ""
    extra: Json = field(default_factory=dict)  # fields of every request
    chat: bool = False
    limit: float = 60.0  # seconds of one request
    until: float = math.inf  # deadline of the run, by the monotonic clock
    workers: int = 4  # requests under way at once
    requests: int = 0
    owner: str = ""  # from the server's list of models
    drafted: int | None = None  # drafted tokens that answers reported; None if none did

    def __post_init__(self) -> None:
        parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SapwoodError(
                f"{self.url!r} is no address of a server; write http://HOST:PORT or .../v1"
            )
        self.scheme = parts.scheme
        self.host = parts.hostname
        self.port = parts.port
        self.path = parts.path.rstrip("/") if parts.path.strip("/") else "/v1"

    # ---------------------------------------------------------------------------------- HTTP
    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        """One request: status, and the body, parsed if it is JSON."""
        status, content = self.fetch(method, self.path + path, body)
        self.requests += 1
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode("utf-8", "replace")[:200]

    def fetch(
        self, method: str, path: str, body: Json | None = None, until: float | None = None
    ) -> tuple[int, bytes]:
        """One request by its whole path, before the deadline or another: status and body."""
        left = (self.until if until is None else until) - time.monotonic()
        if left <= 0:
            raise DeadlineReached(TIME_OVER)
        timeout = min(self.limit, left)
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        more: Json = {"context": ssl.create_default_context()} if self.scheme == "https" else {}
        connection = kind(self.host, self.port, timeout=timeout, **more)
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }
        try:
            connection.request(
                method, path, json.dumps(body) if body is not None else None, headers
            )
            response = connection.getresponse()
            content = response.read()
        except TimeoutError as error:
            if timeout < self.limit:
                raise DeadlineReached(TIME_OVER) from error
            raise ServerRefused(
                f"the server did not answer within {timeout:.0f} s; allow more with --timeout"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerRefused(
                f"{self.url} cannot be reached ({error}); is the server running?"
            ) from error
        finally:
            connection.close()
        return response.status, content

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
            raise ServerRefused(f"HTTP {status}: {complaint(found)}")
        return found

    def choose_model(self) -> None:
        """Take the named model, or the first that the server lists."""
        status, found = self.call("GET", "/models")
        listed = found.get("data", []) if status == 200 and isinstance(found, dict) else []
        models = {str(item.get("id")): item for item in listed if isinstance(item, dict)}
        if not self.model:
            if not models:
                raise SapwoodError(
                    f"{self.url} lists no models (HTTP {status}); name one with --model"
                )
            self.model = next(iter(models))
        self.owner = str(models.get(self.model, {}).get("owned_by", ""))

    def counted_drafts(self) -> int | None:
        """Tokens drafted so far, from the server's metrics or its answers; None if it says none."""
        # also after the deadline: what was drafted until then
        until = time.monotonic() + METRICS_S
        try:
            status, content = self.fetch(
                "GET", self.path.removesuffix("/v1") + "/metrics", until=until
            )
        except SapwoodError:
            return self.drafted
        counts = DRAFTED.findall(content.decode("utf-8", "replace")) if status == 200 else []
        return int(sum(map(float, counts))) if counts else self.drafted

    # ------------------------------------------------------------------------------- prompts
    def ask(self, prompt: str, *, top: int | None = None, **options: Any) -> list[ServerAnswer]:
        """All choices of one request; `top` is the number of logprobs of each token."""
        body: Json = {"model": self.model, **self.extra, **options}
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
            body |= {} if top is None else {"logprobs": True, "top_logprobs": top}
        else:
            body["prompt"] = prompt
            body |= {} if top is None else {"logprobs": top}
        found = self.post("/chat/completions" if self.chat else "/completions", body)
        timings = found.get("timings")
        if isinstance(timings, dict) and isinstance(timings.get("draft_n"), int):
            self.drafted = (self.drafted or 0) + timings["draft_n"]
        return answers(found, chat=self.chat)

    def one(self, prompt: str, **options: Any) -> ServerAnswer:
        """The only choice of a request."""
        return self.ask(prompt, **options)[0]

    def many(
        self, questions: Sequence[Callable[[], Any]], tick: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """Results of many calls, a few at a time, in their order."""

        def done(question: Callable[[], Any]) -> Any:
            found = question()
            tick()
            return found

        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(done, questions))


def answers(found: Json, *, chat: bool) -> list[ServerAnswer]:
    """The choices of a response; raises ServerRefused if it has an unknown form."""
    try:
        choices = sorted(found["choices"], key=lambda choice: choice.get("index", 0))
        count = (found.get("usage") or {}).get("completion_tokens") if len(choices) == 1 else None
        return [
            ServerAnswer(*(chat_choice(choice) if chat else text_choice(choice)), count)
            for choice in choices
        ]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ServerRefused(
            f"the answer is not of OpenAI's form: {type(error).__name__} {error}"
        ) from error


def text_choice(choice: Json) -> tuple[str, str | None, list[ReportedToken]]:
    """Text, finish reason and tokens of a completion."""
    logs = choice.get("logprobs") or {}
    tops = logs.get("top_logprobs") or []
    reported = [
        ReportedToken(
            token,
            number(logprob),
            {
                word: float(log)
                for word, log in ((tops[at] if at < len(tops) else None) or {}).items()
            },
        )
        for at, (token, logprob) in enumerate(
            zip(logs.get("tokens") or [], logs.get("token_logprobs") or [], strict=False)
        )
    ]
    return choice["text"], choice.get("finish_reason"), reported


def chat_choice(choice: Json) -> tuple[str, str | None, list[ReportedToken]]:
    """The same of a chat completion."""
    reported = [
        ReportedToken(
            item["token"],
            number(item["logprob"]),
            {other["token"]: float(other["logprob"]) for other in item.get("top_logprobs") or []},
        )
        for item in (choice.get("logprobs") or {}).get("content") or []
    ]
    return choice["message"].get("content") or "", choice.get("finish_reason"), reported


def number(value: Any) -> float | None:
    """A logprob, which some servers omit for a first token."""
    return None if value is None else float(value)


def complaint(found: Any) -> str:
    """Error message of a response, in one line."""
    if isinstance(found, dict):
        error = found.get("error", found)
        found = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(found).split())[:200]
