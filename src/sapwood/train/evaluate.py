"""Tokens per pass of an EAGLE-3 head on known answers, many texts at once.

Greedy decoding is replayed, not run: a head's keys over committed text do not depend on where the
rounds began, so they are computed once, and a round is only growing EAGLE-2's tree (arXiv
2406.16858) and following the answer through it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.backend import TorchBackend
from sapwood.errors import SapwoodError
from sapwood.heads.eagle3 import Eagle3Head
from sapwood.train.decode_state import TextToContinue
from sapwood.train.generate import Generator
from sapwood.train.teacher import Teacher

TOGETHER = {"cuda": 48, "cpu": 8}  # texts replayed at a time, by device

Text = tuple[list[int], int]  # tokens of a prompt and its answer, and where the answer begins


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Size limits of a tree."""

    nodes: int
    depth: int
    beam: int = 10  # leaves expanded per level, and children of each
    # as of the estimator `leader`: how far the chance of a first choice is raised
    lean: float = 0.0


CHAIN6 = TreeLimits(6, 6, 1)
SMALL = TreeLimits(16, 6, 8)
MIDDLE = TreeLimits(32, 8, 10)
LARGE = TreeLimits(64, 16, 10)


def answered(
    backend: TorchBackend,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],  # tokens that end an answer
    longest: int,  # most tokens of an answer
    tick: Callable[[int], None],  # called with the number of tokens so far
) -> list[Text]:
    """The prompts with the target's greedy answers."""
    room = backend.info.context
    asked = [TextToContinue(prompt, min(longest, room - len(prompt))) for prompt in prompts]
    generator = Generator(backend)
    try:
        answers = generator.run(asked, ends, tick)
    finally:
        generator.close()
    pairs = zip(prompts, answers, strict=True)
    return [([*prompt, *answer], len(prompt)) for prompt, answer in pairs]


@torch.inference_mode()
def tokens_per_pass(
    head: Eagle3Head,
    teacher: Teacher,
    texts: Sequence[Text],
    shape: TreeLimits,
    embedding: Tensor | None = None,  # the head's own, if it has one
) -> list[float]:
    """Tokens of each text's answer per pass, bonus included."""
    if shape.beam > len(head.vocabulary):
        raise SapwoodError(
            f"a tree of {shape.beam} leaves per level is wider than the {len(head.vocabulary)} "
            "tokens that the head can draft; ask for fewer"
        )
    order = sorted(range(len(texts)), key=lambda index: len(texts[index][0]))  # little padding
    rates = [0.0] * len(texts)
    size = TOGETHER.get(teacher.device.type, TOGETHER["cpu"])
    table = teacher.embedding if embedding is None else embedding
    for start in range(0, len(order), size):
        group = order[start : start + size]
        found = PrefilledTexts(head, teacher, [texts[index] for index in group], table).rates(shape)
        for index, rate in zip(group, found, strict=True):
            rates[index] = rate
    return rates


