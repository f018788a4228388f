"""Which leaves a compiled growth opens next, if any: the rules of policy `best`, on columns of numbers."""

from typing import Any, NamedTuple

import numpy as np

from sapwood.backends.torch.packed.kernels import compiled, inlined

SURE = 0.5  # part of a seed's reach that the head cannot add to: where it agrees, or knows better, there is more


class Wish(NamedTuple):
    """What the policy wants; see `records.Terms`."""

    nodes: Any
    depth: Any
    stride: Any
    price: Any  # [nodes + 1]; empty where `least` is known beforehand
    least: Any
    chance: Any
    level: Any
    edges: Any  # see `records.Counts`
    hits: Any
    trials: Any
    coarse: Any
    fine: Any
    source: Any  # of the head, as a bit


class Grown(NamedTuple):
    """Columns of the tree, the root first, then what others have proposed, the seeds; and of what is left of it."""

    size: Any  # [3] int64, nodes so far, those of them that are seeds, and those that are left
    tokens: Any
    parents: Any
    depths: Any
    ranks: Any
    sources: Any
    probs: Any
    reach: Any
    expanded: Any  # True where the head was asked
    left: Any  # [6, most nodes] int64, of nodes that pay: tokens, parents, depths, ranks, sources, and which they are
    worth: Any  # [2, most nodes] float64, their probs and reach
    opened: Any  # [most nodes] bool, where they are expanded


# ------------------------------------------------------------------------------------------- value
@compiled
def chance_of(wish: Any, sources: int, prob: Any, rank: int, depth: int) -> Any:
    """Chance that a node is accepted where its parent is; see `Binned.chance`."""
    confidence, band, (groups, _, ranks, bands) = 0, 0, wish.hits.shape
    while confidence < wish.edges.shape[0] and prob > wish.edges[confidence]:
        confidence += 1
    while band < bands - 1 and depth >= 2 << band:
        band += 1
    rank = min(rank, ranks - 1)
    hits, trials = wish.hits[sources % groups, confidence], wish.trials[sources % groups, confidence]
    rough = (hits.sum() + wish.coarse * prob) / (trials.sum() + wish.coarse)
    return min((hits[rank, band] + wish.fine * rough) / (trials[rank, band] + wish.fine), 1.0)


@compiled
def value(wish: Any, grown: Any, start: int) -> None:
    """Reach of the nodes from `start` on."""
    for node in range(start, grown.size[0]):
        chance = chance_of(wish, grown.sources[node], grown.probs[node], grown.ranks[node], grown.depths[node])
        grown.reach[node] = grown.reach[grown.parents[node]] * chance


# ------------------------------------------------------------------------------------------ leaves
@compiled
def rank_reach(reach: Any, size: int, best: Any) -> int:
    """The largest of reach[1:size], largest first, as many as there is room for; how many were found."""
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
def toll(best: Any, found: int, price: Any, nodes: int, most: int) -> Any:
    """Reach from which on further nodes, at most so many, make the tree worth more than it is; see `policies.steps`."""
    top, gain = -price[0], 0.0
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
def promise(grown: Any, node: int) -> Any:
    """Reach of a leaf, less a part of what others have proposed below it; none where its parent was not opened yet."""
    parent = grown.parents[node]
    if grown.expanded[node] or (node and not grown.expanded[parent]):
        return 0.0
    left = grown.reach[node]
    for seed in range(max(node, 1), grown.size[1]):
        if grown.parents[seed] == node:
            left -= SURE * grown.reach[seed]
    return left


@compiled
def enter(node: int, value: Any, leaves: Any, values: Any, count: int, most: int) -> int:
    """Put a node among the best leaves, best first and of equals the earlier first; how many there are then."""
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
def pick(wish: Any, best: Any, grown: Any, leaves: Any, most: int) -> int:
    """The leaves to open next, best first, at most so many: how many; none where that would not pay."""
    size = grown.size[0]
    found = rank_reach(grown.reach, size, best[: wish.nodes])
    priced, chance = wish.price.shape[0] > 0, max(wish.chance, 1e-9)
    least = toll(best, found, wish.price, wish.nodes, wish.stride) if priced else wish.least
    enough = max(least / chance, best[found - 1] if found == wish.nodes else 0.0)
    values, count, gain = np.empty(most), 0, 0.0
    for node in range(size):
        if grown.depths[node] < wish.depth:
            value = promise(grown, node)
            if value > enough:
                count = enter(node, value, leaves, values, count, most)
    for place in range(count):
        gain += values[place] * wish.chance - least
    return count if not priced or gain > wish.level else 0


