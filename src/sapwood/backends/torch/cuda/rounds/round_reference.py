"""Steps between draft and pass of a batch in torch: the reference of the kernels, and for CPUs.

Index b is a request of the batch, of which the first `live` are there. Every request has `each`
rows of the pass, those of request b from b * each on.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import RoundFields
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.reference import (
    FIRST_SLOT,
    LAST,
    NEW,
    ROOT_AT,
    ROOT_TOKEN,
    SCALARS,
    TEXT_ROWS,
)
from sapwood.backends.torch.cuda.kernels.attention_tiles import FIELDS
from sapwood.backends.torch.cuda.pass_inputs import PassShape
from sapwood.backends.torch.cuda.verify.device_verifier import FIRST, GOLDEN, SECOND, shifted

# words of a request's arguments, which the host writes for every round: index in the round before
# or -1, seed, bits of the temperature, scalars of its draft, tokens of its new text
BEFORE, SEED, TEMPERATURE, OWN = range(4)
TEXT = OWN + SCALARS
ARGS = TEXT + MAX_NEW_ROWS
# words that a round leaves for the next: rows of new text, position of the root, rows of the
# head's text, root, tokens of the new text
CARRIED = (NEW, ROOT_AT, TEXT_ROWS, ROOT_TOKEN)  # scalars in this order
CARRY = len(CARRIED) + MAX_NEW_ROWS


def take_args(
    args: Tensor,  # [requests, ARGS]
    carry: Tensor,  # [most requests, CARRY]
    scalars: Tensor,  # [requests, SCALARS], a result, as are the next two
    tokens: Tensor,  # [requests * rows] of new text
    roots: Tensor,  # [requests] rows of the roots among those of new text
) -> None:
    """Write the arguments of a draft, of requests that go on from the round before."""
    requests = len(args)
    rows = len(tokens) // requests
    follows = args[:, BEFORE] >= 0
    past = carry[args[:, BEFORE].clamp(min=0)]
    own = args[:, OWN:TEXT].clone()
    for column, place in enumerate(CARRIED):
        own[:, place] = torch.where(follows, past[:, column], own[:, place])
    own[:, LAST] = own[:, NEW] - 1
    scalars.copy_(own)
    start = len(CARRIED)
    said = torch.where(follows[:, None], past[:, start : start + rows], args[:, TEXT : TEXT + rows])
    tokens.view(requests, rows).copy_(said)
    roots.copy_(torch.arange(requests, device=roots.device) * rows + own[:, LAST])


def take_features(args: Tensor, features: Tensor, hidden_states: Tensor) -> None:
    """Copy features [most requests, MAX_NEW_ROWS, width] of the round before to a draft's rows."""
    requests = len(args)
    goal = hidden_states.view(requests, -1, hidden_states.shape[1])
    past = features[args[:, BEFORE].clamp(min=0), : goal.shape[1]]
    goal.copy_(torch.where((args[:, BEFORE] >= 0)[:, None, None], past, goal))