class PrefilledTexts:
    """Texts with the head's keys and values, ready for rounds from any place."""

    def __init__(
        self, head: Eagle3Head, teacher: Teacher, texts: Sequence[Text], embedding: Tensor
    ) -> None:
        self.head = head
        self.embedding = embedding
        device = teacher.device
        self.lengths = torch.tensor([len(tokens) for tokens, _ in texts], device=device)
        self.starts = torch.tensor([start for _, start in texts], device=device)
        longest = int(self.lengths.max())
        rows = [
            F.pad(torch.tensor(tokens), (0, longest - len(tokens)), value=tokens[-1])
            for tokens, _ in texts
        ]
        self.tokens = torch.stack(rows).to(device)  # [texts, longest]
        parts = [self._prefill(part, teacher) for part in torch.split(self.tokens, 8)]
        self.keys, self.values, self.outputs = (
            torch.cat(column) for column in zip(*parts, strict=True)
        )
        self.each = torch.arange(len(texts), device=device)

    def _prefill(self, tokens: Tensor, teacher: Teacher) -> tuple[Tensor, Tensor, Tensor]:
        """The head's keys, values and outputs: row t pairs feature t with token t + 1."""
        features, _ = teacher.read(tokens, self.head.config.features)
        states = self.head.begin(features[:, :-1].to(self.head.fc.weight.dtype))
        positions = torch.arange(tokens.shape[1] - 1, device=tokens.device).expand(len(tokens), -1)
        embeds = F.embedding(tokens[:, 1:], self.embedding).to(states.dtype)
        layer = self.head.midlayer
        query, key, value = layer.project(embeds, states, positions)
        read = layer.self_attn.attend(query, key, value, None, causal=True)
        return key, value, layer.finish(states, read)

    def rates(self, shape: TreeLimits) -> list[float]:
        """Tokens per pass of each text."""
        first = self.starts - 1  # the prompt's last token is the first root
        roots = first
        passes = torch.zeros_like(roots)
        while bool((running := roots < self.lengths - 1).any()):
            drafted = self._round(roots.clamp(1, self.tokens.shape[1] - 1), shape)
            # a root without text before it gives the head nothing to draft from
            taken = torch.where(roots > 0, drafted, 0) + 1
            taken = torch.minimum(taken, self.lengths - 1 - roots)
            roots = torch.where(running, roots + taken, roots)
            passes += running
        rates: list[float] = ((roots - first) / passes.clamp(min=1)).tolist()
        return rates

    def _round(self, roots: Tensor, shape: TreeLimits) -> Tensor:
        """Number of nodes along the answer in trees rooted at these places, [texts]."""
        texts = len(roots)
        beam = shape.beam
        states = self.outputs[self.each, roots - 1][:, None]  # [texts, 1, width]
        grown = DraftedNodes(texts, roots.device)
        values, tokens = self._best(states, shape)
        grown.add(tokens[:, 0], values[:, 0], torch.full_like(tokens[:, 0], -1))
        front = torch.arange(beam, device=roots.device).expand(texts, beam)
        states = states.expand(-1, beam, -1)
        own_keys = own_values = None
        seen = torch.zeros(texts, beam, 0, dtype=torch.bool, device=roots.device)
        # [texts, rows]
        before = torch.arange(self.keys.shape[2], device=roots.device) < roots[:, None]
        for depth in range(1, shape.depth):
            embeds = F.embedding(grown.tokens.gather(1, front), self.embedding).to(states.dtype)
            positions = (roots - 1 + depth)[:, None].expand(-1, beam)
            query, key, value = self.head.midlayer.project(embeds, states, positions)
            own_keys = key if own_keys is None else torch.cat((own_keys, key), 2)
            own_values = value if own_values is None else torch.cat((own_values, value), 2)
            here = torch.eye(beam, dtype=torch.bool, device=roots.device).expand(texts, -1, -1)
            seen = torch.cat((seen, here), -1)  # [texts, beam, tree rows]
            mask = torch.cat((before[:, None].expand(-1, beam, -1), seen), -1)[:, None]
            read = self.head.midlayer.self_attn.attend(
                query,
                torch.cat((self.keys, own_keys), 2),
                torch.cat((self.values, own_values), 2),
                mask,
            )
            outputs = self.head.midlayer.finish(states, read)
            values, tokens = self._best(outputs, shape)
            scores = grown.scores.gather(1, front)[..., None] + values
            first = grown.tokens.shape[1]
            grown.add(tokens.flatten(1), scores.flatten(1), front.repeat_interleave(beam, 1))
            _, best = scores.flatten(1).topk(beam, dim=1)
            parent = best // beam
            front = first + best
            states = outputs.gather(1, parent[..., None].expand(-1, -1, outputs.shape[-1]))
            seen = seen.gather(1, parent[..., None].expand(-1, -1, seen.shape[-1]))
        return self._walk(grown, roots, shape)

    def _best(self, outputs: Tensor, shape: TreeLimits) -> tuple[Tensor, Tensor]:
        """Log probs and target ids of the best tokens after outputs [texts, rows, width]."""
        values, ids = self.head.logits(outputs).float().log_softmax(-1).topk(shape.beam, dim=-1)
        values[..., 0] += shape.lean * values[..., 0].neg().clamp(max=1)
        return values, self.head.vocabulary[ids]

    def _walk(self, grown: "DraftedNodes", roots: Tensor, shape: TreeLimits) -> Tensor:
        """Length of the answer's path through the best nodes."""
        count = min(shape.nodes, grown.scores.shape[1])
        kept = torch.zeros_like(grown.scores, dtype=torch.bool)
        kept.scatter_(1, grown.scores.topk(count, dim=1).indices, True)
        node = torch.full_like(roots, -1)
        alive = torch.ones_like(roots, dtype=torch.bool)
        steps = torch.zeros_like(roots)
        for depth in range(1, shape.depth + 1):
            token = self.tokens[self.each, (roots + depth).clamp(max=self.tokens.shape[1] - 1)]
            hit = kept & (grown.parents == node[:, None]) & (grown.tokens == token[:, None])
            alive = alive & hit.any(1)
            steps += alive
            node = torch.where(alive, hit.int().argmax(1), -2)
        return steps


class DraftedNodes:
    """Every node drafted in a round, for all texts, in the order of drafting."""

    def __init__(self, texts: int, device: torch.device) -> None:
        self.tokens = torch.zeros(texts, 0, dtype=torch.int64, device=device)
        self.parents = torch.zeros(texts, 0, dtype=torch.int64, device=device)  # -1 is the root
        # sums of log probabilities along the path
        self.scores = torch.zeros(texts, 0, device=device)

    def add(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> None:
        """Append nodes [texts, n]."""
        self.tokens = torch.cat((self.tokens, tokens), 1)
        self.scores = torch.cat((self.scores, scores), 1)
        self.parents = torch.cat((self.parents, parents), 1)
