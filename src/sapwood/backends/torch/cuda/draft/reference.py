"""Steps of a draft in torch operations: the reference of the kernels, and the fallback on a CPU.

Every function writes to buffers that it is given, reads lengths on the device, and can be captured.
A draft for several requests has the rows of all of them one after the other, equally many of each;
their scalars and fields then have a first dimension of requests.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, RoundBuffer, RoundFields
from sapwood.backends.torch.cuda.draft.eagle_layer import BANDS, EDGES, RANKS, EagleWeights, band
from sapwood.backends.torch.cuda.kernels.prenorm import PrenormRows

# indices of a draft's scalar arguments, int64, which the host writes before each draft;
# FIRST_SLOT: of the target's KV sequence; TABLE: index of the acceptance table;
# TREE_SIZE: nodes of the drafted tree that may be kept, the first ones; 0 for all
NEW, ROOT_AT, TEXT_ROWS, SEQUENCE, NODES, LAST, ROOT_TOKEN, FIRST_SLOT, TABLE, TREE_SIZE = range(10)
SCALARS = 10  # the new text's tokens follow them


def each_request(scalars: Tensor, *rows: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The scalars of each request, and its part of each of these tensors."""
    requests = len(scalars)
    parts: list[Any] = [
        [None] * requests if tensor is None else tensor.tensor_split(requests) for tensor in rows
    ]
    yield from zip(scalars, *parts, strict=True)


def complete_draft_args(round_buffer: RoundBuffer, scalars: Tensor, tokens: Tensor) -> None:
    """Complete a draft's scalars [SCALARS] and tokens of new text from the verdict."""
    verdict = round_buffer.field("verdict")
    most = len(tokens)
    new = verdict[:1].clamp(max=most)
    each = torch.arange(most, device=tokens.device)
    # the accepted tokens: those of the nodes of the path behind the root
    target_tokens = round_buffer.rows.tokens[verdict[3 : 3 + most]]
    tokens.copy_(
        torch.where(each < new - 1, target_tokens, torch.where(each == new - 1, verdict[1], 0))
    )
    scalars[NEW : NEW + 1] = new
    scalars[LAST : LAST + 1] = new - 1
    scalars[ROOT_AT : ROOT_AT + 1] += verdict[:1]
    scalars[ROOT_TOKEN : ROOT_TOKEN + 1] = verdict[1:2]


def write_pass_args(round_buffer: RoundBuffer, scalars: Tensor, told: Tensor) -> None:
    """Write the `PassArgs` of the pass over the drafted tree, from the scalars and the verdict."""
    verdict = round_buffer.field("verdict")
    count = verdict[0]
    path = round_buffer.path
    each = torch.arange(len(path), device=path.device)
    stay = torch.where((path != each) & (each < count), each, count).min()
    told[:3] = torch.stack((scalars[FIRST_SLOT], scalars[ROOT_AT], scalars[NODES] + 1))
    told[3:6] = torch.stack((scalars[ROOT_AT] - count, stay, count))


def project(
    x: Tensor | PrenormRows,
    weight: Tensor,
    out: Tensor | PrenormRows,
    *,
    residual: Tensor | None = None,
    gate: bool = False,
) -> None:
    """Rows of x [m, k], normed if `PrenormRows`, times weight [n, k]; with a gate [2n, k]."""
    if isinstance(x, PrenormRows):
        x = F.rms_norm(x.x, x.x.shape[-1:], x.scale.norm, x.scale.eps) * x.scale.lift
    y = F.linear(x, weight)
    if gate:
        left, right = y.chunk(2, -1)
        y = F.silu(left) * right
    goal = out.x if isinstance(out, PrenormRows) else out
    goal.copy_(y if residual is None else y + residual)


def pair(layer: EagleWeights, tokens: Tensor, states: Tensor, x: Tensor, base: Tensor) -> None:
    """Concatenate normed embeddings of tokens [rows] and normed states; `base` is the residual."""
    width = layer.width
    embeds = layer.embedding[tokens]
    normed = F.rms_norm(states, (width,), layer.state_norm, layer.eps)
    x[:, :width] = F.rms_norm(embeds, (width,), layer.token_norm, layer.eps)
    x[:, width:] = normed
    base.copy_(normed if layer.after else states)


