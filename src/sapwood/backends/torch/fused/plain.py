"""The steps of a growth in plain torch operations: what the kernels must give, and what runs where there are none.

Every function writes to buffers that it is handed, reads lengths on the device, and can be captured.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.fused.layer import BANDS, EDGES, RANKS, Layer, band
from sapwood.backends.torch.fused.stream import Stream
from sapwood.backends.torch.fused.tree import ROWS, Parcel

# places of the growth's facts, int64: what the host tells the device before each growth
NEW, ROOT_AT, TEXT_ROWS, SEAT, NODES, LAST, ROOT_TOKEN, HOME = range(8)  # the last: a slot of the target's pool
FACTS = 8  # the new text's tokens follow them


def onward(parcel: Parcel, facts: Tensor, tokens: Tensor) -> None:
    """Complete what the host told before it knew the verdict: facts [FACTS] and tokens [TEXT] of the new text."""
    verdict, most = parcel.field("verdict"), len(tokens)
    new = verdict[:1].clamp(max=most)
    each = torch.arange(most, device=tokens.device)
    said = parcel.rows.tokens[verdict[3 : 3 + most]]  # after the root, each node of the path is what was said
    tokens.copy_(torch.where(each < new - 1, said, torch.where(each == new - 1, verdict[1], 0)))
    facts[NEW : NEW + 1] = new
    facts[LAST : LAST + 1] = new - 1
    facts[ROOT_AT : ROOT_AT + 1] += verdict[:1]
    facts[ROOT_TOKEN : ROOT_TOKEN + 1] = verdict[1:2]


def proceed(parcel: Parcel, facts: Tensor, told: Tensor) -> None:
    """Tell the pass over the tree that has grown what `Facts` would, from the facts of the growth and the verdict."""
    verdict = parcel.field("verdict")
    count, path = verdict[0], parcel.path
    each = torch.arange(len(path), device=path.device)
    stay = torch.where((path != each) & (each < count), each, count).min()
    told[:3] = torch.stack((facts[HOME], facts[ROOT_AT], facts[NODES] + 1))
    told[3:6] = torch.stack((facts[ROOT_AT] - count, stay, count))


def project(
    x: Tensor | Stream, weight: Tensor, out: Tensor | Stream, *, residual: Tensor | None = None, gate: bool = False
) -> None:
    """The rows of x [m, k], those of a stream normalised, times weight [n, k]; a gate takes [2n, k]."""
    if isinstance(x, Stream):
        x = F.rms_norm(x.x, x.x.shape[-1:], x.scale.norm, x.scale.eps) * x.scale.lift
    y = F.linear(x, weight)
    if gate:
        left, right = y.chunk(2, -1)
        y = F.silu(left) * right
    goal = out.x if isinstance(out, Stream) else out
    goal.copy_(y if residual is None else y + residual)


def pair(layer: Layer, tokens: Tensor, states: Tensor, x: Tensor, base: Tensor) -> None:
    """Join the normed embeddings of tokens [rows] with normed states [rows, width]; `base` goes on beside them."""
    width, embeds = layer.width, layer.embedding[tokens]
    normed = F.rms_norm(states, (width,), layer.state_norm, layer.eps)
    x[:, :width] = F.rms_norm(embeds, (width,), layer.token_norm, layer.eps)
    x[:, width:] = normed
    base.copy_(normed if layer.after else states)


def select(
    layer: Layer,
    reach: Tensor,  # [candidates] of one level
    tokens: Tensor,  # [candidates]
    first: int,  # index of the first candidate in the grown tree
    width: int,  # candidates of one parent
    states: Tensor,  # [parents, width] outputs of the rows above
    seen: Tensor | None,  # [parents, slots] int8: tree rows that each parent sees; None under the root
    before: int,  # tree rows above this level
    x: Tensor,  # from here on results, a row per chosen candidate
    base: Tensor,
    opened: Tensor,
    sees: Tensor,
) -> None:
    """Choose the best candidates of a level, earlier ones first among equals, and make them rows of the head."""
    rows = len(x)
    chosen = torch.argsort(-reach, stable=True)[:rows]
    opened.copy_(first + chosen)
    parents = chosen // width
    pair(layer, tokens[chosen], states[parents], x, base)
    sees.zero_() if seen is None else sees.copy_(seen[parents])
    each = torch.arange(rows, device=x.device)
    sees[each, before + each] = 1


def project_heads(
    layer: Layer,
    x: Tensor,  # [rows, 2 width]
    facts: Tensor,
    angles: Tensor,  # [positions, d] cosines and sines
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    depth: int,
    before: int,
) -> None:
    """Queries of the rows, rotated; keys and values go to their slots [seats, kv heads, slots, d]; depth 0 is text."""
    rows, heads, kv = len(x), layer.heads, layer.kv_heads
    each = torch.arange(rows, device=x.device)
    new = facts[NEW]
    if depth == 0:
        positions, slots = facts[ROOT_AT] - new + each, facts[TEXT_ROWS] + each
    else:
        positions, slots = (facts[ROOT_AT] - 1 + depth).expand(rows), facts[TEXT_ROWS] + new + before + each
    q, k, v = F.linear(x, layer.qkv).view(rows, heads + 2 * kv, -1).split_with_sizes([heads, kv, kv], 1)
    angles = angles[positions.clamp(min=0)]
    query[:rows] = rotate(q, angles)
    slots = slots.clamp(max=keys.shape[2] - 1)  # text that is not there goes where tree rows will overwrite it
    seat = facts[SEAT].expand(rows)
    keys[seat, :, slots] = rotate(k, angles)
    values[seat, :, slots] = v


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of x [rows, heads, d] by cosines and sines [rows, d]."""
    left, right = exact(x).chunk(2, -1)
    cos, sin = angles[:, None, :].to(left.dtype).chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def exact(x: Tensor) -> Tensor:
    """The numbers in at least single precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def attend(
    layer: Layer,
    query: Tensor,  # [rows, heads, d]
    facts: Tensor,
    keys: Tensor,  # [seats, kv heads, slots, d]
    values: Tensor,
    sees: Tensor | None,  # [rows, tree slots] int8; None for the root, which sees the text alone
    read: Tensor,  # [rows, heads * d], the result
    count: int,  # tree rows so far
) -> None:
    """What rows read from the text and from the tree rows they see."""
    rows, _, d = query.shape
    end = facts[TEXT_ROWS] + facts[NEW]
    at = torch.arange(keys.shape[2], device=query.device)
    mask = (at < end).expand(rows, -1)
    if sees is not None:
        inside = at - end
        tail = sees[:, inside.clamp(0, count - 1)] > 0
        mask = mask | ((inside >= 0) & (inside < count) & tail)
    k, v = (slots[facts[SEAT]].repeat_interleave(layer.heads // layer.kv_heads, 0) for slots in (keys, values))
    weights = torch.einsum("rhd,hsd->hrs", exact(query), exact(k)) * d**-0.5
    weights = weights.masked_fill(~mask, -torch.inf).softmax(-1)
    v = exact(v).masked_fill(~mask.any(0)[None, :, None], 0.0)  # slots that were never written may hold anything
    read.copy_(torch.einsum("hrs,hsd->rhd", weights, v).flatten(1))


def leaders(
    layer: Layer,
    logits: Tensor,  # [rows, draft vocab]
    facts: Tensor,
    table: Tensor,  # [CELLS, 2] float64
    owners: Tensor | None,  # [rows] grown nodes that the rows stand for; None: the root
    depth: int,  # of the children
    width: int,
    first: int,  # index of the first child in the grown tree
    parcel: Parcel,
) -> None:
    """Add the best tokens of each row to the grown tree, of equals the lowest id first, with their chances."""
    rows, wide = len(logits), logits.float()
    order = torch.sort(wide, dim=-1, descending=True, stable=True)
    ids, logps = order.indices[:, :width], order.values[:, :width] - wide.logsumexp(-1, keepdim=True)
    probs = logps.double().exp()
    place = slice(first, first + rows * width)
    tokens, parents = parcel.field("grown_tokens"), parcel.field("grown_parents")
    above = torch.zeros(1, dtype=torch.int64, device=logits.device) if owners is None else owners
    reach = parcel.field("grown_reach")
    if owners is None:
        tokens[:1], parents[:1] = facts[ROOT_TOKEN], -1
        reach[:1], parcel.field("grown_probs")[:1] = 1.0, 1.0
    tokens[place] = layer.vocabulary[ids].flatten()
    parents[place] = above.repeat_interleave(width)
    parcel.field("grown_probs")[place] = probs.flatten()
    chances = chance(probs, table, depth)
    reach[place] = (reach[above][:, None] * chances).flatten()


def chance(probs: Tensor, table: Tensor, depth: int) -> Tensor:
    """Chances of children [rows, width] with these draft probabilities, best first, by the table of cells."""
    edges = torch.tensor(EDGES, dtype=torch.float64, device=probs.device)
    bins = (probs[..., None] > edges).sum(-1)
    ranks = torch.arange(probs.shape[1], device=probs.device).clamp(max=RANKS - 1)
    a, b = table[(bins * RANKS + ranks) * BANDS + band(depth)].unbind(-1)
    return (a + b * probs).clamp(max=1.0)


def cut(parcel: Parcel, facts: Tensor, depths: Tensor, ranks: Tensor, deepest: int) -> None:
    """Keep the nodes of largest reach, earlier ones first among equals, and write what each of them sees."""
    size, device = len(depths), depths.device
    reach = parcel.field("grown_reach")[:size]
    order = torch.argsort(-reach, stable=True)  # the root's reach is 1 and it comes first
    place = torch.empty_like(order)
    place[order] = torch.arange(size, device=device)
    kept = place <= facts[NODES]
    new = torch.cumsum(kept, 0) - 1  # index of each node among those kept
    parents = parcel.field("grown_parents")[:size]
    where = torch.where(kept, new, ROWS)  # the rest goes to a row that is cut off
    above = torch.where(parents < 0, -1, new[parents.clamp(min=0)])
    columns = {
        "tokens": parcel.field("grown_tokens")[:size],
        "parents": above,
        "depths": depths,
        "ranks": ranks,
        "kept": torch.arange(size, device=device),
        "probs": parcel.field("grown_probs")[:size],
        "reach": reach,
    }
    for name, column in columns.items():
        field = parcel.field(name)
        wide = field.new_full((ROWS + 1,), -1 if name == "parents" else 0)
        wide[where] = column
        field.copy_(wide[:ROWS])
    words(parcel, deepest)


def words(parcel: Parcel, depth: int) -> None:
    """Write which rows of the checked tree each one sees, itself included, as bits."""
    rows = parcel.rows
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
