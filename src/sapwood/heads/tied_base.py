"""Base of heads that use the target's embedding and output head, which are not saved with them."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.errors import SapwoodError
from sapwood.heads.layers import output_logits


class TiedBase(nn.Module):
    """A head whose output rows are the target's, all of them or those of a draft vocabulary."""

    kind: ClassVar[str] = "trained"  # its word among the kinds of heads
    # [draft vocab] int64: target id minus draft id; only where there is a draft vocabulary
    d2t: Tensor
    embedding: Tensor  # [vocab, width] of the target, from `attach` on
    # [draft vocab, width], the target's output rows of the draft vocabulary, from `attach` on
    output: Tensor

    def __init__(self, width: int, vocab: int, draft_vocab: int) -> None:
        super().__init__()
        self.width = width
        self.vocab = vocab
        self.narrow = draft_vocab > 0
        if self.narrow:
            self.register_buffer("d2t", torch.zeros(draft_vocab, dtype=torch.int64))
        self.register_buffer("embedding", None, persistent=False)
        self.register_buffer("output", None, persistent=False)

    def use_vocabulary(self, tokens: Tensor) -> None:
        """Propose these target tokens only, [draft vocab] ascending."""
        self.d2t.copy_(tokens - torch.arange(len(tokens), device=tokens.device))

    @property
    def vocabulary(self) -> Tensor:
        """Target id of each draft token, [draft vocab]."""
        if self.narrow:
            return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)
        return torch.arange(self.vocab, device=next(self.parameters()).device)

    @property
    def t2d(self) -> Tensor:
        """Mask of the target's tokens that can be proposed, [vocab]."""
        tokens = self.vocabulary
        return torch.zeros(self.vocab, dtype=torch.bool, device=tokens.device).index_fill_(
            0, tokens, True
        )

    def attach(self, embedding: Tensor, output_head: Tensor) -> None:
        """Use the target's tables [vocab, width]; only rows of a draft vocabulary are copied."""
        for table in (embedding, output_head):
            if list(table.shape) != [self.vocab, self.width]:
                raise SapwoodError(
                    f"this {self.kind} head is for a target of {self.vocab} tokens and width "
                    f"{self.width}, and this one has {len(table)} and {table.shape[1]}; "
                    "use the model it was trained for"
                )
        tokens = self.vocabulary
        if self.narrow and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab:
            raise SapwoodError(
                f"the draft vocabulary of this {self.kind} head leaves its {self.vocab} tokens; "
                "save it again"
            )
        self.embedding = embedding.detach()
        self.output = output_head.detach()[tokens] if self.narrow else output_head.detach()

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's embeddings of tokens, in the head's own dtype."""
        return F.embedding(tokens, self.embedding).to(next(self.parameters()).dtype)

    def output_logits(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary of states [..., width], by the target's output rows."""
        return output_logits(states.to(self.output.dtype), self.output)
