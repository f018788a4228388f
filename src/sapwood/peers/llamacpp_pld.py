"""llama.cpp with the prompt lookup of its Python package."""

from sapwood.peers import llamacpp
from sapwood.peers.words import Opened, Order

CPU_TOKENS, GPU_TOKENS = 2, 10  # looked up at once, as its documentation advises


def open_peer(order: Order) -> Opened:
    """The same file with prompt lookup."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    count = CPU_TOKENS if order.device == "cpu" else GPU_TOKENS
    opened = llamacpp.open_peer(order, LlamaPromptLookupDecoding(num_pred_tokens=count))
    return Opened(opened.decode, f"{opened.weights}; {count} tokens looked up", opened.version)
