"""llama.cpp with the prompt lookup of its Python package."""

from sapwood.peers import llamacpp
from sapwood.peers.messages import LoadedPeer, LoadMessage

# tokens looked up at once, as its documentation advises
CPU_TOKENS = 2
GPU_TOKENS = 10


def open_peer(message: LoadMessage) -> LoadedPeer:
    """The same file with prompt lookup."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    count = CPU_TOKENS if message.device == "cpu" else GPU_TOKENS
    opened = llamacpp.open_peer(message, LlamaPromptLookupDecoding(num_pred_tokens=count))
    return LoadedPeer(opened.decode, f"{opened.weights}; {count} tokens looked up", opened.version)