def place_trees(
    fields: RoundFields,
    scalars: Tensor,
    live: Tensor,
    inputs: Tensor,
    shape: PassShape,
    each: int,
    *,
    whole: bool,
) -> None:
    """Write the inputs of the pass over the pruned trees, of `each` rows a request.

    `whole`: the pass has no other rows, and those that are not used are cleared.
    """
    rows, blocks = shape.rows, shape.blocks
    trees = fields.rows
    place = torch.arange(rows, device=inputs.device)
    there = place // each < live
    owner, node = torch.where(there, place // each, 0), place % each
    length = scalars[owner, ROOT_AT]
    slots = scalars[owner, FIRST_SLOT] + length + node
    chosen = there | whole
    columns = (
        torch.where(there, trees.tokens[owner, node], 0),
        torch.where(there, trees.depths[owner, node] + length, 0),
        torch.where(there, slots, -1),
    )
    for number, column in enumerate(columns):
        goal = inputs[number * rows : (number + 1) * rows]
        goal.copy_(torch.where(chosen, column, goal))
    seen = torch.where(there, trees.words[owner, node, 0], 0)
    words = inputs[shape.size : shape.size + rows]
    words.copy_(torch.where(chosen, seen, words))
    cuts = -(-each // shape.tiles.rows)  # blocks of a request
    block = torch.arange(blocks, device=inputs.device)
    there = block // cuts < live
    owner, start = torch.where(there, block // cuts, 0), block % cuts * shape.tiles.rows
    held = (each - start).clamp(max=shape.tiles.rows)
    fields_of_blocks = (
        scalars[owner, FIRST_SLOT],
        scalars[owner, ROOT_AT],
        owner * each + start,
        held,
        torch.full_like(held, each),
        torch.zeros_like(held),  # not a chain
    )
    goal = inputs[3 * rows : shape.size].view(FIELDS, blocks)
    made = torch.where(there, torch.stack(fields_of_blocks), 0)
    goal.copy_(torch.where(there | whole, made, goal))


def noise_keys(
    args: Tensor, fields: RoundFields, scalars: Tensor, keys: Tensor, heat: Tensor, each: int
) -> None:
    """Noise key [rows] of the token after each row, and the temperature [rows] of its request.

    The key is that of `KeyedRng.key`, for the token's position.
    """
    rows = len(keys)
    place = torch.arange(rows, device=keys.device)
    owner = (place // each).clamp(max=len(args) - 1)
    depths = fields.rows.depths[owner, place % each]
    key = args[owner, SEED]
    for word in (scalars[owner, ROOT_AT] + depths + 1, 0, 0, 0):
        key = mixed((key ^ word) + GOLDEN)
    keys.copy_(key)
    heat.copy_(args[owner, TEMPERATURE].view(torch.float64))


def mixed(words: Tensor) -> Tensor:
    """Scramble 64-bit words, as `rng.mix` does."""
    words = (words ^ shifted(words, 30)) * FIRST
    words = (words ^ shifted(words, 27)) * SECOND
    return words ^ shifted(words, 31)


def walk_trees(fields: RoundFields, target_tokens: Tensor, live: Tensor, each: int) -> None:
    """Follow the target's tokens [rows] from each root; write accepted paths and bonuses."""
    for number in range(min(int(live), fields.requests)):
        verdict = fields.field("verdict")[number]
        said = target_tokens[number * each : (number + 1) * each].tolist()
        tokens, parents = (
            fields.field(name)[number, :each].tolist() for name in ("tokens", "parents")
        )
        path = [0]
        while True:
            children = (
                node
                for node in range(each)
                if parents[node] == path[-1] and tokens[node] == said[path[-1]]
            )
            found = next(children, None)
            if found is None:
                break
            path.append(found)
        words = [len(path), said[path[-1]], *path]
        verdict[: len(words)] = torch.tensor(words, device=verdict.device)


def keep_paths(pool: Tensor, fields: RoundFields, scalars: Tensor, live: Tensor) -> None:
    """Move keys and values of accepted paths behind the committed text of their requests.

    The pool is [planes, sequences, slots, kv heads, width].
    """
    slots = pool.view(pool.shape[0], -1, *pool.shape[3:])
    for number in range(min(int(live), fields.requests)):
        verdict = fields.field("verdict")[number]
        first = int(scalars[number, FIRST_SLOT] + scalars[number, ROOT_AT])
        count = int(verdict[0])
        slots[:, first : first + count] = slots[:, first + verdict[2 : 2 + count]]


def carry_over(fields: RoundFields, scalars: Tensor, live: Tensor, carry: Tensor) -> None:
    """Write what the next round of each request goes on from."""
    count = min(int(live), fields.requests)
    verdict = fields.field("verdict")[:count]
    accepted = verdict[:, :1]
    each = torch.arange(MAX_NEW_ROWS, device=carry.device)
    nodes = verdict[:, 3 : 3 + MAX_NEW_ROWS].clamp(min=0)
    said = fields.field("tokens")[:count].gather(1, nodes.clamp(max=fields.seen.shape[-2] - 1))
    tokens = torch.where(
        each < accepted - 1, said, torch.where(each == accepted - 1, verdict[:, 1:2], 0)
    )
    scalars = scalars[:count]
    carry[:count, 0] = accepted[:, 0]
    carry[:count, 1] = scalars[:, ROOT_AT] + accepted[:, 0]
    carry[:count, 2] = scalars[:, TEXT_ROWS] + scalars[:, NEW]
    carry[:count, 3] = verdict[:, 1]
    carry[:count, len(CARRIED) :] = tokens


def carry_features(
    fields: RoundFields,
    states: Sequence[Tensor],  # [rows of the pass, width] of each layer that the head reads
    live: Tensor,
    features: Tensor,  # [most requests, MAX_NEW_ROWS, width of all], the result
    each: int,
) -> None:
    """Gather the target's states along each accepted path."""
    for number in range(min(int(live), fields.requests)):
        verdict = fields.field("verdict")[number]
        rows = number * each + verdict[2 : 2 + int(verdict[0])]
        features[number, : len(rows)] = torch.cat([layer[rows] for layer in states], -1)
