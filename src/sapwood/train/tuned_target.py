"""A target that is tuned by a low-rank adapter, alone or with heads: it becomes another model.

The adapter (LoRA, arXiv 2106.09685) adds a product of two thin matrices to every linear layer.
After training it is added to the weights, and the sum is written as a model of its own. Its text is
not that of the original model: recipes keep the text of the tuned one.
"""

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sapwood.backends.torch.weight_samples import fingerprint_of_folder
from sapwood.common import drafter_store
from sapwood.heads import files
from sapwood.train.draft_model import TOKENIZER
from sapwood.train.teacher import Teacher

MODEL = "model"  # folder of the tuned model inside the drafter's


class TunedTarget(nn.Module):
    """The target with an adapter, and heads that are trained with it, if any."""

    kind = "tuned"

    def __init__(self, teacher: Teacher, rank: int, heads: Any = None) -> None:
        super().__init__()
        self.rank = rank
        self.frozen = (teacher.model,)  # a tuple keeps its weights out of these
        self.layers = {
            name: layer
            for name, layer in teacher.model.base_model.named_modules()
            if isinstance(layer, nn.Linear)
        }
        options: dict[str, Any] = {"device": teacher.device, "dtype": torch.float32}
        self.down = nn.ParameterList(
            nn.Parameter(torch.randn(rank, layer.in_features, **options) / layer.in_features**0.5)
            for layer in self.layers.values()
        )
        self.up = nn.ParameterList(  # zero: training begins with the target as it is
            nn.Parameter(torch.zeros(layer.out_features, rank, **options))
            for layer in self.layers.values()
        )
        self.heads = heads

    def forward(self, tokens: Tensor) -> Tensor:
        """Final states [batch, rows, width] of texts [batch, rows]."""
        with self.adapted():
            out = self.frozen[0].base_model(input_ids=tokens, use_cache=False)
        states: Tensor = out.last_hidden_state
        return states

    @contextmanager
    def adapted(self) -> Iterator[None]:
        """The frozen model's layers with the adapter, for the passes inside."""
        hooks = []
        for down, up, layer in zip(self.down, self.up, self.layers.values(), strict=True):

            def add(
                _: Any, inputs: tuple[Tensor, ...], out: Tensor, down: Any = down, up: Any = up
            ) -> Tensor:
                x = inputs[0]
                more: Tensor = (x.to(down.dtype) @ down.t()) @ up.t()
                return out + more.to(out.dtype)

            hooks.append(layer.register_forward_hook(add))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def merged(self) -> Any:
        """A copy of the model with the adapter added to its weights."""
        made = copy.deepcopy(self.frozen[0])
        found = dict(made.base_model.named_modules())
        for down, up, name in zip(self.down, self.up, self.layers, strict=True):
            weight = found[name].weight
            weight += (up @ down).to(weight.dtype)
        return made

    def save(self, folder: Path, source: Path, about: Mapping[str, Any]) -> Path:
        """Write the tuned model, with the target's tokenizer, and its heads; returns its folder."""
        place = folder / MODEL
        self.merged().save_pretrained(place)
        for pattern in TOKENIZER:
            for path in source.glob(pattern):
                shutil.copyfile(path, place / path.name)
        if self.heads is not None:
            weights = fingerprint_of_folder(place)
            home = drafter_store.home(self.heads.kind, str(place), weights)
            files.save(self.heads, home, about)
            if weights is not None:
                weights.save(home)
        return place
