"""Fits the two policies of Learning to Draft (arXiv 2603.01639) on replayed rounds.

The paper lets PPO try depths and sizes and rewards each cycle with its tokens per second. A
recorded round needs no trying: it shows how many tokens every smaller depth and size of its tree
would have brought, and the cost model gives the seconds of each. So the expected reward of a policy
is a formula, and both policies follow its exact gradient. The reward of a round is tokens minus
lambda times seconds, lambda being the throughput reached so far (Dinkelbach's method), because that
maximises long-run tokens per second; a mean of each round's own ratio would favour short rounds.
The size policy is fitted first, over all depths; the depth policy is then fitted with the sizes it
chooses. Both belong to one drafter and machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp, random_mlp
from sapwood.core.array_types import BoolArray, FloatArray, IntArray
from sapwood.core.tree import Tree
from sapwood.engine.cost_model import CostModel
from sapwood.errors import SapwoodError
from sapwood.policies.ltd import BEST, KIND, RAW, level_view, tree_view
from sapwood.policies.reach import value
from sapwood.train.fit_mlp import FitReport, FitResult, FitSettings, minimise
from sapwood.train.replay import ReplayPrices, priced, speed
from sapwood.train.rounds import RecordedRounds, spans

PLAN = FitSettings(epochs=80, batch=256, rate=2e-3, decay=1e-3, patience=15)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 240)  # nodes that may be checked
STEPS = 3  # of Dinkelbach's method


@dataclass(frozen=True)
class ReplayedRounds:
    """Every round, its tree pruned to every depth (second axis) and every size (third)."""

    levels: FloatArray  # [rounds, depths, level view]
    trees: FloatArray  # [rounds, depths, tree view]
    tokens: FloatArray  # [rounds, depths, sizes]
    seconds: FloatArray  # [rounds, depths, sizes]
    heights: IntArray  # [rounds] depth beyond which there is nothing to prune

    @property
    def real(self) -> BoolArray:
        """True where the tree reaches this depth, [rounds, depths]."""
        reaches: BoolArray = np.arange(1, self.tokens.shape[1] + 1) <= self.heights[:, None]
        return reaches


def fit(
    rounds: RecordedRounds,
    *,
    cost: CostModel | None = None,  # of a target pass; None: every tree costs the same
    # to choose from, ascending; those above the largest recorded tree are left out
    sizes: Sequence[int] = SIZES,
    share: float = 0.2,  # of the prompts to test on
    plan: FitSettings = PLAN,
    seed: int = 0,
) -> FitResult:
    """Fit the depth and size policies with the most replayed tokens per second."""
    largest = min(int(rounds.nodes.max(initial=0)), max(sizes))
    if not largest:
        raise SapwoodError("no drafted nodes were recorded; record rounds of a recipe that drafts")
    sizes = [size for size in sizes if size < largest] + [largest]
    data, use = replay(rounds, priced(rounds, cost), sizes)
    test = rounds.held_out(share, seed)[use]
    constant = best_constant(data, ~test)
    rate = before = throughput(data, ~test, *constant)
    for _ in range(STEPS):
        size_net = fit_size(data, rate, ~test, plan, seed)
        size = choose_size(size_net, data)
        depth_net = fit_depth(data, size, rate, ~test, plan, seed)
        depth = choose_depth(depth_net, data)
        rate = max(before, throughput(data, ~test, depth, size))
    ours, theirs = throughput(data, test, depth, size), throughput(data, test, *constant)
    report = FitReport(
        kind=KIND,
        rows=int((~test).sum()),
        held=int(test.sum()),
        before=1 / theirs,  # seconds per token
        after=1 / ours,
        scores={
            "tokens per second": ours,
            "best constant": theirs,
            "constant depth": float(constant[0][0].max()),
            "constant size": float(sizes[int(constant[1].max())]),
            "mean depth": float(np.minimum(depth, data.heights)[test].mean()),
            "mean size": float(np.array(sizes)[picked(size, depth)[test]].mean()),
        },
    )
    facts = {"sizes": list(sizes), "deepest": data.tokens.shape[1]}
    return FitResult(MlpBundle(KIND, {"depth": depth_net, "size": size_net}, facts), report)


# -------------------------------------------------------------------------------- replaying
def replay(
    rounds: RecordedRounds, prices: ReplayPrices, sizes: Sequence[int]
) -> tuple[ReplayedRounds, IntArray]:
    """All pruned trees of all rounds that drafted anything, and the number of each such round."""
    heights = rounds.heights()
    use = np.flatnonzero(heights > 0)
    deepest = int(heights.max())
    data = ReplayedRounds(
        levels=np.zeros((len(use), deepest, BEST + 2)),
        trees=np.zeros((len(use), deepest, len(sizes) + 2)),
        tokens=np.ones((len(use), deepest, len(sizes))),
        seconds=np.ones((len(use), deepest, len(sizes))),
        heights=heights[use],
    )
    row = iter(range(len(use)))
    for number, (tree, part) in enumerate(zip(rounds.trees(), spans(rounds.nodes), strict=True)):
        if heights[number]:
            cut(
                data,
                next(row),
                tree,
                rounds.labels[part] == 1,
                int(rounds.context[number]),
                prices,
                sizes,
            )
    return data, use


def cut(
    data: ReplayedRounds,
    row: int,
    tree: Tree,
    hit: BoolArray,
    context: int,
    prices: ReplayPrices,
    sizes: Sequence[int],
) -> None:
    """Fill in one round: views, tokens and seconds at each depth; constant below the last level."""
    reach = value(tree, RAW)[1:]
    depths = tree.depths[1:]
    for depth in range(1, data.tokens.shape[1] + 1):
        if depth > tree.height:
            for column in (data.levels, data.trees, data.tokens, data.seconds):
                column[row, depth - 1] = column[row, depth - 2]
            continue
        inside = depths <= depth
        order = np.argsort(-reach[inside], kind="stable")
        passed = np.append(0, np.cumsum(hit[inside][order]))  # accepted among the best n
        checked = np.minimum(sizes, len(order))
        data.levels[row, depth - 1] = level_view(reach[depths == depth], depth, context)
        data.trees[row, depth - 1] = tree_view(reach[inside], depth, context, sizes)
        data.tokens[row, depth - 1] = 1 + passed[checked]
        data.seconds[row, depth - 1] = [
            prices.seconds(depth, int(count), context) for count in checked
        ]


def throughput(data: ReplayedRounds, rows: BoolArray, depth: IntArray, size: IntArray) -> float:
    """Tokens per second of these rounds with these depths [rounds] and sizes [rounds, depths]."""
    where = np.arange(len(depth)), depth - 1, picked(size, depth)
    return speed(data.tokens[where][rows], data.seconds[where][rows])


def picked(size: IntArray, depth: IntArray) -> IntArray:
    """The chosen size at the chosen depth, [rounds]."""
    found: IntArray = size[np.arange(len(depth)), depth - 1]
    return found


def best_constant(data: ReplayedRounds, rows: BoolArray) -> tuple[IntArray, IntArray]:
    """The fixed depth and size with the most tokens per second on these rounds."""
    speeds = data.tokens[rows].sum(0) / data.seconds[rows].sum(0)
    depth, size = np.unravel_index(int(np.argmax(speeds)), speeds.shape)
    count = len(data.heights)
    return np.full(count, int(depth) + 1), np.full(data.tokens.shape[:2], int(size))


# --------------------------------------------------------------------------------- learning
def fit_size(
    data: ReplayedRounds, rate: float, ours: BoolArray, plan: FitSettings, seed: int
) -> NumpyMlp:
    """The size policy with the largest expected reward, over all depths."""
    real = data.real
    gain = torch.from_numpy((data.tokens - rate * data.seconds)[real].astype(np.float32))

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        return -(torch.softmax(outputs, -1) * gain[index]).sum(-1).mean()

    inputs = data.trees[real]
    start = random_mlp([inputs.shape[1], 64, 32, gain.shape[1]], seed)
    return minimise(start, inputs, loss, np.repeat(ours, real.sum(1)), plan, seed)


def fit_depth(
    data: ReplayedRounds, size: IntArray, rate: float, ours: BoolArray, plan: FitSettings, seed: int
) -> NumpyMlp:
    """The stopping policy with the largest expected reward, given the sizes."""
    gain = data.tokens - rate * data.seconds
    reward = torch.from_numpy(
        np.take_along_axis(gain, size[..., None], 2)[..., 0].astype(np.float32)
    )
    # True where there is no further level
    last = torch.from_numpy(np.arange(1, gain.shape[1] + 1) >= data.heights[:, None])

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        onward = torch.sigmoid(outputs[..., 0]).masked_fill(last[index], 0.0)
        before = torch.cumprod(torch.cat((torch.ones_like(onward[:, :1]), onward[:, :-1]), 1), 1)
        return -(before * (1 - onward) * reward[index]).sum(1).mean()

    return minimise(
        random_mlp([data.levels.shape[2], 64, 32, 1], seed), data.levels, loss, ours, plan, seed
    )


def choose_size(net: NumpyMlp, data: ReplayedRounds) -> IntArray:
    """The size policy's choice at each depth of each round, [rounds, depths]."""
    found: IntArray = np.argmax(net(data.trees), -1)
    return found


def choose_depth(net: NumpyMlp, data: ReplayedRounds) -> IntArray:
    """The depth at which the depth policy stops, [rounds]."""
    stop = net(data.levels)[..., 0] <= 0
    stop[:, -1] = True
    found: IntArray = np.minimum(np.argmax(stop, 1) + 1, data.heights)
    return found
