"""Perplexity of a model's dtypes on a text, against its weights in float32.

    python benchmarks/perplexity.py [--model M] [--dtypes int4 int8] [--text FILE] [--tokens N]

The reference is the dequantised file in float32 by transformers' own code. The text is cut into
windows; each is scored in one pass, as a chain of nodes. Prints, for each dtype, perplexity and its
change, the standard error of that change over the windows, the mean Kullback-Leibler divergence
from the reference, and the share of positions with the same best token.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sapwood.core.protocols import Backend, TreeInput
from sapwood.core.tree import Tree
from sapwood.errors import SapwoodError
from sapwood.model_loader import load

WINDOW = 256  # tokens of a pass
TOKENS = 4096
REFERENCE = "float32"
TEXTS = ("README.md", "ARCHITECTURE.md", "docs/soundness.md")  # of this repository


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Sums over the positions of one window."""

    positions: int
    loss: float  # nats
    divergence: float  # from the reference
    same: int  # best tokens that are the reference's


def log_probs(backend: Backend, tokens: Sequence[int]) -> Tensor:
    """Log-probabilities after each token but the last, [tokens - 1, vocab]."""
    session = backend.open([])
    tree = Tree.of_root(tokens[0])
    node = 0
    for token in tokens[1:-1]:
        node = tree.add(node, token, 1.0)
    try:
        found = backend.score([TreeInput(session, tree)])[0]
        rows = [torch.from_numpy(np.asarray(found.logits(row))) for row in range(len(tree))]
    finally:
        session.close()
    return torch.log_softmax(torch.stack(rows).float(), -1)


def score(found: Tensor, reference: Tensor, tokens: Sequence[int]) -> WindowScore:
    """A window's sums from the log-probabilities of a dtype and of the reference."""
    following = torch.tensor(tokens[1:])
    return WindowScore(
        positions=len(following),
        loss=-float(found.gather(1, following[:, None]).double().sum()),
        divergence=float((reference.exp() * (reference - found)).double().sum()),
        same=int((found.argmax(-1) == reference.argmax(-1)).sum()),
    )


def summary(name: str, scores: Sequence[WindowScore], base: Sequence[WindowScore]) -> str:
    """The line of a dtype."""
    positions = sum(each.positions for each in scores)
    loss = sum(each.loss for each in scores) / positions
    changes = np.array(
        [
            (each.loss - other.loss) / each.positions
            for each, other in zip(scores, base, strict=True)
        ]
    )
    error = float(changes.std(ddof=1)) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
    return (
        f"{name:9} perplexity {np.exp(loss):.4f} "
        f"({100 * np.expm1(changes.mean()):+.3f} % ± {100 * error:.3f}), "
        f"divergence {sum(each.divergence for each in scores) / positions:.5f}, "
        f"same best token {sum(each.same for each in scores) / positions:.4f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the text and print a line for each dtype."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtypes", nargs="+", default=["int4", "int8"])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    asked = parser.parse_args(arguments)
    root = Path(__file__).parent.parent
    paths = [root / name for name in TEXTS] if asked.text is None else [asked.text]
    names = [REFERENCE, *asked.dtypes]
    backends = []
    try:
        for name in names:
            made = load(asked.model, None, device="cpu", dtype=name, threads=None, progress=silent)
            backends.append(made[0])
        tokens = made[1]().encode("\n".join(path.read_text(encoding="utf-8") for path in paths))
    except (SapwoodError, OSError) as error:
        print(f"perplexity: {error}", file=sys.stderr)
        return 1
    ids = list(tokens)[: asked.tokens]
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)]
    if not windows:
        print(f"perplexity: the text has {len(ids)} tokens; give {WINDOW} or more", file=sys.stderr)
        return 1
    scores: list[list[WindowScore]] = [[] for _ in names]
    for window in windows:
        found = [log_probs(backend, window) for backend in backends]
        for row, each in zip(scores, found, strict=True):
            row.append(score(each, found[0], window))
    print(f"{asked.model}: {len(windows) * (WINDOW - 1)} positions in windows of {WINDOW} tokens")
    for name, row in zip(names, scores, strict=True):
        print(summary(name, row, scores[0]))
    return 0


def silent(message: str) -> None:
    """Discard progress messages."""


if __name__ == "__main__":
    sys.exit(main())
