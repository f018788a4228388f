"""Middleware in front of all routes: hosts, origins, header sizes, API keys, errors, access log."""

import hashlib
import hmac
import ipaddress
import re
import secrets
import traceback
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sapwood.server.errors import ApiError, ClientDisconnected, as_error
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.http.http_body import OLLAMA
from sapwood.server.resume import REQUEST_ID, RESUME, SECRET, TENANT, FrontLink
from sapwood.server.settings import LOOPBACK, ServerSettings

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "CONNECT")
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
ANTHROPIC = "/v1/messages"  # paths of this API, like Ollama's, have error objects of their own
DISCONNECTED = 499  # logged for a client that closed the connection
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class ApiKeys:
    """The API keys, as hashes under a secret of this process."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._secret = secrets.token_bytes(32)
        self._known = [self._hash(key) for key in keys]

    def _hash(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode(), key=self._secret).digest()

    def tenant(self, header: str | None) -> str | None:
        """The tenant of an Authorization header; None: no valid key; empty: no keys are set."""
        if not self._known:
            return ""
        kind, _, key = (header or "").partition(" ")
        given = self._hash(key.strip())
        # all keys are compared, in constant time, so that the time reveals nothing
        found = [hmac.compare_digest(given, known) for known in self._known]
        return given.hex()[:16] if any(found) and kind.lower() == "bearer" else None


class SecurityMiddleware:
    """ASGI middleware: checks requests, turns exceptions into errors, writes the access log."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        without_key: tuple[str, ...],  # paths that need no key
        watchers: Sequence[Callable[[AccessLogEntry], None]] = (),  # of finished requests
    ) -> None:
        self.app = app
        self.settings = settings
        self.watchers = watchers
        self.keys = ApiKeys(settings.keys)
        self.without_key = without_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        method = scope["method"]
        log_entry = AccessLogEntry(method if method in METHODS else "other")
        scope["log_entry"] = log_entry
        scope["app"] = self
        headers = Headers(scope=scope)
        log_entry.traceparent = headers.get("traceparent", "")
        cors = self.cors_headers(headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                log_entry.status = message["status"]
                added = [(b"x-request-id", log_entry.id.encode()), *cors, *SECURITY_HEADERS]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            elif not message.get("more_body", False):
                log_entry.over = True
            await send(message)

        try:
            await self.serve(scope, receive, send_with_headers, log_entry)
        finally:
            log_entry.route = getattr(scope.get("route"), "path", "")
            log_entry.log()
            for watcher in self.watchers:
                watcher(log_entry)

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, log_entry: AccessLogEntry
    ) -> None:
        """Check a request and pass it on; an exception becomes an error object."""
        try:
            headers = Headers(scope=scope)
            if SECRET in headers:
                self.accept_front(scope, headers, log_entry)
                await self.app(scope, receive, send)
                return
            self.check(scope, headers)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await preflight(headers, send)
                return
            tenant = self.keys.tenant(authorization(headers))
            if tenant is None and self.needs_key(scope["path"]):
                raise unauthorized(headers)
            log_entry.tenant = tenant or ""
            await self.app(scope, receive, send)
        except ClientDisconnected:
            log_entry.status = DISCONNECTED
        except Exception as problem:
            error = as_error(problem, scope["path"])
            if error.status == 500:
                last = traceback.extract_tb(problem.__traceback__)[-1]
                log_entry.fault = (
                    f"{type(problem).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno}"
                )
            if log_entry.status:  # the response has begun and can only be ended early
                log_entry.fault = log_entry.fault or type(problem).__name__
                return
            await error_response(error, scope["path"])(scope, receive, send)

    def accept_front(self, scope: Scope, headers: Headers, log_entry: AccessLogEntry) -> None:
        """Accept a request that a front has checked; refuse one without the front's secret."""
        given = headers[SECRET].encode("latin-1")
        if not self.settings.front or not hmac.compare_digest(given, self.settings.front.encode()):
            raise ApiError(403, f"{SECRET} is for the front of this server alone; leave it out")
        log_entry.tenant = headers.get(TENANT, "")
        log_entry.id = headers.get(REQUEST_ID, log_entry.id)
        log_entry.silent = REQUEST_ID not in headers
        resume = headers.get(RESUME, "")
        if resume.isdecimal():
            scope["front"] = FrontLink(int(resume))

    def needs_key(self, path: str) -> bool:
        """True for a path that needs a key; an entry that ends in a slash frees all below it."""
        below = tuple(entry for entry in self.without_key if entry[-1] == "/" and len(entry) > 1)
        return path not in self.without_key and not path.startswith(below)

    def check(self, scope: Scope, headers: Headers) -> None:
        """Refuse too many headers, unknown hosts and origins that are not allowed."""
        limits = self.settings.limits
        if len(scope["headers"]) > limits.headers:
            raise ApiError(
                431, f"{len(scope['headers'])} header fields; at most {limits.headers} are allowed"
            )
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        size += len(scope["raw_path"]) + len(scope["query_string"])
        if size > limits.header_bytes:
            raise ApiError(
                431,
                f"path and headers have {size} bytes; at most {limits.header_bytes} are allowed",
            )
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(
                400,
                "Content-Length and Transfer-Encoding contradict each other; send one",
                headers={"Connection": "close"},
            )
        self.check_host(headers)
        if "origin" in headers and not self.cors_headers(headers) and not same_origin(headers):
            raise ApiError(
                403, "pages of other origins may not call this server; allow them with --origin"
            )

    def check_host(self, headers: Headers) -> None:
        """Refuse an unknown host name: a page may have let its own name point here."""
        given = headers.get("host", "")
        match = HOST.fullmatch(given)
        if match is None:
            raise ApiError(400, "the Host header is missing or malformed")
        host = match.group(1).strip("[]").lower()
        known = host in (*LOOPBACK, self.settings.host.lower(), *self.settings.hosts)
        if known or (not self.settings.local and (self.settings.keys or is_address(host))):
            return
        raise ApiError(
            403,
            "the name in the Host header is not allowed; allow it with --allow-host",
        )

    def cors_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """The headers that let a page of an allowed origin read the response."""
        origin = headers.get("origin")
        if origin is None or not {origin, "*"} & set(self.settings.origins):
            return []
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


