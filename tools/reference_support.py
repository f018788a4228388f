"""The page of supported models: every cell is computed with small models of each architecture."""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from sapwood.errors import SapwoodError

PREFACE = """\
<!-- written by tools/reference.py from the code's checks: change those, then run `make tables` -->

# Supported models

Any causal language model of transformers whose attention takes a mask and whose positions can be
given runs, from a Hub id, a local folder of safetensors, or a GGUF file. Widely used ones have a
fast path of their own.

- **fast**: our own pass, int8 kernels on a CPU, Triton kernels in a CUDA graph on a GPU.
- **works**: the model's own transformers code under a tree mask, checked against step-by-step
  decoding by the backend contract in `tests/backends/torch/test_hf_contract.py`.
- **refused**: one sentence says why.

## Architecture, device, number format

{matrix}
The default is `int8` on a CPU where that is fast, else `float32`; on a GPU `float16`. The fast path
on a GPU needs compute capability 8.0 (Ampere) or newer and Triton; without them the same model
*works*, except with quantised weights; [cards](../quickstart-gpu.md#which-cards). `fp8` needs
8.9 (Ada). The fast path on a CPU needs numba, and takes {longest:,} tokens of a longer context;
float32 takes all.

On a GPU `llama`, `mistral`, `qwen2` and `qwen3` are the ones that are timed. The others ({untimed},
biases everywhere) have a few more kernels, which pass their tests on an H200, with tiny random
models, and compile for every card: they are **not timed yet**.

The fast paths know these parts:

| part of a model | on a CPU | on a GPU |
| --- | --- | --- |
| activation | {activations} | {activations} |
| rotary angles | {ropes} | {ropes} |
| rotary of a part of a head, of some layers only, with a base for each kind of layer | yes | yes |
| sliding windows, on all or some layers; grouped queries | yes | yes |
| biases on every projection | yes | yes |
| norms on queries and keys, of each head or of all heads together | yes | yes |
| norms after attention and MLP, or only there | yes | yes |
| soft caps of attention and logits, scaled embeddings | yes | yes |
| experts, chosen for each token, in all layers | yes | yes |
| attention sinks, biases of routers and experts, clamped SwiGLU | yes | no |
| factors of embedding, attention, sublayers and logits (Granite) | yes | no |

`longrope` is fixed up to the context before scaling, and so is the context here.

## Files of quantised weights

| file | on a CPU | on a GPU |
| --- | --- | --- |
| GGUF Q4_0, Q4_1, Q5_0, Q8_0 | `int4` as they are | `int4` as they are |
| GGUF Q4_K | `int4`, scales in float16 | the same; 8 bits beside other kinds in a product |
| GGUF Q5_K, Q6_K and floats | `int4` rounds them to 8 bits | the same |
| other kinds of GGUF, such as IQ2_XXS | converted to `int8` | converted to floats |
| AWQ, 4 bits, layout gemm | dequantised, then `int8`, `int4` or floats | `int4` as it is |
| GPTQ, 4 bits | the same | `int4` as it is; with `desc_act` only `int8` or floats |
| GPTQ, 8 bits | the same | dequantised, then `int8` |

On a CPU `int4` is the default of GGUF files with 4-bit matrices and fewer than 8 bits a weight in
all; a file that is converted to `int8` says from how many bits. Other layouts of AWQ and GPTQ are
refused, other methods of quantisation are left to transformers.

## More architectures

Not part of the tests, but their configurations pass the same checks, and a model that does not keep
the branches of a tree apart is refused when it is loaded: {likely}.

## Decoded plainly

A model with a running state cannot score a tree. It decodes a token a pass, whatever the recipe,
and says so: {plain}. One whose steps give other logits than one pass over the same tokens is
refused when it is loaded.

## Refused

| architecture | reason |
| --- | --- |
{refused}

## Backends

| backend | models | hidden states | where |
| --- | --- | --- | --- |
| `torch` | as above | yes: trained heads, early exit, self-drafting | CPU, CUDA |
| `llamacpp` | any GGUF file of llama.cpp, in its own number format \
| no: look-up drafters and draft models only | CPU |
| `toy` | exact tables of probabilities, for tests | no | CPU |
"""
# number formats by device; the first is the default if it is fast
COLUMNS = (
    ("cpu", "int8"),
    ("cpu", "float32, float16, bfloat16"),
    ("cuda", "float16, bfloat16"),
    ("cuda", "int8, int4, fp8"),
    ("cuda", "float32"),
)
# widely used architectures beside the tested ones: configuration class, and its options
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "starcoder2": ("Starcoder2Config", {}),
    "stablelm": ("StableLmConfig", {}),
    "cohere": ("CohereConfig", {}),
    "glm": ("GlmConfig", {}),
    "qwen2_moe": ("Qwen2MoeConfig", {}),
    "gptj": ("GPTJConfig", {}),
    "opt": ("OPTConfig", {}),
    "bloom": ("BloomConfig", {}),
    "mpt": ("MptConfig", {}),
    "falcon-alibi": ("FalconConfig", {"alibi": True}),
    "gpt_neo": ("GPTNeoConfig", {}),
    "mamba": ("MambaConfig", {}),
    "mamba2": ("Mamba2Config", {}),
    "falcon_h1": ("FalconH1Config", {}),
    "jamba": ("JambaConfig", {}),
    "qwen3_next": ("Qwen3NextConfig", {}),
    "recurrent_gemma": ("RecurrentGemmaConfig", {}),
    "t5": ("T5Config", {}),
    "llama4": ("Llama4TextConfig", {}),
}


