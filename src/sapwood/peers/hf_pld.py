"""Hugging Face transformers with prompt lookup: `generate(prompt_lookup_num_tokens=...)`."""

from sapwood.peers import hf
from sapwood.peers.words import Opened, Order

TOKENS = 10  # looked up at once, as in its documentation


def open_peer(order: Order) -> Opened:
    """The model with prompt lookup of so many tokens."""
    return hf.open_peer(order, prompt_lookup_num_tokens=int(order.argument or TOKENS))
