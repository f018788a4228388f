"""Compiled rules of policy `best`: leaves to expand next, and nodes to keep."""

from typing import Any, NamedTuple

import numpy as np

from sapwood.backends.torch.cpu_int8.pointwise import compiled, inlined

# share of a seed's reach that expanding its parent cannot add
SURE = 0.5


class GrowthArgs(NamedTuple):
    """Growth rule of the policy; see `core.types.GrowthRule`."""

    nodes: Any
    depth: Any
    stride: Any
    price: Any  # [nodes + 1]; empty if `least` is fixed
    least: Any
    chance: Any
    level: Any
    edges: Any  # see `core.types.AcceptanceCounts`
    hits: Any
    trials: Any
    coarse: Any
    fine: Any
    source: Any  # bit of the head


class TreeColumns(NamedTuple):
    """Columns of the tree (root, seed nodes, nodes of the head) and of its pruned version."""

    size: Any  # [3] int64: nodes, seed nodes, nodes after pruning
    tokens: Any
    parents: Any
    depths: Any
    ranks: Any
    sources: Any
    probs: Any
    reach: Any
    expanded: Any  # True where the head has added children
    # [6, most nodes] int64, of kept nodes: tokens, parents, depths, ranks, sources, node numbers
    left: Any
    worth: Any  # [2, most nodes] float64, probs and reach of kept nodes
    opened: Any  # [most nodes] bool, `expanded` of kept nodes


# ------------------------------------------------------------------------------------------- value
@compiled
def chance_of(rule: Any, sources: int, prob: Any, rank: int, depth: int) -> Any:
    """Probability that a node is accepted if its parent is; see `Binned.chance`."""
    confidence, band, (groups, _, ranks, bands) = 0, 0, rule.hits.shape
    while confidence < rule.edges.shape[0] and prob > rule.edges[confidence]:
        confidence += 1
    while band < bands - 1 and depth >= 2 << band:
        band += 1
    rank = min(rank, ranks - 1)
    hits = rule.hits[sources % groups, confidence]
    trials = rule.trials[sources % groups, confidence]
    rough = (hits.sum() + rule.coarse * prob) / (trials.sum() + rule.coarse)
    return min((hits[rank, band] + rule.fine * rough) / (trials[rank, band] + rule.fine), 1.0)


@compiled
def value(rule: Any, grown: Any, start: int) -> None:
    """Compute the reach of the nodes from `start` on."""
    for node in range(start, grown.size[0]):
        chance = chance_of(
            rule, grown.sources[node], grown.probs[node], grown.ranks[node], grown.depths[node]
        )
        grown.reach[node] = grown.reach[grown.parents[node]] * chance


# ------------------------------------------------------------------------------------------ leaves
@compiled
def rank_reach(reach: Any, size: int, best: Any) -> int:
    """Write the largest of reach[1:size] to `best`, largest first; their number."""
    found = 0
    for node in range(1, size):
        value = reach[node]
        if found < best.shape[0] or value > best[found - 1]:
            found = min(found + 1, best.shape[0])
            place = found - 1
            while place and value > best[place - 1]:
                best[place] = best[place - 1]
                place -= 1
            best[place] = value
    return found


@compiled
def least_reach(best: Any, found: int, price: Any, nodes: int, most: int) -> Any:
    """Least reach at which up to `most` more nodes pay; see `policies.level_price`."""
    top = -price[0]
    gain = 0.0
    for own in range(1, found + 1):
        gain += best[own - 1]
        top = max(top, gain - price[own])
    least, gain = np.inf, 0.0
    for own in range(found + 1):
        if own:
            gain += best[own - 1]
        for further in range(1, min(most, nodes - own) + 1):
            least = min(least, (top + price[own + further] - gain) / further)
    return least


@compiled
def leaf_value(grown: Any, node: int) -> Any:
    """Reach of a leaf, less a share of its seeded children's; 0 below unexpanded nodes."""
    parent = grown.parents[node]
    if grown.expanded[node] or (node and not grown.expanded[parent]):
        return 0.0
    left = grown.reach[node]
    for seed in range(max(node, 1), grown.size[1]):
        if grown.parents[seed] == node:
            left -= SURE * grown.reach[seed]
    return left


@compiled
def insert_leaf(node: int, value: Any, leaves: Any, values: Any, count: int, most: int) -> int:
    """Insert a node into the best leaves, best first, ties by node number; their number."""
    if count == most and value <= values[count - 1]:
        return count
    count = min(count + 1, most)
    place = count - 1
    while place and value > values[place - 1]:
        leaves[place], values[place] = leaves[place - 1], values[place - 1]
        place -= 1
    leaves[place], values[place] = node, value
    return count


