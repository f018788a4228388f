"""Hugging Face transformers with prompt lookup: `generate(prompt_lookup_num_tokens=...)`."""

from sapwood.peers import hf
from sapwood.peers.messages import LoadedPeer, LoadMessage

TOKENS = 10  # looked up at once, as in its documentation


def open_peer(message: LoadMessage) -> LoadedPeer:
    """The model with prompt lookup of this many tokens."""
    return hf.open_peer(message, prompt_lookup_num_tokens=int(message.argument or TOKENS))
