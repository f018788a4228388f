"""A toy target with hidden states, and a toy drafter that keeps its own: what small predictors read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp, random_mlp
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Capabilities, Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.drafters.compose.draft_model import DraftModel

LAYER = 1  # the toy's only state


@dataclass
class MindfulScores(ToyOutput):
    """The log-laws, shown as hidden states too."""

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        assert list(layers) == [LAYER]
        return self.rows[list(rows)]


@dataclass
class Mindful(ToyBackend):
    """A toy whose hidden state is its log-law, and whose embedding is one-hot."""

    watched: list[int] = field(default_factory=list, compare=False)

    @property
    def capabilities(self) -> Capabilities:
        table = SimpleNamespace(weight=np.eye(self.vocab, dtype=np.float32))
        return Capabilities(SimpleNamespace(get_input_embeddings=lambda: table))

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, provides=frozenset({"hidden"}))

    def watch(self, layers: Sequence[int]) -> None:
        self.watched += layers

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> MindfulScores:
        return MindfulScores(super().scores(contexts).rows)


@dataclass
class Stateful(DraftModel):
    """A draft model that keeps a state for each node it expands: its path, as three numbers."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        super().expand(tree, frontier, rng)
        for node, _ in frontier:
            tree.states[node] = path_state(tree.spell(node))


def path_state(path: Sequence[int]) -> FloatArray:
    """Three numbers that tell paths apart."""
    seed = [len(path), *path]
    return np.random.default_rng(seed).normal(size=3).astype(np.float32)


def random_net(widths: Sequence[int], seed: int, **options: Any) -> NumpyMlp:
    """A network with random weights in every layer."""
    net = random_mlp(widths, seed, **options)
    noise = np.random.default_rng(seed + 1)
    return replace(
        net,
        weights=[noise.normal(size=weight.shape).astype(np.float32) for weight in net.weights],
        biases=[noise.normal(size=bias.shape).astype(np.float32) for bias in net.biases],
    )


def random_part(kind: str, folder: Path, seed: int = 0) -> str:
    """A folder with a random trained part that fits the toys of this module."""
    nets: dict[str, dict[str, NumpyMlp]] = {
        "specdec++": {"head": random_net([3, 3, 3, 1], seed, activation="silu", residual=True)},
        "c2t": {"classifier": random_net([3, 8, 1], seed)},
        "ldlp": {"length": random_net([6, 8, 1], seed)},
        "ltd": {"depth": random_net([12, 8, 1], seed), "size": random_net([5, 8, 3], seed)},
        "judge": {"judge": random_net([3, 1], seed)},
    }
    facts = {"base": 0.3, "layer": LAYER, "sizes": [1, 2, 4], "deepest": 4}
    MlpBundle(kind, nets[kind], facts).save(folder)
    return str(folder)
