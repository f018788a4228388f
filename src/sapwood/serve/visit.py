"""One request in the log: who, what, how long; never what was said."""

import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sapwood.serve.telling import Teller

LOG = logging.getLogger("sapwood.serve")


@dataclass
class Visit:
    """What is known about a request while it is served."""

    method: str
    route: str = ""  # the pattern that matched, never the path as it was sent
    tenant: str = ""
    id: str = field(default_factory=lambda: "req_" + secrets.token_hex(12))
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    over: bool = False  # the last byte of the answer is on its way
    fault: str = ""  # kind and place of an unexpected failure

    def count(self, teller: "Teller") -> None:
        """Book the tokens of an answer, finished or not."""
        self.prompt_tokens = teller.order.prompt_tokens
        self.completion_tokens = sum(len(choice.tokens) for choice in teller.choices)

    def log(self) -> None:
        """One line."""
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
