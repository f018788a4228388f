"""A host for guests: requests with known outputs, verified as an engine at temperature 0 would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import BackendInfo
from sapwood.guest.core import Guest, HostRow, StepRecord


@dataclass
class Clock:
    """A clock that is set by hand."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class HostRequest:
    """A prompt and the tokens that the target will say after it."""

    name: str
    prompt: list[int]
    output: list[int]
    said: int = 0

    @property
    def text(self) -> list[int]:
        return self.prompt + self.output[: self.said]

    @property
    def left(self) -> list[int]:
        return self.output[self.said :]


def accept(tree: Tree | None, wanted: Sequence[int]) -> list[int]:
    """Tokens that a target emits which wants these: a path of the tree, and one more."""
    node = ROOT
    found = []
    for token in wanted:
        found.append(token)
        child = None if tree is None else tree.child(node, token)
        if child is None:
            break
        node = child
    return found


@dataclass
class ReplayHost:
    """Runs all requests in one pass a step, whose seconds are a function of its rows."""

    seconds: Callable[[int], float] = lambda rows: 0.01 + 0.0001 * rows
    recipe: str = ""
    most: int = 8  # nodes of a request besides the root
    width: int = 1
    clock: Clock = field(default_factory=Clock)
    log: list[StepRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        info = BackendInfo("host", "model", 1000, 4096, max_nodes=self.most + 1)
        self.guest = Guest(
            info, self.recipe, width=self.width, now=self.clock, watch=self.log.append
        )
        self.trees: dict[str, Tree | None] = {}

    def step(self, requests: Sequence[HostRequest]) -> None:
        """One pass: requests that begin read their prompts and say one token."""
        rows = []
        count = 0
        for request in requests:
            tree = self.trees.get(request.name)
            count += len(request.prompt) if not request.said else 1 if tree is None else len(tree)
            emitted = accept(tree, request.left)
            request.said += len(emitted)
            rows.append(HostRow(request.name, request.text, emitted))
        self.clock.seconds += self.seconds(count)
        drafts = self.guest.step(rows, count)
        self.trees = {row.name: tree for row, tree in zip(rows, drafts, strict=True)}

    def run(self, requests: Sequence[HostRequest], most: int = 10_000) -> int:
        """Decode all requests to their ends; the number of steps."""
        for steps in range(most):
            running = [request for request in requests if request.left]
            if not running:
                return steps
            self.step(running)
            self.guest.finish([request.name for request in requests if not request.left])
        raise AssertionError("the requests did not end")
