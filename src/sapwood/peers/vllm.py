"""vLLM, one prompt at a time.

It does not report the time of the first token, so each prompt runs twice: for one token and for all
of them.
"""

import time
from typing import Any

from sapwood.peers.messages import AnswerMessage, LoadedPeer, LoadMessage, PromptMessage


def open_peer(message: LoadMessage) -> LoadedPeer:
    """The model in float16 on a GPU or float32 on a CPU, without prefix caching."""
    import vllm

    from sapwood.backends.torch.resolve_model import find_folder

    dtype = "float32" if message.device == "cpu" else "float16"
    folder = str(find_folder(message.model, lambda _: None))
    model = vllm.LLM(
        folder, dtype=dtype, max_model_len=message.context, enable_prefix_caching=False
    )

    def run(request: PromptMessage, most: int) -> tuple[list[int], float]:
        want: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": most,
            "stop_token_ids": request.ends,
        }
        sampling = vllm.SamplingParams(**want, ignore_eos=not request.ends)
        start = time.perf_counter()
        [made] = model.generate([{"prompt_token_ids": request.prompt}], sampling, use_tqdm=False)
        return list(made.outputs[0].token_ids), time.perf_counter() - start

    def decode(request: PromptMessage) -> AnswerMessage:
        _, reading = run(request, 1)
        tokens, whole = run(request, request.most)
        return AnswerMessage(
            len(tokens), max(len(tokens) - 1, 0), max(whole - reading, 0.0), reading, tokens
        )

    return LoadedPeer(decode, f"{dtype}, of the same folder", f"vllm {vllm.__version__}")
