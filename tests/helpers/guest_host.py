"""A host for guests: requests with known outputs, verified as an engine at temperature 0 would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import BackendInfo
from sapwood.engine.prompt_scores import chain
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


def ngram_tokens_per_step(requests: Sequence[HostRequest], most: int, longest: int) -> float:
    """Tokens per request and step with vLLM's `ngram`: the first match of the longest n-gram."""
    shares = 0
    for request in requests:
        text = request.prompt + request.output
        end = len(request.prompt) + 1  # the prompt's step says one token
        shares += 1
        while end < len(text):
            draft = first_match(text[:end], most, longest)
            end += len(accept(chain([text[end - 1], *draft]), text[end:]))
            shares += 1
    return sum(len(request.output) for request in requests) / shares


def first_match(text: list[int], most: int, longest: int) -> list[int]:
    """What followed the first place at which the last tokens, as many as match, came before."""
    for size in range(longest, 0, -1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[-size:]:
                return text[start + size : start + size + most]
    return []


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

    def run_some(self, requests: Sequence[HostRequest], at_once: int) -> float:
        """Decode all requests, so many at a time; tokens per request and step."""
        waiting = list(requests)
        running: list[HostRequest] = []
        shares = 0
        while waiting or running:
            free = at_once - len(running)
            running, waiting = running + waiting[:free], waiting[free:]
            self.step(running)
            shares += len(running)
            self.guest.finish([request.name for request in running if not request.left])
            running = [request for request in running if request.left]
        return sum(len(request.output) for request in requests) / shares

    def run(self, requests: Sequence[HostRequest], most: int = 10_000) -> int:
        """Decode all requests to their ends; the number of steps."""
        for steps in range(most):
            running = [request for request in requests if request.left]
            if not running:
                return steps
            self.step(running)
            self.guest.finish([request.name for request in requests if not request.left])
        raise AssertionError("the requests did not end")
