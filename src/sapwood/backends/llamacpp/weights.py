"""A GGUF file opened by llama.cpp: weights mapped from the disk, and header values."""

import ctypes
import weakref
from pathlib import Path
from typing import Any

from sapwood.backends.llamacpp.library import library
from sapwood.errors import SapwoodError

ALL_LAYERS = -1
TEXT = 1 << 16  # bytes of the longest value of a header that is read
FORMATS = ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_")  # prefixes of the names of weight formats


class GgufModel:
    """The model of one file."""

    def __init__(self, path: Path, *, gpu: bool = False) -> None:
        self.llama: Any = library()
        self.gpu = gpu
        params = self.llama.llama_model_default_params()  # maps the file into memory
        params.n_gpu_layers = ALL_LAYERS if gpu else 0
        self.model = self.llama.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SapwoodError(
                f"llama.cpp cannot read {path}; "
                "use a complete GGUF file of a model type that it supports"
            )
        weakref.finalize(self, self.llama.llama_model_free, self.model)
        self.vocabulary = self.llama.llama_model_get_vocab(self.model)
        self.vocab: int = self.llama.llama_vocab_n_tokens(self.vocabulary)
        self.context: int = self.llama.llama_model_n_ctx_train(self.model)

    def check(self, name: str) -> None:
        """Refuse a model that cannot take a tree."""
        llama, model = self.llama, self.model
        refused = {
            "keeps a state that cannot be rewound": llama.llama_model_is_recurrent(model)
            or llama.llama_model_is_hybrid(model),
            "has an encoder": llama.llama_model_has_encoder(model)
            or not llama.llama_model_has_decoder(model),
            "writes by diffusion": llama.llama_model_is_diffusion(model),
        }
        for reason, true in refused.items():
            if true:
                raise SapwoodError(
                    f"model {name!r} {reason}, so it cannot score a token tree; use another model"
                )

    @property
    def format(self) -> str:
        """The number format of most weights, such as q4_1 or f16."""
        known = {
            getattr(self.llama, name): name.removeprefix(prefix).lower()
            for name in dir(self.llama)
            for prefix in FORMATS
            if name.startswith(prefix)
        }
        kind = self.value("general.file_type")
        return known.get(int(kind), "gguf") if kind.isdigit() else "gguf"

    def value(self, key: str) -> str:
        """A value of the file's header as text; empty if it is missing."""
        buffer = ctypes.create_string_buffer(TEXT)
        size = self.llama.llama_model_meta_val_str(self.model, key.encode(), buffer, TEXT)
        return buffer.value.decode("utf-8", "replace") if size >= 0 else ""