@compiled
def begin(wish: Any, best: Any, grown: Any) -> bool:
    """Value the seeds; True where the root is worth opening, False where they are all that pays."""
    value(wish, grown, 1)
    goes_on = pick(wish, best, grown, np.empty(1, np.int64), 1) > 0
    if not goes_on:
        cut(wish, best, grown)
    return goes_on


# -------------------------------------------------------------------------------------------- cut
@compiled
def paying(wish: Any, best: Any, found: int) -> int:
    """How many of the best nodes to check; see `policies.reach.worth`."""
    if not wish.price.shape[0]:
        return found
    gain, top, count = 0.0, 0.0, 0
    for own in range(1, found + 1):
        gain += best[own - 1]
        profit = gain - (wish.price[own] - wish.price[0])
        if profit > top:
            top, count = profit, own
    return count


@compiled
def keep(grown: Any, node: int, parent: int) -> None:
    """Add a node to those that are left, below the one that has this place among them."""
    place, left = grown.size[2], grown.left
    left[0, place], left[1, place], left[2, place] = grown.tokens[node], parent, grown.depths[node]
    left[3, place], left[4, place], left[5, place] = grown.ranks[node], grown.sources[node], node
    grown.worth[0, place], grown.worth[1, place] = grown.probs[node], grown.reach[node]
    grown.opened[place] = grown.expanded[node]
    grown.size[2] += 1


@compiled
def cut(wish: Any, best: Any, grown: Any) -> None:
    """Leave the nodes that pay: those of largest reach, of equals the earlier, which holds their parents too."""
    found = rank_reach(grown.reach, grown.size[0], best[: wish.nodes])
    count = paying(wish, best, found)
    least, equals = best[count - 1] if count else 2.0, count
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
    """The seed that is this child already, or the root where none is."""
    for node in range(parent + 1, grown.size[1]):
        if grown.parents[node] == parent and grown.tokens[node] == token:
            return node
    return 0


@inlined
def add_children(wish: Any, room: Any, grown: Any, vocabulary: Any, rows: int, first: int) -> None:
    """Give each opened leaf its children; what was proposed already gains a source and trust."""
    size, changed = grown.size[0], grown.size[0]
    for r in range(rows):
        parent = room.owners[first + r]
        grown.expanded[parent] = True
        for rank in range(room.ids.shape[1]):
            token, prob = vocabulary[room.ids[r, rank]], room.chances[r, rank]
            twin = twin_of(grown, parent, token)
            if twin:
                grown.sources[twin] |= wish.source
                grown.probs[twin] += (1.0 - grown.probs[twin]) * prob
                changed = min(changed, twin)
            else:
                grown.tokens[size], grown.parents[size], grown.depths[size] = token, parent, grown.depths[parent] + 1
                grown.ranks[size], grown.sources[size], grown.probs[size] = rank, wish.source, prob
                grown.expanded[size] = False
                size += 1
    grown.size[0] = size
    value(wish, grown, changed)


@inlined
def plan(wish: Any, room: Any, grown: Any, vocabulary: Any, facts: Any, step: int, rows: int, first: int) -> None:
    """Add what a step found, and say what the next one is to open."""
    add_children(wish, room, grown, vocabulary, rows, first)
    begun, width = first + rows, room.ids.shape[1]
    able = min(room.owners.shape[0] - begun, (grown.tokens.shape[0] - grown.size[0]) // width)
    most = min(wish.stride, able) if step + 2 < facts.shape[0] else 0
    count = pick(wish, room.best, grown, room.owners[begun:], most) if most else 0
    for row in range(begun, begun + count):
        up, parent = 0, grown.parents[room.owners[row]]
        while room.owners[up] != parent:
            up += 1
        room.ups[row] = up
        room.seen[row, :begun] = room.seen[up, :begun]
        room.seen[row, begun : begun + count] = False
        room.seen[row, row] = True
    if not count:
        cut(wish, room.best, grown)
    facts[step + 1, 0], facts[step + 1, 1] = count, begun
