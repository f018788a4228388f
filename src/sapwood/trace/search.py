"""Search for the fastest recipe on a recorded text, over a grid of recipes, by replay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sapwood.errors import SapwoodError
from sapwood.recipes import resolve
from sapwood.trace.replay import ReplayRun, TracePlayer

# numbers of nodes
CHAINS = (2, 4, 8)
TREES = (4, 8, 16, 32)
SHAPES = (
    *(f"chain + match + fixed(nodes={nodes}, depth={nodes}, width=1)" for nodes in CHAINS),
    *(f"best(estimator=raw) + match + fixed(nodes={nodes}, depth=12, width=4)" for nodes in TREES),
    *(f"best + match + fixed(nodes={nodes}, depth=12, width=4)" for nodes in TREES),
    "best(stride=8) + match + goodput(width=6)",
)


@dataclass
class SearchResult:
    """Runs of a grid, fastest first, and reasons for recipes that were skipped."""

    runs: list[ReplayRun] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def grid(drafters: Sequence[str]) -> list[str]:
    """Every drafter in every shape, plain decoding first."""
    return [
        "plain",
        *(f"{drafter} + {shape}" for drafter in dict.fromkeys(drafters) for shape in SHAPES),
    ]


def search(
    player: TracePlayer, names: Sequence[str], tick: Callable[[int], None] = lambda _: None
) -> SearchResult:
    """Replay all recipes; `tick` is called after each with their number."""
    found = SearchResult()
    for name in names:
        try:
            found.runs.append(player.play(name, resolve(name)))
        except SapwoodError as error:
            found.skipped[name] = str(error)
        tick(len(names))
    found.runs.sort(key=lambda run: run.seconds() / run.tokens)
    return found
