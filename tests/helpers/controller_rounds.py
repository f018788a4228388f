"""Parts bound to a toy target, and outcomes of rounds to show them."""

from typing import Any

import numpy as np

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, StageTimes, Verdict
from sapwood.engine.cost_model import CostModel, flat
from sapwood.engine.loop import no_loader

SCORES = ToyOutput(np.zeros((1, 3)))
PROMPT = [0, 1, 2]


def begin(part: Any, cost: CostModel | None = None, max_tokens: int = 10_000) -> Any:
    """A part at the start of a request."""
    part.bind(EngineContext(ToyBackend(), cost or flat(), no_loader))
    sampler = Sampler(Sampling(max_tokens=max_tokens), PROMPT)
    part.reset(RequestContext(PROMPT, sampler, ToyBackend().open(PROMPT[:-1])))
    return part


def outcome(
    accepted: int, depth: int, times: StageTimes | None = None, context: int = 10
) -> Outcome:
    """A chain of this depth, of which so many tokens were accepted."""
    tree = Tree(0)
    for node in range(depth):
        tree.add(node, 1, 0.5)
        tree.close(node)
    verdict = Verdict(tuple(range(accepted + 1)), 2)
    return Outcome(
        tree, tree, verdict, SCORES, context, times or StageTimes(0.0, 1.0, 0.0), asked=depth > 0
    )


def coin_rounds(controller: Any, rate: float, length: int, rounds: int) -> float:
    """Observe chains of tokens accepted at this rate; the mean of accepted / drafted."""
    coins = np.random.default_rng(2)
    shares = []
    for _ in range(rounds):
        accepted = next((at for at in range(length) if coins.random() >= rate), length)
        controller.observe(outcome(accepted, length))
        shares.append(accepted / length)
    return float(np.mean(shares))
