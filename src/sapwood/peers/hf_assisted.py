"""Hugging Face transformers with a small assistant model: `generate(assistant_model=...)`."""

from typing import Any

from sapwood.peers import hf
from sapwood.peers.words import Opened, Order, Refused


def open_peer(order: Order) -> Opened:
    """The model with its assistant: the one named, or the draft model that was trained for it."""
    import transformers

    from sapwood.backends.torch.find import find_folder
    from sapwood.trained import find, has

    if not order.argument and not has("draft-model", order.model):
        raise Refused(f"no assistant is known for {order.model}; name one, as in hf-assisted:FOLDER")
    folder = find_folder(order.argument, lambda _: None) if order.argument else find("draft-model", order.model)
    auto: Any = transformers.AutoModelForCausalLM
    assistant = auto.from_pretrained(folder).to(order.device).eval()
    assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
    opened = hf.open_peer(order, assistant_model=assistant)
    return Opened(opened.decode, f"{opened.weights}; assistant {folder.name}", opened.version)
