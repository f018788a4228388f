"""Hugging Face transformers with a small assistant model: `generate(assistant_model=...)`."""

from typing import Any

from sapwood.peers import hf
from sapwood.peers.messages import LoadedPeer, LoadMessage, PeerRefused


def open_peer(message: LoadMessage) -> LoadedPeer:
    """The model with its assistant: the named one, or the draft model trained for it."""
    import transformers

    from sapwood.backends.torch.resolve_model import find_folder
    from sapwood.common.drafter_store import find, has

    if not message.argument and not has("draft-model", message.model):
        raise PeerRefused(
            f"no assistant is known for {message.model}; name one, as in hf-assisted:FOLDER"
        )
    folder = (
        find_folder(message.argument, lambda _: None)
        if message.argument
        else find("draft-model", message.model)
    )
    auto: Any = transformers.AutoModelForCausalLM
    assistant = auto.from_pretrained(folder).to(message.device).eval()
    assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
    opened = hf.open_peer(message, assistant_model=assistant)
    return LoadedPeer(opened.decode, f"{opened.weights}; assistant {folder.name}", opened.version)
