"""Training of a draft model on mask tokens (PARD, arXiv 2504.18583).

Subtask k predicts a token from the text up to k places before it and k - 1 mask tokens behind that.
All subtasks of a text are rows of one pass, which a mask keeps apart. Conditional drop (COD): of
subtask k only a share of the rows is kept, `keep` to the power k - 1 but at least `least`, and a
row only where the rows that it sees were kept in the subtasks before it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sapwood.common.drafter_store import find
from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.errors import SapwoodError
from sapwood.train.batches import TrainBatch
from sapwood.train.draft_model import PIECE, SPECIAL, DraftModelObjective, Student, load_first
from sapwood.train.eagle3 import sharpen
from sapwood.train.losses import soft_cross
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


class MaskedStudent(Student):
    """A draft model that fills mask tokens; `config.pard_token` names their id."""

    kind: ClassVar[str] = "pard"

    def packed(self, tokens: Tensor, rows: "PackedRows") -> Tensor:
        """Final states [batch, places + mask rows, width] of texts and mask rows in one pass."""
        masks = tokens.new_full((len(tokens), len(rows.places) - tokens.shape[1]), self.mask)
        found: Tensor = self.model(
            input_ids=torch.cat((tokens, masks), 1),
            position_ids=rows.places[None],
            attention_mask=rows.visible()[None, None],
            use_cache=False,
        ).last_hidden_state
        return found

    @property
    def mask(self) -> int:
        """Id of the mask token."""
        return int(self.config.pard_token)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of a pass over all subtasks, the text itself first."""

    places: Tensor  # [rows] position of each
    subtasks: Tensor  # [rows] 0 for the text, else mask rows up to this one

    def visible(self) -> Tensor:
        """True where a row [rows, 1] sees another [1, rows]."""
        behind = self.places[:, None] - self.places[None]
        deeper = self.subtasks[:, None] - self.subtasks[None]
        text = (self.subtasks == 0)[None] & (behind >= deeper)
        own = (self.subtasks > 0)[None] & (deeper >= 0) & (behind == deeper)
        return text | own


@dataclass(frozen=True)
class PardObjective:
    """Adapt the target's draft model to mask tokens."""

    start: str = ""  # folder of the draft model to adapt; empty is the one trained for the target
    tokens: int = 8  # drafted by one pass, >= 2
    hard: float = 0.3  # share of the label that is the target's first choice alone
    keep: float = 0.7  # share of rows that each subtask keeps of the one before it
    least: float = 0.2  # share of all rows that every subtask keeps
    rate: float = 5e-4
    matrix_rate: float = 1e-3

    kind: ClassVar[str] = "pard"

    def __post_init__(self) -> None:
        at_least(2, tokens=self.tokens)
        between(0, 1, keep=self.keep, least=self.least)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the model reads tokens alone."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> MaskedStudent:
        """The draft model's weights, with the token that the corpus uses least as its mask."""
        info = teacher.backend.info
        folder = self.start or str(find(DraftModelObjective.kind, info.model, info.weights))
        first = load_first(folder, teacher)
        if first.config.model_type != "llama":
            raise SapwoodError(
                f"{folder} is a {first.config.model_type} model; pard adapts Llama models, such as "
                "`sapwood train draft-model` makes"
            )
        config = type(first.config).from_dict(first.config.to_dict())
        config.pard_token = unused(counts, config)
        student = MaskedStudent(config)
        student.load_state_dict(first.state_dict(), strict=False)
        table = student.model.embed_tokens.weight
        weights = torch.from_numpy(counts + 1).to(table.device, table.dtype)
        with torch.no_grad():
            table[student.mask] = weights @ table / weights.sum()
        return student.to(teacher.device).requires_grad_(True)

    def loss(self, student: MaskedStudent, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Cross entropy of the rows that all subtasks kept; agreement by subtask."""
        rows = self.rows(batch)
        states = student.packed(batch.tokens, rows)
        labelled = torch.zeros(batch.tokens.shape, dtype=torch.bool, device=states.device)
        labelled[batch.labelled_places()] = True
        loss, total = (torch.zeros((), device=states.device) for _ in range(2))
        agreement = []
        for subtask in range(self.tokens):
            here = (rows.subtasks == subtask).nonzero()[:, 0]
            texts, index = labelled[:, rows.places[here]].nonzero(as_tuple=True)
            final = batch.final[texts, rows.places[here][index]]
            more, right = self.distilled(student, teacher, states[texts, here[index]], final)
            loss = loss + more
            total = total + len(texts)
            agreement.append(right / max(len(texts), 1))
        return LossResult(loss / total.clamp(min=1), torch.stack(agreement))

    def rows(self, batch: TrainBatch) -> PackedRows:
        """Rows of the texts and of the subtasks: drawn from the batch, as a resumed run repeats."""
        source = torch.Generator().manual_seed(int(batch.tokens.sum()))
        first = max(1, int(batch.answers.min()) - 1)  # a mask lies behind a token at least
        stop = max(first, int(batch.lengths.max()) - 1)
        kept = [torch.arange(batch.tokens.shape[1])]
        kept += kept_places(first, stop, self.tokens - 1, self.keep, self.least, source)
        subtasks = torch.cat([torch.full_like(places, k) for k, places in enumerate(kept)])
        device = batch.tokens.device
        return PackedRows(torch.cat(kept).to(device), subtasks.to(device))

    def distilled(
        self, student: MaskedStudent, teacher: Teacher, states: Tensor, final: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum of cross entropies of states [rows, width], and the rows that agree."""
        loss, right = (torch.zeros((), device=states.device) for _ in range(2))
        rows = max(1, PIECE // teacher.vocab)
        for part in (slice(start, start + rows) for start in range(0, len(states), rows)):
            probs = teacher.target_probs(final[part])
            best = probs.argmax(-1)
            weights = torch.ones_like(best, dtype=torch.float32)
            more, agreed = soft_cross(
                states[part], student.output, sharpen(probs, best, self.hard), weights, best
            )
            loss = loss + more
            right = right + agreed
        return loss, right


def kept_places(
    first: int, stop: int, subtasks: int, keep: float, least: float, source: torch.Generator
) -> list[Tensor]:
    """Places of the mask rows of each subtask, in order, out of those from `first` to `stop`.

    A row is kept only where the row before it was kept in the subtask before.
    """
    found: list[Tensor] = []
    able = torch.arange(first, stop)
    for subtask in range(1, subtasks + 1):
        count = min(len(able), round((stop - first) * max(keep**subtask, least)))
        found.append(able[torch.randperm(len(able), generator=source)[:count]].sort().values)
        able = found[-1] + 1
        able = able[able < stop]
    return found


def unused(counts: IntArray, config: Any) -> int:
    """The token that is used least, the last of equals, and no special one."""
    named = [config.to_dict().get(name) for name in SPECIAL]  # some models name several ends
    special = {token for each in named for token in (each if isinstance(each, list) else [each])}
    able = [token for token in range(len(counts)) if token not in special]
    return min(reversed(able), key=lambda token: int(counts[token]))