@compiled
def pick(rule: Any, best: Any, grown: Any, leaves: Any, most: int) -> int:
    """Choose up to `most` leaves to expand next, best first; their number, 0 if none pays."""
    size = grown.size[0]
    found = rank_reach(grown.reach, size, best[: rule.nodes])
    priced = rule.price.shape[0] > 0
    chance = max(rule.chance, 1e-9)
    least = least_reach(best, found, rule.price, rule.nodes, rule.stride) if priced else rule.least
    enough = max(least / chance, best[found - 1] if found == rule.nodes else 0.0)
    values = np.empty(most)
    count = 0
    gain = 0.0
    for node in range(size):
        if grown.depths[node] < rule.depth:
            value = leaf_value(grown, node)
            if value > enough:
                count = insert_leaf(node, value, leaves, values, count, most)
    for place in range(count):
        gain += values[place] * rule.chance - least
    return count if not priced or gain > rule.level else 0


# -------------------------------------------------------------------------------------------- prune
@compiled
def paying(rule: Any, best: Any, found: int) -> int:
    """Number of the best nodes that are worth verifying; see `policies.reach.worth`."""
    if not rule.price.shape[0]:
        return found
    gain = 0.0
    top = 0.0
    count = 0
    for own in range(1, found + 1):
        gain += best[own - 1]
        profit = gain - (rule.price[own] - rule.price[0])
        if profit > top:
            top, count = profit, own
    return count


@compiled
def keep(grown: Any, node: int, parent: int) -> None:
    """Add a node to the pruned tree, below the kept node `parent`."""
    place = grown.size[2]
    left = grown.left
    left[0, place], left[1, place], left[2, place] = grown.tokens[node], parent, grown.depths[node]
    left[3, place], left[4, place], left[5, place] = grown.ranks[node], grown.sources[node], node
    grown.worth[0, place], grown.worth[1, place] = grown.probs[node], grown.reach[node]
    grown.opened[place] = grown.expanded[node]
    grown.size[2] += 1


@compiled
def prune(rule: Any, best: Any, grown: Any) -> None:
    """Keep the nodes of largest reach that pay, ties by node number; parents stay too."""
    found = rank_reach(grown.reach, grown.size[0], best[: rule.nodes])
    count = paying(rule, best, found)
    least = best[count - 1] if count else 2.0
    equals = count
    for place in range(count):
        equals -= best[place] > least
    grown.size[2] = 0
    keep(grown, 0, -1)
    for node in range(1, grown.size[0]):
        if grown.reach[node] > least or (grown.reach[node] == least and equals):
            equals -= grown.reach[node] == least
            place = 0
            while grown.left[5, place] != grown.parents[node]:
                place += 1
            keep(grown, node, place)


# ------------------------------------------------------------------------------------------ growth
@compiled
def twin_of(grown: Any, parent: int, token: int) -> int:
    """The seed node with this parent and token; 0 if there is none."""
    for node in range(parent + 1, grown.size[1]):
        if grown.parents[node] == parent and grown.tokens[node] == token:
            return node
    return 0


@inlined
def add_children(rule: Any, work: Any, grown: Any, vocabulary: Any, rows: int, first: int) -> None:
    """Add children to each expanded leaf; seed nodes gain a source and probability."""
    size = grown.size[0]
    changed = grown.size[0]
    for r in range(rows):
        parent = work.owners[first + r]
        grown.expanded[parent] = True
        for rank in range(work.ids.shape[1]):
            token = vocabulary[work.ids[r, rank]]
            prob = work.chances[r, rank]
            twin = twin_of(grown, parent, token)
            if twin:
                grown.sources[twin] |= rule.source
                grown.probs[twin] += (1.0 - grown.probs[twin]) * prob
                changed = min(changed, twin)
            else:
                grown.tokens[size], grown.parents[size], grown.depths[size] = (
                    token,
                    parent,
                    grown.depths[parent] + 1,
                )
                grown.ranks[size], grown.sources[size], grown.probs[size] = rank, rule.source, prob
                grown.expanded[size] = False
                size += 1
    grown.size[0] = size
    value(rule, grown, changed)


@inlined
def plan(
    rule: Any, work: Any, grown: Any, vocabulary: Any, facts: Any, step: int, rows: int, first: int
) -> None:
    """Add the children of a step, and choose the leaves of the next one."""
    add_children(rule, work, grown, vocabulary, rows, first)
    begun = first + rows
    width = work.ids.shape[1]
    able = min(work.owners.shape[0] - begun, (grown.tokens.shape[0] - grown.size[0]) // width)
    most = min(rule.stride, able) if step + 2 < facts.shape[0] else 0
    count = pick(rule, work.best, grown, work.owners[begun:], most) if most else 0
    for row in range(begun, begun + count):
        up = 0
        parent = grown.parents[work.owners[row]]
        while work.owners[up] != parent:
            up += 1
        work.ups[row] = up
        work.seen[row, :begun] = work.seen[up, :begun]
        work.seen[row, begun : begun + count] = False
        work.seen[row, row] = True
    if not count:
        prune(rule, work.best, grown)
    facts[step + 1, 0], facts[step + 1, 1] = count, begun
