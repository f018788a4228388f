"""The served models as the Ollama API describes them."""

import hashlib
from typing import TYPE_CHECKING, Any

from sapwood.common.gguf_header import named_gguf
from sapwood.server.model_pool import file_bytes
from sapwood.server.ollama.schema import OllamaDetails, OllamaModel, OllamaShown
from sapwood.server.ollama.stream import timestamp
from sapwood.server.openai.model_formats import reasoning_format

if TYPE_CHECKING:
    from sapwood.server.app import ApiRoutes


def listed(api: "ApiRoutes", *, loaded: bool) -> OllamaModel:
    """A model in a list; in that of loaded ones, with its context and its memory of a GPU."""
    info = api.request_builder.info
    size = file_bytes(info.model)
    made = OllamaModel(
        name=api.name,
        model=api.name,
        modified_at=timestamp(api.created),
        size=size,
        digest=digest_of(api),
        details=details_of(api),
    )
    if loaded:
        made.context_length = info.context
        made.size_vram = size if info.device.startswith("cuda") else 0
    return made


def unloaded(name: str, size: int, created: int) -> OllamaModel:
    """A model of which nothing but its name and its files' size is known."""
    details = OllamaDetails(format="", family="", families=[])
    return OllamaModel(
        name=name,
        model=name,
        modified_at=timestamp(created),
        size=size,
        digest=hashlib.sha256(name.encode()).hexdigest(),
        details=details,
    )


def digest_of(api: "ApiRoutes") -> str:
    """A digest of the model's samples of weights, or of its name where it has none."""
    info = api.request_builder.info
    name = info.model if info.weights is None else info.weights.digest
    return hashlib.sha256(name.encode()).hexdigest()


def details_of(api: "ApiRoutes") -> OllamaDetails:
    """File format, family and precision of a model."""
    info = api.request_builder.info
    family = family_of(api)
    return OllamaDetails(
        format="gguf" if named_gguf(info.model) else "safetensors",
        family=family,
        families=[family],
        quantization_level=info.dtype,
    )


def family_of(api: "ApiRoutes") -> str:
    """The type of the model, such as llama; of one without a configuration, the backend's name."""
    model = api.engine_thread.llm.target.capabilities.model
    return api.request_builder.info.name if model is None else str(model.config.model_type)


def shown(api: "ApiRoutes") -> OllamaShown:
    """A model in detail; clients read its context from `model_info`."""
    builder = api.request_builder
    family = family_of(api)
    facts: dict[str, Any] = {
        "general.architecture": family,
        f"{family}.context_length": builder.info.context,
        f"{family}.vocab_size": builder.info.vocab,
    }
    tokenizer = api.engine_thread.llm.text
    template = None if tokenizer is None else tokenizer.template
    capabilities = ["completion"]
    if template is not None:
        capabilities.append("tools")
    if reasoning_format(template) is not None:
        capabilities.append("thinking")
    if "hidden" in builder.info.provides:
        capabilities.append("embedding")
    return OllamaShown(
        details=details_of(api),
        model_info=facts,
        capabilities=capabilities,
        modified_at=timestamp(api.created),
        template=template or "",
    )
