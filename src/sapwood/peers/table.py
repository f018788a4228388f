"""The peers by name: their modules and how to install them."""

from dataclasses import dataclass

from sapwood.errors import SapwoodError

SERVER = "put llama.cpp's `llama-server` on the PATH, or its path into $LLAMA_SERVER"


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """Module, requirement and installation of a peer."""

    module: str
    needs: str  # package that must be importable; empty: none
    install: str
    argument: str = ""  # what may follow the name after a colon


PEERS: dict[str, PeerEntry] = {
    "hf": PeerEntry("hf", "transformers", "pip install 'sapwood[peers-hf]'"),
    "hf-pld": PeerEntry(
        "hf_pld", "transformers", "pip install 'sapwood[peers-hf]'", "tokens looked up at once"
    ),
    "hf-assisted": PeerEntry(
        "hf_assisted", "transformers", "pip install 'sapwood[peers-hf]'", "the assistant's folder"
    ),
    "llamacpp": PeerEntry(
        "llamacpp", "llama_cpp", "pip install 'sapwood[peers-llamacpp]'", "a .gguf file"
    ),
    "llamacpp-pld": PeerEntry(
        "llamacpp_pld", "llama_cpp", "pip install 'sapwood[peers-llamacpp]'", "a .gguf file"
    ),
    "llama-server": PeerEntry("llama_server", "", SERVER, "a .gguf file"),
    "openvino": PeerEntry(
        "openvino",
        "openvino_genai",
        "pip install 'sapwood[peers-openvino]'",
        "a .gguf file or folder",
    ),
    "vllm": PeerEntry("vllm", "vllm", "pip install 'sapwood[peers-vllm]'"),
    "openai": PeerEntry(
        "openai",
        "",
        "start the server first",
        "the server's address, as in openai:http://localhost:8000",
    ),
}


def read_peers(text: str) -> list[str]:
    """The named peers without duplicates; a name may have an argument after a colon."""
    asked = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in asked:
        kind, _, argument = name.partition(":")
        if kind not in PEERS:
            raise SapwoodError(f"peer {kind!r} is not known; use {', '.join(PEERS)}")
        if kind == "openai" and not argument.startswith(("http://", "https://")):
            raise SapwoodError(
                f"peer {name!r} needs an address; write openai:http://localhost:8000"
            )
        if argument and not PEERS[kind].argument:
            raise SapwoodError(f"peer {name!r} takes nothing after a colon; write {kind}")
    return asked


def entry_of(name: str) -> PeerEntry:
    """The entry of a peer, without its argument."""
    return PEERS[name.partition(":")[0]]