def select(
    layer: EagleWeights,
    reach: Tensor,  # [candidates] of one level
    tokens: Tensor,  # [candidates]
    first: int,  # index of the first candidate in the drafted tree
    width: int,  # candidates of one parent
    states: Tensor,  # [parents, width] outputs of the rows above
    seen: Tensor | None,  # [parents, slots] int8: tree rows each parent attends to; None: root
    before: int,  # tree rows above this level
    x: Tensor,  # from here on results, a row per chosen candidate
    base: Tensor,
    opened: Tensor,
    sees: Tensor,
) -> None:
    """Choose the best candidates of a level, earlier ones first on ties, as rows of the head."""
    if reach.dim() > 1:
        several = each_request(reach, tokens, states, seen, x, base, opened, sees)
        for own, said, above, over, out, left, nodes, bits in several:
            select(
                layer, own, said[0], first, width, above, over, before, out, left, nodes[0], bits
            )
        return
    rows = len(x)
    chosen = torch.argsort(-reach, stable=True)[:rows]
    opened.copy_(first + chosen)
    parents = chosen // width
    pair(layer, tokens[chosen], states[parents], x, base)
    sees.zero_() if seen is None else sees.copy_(seen[parents])
    each = torch.arange(rows, device=x.device)
    sees[each, before + each] = 1


