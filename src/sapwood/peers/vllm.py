"""vLLM, asked for one prompt at a time.

It does not tell when the first token came, so each prompt is asked for twice: for one token and for all of them.
"""

import time
from typing import Any

from sapwood.peers.words import Answer, Ask, Opened, Order


def open_peer(order: Order) -> Opened:
    """The model's folder in float16 on a GPU, in float32 on a CPU; texts are not remembered between requests."""
    import vllm

    from sapwood.backends.torch.find import find_folder

    dtype = "float32" if order.device == "cpu" else "float16"
    folder = str(find_folder(order.model, lambda _: None))
    model = vllm.LLM(folder, dtype=dtype, max_model_len=order.context, enable_prefix_caching=False)

    def run(ask: Ask, most: int) -> tuple[list[int], float]:
        want: dict[str, Any] = {"temperature": 0.0, "max_tokens": most, "stop_token_ids": ask.ends}
        sampling = vllm.SamplingParams(**want, ignore_eos=not ask.ends)
        start = time.perf_counter()
        [made] = model.generate([{"prompt_token_ids": ask.prompt}], sampling, use_tqdm=False)
        return list(made.outputs[0].token_ids), time.perf_counter() - start

    def decode(ask: Ask) -> Answer:
        _, reading = run(ask, 1)
        tokens, whole = run(ask, ask.most)
        return Answer(len(tokens), max(len(tokens) - 1, 0), max(whole - reading, 0.0), reading, tokens)

    return Opened(decode, f"{dtype}, of the same folder", f"vllm {vllm.__version__}")
