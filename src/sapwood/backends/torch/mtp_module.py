"""Multi-token prediction modules that were trained with a model, read from its checkpoint.

DeepSeek-V3 and GLM-4.5 store the module behind the last layer (`model.layers.<layers>.*` with
`enorm`, `hnorm`, `eh_proj` and `shared_head`), Qwen3-Next and its successors under `mtp.*`. It
joins the normed embedding of a token with the normed hidden state before it, runs one decoder layer
of the model's own kind, a norm and the model's output head. Here layer, norm and head are a model
of one layer and of the target's class, whose embedding is the join: the code that runs the target
runs the module, with its attention, its experts and a KV cache.
"""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.hf.support import FULL
from sapwood.backends.torch.lazy_model import whole
from sapwood.backends.torch.silence import quiet
from sapwood.backends.torch.weights import FLOATS, TensorFiles, find_weights
from sapwood.errors import SapwoodError

# names of the join, in the checkpoint -> here: norm of the embedding, norm of the state, matrix
JOINS = {
    "enorm": "embed_norm",
    "hnorm": "state_norm",
    "eh_proj": "fc",
    "pre_fc_norm_embedding": "embed_norm",
    "pre_fc_norm_hidden": "state_norm",
    "fc": "fc",
}
# names in the checkpoint -> names in a model of one layer; others are the layer's own
AROUND = {
    "shared_head.norm": "model.norm",
    "norm": "model.norm",
    "shared_head.head": "lm_head",
    "embed_tokens": "model.embed_tokens",
}
LAYER = "model.layers.0"


class MtpJoin(nn.Module):
    """Takes the place of an embedding: tokens, joined with the hidden state before each."""

    weight: Tensor  # [vocab, width], the embedding itself

    def __init__(self, table: Tensor, norm: nn.Module) -> None:
        super().__init__()
        width = table.shape[1]
        self.register_buffer("weight", table, persistent=False)
        self.embed_norm = copy.deepcopy(norm)
        self.state_norm = copy.deepcopy(norm)
        self.fc = nn.Linear(2 * width, width, bias=False, device=table.device, dtype=table.dtype)
        self.states: Tensor | None = None  # [rows, width] of the next pass

    def forward(self, tokens: Tensor) -> Tensor:
        """Inputs of the layer, [1, rows, width], of tokens [1, rows]."""
        embeds = F.embedding(tokens, self.weight)
        states = torch.zeros_like(embeds) if self.states is None else self.states[None]
        joined: Tensor = self.fc(torch.cat((self.embed_norm(embeds), self.state_norm(states)), -1))
        return joined


class MtpBackend(TorchBackend):
    """Runs a module's rows; each pass is given the hidden states before its tokens."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__(model, name)
        self.join: MtpJoin = model.get_input_embeddings()
        self.watch([self.layers])

    def pair(self, states: Tensor) -> None:
        """Use these hidden states in the next pass, [rows, width]."""
        self.join.states = states


def has_mtp(folder: Path, layers: int) -> bool:
    """True if the checkpoint in a folder has a module."""
    files = find_weights(folder)
    return files is not None and bool(prefix_of(files, layers))


def prefix_of(files: TensorFiles, layers: int) -> str:
    """Prefix of the names of the first module's tensors; empty if there is none."""
    for prefix, mark in ((f"model.layers.{layers}.", "eh_proj.weight"), ("mtp.", "fc.weight")):
        if prefix + mark in files.entries:
            return prefix
    return ""


def open_mtp(folder: Path, target: TorchBackend) -> MtpBackend:
    """The module in the checkpoint of a target, on its device and in its dtype."""
    files = find_weights(folder)
    prefix = "" if files is None else prefix_of(files, target.layers)
    if files is None or not prefix:
        raise SapwoodError(
            f"{target.info.model} has no module for several tokens in {folder}; "
            "use a model that was trained with one, or another drafter"
        )
    names = [name for name in files.entries if name.startswith(prefix)]
    if odd := [name for name in names if files.entries[name].kind not in FLOATS]:
        raise SapwoodError(
            f"{target.info.model} stores {odd[0]} in {files.entries[odd[0]].kind}; "
            "use a checkpoint in float16, bfloat16 or float32"
        )
    tensors = files.read(names)
    joins, rest = sorted_tensors({name.removeprefix(prefix): tensors[name] for name in names})
    return MtpBackend(one_layer(whole(target.model), joins, rest, folder), target.info.model)


def sorted_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors of the join and of a model of one layer, under the names that they have here."""
    joins: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        stem = re.sub(r"^layers\.0\.", "", stem)
        if re.match(r"layers\.\d+\.", stem):
            continue  # a further module: the first one is used again instead
        if stem in JOINS:
            joins[f"{JOINS[stem]}.{kind}"] = tensor
        elif stem in AROUND:
            rest[f"{AROUND[stem]}.{kind}"] = tensor
        else:
            rest[f"{LAYER}.{stem}.{kind}"] = tensor
    return joins, rest


def one_layer(
    model: Any, joins: Mapping[str, Tensor], tensors: dict[str, Tensor], folder: Path
) -> Any:
    """A model of one layer with these tensors; embedding and output head are the target's."""
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tensors.setdefault("model.embed_tokens.weight", table.detach())
    tensors.setdefault("lm_head.weight", head.weight.detach())
    config = config_of_one(model.config, sparse=any(".mlp.experts." in name for name in tensors))
    attention = model.config._attn_implementation
    try:
        with quiet():
            made, report = type(model).from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=table.dtype,
                attn_implementation=attention,
                output_loading_info=True,
            )
    except Exception as error:
        raise SapwoodError(
            f"the module for several tokens in {folder} is not built as the model's own layers "
            f"({str(error).strip().splitlines()[0]}); use another drafter"
        ) from error
    if lost := sorted(map(str, report["missing_keys"])):
        raise SapwoodError(
            f"the module for several tokens in {folder} lacks {lost[0]}; download it again"
        )
    made = made.to(table.device)
    join = MtpJoin(made.get_input_embeddings().weight.detach(), made.base_model.norm)
    join.load_state_dict(joins)
    made.base_model.embed_tokens = join
    return made.eval()


def config_of_one(config: Any, *, sparse: bool) -> Any:
    """The configuration of a model of one layer with full attention, with experts or without."""
    made = copy.deepcopy(config)
    text = made.get_text_config()
    text.num_hidden_layers = 1
    text.tie_word_embeddings = False
    present = vars(text)
    if present.get("layer_types"):
        text.layer_types = [FULL]
    if "first_k_dense_replace" in present:
        text.first_k_dense_replace = 0 if sparse else 1
    if "mlp_only_layers" in present:
        text.mlp_only_layers = [] if sparse else [0]
    if "decoder_sparse_step" in present:
        text.decoder_sparse_step = 1
    return made
