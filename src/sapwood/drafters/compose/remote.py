"""A drafter on another machine: one call a round, and no tree when its reply is late.

The draft server (`sapwood draft-serve`) gets the new tokens of the text and returns a whole tree,
from which the policy here takes what it wants. The call goes out as soon as a round is over, so
that requests which share a pass wait together. Nothing depends on the reply: without one the round
has no tree, and the text is the same.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.planned_base import PlannedBase
from sapwood.remote.draft_client import DraftClient, read_tree
from sapwood.remote.messages import LinkError, parse_url


@dataclass
class Remote(PlannedBase):
    """A draft server elsewhere, asked once a round; a late reply means no tree."""

    url: str = "tcp://127.0.0.1:8765"
    deadline_ms: float = 100.0  # longest wait for a tree; the usual wait is learned
    # largest tree that the server is to return
    nodes: int = 32
    depth: int = 8
    width: int = 4

    paper: ClassVar[str] = "2506.09397"

    def __post_init__(self) -> None:
        between(1, CAPACITY - 1, nodes=self.nodes)
        between(0.1, 60_000, deadline_ms=self.deadline_ms)
        at_least(1, depth=self.depth, width=self.width)

    def bind(self, setting: EngineContext) -> None:
        """Connect; without a server decoding begins without trees."""
        parse_url(self.url)
        info = setting.target.info
        self.vocab = info.vocab
        self.client = DraftClient(
            self.url,
            self.deadline_ms / 1000,
            vocab=info.vocab,
            context=info.context,
            model=info.model,
        )
        self.client.connect()

    @property
    def substitutes(self) -> list[str]:
        """The reason why there is no connection; empty when there is one."""
        reason = self.client.sentence
        return [f"{reason}; decoding goes on without its trees until it does"] if reason else []

    def reset(self, request: RequestContext) -> None:
        """Begin a request; the server gets the prompt with the first call."""
        super().reset(request)
        self.request_ = next(self.client.numbers)
        self.known_ = 0  # tokens of the text that the server has
        self.call_: int | None = None

    def observe(self, outcome: Outcome) -> None:
        """Ask for the next tree at once if this round had one."""
        super().observe(outcome)
        self.call_ = self._ask() if outcome.asked else None

    def _ask(self) -> int | None:
        limits = {"nodes": self.nodes, "depth": self.depth, "width": self.width}
        return self.client.ask(self.request_, self.text_, self.known_, **limits)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Copy nodes from the server's tree, for which one call is made."""
        tree.one_call = True
        super().expand(tree, frontier, rng)

    def plan(self, rng: Rng) -> Tree:
        """The server's tree; the root alone when it is late."""
        root = self.text_[-1]
        call = self._ask() if self.call_ is None else self.call_
        self.call_ = None
        reply = None if call is None else self.client.wait(call)
        if reply is None:
            # what was on its way may be lost: the next call repeats it
            self.known_ = 0 if self.client.connection is None else self.known_
            return Tree.of_root(root)
        try:
            self.known_ = reply.number("known", most=len(self.text_))
            return read_tree(root, reply, self.vocab)
        except LinkError as error:
            self.client.drop(error)
            return Tree.of_root(root)

    def close(self) -> None:
        """Tell the server that the request is over."""
        self.client.end(self.request_, self.call_)
