"""The gate in front of every route: who may come in, from where, with how much; and the one funnel for errors."""

import hashlib
import hmac
import ipaddress
import re
import secrets
import traceback
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sapwood.serve.errors import ApiError, Gone, as_error
from sapwood.serve.settings import LOOPBACK, Settings
from sapwood.serve.visit import Visit

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "CONNECT")
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
LEFT = 499  # logged for a client that went away
SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Keys:
    """Knows the keys by their hashes, under a secret of this process."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._secret = secrets.token_bytes(32)
        self._known = [self._hash(key) for key in keys]

    def _hash(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode(), key=self._secret).digest()

    def tenant(self, header: str | None) -> str | None:
        """A short name of the key in this header; None where it opens nothing; empty where there are no keys."""
        if not self._known:
            return ""
        kind, _, key = (header or "").partition(" ")
        given = self._hash(key.strip())
        # every key is compared, in constant time, so that time says nothing about which was near
        found = [hmac.compare_digest(given, known) for known in self._known]
        return given.hex()[:16] if any(found) and kind.lower() == "bearer" else None


class Guard:
    """Wraps the routes."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        opened: tuple[str, ...],
        watchers: Sequence[Callable[[Visit], None]] = (),
    ) -> None:
        self.app, self.settings, self.watchers = app, settings, watchers  # told of every visit when it is over
        self.keys, self.opened = Keys(settings.keys), opened  # paths that need no key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        method = scope["method"]
        visit = Visit(method if method in METHODS else "other")
        scope["visit"], scope["app"] = visit, self
        allowed = self.origin(Headers(scope=scope))

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                named = [(b"x-request-id", visit.id.encode()), *allowed, *SAFE]
                message = {**message, "headers": [*message.get("headers", ()), *named]}
            elif not message.get("more_body", False):
                visit.over = True
            await send(message)

        try:
            await self.serve(scope, receive, told, visit)
        finally:
            visit.route = getattr(scope.get("route"), "path", "")
            visit.log()
            for watcher in self.watchers:
                watcher(visit)

    async def serve(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        """Check and pass on; whatever fails becomes an error object."""
        try:
            headers = Headers(scope=scope)
            self.check(scope, headers)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await preflight(headers, send)
                return
            tenant = self.keys.tenant(headers.get("authorization"))
            if tenant is None and not self.open_to_all(scope["path"]):
                raise unauthorized(headers)
            visit.tenant = tenant or ""
            await self.app(scope, receive, send)
        except Gone:
            visit.status = LEFT
        except Exception as problem:
            error = as_error(problem)
            if error.status == 500:
                last = traceback.extract_tb(problem.__traceback__)[-1]
                visit.fault = f"{type(problem).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno}"
            if visit.status:  # the answer has begun; ending it early is all that is left
                visit.fault = visit.fault or type(problem).__name__
                return
            await error.response()(scope, receive, send)

    def open_to_all(self, path: str) -> bool:
        """True for what needs no key; an entry that ends in a slash opens all below it."""
        below = tuple(entry for entry in self.opened if entry[-1] == "/" and len(entry) > 1)
        return path in self.opened or path.startswith(below)

    def check(self, scope: Scope, headers: Headers) -> None:
        """Refuse too many headers, foreign hosts and foreign pages."""
        limits = self.settings.limits
        if len(scope["headers"]) > limits.headers:
            raise ApiError(431, f"{len(scope['headers'])} header fields; at most {limits.headers} are read")
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        size += len(scope["raw_path"]) + len(scope["query_string"])
        if size > limits.header_bytes:
            raise ApiError(431, f"path and headers have {size} bytes; at most {limits.header_bytes} are read")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(400, "a length and chunks contradict each other; send one", headers={"Connection": "close"})
        self.check_host(headers)
        if "origin" in headers and not self.origin(headers) and not same_place(headers):
            raise ApiError(403, "pages of other origins may not call this server; allow them with --origin")

    def check_host(self, headers: Headers) -> None:
        """A name that is not ours is a page that had a foreign name point here."""
        given = headers.get("host", "")
        match = HOST.fullmatch(given)
        if match is None:
            raise ApiError(400, "the Host header is missing or malformed")
        host = match.group(1).strip("[]").lower()
        ours = host in (*LOOPBACK, self.settings.host.lower(), *self.settings.hosts)
        if ours or (not self.settings.local and (self.settings.keys or is_address(host))):
            return
        raise ApiError(403, "this server does not go by the name in the Host header; allow it with --allow-host")

    def origin(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """The headers that let a page of an allowed origin read the answer."""
        origin = headers.get("origin")
        if origin is None or not {origin, "*"} & set(self.settings.origins):
            return []
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


def same_place(headers: Headers) -> bool:
    """True where the page came from this server."""
    parts = urlsplit(headers["origin"])
    return parts.scheme in ("http", "https") and parts.netloc.lower() == headers.get("host", "").lower()


def is_address(host: str) -> bool:
    """True for a numeric address, which no foreign name can be pointed from."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def preflight(asked: Headers, send: Send) -> None:
    """What a browser asks before a page of an allowed origin may call."""
    names = asked.get("access-control-request-headers", "authorization, content-type")
    headers = [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", names.encode("latin-1")),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def unauthorized(headers: Headers) -> ApiError:
    """No key, or a wrong one; the key itself is not repeated."""
    # litellm knows an error of this kind by the words "Incorrect API key provided"
    said = "Incorrect API key provided" if "authorization" in headers else "No API key provided"
    return ApiError(401, f"{said}; send Authorization: Bearer KEY", headers={"WWW-Authenticate": "Bearer"})