def page() -> str:
    """The whole page."""
    from tests.helpers import tiny_models

    from sapwood.backends.torch.architectures import ACTIVATIONS, FAMILIES, ROPES
    from sapwood.backends.torch.cpu_int8.network import LONGEST
    from sapwood.backends.torch.llama import KINDS

    rows = [row(name) for name in sorted(tiny_models.NAMES, key=order)]
    heads = ["architecture", *(f"{device}: {formats}" for device, formats in COLUMNS)]
    body = [heads, ["---"] * len(heads), *rows]
    checked = {name: refusal(*OTHERS[name]) for name in OTHERS}
    return PREFACE.format(
        matrix="".join(f"| {' | '.join(cells)} |\n" for cells in body),
        longest=LONGEST,
        activations=quoted(ACTIVATIONS),
        ropes=quoted(ROPES),
        untimed=quoted([kind for kind in FAMILIES if kind not in (*KINDS, *CPU_KINDS)]),
        likely=quoted([name for name in checked if checked[name] is None and not steps(name)]),
        plain=quoted([name for name in checked if checked[name] is None and steps(name)]),
        refused="\n".join(f"| `{name}` | {reason} |" for name, reason in checked.items() if reason),
    )


def quoted(names: Sequence[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def order(name: str) -> tuple[bool, bool, str]:
    """Fast architectures first, those that were timed on a GPU before the others."""
    from tests.helpers.int8_targets import LLAMA_LIKE

    return not is_fast(name, "cpu"), name not in LLAMA_LIKE, name


def row(name: str) -> list[str]:
    """Support of an architecture by each device and number format."""
    packed = "**fast**" if is_fast(name, "cpu") else "refused"
    half = "**fast**" if is_fast(name, "cuda") else "works"
    quantised = "**fast**" if is_quantised(name) else "refused"
    return [TITLES.get(name, f"`{name}`"), packed, "works", half, quantised, "works"]


CPU_KINDS = ("gpt_oss", "granite")  # model types whose fast path is the one on a CPU alone
TITLES = {
    "qwen2-mixed": "`qwen2`, sliding and full layers",
    "gemma2-eager": "`gemma2`",
    "gpt-oss-eager": "`gpt_oss`, experts in MXFP4 or floats",
    "gemma3-caps": "`gemma3`, with soft caps",
    "llama-biased": "`llama`, biases everywhere",
    "qwen3-moe": "`qwen3_moe`",
    "phi3-partial": "`phi3`, `longrope` on a part of a head (phi-4)",
    "deepseek": "`deepseek_v2`",
}


@cache
def is_fast(name: str, device: str) -> bool:
    """True if a small model of the architecture has a description that a device's path runs."""
    from tests.helpers import tiny_models

    from sapwood.backends.torch.architectures import frame

    found = frame(tiny_models.make(name))
    return found is not None and not (device == "cuda" and found.cpu_only)


@cache
def is_quantised(name: str) -> bool:
    """True if a small model of the architecture may have quantised weights on a GPU."""
    from tests.helpers import tiny_models

    from sapwood.backends.torch.llama import frame

    return frame(tiny_models.make(name)) is not None


def steps(name: str) -> bool:
    """True if a model has a running state, and decodes plainly."""
    from sapwood.backends.torch.hf.support import model_class

    kind, options = OTHERS[name]
    config = getattr(importlib.import_module("transformers"), kind)(**options)
    return bool(model_class(config, "M")._is_stateful)


def refusal(config: str, options: dict[str, Any]) -> str | None:
    """Reason why a configuration is refused; None if it is not."""
    from sapwood.backends.torch.hf.support import model_class

    transformers = importlib.import_module("transformers")
    try:
        model_class(getattr(transformers, config)(**options), "M")
    except SapwoodError as error:
        sentence = str(error).partition("; ")[0]
        return sentence.partition(") ")[2]
    return None