def project_heads(
    layer: EagleWeights,
    x: Tensor,  # [rows, 2 width]
    scalars: Tensor,
    angles: Tensor,  # [positions, d] cosines and sines
    keys: Tensor,  # [sequences, kv heads, slots, d]
    values: Tensor,
    query: Tensor,
    depth: int,
    before: int,
) -> None:
    """Rotated queries; keys and values go to their slots; depth 0 is new text."""
    if scalars.dim() > 1:
        for own, part, asked in each_request(scalars, x, query[: len(x)]):
            project_heads(layer, part, own, angles, keys, values, asked, depth, before)
        return
    rows = len(x)
    heads = layer.heads
    kv = layer.kv_heads
    each = torch.arange(rows, device=x.device)
    new = scalars[NEW]
    if depth == 0:
        positions = scalars[ROOT_AT] - new + each
        slots = scalars[TEXT_ROWS] + each
    else:
        positions = (scalars[ROOT_AT] - 1 + depth).expand(rows)
        slots = scalars[TEXT_ROWS] + new + before + each
    q, k, v = (
        F.linear(x, layer.qkv).view(rows, heads + 2 * kv, -1).split_with_sizes([heads, kv, kv], 1)
    )
    angles = angles[positions.clamp(min=0)]
    query[:rows] = rotate(q, angles)
    # padding of the text goes where tree rows will overwrite it
    slots = slots.clamp(max=keys.shape[2] - 1)
    sequence = scalars[SEQUENCE].expand(rows)
    keys[sequence, :, slots] = rotate(k, angles)
    values[sequence, :, slots] = v


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of x [rows, heads, d] by cosines and sines [rows, d]."""
    left, right = exact(x).chunk(2, -1)
    cos, sin = angles[:, None, :].to(left.dtype).chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def exact(x: Tensor) -> Tensor:
    """Numbers in at least single precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def attend(
    layer: EagleWeights,
    query: Tensor,  # [rows, heads, d]
    scalars: Tensor,
    keys: Tensor,  # [sequences, kv heads, slots, d]
    values: Tensor,
    sees: Tensor | None,  # [rows, tree slots] int8; None for the root, which sees the text alone
    read: Tensor,  # [rows, heads * d], the result
    count: int,  # tree rows so far
) -> None:
    """Attention of the rows over the text and the tree rows that they see."""
    if scalars.dim() > 1:
        for own, asked, seen, found in each_request(scalars, query, sees, read):
            attend(layer, asked, own, keys, values, seen, found, count)
        return
    rows, _, d = query.shape
    end = scalars[TEXT_ROWS] + scalars[NEW]
    at = torch.arange(keys.shape[2], device=query.device)
    mask = (at < end).expand(rows, -1)
    if sees is not None:
        inside = at - end
        tail = sees[:, inside.clamp(0, count - 1)] > 0
        mask = mask | ((inside >= 0) & (inside < count) & tail)
    k, v = (
        slots[scalars[SEQUENCE]].repeat_interleave(layer.heads // layer.kv_heads, 0)
        for slots in (keys, values)
    )
    weights = torch.einsum("rhd,hsd->hrs", exact(query), exact(k)) * d**-0.5
    weights = weights.masked_fill(~mask, -torch.inf).softmax(-1)
    v = exact(v).masked_fill(
        ~mask.any(0)[None, :, None], 0.0
    )  # slots that were never written may hold anything
    read.copy_(torch.einsum("hrs,hsd->rhd", weights, v).flatten(1))


def leaders(
    layer: EagleWeights,
    logits: Tensor,  # [rows, draft vocab]
    scalars: Tensor,
    table: Tensor,  # [CELLS, 2] float64
    owners: Tensor | None,  # [rows] drafted nodes of the rows; None: the root
    depth: int,  # of the children
    width: int,
    first: int,  # index of the first child in the drafted tree
    round_buffer: RoundFields,
) -> None:
    """Add the best tokens of each row to the drafted tree, with probabilities and reach."""
    if scalars.dim() > 1:
        for number, (own, part) in enumerate(each_request(scalars, logits)):
            nodes = None if owners is None else owners[number]
            leaders(
                layer,
                part,
                own,
                table[own[TABLE]],
                nodes,
                depth,
                width,
                first,
                round_buffer.of_request(number),
            )
        return
    rows = len(logits)
    wide = logits.float()
    order = torch.sort(wide, dim=-1, descending=True, stable=True)
    ids = order.indices[:, :width]
    logps = order.values[:, :width] - wide.logsumexp(-1, keepdim=True)
    probs = logps.double().exp()
    place = slice(first, first + rows * width)
    tokens, parents = round_buffer.field("grown_tokens"), round_buffer.field("grown_parents")
    above = torch.zeros(1, dtype=torch.int64, device=logits.device) if owners is None else owners
    reach = round_buffer.field("grown_reach")
    if owners is None:
        tokens[:1], parents[:1] = scalars[ROOT_TOKEN], -1
        reach[:1], round_buffer.field("grown_probs")[:1] = 1.0, 1.0
    tokens[place] = layer.vocabulary[ids].flatten()
    parents[place] = above.repeat_interleave(width)
    round_buffer.field("grown_probs")[place] = probs.flatten()
    chances = chance(probs, table, depth)
    reach[place] = (reach[above][:, None] * chances).flatten()


def chance(probs: Tensor, table: Tensor, depth: int) -> Tensor:
    """Acceptance probabilities of children [rows, width], best first, by the table of cells."""
    edges = torch.tensor(EDGES, dtype=torch.float64, device=probs.device)
    bins = (probs[..., None] > edges).sum(-1)
    ranks = torch.arange(probs.shape[1], device=probs.device).clamp(max=RANKS - 1)
    a, b = table[(bins * RANKS + ranks) * BANDS + band(depth)].unbind(-1)
    return (a + b * probs).clamp(max=1.0)


def prune(
    round_buffer: RoundFields, scalars: Tensor, depths: Tensor, ranks: Tensor, deepest: int
) -> None:
    """Keep the nodes of largest reach, earlier ones first on ties; write rows and ancestor bits."""
    if scalars.dim() > 1:
        for number, own in enumerate(scalars):
            prune(round_buffer.of_request(number), own, depths, ranks, deepest)
        return
    size = len(depths)
    device = depths.device
    reach = round_buffer.field("grown_reach")[:size]
    limit = scalars[TREE_SIZE]
    able = (torch.arange(size, device=device) < limit) | (limit == 0)
    # the root's reach is 1 and it comes first
    order = torch.argsort(torch.where(able, -reach, 1.0), stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(size, device=device)
    kept = place <= scalars[NODES]
    new = torch.cumsum(kept, 0) - 1  # index of each node among those kept
    parents = round_buffer.field("grown_parents")[:size]
    where = torch.where(kept, new, ROWS)  # the rest goes to a row that is dropped
    above = torch.where(parents < 0, -1, new[parents.clamp(min=0)])
    columns = {
        "tokens": round_buffer.field("grown_tokens")[:size],
        "parents": above,
        "depths": depths,
        "ranks": ranks,
        "kept": torch.arange(size, device=device),
        "probs": round_buffer.field("grown_probs")[:size],
        "reach": reach,
    }
    for name, column in columns.items():
        field = round_buffer.field(name)
        wide = field.new_full((ROWS + 1,), -1 if name == "parents" else 0)
        wide[where] = column
        field.copy_(wide[:ROWS])
    words(round_buffer, deepest)


def words(round_buffer: RoundFields, depth: int) -> None:
    """Write the ancestors of each row of the pruned tree, itself included, as bits."""
    rows = round_buffer.rows
    above = rows.parents.clamp(min=0)
    node = torch.arange(ROWS, device=above.device)
    used = (rows.parents >= 0) & (rows.depths > 0)
    seen = torch.zeros_like(rows.words)
    for _ in range(depth + 1):
        bits = torch.ones_like(node) << (node % 64)
        for word in range(seen.shape[1]):
            seen[:, word] |= torch.where(node // 64 == word, bits, 0)
        node = torch.where(used, above[node], node)
    rows.words.copy_(seen)
