"""A drafter on another machine: one call a round, and no tree when its reply is late.

The draft server (`sapwood draft-serve`) gets the new tokens of the text and returns a whole tree,
from which the policy here takes what it wants. The call goes out as soon as a round is over, so
that requests which share a pass wait together. A reply is waited for where that pays
(`remote.wait_rule`). One that comes later is followed along the text: what is left of its tree is
a tree of the present round. Nothing depends on the reply: without one the round has no tree, and
the text is the same.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.planned_base import PlannedBase
from sapwood.remote.draft_client import DraftClient, read_tree
from sapwood.remote.messages import LinkError, RemoteMessage, parse_url
from sapwood.remote.wait_rule import WaitRule

GIVEN_UP = 2  # deadlines after which a reply counts as lost


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
        self.cost = setting.cost
        self.rule = WaitRule()

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
        self.call_: int | None = None  # a call whose reply has not come
        self.called_ = 0  # tokens of the text at that call
        self.trees_ = 1  # of the last pass
        self.followed_ = FollowedTree(Tree.of_root(self.text_[-1]))
        self.followed_.counted = True  # no reply has come yet
        self.used_ = False  # this round could use it

    @property
    def step_seconds(self) -> float:
        """Seconds of a step of plain decoding."""
        return self.cost.seconds(self.trees_, len(self.text_) - 1, self.trees_)

    @property
    def limit(self) -> float:
        """Seconds from a call to the end of the wait for its reply; 0: no wait."""
        client = self.client
        return self.rule.limit(self.step_seconds, client.mean, client.answered, client.deadline)

    def observe(self, outcome: Outcome) -> None:
        """Follow the tree along the new text, and ask for the next one where that is useful."""
        super().observe(outcome)
        self.trees_ = outcome.trees
        self.followed_.extend(outcome.tokens, outcome.verdict.accepted, offered=self.used_)
        self.used_ = False
        if not self.followed_.goes_on:
            self._count()
        self._look()
        if outcome.asked and (self.limit or (self.call_ is None and self.rule.due())):
            self._ask()

    def _count(self) -> None:
        """Count the tree that was followed, once."""
        tree = self.followed_
        if tree.counted:
            return
        tree.counted = True
        useful = tree.right > tree.age or tree.right * self.step_seconds > self.client.mean
        self.rule.followed(tree.right, tree.offered, tree.accepted, useful=useful)

    def _ask(self) -> None:
        """Send the text and ask for a tree after it."""
        if self.call_ is not None:
            self.client.forget(self.call_)
        limits = {"nodes": self.nodes, "depth": self.depth, "width": self.width}
        self.called_ = len(self.text_)
        self.call_ = self.client.ask(self.request_, self.text_, self.known_, **limits)

    def _look(self, until: float = 0.0) -> None:
        """Follow the tree of a reply that has come, or comes until this time."""
        if self.call_ is None:
            return
        reply = self.client.wait(self.call_, until)
        if reply is not None:
            self._take(reply)
        elif self.client.connection is None:
            self.call_ = None
            self.known_ = 0  # the server has forgotten the text
        elif self.client.age(self.call_) > GIVEN_UP * self.client.deadline:
            self.client.forget(self.call_)
            self.client.missed()
            self.rule.space(useful=False)
            self.call_ = None

    def _take(self, reply: RemoteMessage) -> None:
        """Follow the tree of a reply from its call to the end of the text."""
        self.call_ = None
        try:
            self.known_ = reply.number("known", most=len(self.text_))
            tree = read_tree(self.text_[self.called_ - 1], reply, self.vocab)
        except LinkError as error:
            self.client.drop(error)
            return
        self._count()
        self.followed_ = FollowedTree(tree, len(self.text_) - self.called_)
        self.followed_.extend(self.text_[self.called_ :], 0, offered=False)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Copy nodes from the server's tree, for which one call is made."""
        tree.one_call = True
        super().expand(tree, frontier, rng)

    def start(self, rng: Rng) -> int | None:
        """The text's node in the server's tree; None when there is none in time."""
        begins = not self.called_
        if self.call_ is None and (begins or self.limit):
            self._ask()
        self._look()
        waits = self.call_ is not None and self.called_ == len(self.text_)
        if waits and (limit := self.limit):
            assert self.call_ is not None
            until = self.client.now() - self.client.age(self.call_) + limit
            self._look(until)
            if self.call_ is not None:
                self.client.missed()
        self.plan_ = self.followed_.tree
        self.used_ = self.followed_.goes_on
        return self.followed_.node

    def plan(self, rng: Rng) -> Tree:
        """The tree that is followed."""
        return self.followed_.tree

    def close(self) -> None:
        """Tell the server that the request is over."""
        self.client.end(self.request_, self.call_)


@dataclass
class FollowedTree:
    """A server's tree, and the text's way through it since the call."""

    tree: Tree
    age: int = 0  # tokens that the text had gained when the tree came
    node: int | None = ROOT  # of the text's end; None once the text has left the tree
    right: int = 0  # tokens of the text that the tree had
    offered: int = 0  # of these, tokens of rounds that could use the tree
    accepted: int = 0  # accepted in those rounds
    counted: bool = False

    @property
    def goes_on(self) -> bool:
        """True when the tree has a token after the text's end."""
        return self.node is not None and len(self.tree.children(self.node)) > 0

    def extend(self, tokens: list[int], accepted: int, *, offered: bool) -> None:
        """Follow new text; `offered`: its round could use the tree, and accepted some of it."""
        before = self.right
        for token in tokens:
            if self.node is None:
                break
            self.node = self.tree.child(self.node, token)
            self.right += self.node is not None
        if offered:
            self.offered += self.right - before
            self.accepted += accepted
