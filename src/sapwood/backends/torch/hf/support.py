"""Checks that a model can score trees, and values from its configuration."""

import inspect
from typing import Any

import numpy as np
import torch

from sapwood.backends.torch.kv_slots import KvLayout
from sapwood.backends.torch.network import WHOLE
from sapwood.core.protocols import Backend, TreeInput
from sapwood.core.tree import Tree
from sapwood.errors import SapwoodError

FULL, SLIDING = "full_attention", "sliding_attention"
UNBOUNDED = 1 << 20  # context of a model without a limit
LEAK = 1e-2  # most change of a row by a node outside its path, relative to the row's deviation


# --------------------------------------------------------------------- before the weights are read
def model_class(config: Any, name: str) -> Any:
    """The model class of a configuration; refuses what can neither score trees nor step."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = config.model_type
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SapwoodError(
            f"model {name!r} ({kind}) is not a decoder-only language model; use a causal one"
        )
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    text = config.get_text_config()
    if found._is_stateful:  # decodes plainly
        if kind in KEPT_INSIDE:
            raise SapwoodError(
                f"model {name!r} ({kind}) keeps a running state that cannot be copied; {WAY_OUT}"
            )
        return found
    if odd := sorted(set(getattr(text, "layer_types", None) or ()) - {FULL, SLIDING}):
        raise SapwoodError(
            f"model {name!r} ({kind}) has {odd[0]} layers, which cannot score or rewind a tree; "
            f"{WAY_OUT}"
        )
    explicit = "position_ids" in inspect.signature(found.forward).parameters
    if (
        not explicit
        or getattr(text, "alibi", False)
        or "local" in getattr(text, "attention_layers", ())
    ):
        raise SapwoodError(
            f"model {name!r} ({kind}) takes positions from the order of tokens, not of the tree; "
            f"{WAY_OUT}"
        )
    return found


KEPT_INSIDE = ("recurrent_gemma", "rwkv")  # models that keep it in their modules, or by other names
WAY_OUT = "use one with plain or sliding-window attention and rotary or learned positions"


def fused(config: Any, found: Any) -> bool:
    """True if the model's attention may run as one fused operation."""
    softcap = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return bool(found._supports_sdpa) and softcap is None


def attention_of(config: Any, found: Any) -> str:
    """Name of the attention that a model of this class is run with."""
    from sapwood.backends.torch.hf.tree_attention import register

    return register() if fused(config, found) else "eager"


# -------------------------------------------------------------------------- from the configuration
def windows_of(config: Any) -> dict[str, int]:
    """Window of each layer type, WHOLE for none; each type has its own mask."""
    window = getattr(config, "sliding_window", None) or WHOLE
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if not kinds:
        return {FULL: window}
    return {kind: window if kind == SLIDING else WHOLE for kind in kinds}


def context_of(config: Any) -> int:
    """Most tokens a session may hold."""
    context = getattr(config, "max_position_embeddings", None)  # other names are aliases
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        # beyond it the angles of all positions change, and cached keys would be wrong
        context = rope.get("original_max_position_embeddings") or context
    return int(context or UNBOUNDED)


def vocab_of(model: Any) -> int:
    """Vocabulary size of a model; a lazy model has it without loading its output head."""
    known = getattr(model, "vocab", None)
    return int(model.get_output_embeddings().weight.shape[0]) if known is None else int(known)


# ------------------------------------------------------------------------------------ from a pass
def layout_of(model: Any) -> KvLayout:
    """KV layout of a model, from a pass over one token."""
    from sapwood.backends.torch.hf.pass_cache import ProbeCache

    cache = ProbeCache()
    zero = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model.base_model(
                input_ids=zero, position_ids=zero, past_key_values=cache, use_cache=True
            )
    except (AttributeError, NotImplementedError) as error:
        raise SapwoodError(
            f"{type(model).__name__} needs a cache of its own kind ({error}); {WAY_OUT}"
        ) from error
    if not cache.layout.keys:
        raise SapwoodError(
            f"{type(model).__name__} keeps no keys and values that could be rewound; {WAY_OUT}"
        )
    return cache.layout


def check_tree(backend: Backend) -> None:
    """Refuse a model that ignores the mask: nodes outside the path must not change a row."""
    rows = []
    for stranger in (1, 2):
        session = backend.open([0, 1])
        tree = Tree(3)
        tree.add(0, stranger, 1.0)
        cousin = tree.add(tree.add(0, 4, 1.0), 5, 1.0)
        [scores] = backend.score([TreeInput(session, tree)])
        rows.append(scores.logits(cousin))
        session.close()
    if not np.abs(rows[0] - rows[1]).max() <= LEAK * rows[0].std():
        raise SapwoodError(
            f"model {backend.info.model!r} does not keep the branches of a tree apart; {WAY_OUT}"
        )
