"""Training of a draft model: a small Llama distilled from the target over the whole vocabulary.

Its tied embedding begins as the target's output head, projected on the few directions that hold
most of it. A second model may learn the mistakes of a first one, for trees that are merged from
both (SpecInfer, arXiv 2305.09781): places where the first is wrong weigh more. Divergence, labels
and texts are options, of which `distillspec`, `skd` and `fastdraft` are named choices.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from sapwood.backends.torch.load import read_model
from sapwood.backends.torch.silence import quiet
from sapwood.common.drafter_store import find
from sapwood.core.array_types import IntArray
from sapwood.core.part import between
from sapwood.errors import SapwoodError
from sapwood.heads.folder import write
from sapwood.heads.layers import linear
from sapwood.train.batches import TrainBatch
from sapwood.train.eagle3 import sharpen
from sapwood.train.losses import check_divergence, soft_cross
from sapwood.train.objective import LossResult
from sapwood.train.student_texts import TextSampling, rewritten
from sapwood.train.teacher import Teacher

PIECE = 1 << 27  # logits of the target in memory at a time
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab*",
    "merges.txt",
)


class Student(nn.Module):
    """The weights of a LlamaForCausalLM; a tied output head is stored once."""

    kind: ClassVar[str] = "draft-model"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = (
            None if config.tie_word_embeddings else linear(config.hidden_size, config.vocab_size)
        )
        # the model whose mistakes weigh more; a tuple keeps its weights out of these
        self.first: tuple[Any, ...] = ()

    @property
    def output(self) -> Tensor:
        """Output head, [vocab, width]."""
        weight: Tensor = (
            self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        )
        return weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Final states [batch, rows, width] of texts [batch, rows]."""
        states: Tensor = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        return states

    def save(
        self, folder: Path, source: Path | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        """Write a model that any engine loads, with the tokenizer files of the target's folder."""
        config = {
            **self.config.to_dict(),
            "architectures": ["LlamaForCausalLM"],
            "dtype": "float16",
        }
        write(
            folder,
            {**config, "sapwood": {"kind": self.kind, "about": dict(about or {})}},
            self.state_dict(),
        )
        for pattern in TOKENIZER if source is not None else ():
            for path in source.glob(pattern) if source is not None else ():
                shutil.copyfile(path, folder / path.name)


class BoostedStudent(Student):
    """A second draft model, which learns the first one's mistakes."""

    kind: ClassVar[str] = "boosted-draft-model"


@dataclass(frozen=True)
class DraftModelObjective:
    """Distil the target into a small model."""

    width: int = 96
    layers: int = 2
    heads: int = 3
    inner: int = 256  # width of its MLP
    tie: bool = True  # one matrix for input and output
    hard: float = 0.3  # share of the label that is the target's first choice alone
    divergence: str = "fkl"  # from the target's probs: fkl, rkl, jsd or tvd
    labels: str = "probs"  # of the target; or "tokens": those of its text (sequence level)
    whole: bool = False  # prompts are learned too, as in pre-training
    on_policy: float = 0.0  # share of the batches whose answers the model writes itself
    top: int = 0  # its tokens outside the target's best so many are replaced; 0: none
    temperature: float = 1.0  # of its own answers
    top_p: float = 1.0
    target_temperature: float = 1.0  # of replacements
    target_top_p: float = 1.0
    start: str = ""  # folder of a draft model to go on from, with its sizes; "": a new one
    first: str = ""  # folder of a draft model whose mistakes this one is to learn
    boost: float = 4.0  # weight of a place that the first model gets wrong
    rate: float = 2e-3
    matrix_rate: float = 4e-3

    kind: ClassVar[str] = "draft-model"
    made: ClassVar[type[Student]] = Student

    def __post_init__(self) -> None:
        between(0, 1, hard=self.hard, on_policy=self.on_policy)
        check_divergence(self.divergence)
        if self.labels not in ("probs", "tokens"):
            raise SapwoodError(f"labels={self.labels!r} is neither 'probs' nor 'tokens'")
        if self.labels == "tokens" and self.on_policy:
            raise SapwoodError(
                "labels='tokens' would teach the model its own text; leave on_policy at 0"
            )
        self.sampling()

    def sampling(self) -> TextSampling:
        """Temperatures and limits of the model's own answers."""
        return TextSampling(
            self.temperature,
            self.top_p,
            self.top,
            self.target_temperature,
            self.target_top_p,
        )

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the model reads tokens alone."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> Student:
        """The model to go on from, or one whose output head approximates the target's."""
        if start := self.start_folder(teacher):
            student = self.begun(start, teacher)
        else:
            student = self.new(teacher)
        if first := self.first_folder(teacher):
            student.first = (load_first(first, teacher),)
        return student

    def start_folder(self, teacher: Teacher) -> str:
        """Folder of the model to go on from; empty for none."""
        return self.start

    def begun(self, folder: str, teacher: Teacher) -> Student:
        """The draft model of a folder, in float32 and with its own sizes."""
        model = load_first(folder, teacher).float()
        if not isinstance(model.config, LlamaConfig):
            raise SapwoodError(f"start={folder!r} holds no Llama; name a trained draft model")
        student = self.made(model.config).to(teacher.device)
        weights = model.state_dict()  # a tied output head is there twice
        student.load_state_dict({name: weights[name] for name in student.state_dict()})
        return student

    def new(self, teacher: Teacher) -> Student:
        """A model whose output head approximates the target's."""
        if not 1 <= self.width <= teacher.width or self.heads < 1 or self.width % (2 * self.heads):
            raise SapwoodError(
                f"a draft model of width {self.width} with {self.heads} heads cannot begin from a "
                f"target of width {teacher.width}; "
                "give it at most that width, and each head an even part of it"
            )
        student = self.made(self.config(teacher)).to(teacher.device)
        with torch.no_grad():
            student.output.copy_(compressed(teacher.head, self.width))
            if not self.tie:
                student.model.embed_tokens.weight.copy_(compressed(teacher.embedding, self.width))
        return student

    def first_folder(self, teacher: Teacher) -> str:
        """Folder of the model whose mistakes weigh more; empty for none."""
        return self.first

    def config(self, teacher: Teacher) -> Any:
        """The model's sizes as a transformers config."""
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

    def loss(self, student: Student, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Divergence at every token of the answers, over the whole vocabulary."""
        batch = self.texts(student, teacher, batch)
        texts, places = batch.labelled_places()
        following = batch.tokens[texts, places + 1]
        states = student(batch.tokens)[texts, places]
        final = batch.final[texts, places]
        others = states_of(student.first, batch.tokens)[texts, places] if student.first else None
        loss, right, total = (torch.zeros((), device=states.device) for _ in range(3))
        rows = max(1, PIECE // teacher.vocab)
        for part in (slice(start, start + rows) for start in range(0, len(states), rows)):
            target_probs = teacher.target_probs(final[part])
            best = target_probs.argmax(-1)
            weights = torch.ones_like(best, dtype=torch.float32)
            if others is not None:
                missed = student.first[0].get_output_embeddings()(others[part]).argmax(-1) != best
                weights[missed] = self.boost
            label = (
                sharpen(target_probs, best, self.hard)
                if self.labels == "probs"
                else torch.zeros_like(target_probs).scatter_(1, following[part][:, None], 1.0)
            )
            more, agreed = soft_cross(
                states[part], student.output, label, weights, best, self.divergence
            )
            loss = loss + more
            right = right + agreed
            total = total + weights.sum()
        total = total.clamp(min=1)
        return LossResult(loss / total, (right / total)[None])

    def texts(self, student: Student, teacher: Teacher, batch: TrainBatch) -> TrainBatch:
        """The batch as it is learned: the target's answers, or the model's own."""
        # a share of the batches, the same ones in a run that is resumed
        drawn = np.random.default_rng(int(batch.tokens.sum())).random()
        if drawn < self.on_policy:
            batch = rewritten(student, teacher, batch, self.sampling())
        return replace(batch, answers=torch.ones_like(batch.answers)) if self.whole else batch


@dataclass(frozen=True)
class BoostedDraftModelObjective(DraftModelObjective):
    """Distil the target into a second model, on the mistakes of its draft model."""

    kind: ClassVar[str] = "boosted-draft-model"
    made: ClassVar[type[Student]] = BoostedStudent

    def first_folder(self, teacher: Teacher) -> str:
        """The named folder, or that of the draft model that was trained for the target."""
        info = teacher.backend.info
        return self.first or str(find(DraftModelObjective.kind, info.model, info.weights))


def compressed(weight: Tensor, width: int) -> Tensor:
    """Rows [n, more] projected on the `width` strongest directions of all rows."""
    exact = weight.detach().double()
    _, directions = torch.linalg.eigh(exact.t() @ exact)  # the weakest first
    shares: Tensor = exact @ directions[:, -width:].flip(1)
    return shares


def load_first(folder: str, teacher: Teacher) -> Any:
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
