"""What heads share that read and speak with the target's own tables, which are not saved with them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.errors import SapwoodError
from sapwood.heads.layers import speak


class Borrowed(nn.Module):
    """A head whose output rows are the target's, all of them or those of a draft vocabulary."""

    d2t: Tensor  # [draft vocab] int64: target id minus draft id; only where there is a draft vocabulary
    embedding: Tensor  # [vocab, width] of the target, from `attach` on
    output: Tensor  # [draft vocab, width], the target's output rows of what can be proposed, from `attach` on

    def __init__(self, width: int, vocab: int, draft_vocab: int) -> None:
        super().__init__()
        self.width, self.vocab, self.narrow = width, vocab, draft_vocab > 0
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
        """Which tokens of the target can be proposed, [vocab]."""
        tokens = self.vocabulary
        return torch.zeros(self.vocab, dtype=torch.bool, device=tokens.device).index_fill_(0, tokens, True)

    def attach(self, embedding: Tensor, output_head: Tensor) -> None:
        """Borrow the target's tables, both [vocab, width]; nothing is copied but the rows of a draft vocabulary."""
        kind = getattr(self, "kind", "trained")
        for table in (embedding, output_head):
            if list(table.shape) != [self.vocab, self.width]:
                raise SapwoodError(
                    f"this {kind} head is for a target of {self.vocab} tokens and width {self.width}, and this one has "
                    f"{len(table)} and {table.shape[1]}; use the model it was trained for"
                )
        tokens = self.vocabulary
        if self.narrow and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab:
            raise SapwoodError(f"the draft vocabulary of this {kind} head leaves its {self.vocab} tokens; save it anew")
        self.embedding = embedding.detach()
        self.output = output_head.detach()[tokens] if self.narrow else output_head.detach()

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's embeddings of tokens, in the head's own number format."""
        return F.embedding(tokens, self.embedding).to(next(self.parameters()).dtype)

    def speak(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary of states [..., width], by the target's output rows."""
        return speak(states.to(self.output.dtype), self.output)
