"""Lookup drafters on a toy vocabulary: begun on a prompt, told tokens, asked for children."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.core.part import Part
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome, Verdict
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader

VOCAB = 60
RNG = KeyedRng(0)
texts = st.lists(st.integers(0, 2), max_size=60)


def letters(text: str) -> list[int]:
    """A tokenizer: one token per letter, blanks left out."""
    return [ord(mark) - ord("a") for mark in text if mark.isalpha()]


SETTING = EngineContext(ToyBackend(vocab=VOCAB), flat(), no_loader, letters)


def begin(part: Part, prompt: list[int], *, setting: EngineContext | None = SETTING) -> Any:
    """A copy of the part at the start of a request; without a setting the part is bound already."""
    if setting is not None:
        part.bind(setting)
    copy = part.fresh()
    copy.reset(
        RequestContext(prompt, Sampler(Sampling(), prompt), ToyBackend(vocab=VOCAB).open([]))
    )
    return copy


def say(drafter: Drafter, *tokens: int) -> None:
    """Rounds without a draft that emit these tokens."""
    for token in tokens:
        tree = Tree(0)
        scores = ToyBackend(vocab=VOCAB).scores([(token,)])
        drafter.observe(Outcome(tree, tree, Verdict((ROOT,), token), scores, 1, asked=False))


def answer(drafter: Drafter, root: int, *drafted: int, width: int = 9) -> dict[int, float]:
    """Children proposed after a chain of tokens that others drafted."""
    tree = Tree(root)
    node = ROOT
    for token in drafted:
        node = tree.add(node, token, 1.0)
    before = len(tree)
    drafter.expand(tree, [(node, width)], RNG)
    return dict(zip(tree.tokens[before:].tolist(), tree.probs[before:].tolist(), strict=True))


def spelled(drafter: Drafter, root: int, most: int = 50) -> list[int]:
    """The chain of first children."""
    tree = Tree(root)
    node = ROOT
    tokens: list[int] = []
    while len(tokens) < most:
        drafter.expand(tree, [(node, 1)], RNG)
        if not (children := tree.children(node)):
            break
        node = children[0]
        tokens.append(int(tree.tokens[node]))
    return tokens


def grown(drafter: Drafter, root: int, width: int, depth: int) -> Tree:
    """Everything a drafter knows, level by level."""
    tree = Tree(root)
    for level in range(depth):
        drafter.expand(tree, [(node, width) for node in tree.level(level)], RNG)
    return tree


def strings(tree: Tree) -> list[tuple[int, ...]]:
    """Each node as what it says after the root."""
    return [tuple(tree.spell(node)[1:]) for node in range(1, len(tree))]


def write(folder: Path, text: str) -> str:
    (folder / "store.txt").write_text(text)
    return str(folder / "store.txt")


@dataclass
class Rising(Part):
    """Proposes the next numbers, ever less surely."""

    draws: Draw = Draw.TOPK
    needs = frozenset[str]()

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            token = int(tree.tokens[node])
            tree.extend(
                node,
                [(token + 1 + rank) % VOCAB for rank in range(width)],
                [0.5**rank / 2 for rank in range(width)],
            )


@dataclass
class Told(Part):
    """Proposes what it is told, after given strings."""

    known: dict[tuple[int, ...], list[int]]
    draws: Draw = Draw.TOPK
    needs = frozenset[str]()

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            tokens = self.known.get(tuple(tree.spell(node)[1:]), [])[:width]
            tree.extend(
                node,
                tokens,
                [0.5**rank / 2 for rank in range(1, len(tokens) + 1)],
                source=self.source,
            )