def front_link(scope: Scope) -> FrontLink | None:
    """The front's wishes for a response; None for a request that came from a client."""
    link: FrontLink | None = scope.get("front")
    return link


def authorization(headers: Headers) -> str | None:
    """The Authorization header; clients of Anthropic send the key in one of their own."""
    if "authorization" not in headers and "x-api-key" in headers:
        return f"Bearer {headers['x-api-key']}"
    return headers.get("authorization")


def error_response(error: ApiError, path: str) -> Response:
    """The response of an error, in the form of the API that the path belongs to."""
    if not path.startswith((ANTHROPIC, OLLAMA)):
        return error.response()
    return Response(
        msgspec.json.encode(error_record(error, path)),
        error.status,
        error.headers,
        "application/json",
    )


def error_record(error: ApiError, path: str) -> msgspec.Struct:
    """The error object of an API with a form of its own."""
    if path.startswith(OLLAMA):
        from sapwood.server.ollama.errors import error_object as ollama_object

        return ollama_object(error)
    from sapwood.server.anthropic.errors import error_object

    return error_object(error)


def same_origin(headers: Headers) -> bool:
    """True when the page came from this server."""
    parts = urlsplit(headers["origin"])
    return (
        parts.scheme in ("http", "https")
        and parts.netloc.lower() == headers.get("host", "").lower()
    )


def is_address(host: str) -> bool:
    """True for a numeric address, which is no other page's name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def preflight(request_headers: Headers, send: Send) -> None:
    """Answer the CORS preflight request of a page of an allowed origin."""
    names = request_headers.get("access-control-request-headers", "authorization, content-type")
    headers = [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", names.encode("latin-1")),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def unauthorized(headers: Headers) -> ApiError:
    """The error of a missing or wrong key; the key itself is not repeated."""
    # litellm recognises this error by the words "Incorrect API key provided"
    sent = "authorization" in headers or "x-api-key" in headers
    reason = "Incorrect API key provided" if sent else "No API key provided"
    return ApiError(
        401, f"{reason}; send Authorization: Bearer KEY", headers={"WWW-Authenticate": "Bearer"}
    )
