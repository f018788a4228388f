"""Training of a draft model: a small Llama of its own, distilled from the target over the whole vocabulary.

Its tied embedding begins as the target's output head, written in the few directions that hold most of
it. A second model may learn what a first one misses, for trees that are merged from both (SpecInfer,
arXiv 2305.09781): places where the first is wrong count more.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from sapwood.arrays import IntArray
from sapwood.backends.torch.load import read_model
from sapwood.backends.torch.quiet import quiet
from sapwood.errors import SapwoodError
from sapwood.heads.folder import write
from sapwood.heads.layers import linear
from sapwood.train.batches import Batch
from sapwood.train.course import Lesson
from sapwood.train.eagle3 import harden
from sapwood.train.losses import soft_cross
from sapwood.train.target import Teacher

PIECE = 1 << 27  # logits of the target in memory at a time
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges.txt")


class Student(nn.Module):
    """The weights of a LlamaForCausalLM; a tied output head is not there twice."""

    kind: ClassVar[str] = "draft-model"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = None if config.tie_word_embeddings else linear(config.hidden_size, config.vocab_size)
        self.first: tuple[Any, ...] = ()  # the model whose misses count more; a tuple keeps its weights out of these

    @property
    def output(self) -> Tensor:
        """Output head, [vocab, width]."""
        weight: Tensor = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Final states [batch, rows, width] of texts [batch, rows]."""
        states: Tensor = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        return states

    def save(self, folder: Path, source: Path | None = None, about: Mapping[str, Any] | None = None) -> None:
        """Write a model that any engine loads, with the tokenizer files of the target's folder."""
        config = {**self.config.to_dict(), "architectures": ["LlamaForCausalLM"], "dtype": "float16"}
        write(folder, {**config, "sapwood": {"kind": self.kind, "about": dict(about or {})}}, self.state_dict())
        for pattern in TOKENIZER if source is not None else ():
            for path in source.glob(pattern) if source is not None else ():
                shutil.copyfile(path, folder / path.name)


@dataclass(frozen=True)
class DraftModelCourse:
    """Teach a small model to write as the target does."""

    width: int = 96
    layers: int = 2
    heads: int = 3
    inner: int = 256  # width of its MLP
    tie: bool = True  # one matrix for input and output
    hard: float = 0.3  # share of the label that is the target's first choice alone
    first: str = ""  # folder of a draft model whose misses this one is to learn
    boost: float = 4.0  # weight of a place that the first model misses
    rate: float = 2e-3
    matrix_rate: float = 4e-3

    kind: ClassVar[str] = "draft-model"

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: it reads the text alone."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> Student:
        """A model whose words lie where the target's do, as far as so few numbers can say."""
        if not 1 <= self.width <= teacher.width or self.heads < 1 or self.width % (2 * self.heads):
            raise SapwoodError(
                f"a draft model of width {self.width} with {self.heads} heads cannot begin from a target of width "
                f"{teacher.width}; give it at most that width, and each head an even part of it"
            )
        student = Student(self.config(teacher)).to(teacher.device)
        with torch.no_grad():
            student.output.copy_(compressed(teacher.head, self.width))
            if not self.tie:
                student.model.embed_tokens.weight.copy_(compressed(teacher.embedding, self.width))
        if self.first:
            student.first = (elder(self.first, teacher),)
        return student

    def config(self, teacher: Teacher) -> Any:
        """The model's sizes, as transformers reads them."""
        shape = teacher.shape()
        special: dict[str, Any] = {name: getattr(teacher.config, name, None) for name in SPECIAL}
        return LlamaConfig(
            vocab_size=teacher.vocab,
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=teacher.backend.info.context,
            rms_norm_eps=shape.eps,
            rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
            tie_word_embeddings=self.tie,
            **special,
        )

    def lesson(self, student: Student, teacher: Teacher, batch: Batch) -> Lesson:
        """Compare every word of the answers with the target's law, over the whole vocabulary."""
        texts, places = batch.judged()
        states, final = student(batch.tokens)[texts, places], batch.final[texts, places]
        read = states_of(student.first, batch.tokens)[texts, places] if student.first else None
        loss, right, total = (torch.zeros((), device=states.device) for _ in range(3))
        rows = max(1, PIECE // teacher.vocab)
        for part in (slice(start, start + rows) for start in range(0, len(states), rows)):
            laws = teacher.laws(final[part])
            best = laws.argmax(-1)
            weights = torch.ones_like(best, dtype=torch.float32)
            if read is not None:
                missed = student.first[0].get_output_embeddings()(read[part]).argmax(-1) != best
                weights[missed] = self.boost
            more, agreed = soft_cross(states[part], student.output, harden(laws, best, self.hard), weights, best)
            loss, right, total = loss + more, right + agreed, total + weights.sum()
        total = total.clamp(min=1)
        return Lesson(loss / total, (right / total)[None])


def compressed(weight: Tensor, width: int) -> Tensor:
    """Rows [n, more] in `width` numbers each: their shares of the directions that hold most of all rows."""
    exact = weight.detach().double()
    _, directions = torch.linalg.eigh(exact.t() @ exact)  # the weakest first
    shares: Tensor = exact @ directions[:, -width:].flip(1)
    return shares


def elder(folder: str, teacher: Teacher) -> Any:
    """The first model, frozen."""
    path = Path(folder).expanduser()
    with quiet():
        model = read_model(path, folder, teacher.device, teacher.dtype).eval().requires_grad_(False)
    if (found := model.get_output_embeddings().weight.shape[0]) != teacher.vocab:
        raise SapwoodError(
            f"the draft model in {folder} has {found} tokens and the target {teacher.vocab}; "
            "name one that was trained for this target"
        )
    return model


@torch.no_grad()
def states_of(first: tuple[Any, ...], tokens: Tensor) -> Tensor:
    """Final states [batch, rows, width] of the first model."""
    states: Tensor = first[0].base_model(input_ids=tokens, use_cache=False).last_hidden_state
    return states
