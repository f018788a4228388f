"""The target as a teacher: frozen, run in batches, for its hidden states and its probs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sapwood.backends.torch.backend import TorchBackend
from sapwood.heads.layers import LayerShape


class Teacher:
    """A frozen model with the tensors that a head may share."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend = backend
        self.model = backend.model.requires_grad_(False)
        self.config = self.model.config.get_text_config()
        self.device = backend.device
        self.dtype = backend.dtype
        self.layers: int = self.config.num_hidden_layers
        self.width: int = self.config.hidden_size
        self.vocab = backend.info.vocab

    @property
    def embedding(self) -> Tensor:
        """Input embedding, [vocab, width]."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> Tensor:
        """Output head, [vocab, width]."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def norm(self) -> Tensor | None:
        """Weight of the norm before the output head, if the model has such a norm."""
        return getattr(getattr(self.model.base_model, "norm", None), "weight", None)

    def shape(self, inner: int | None = None) -> LayerShape:
        """Shape of a decoder layer of the target's size."""
        config = self.config
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        return LayerShape(
            width=self.width,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_width=getattr(config, "head_dim", None) or self.width // heads,
            inner=inner or config.intermediate_size,
            eps=getattr(config, "rms_norm_eps", 1e-5),
            theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0),
        )

    @torch.no_grad()
    def read(self, tokens: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs of layers [batch, rows, layers * width] and final states [batch, rows, width]."""
        out = self.model.base_model(
            input_ids=tokens, use_cache=False, output_hidden_states=bool(layers)
        )
        final: Tensor = out.last_hidden_state
        features = (
            torch.cat([out.hidden_states[layer] for layer in layers], -1)
            if layers
            else final[..., :0]
        )
        return features, final

    @torch.no_grad()
    def target_probs(self, final: Tensor, vocabulary: Tensor | None = None) -> Tensor:
        """Probs of the next token after final states [rows, width], over the given tokens."""
        head = self.head if vocabulary is None else self.head[vocabulary]
        probs = (final @ head.t()).float().softmax(-1)
        return probs.to(torch.bfloat16) if final.is_cuda else probs
