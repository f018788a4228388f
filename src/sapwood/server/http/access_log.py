"""The access log: one line per request, without its text."""

import logging
import secrets
import time
from dataclasses import dataclass, field

import msgspec

LOG = logging.getLogger("sapwood.server")


@dataclass
class AccessLogEntry:
    """The log entry of one request, filled in while it is served."""

    method: str
    route: str = ""  # the pattern that matched, never the path as it was sent
    tenant: str = ""
    id: str = field(default_factory=lambda: "req_" + secrets.token_hex(12))
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    traceparent: str = ""  # of the caller's trace, as W3C defines the header
    over: bool = False  # the last byte of the response has been sent
    silent: bool = False  # a health check of the front is not logged
    fault: str = ""  # type and location of an unexpected failure

    def log(self) -> None:
        """Write the entry as one line of JSON."""
        if self.silent:
            return
        line = {
            "time": round(time.time(), 3),
            "event": "request",
            "id": self.id,
            "tenant": self.tenant,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "ms": round(1000 * (time.monotonic() - self.began), 1),
        }
        if self.fault:
            line["fault"] = self.fault
        LOG.info(msgspec.json.encode(line).decode())
