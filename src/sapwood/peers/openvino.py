"""OpenVINO GenAI's pipeline, straight from a GGUF file or from a converted folder."""

import time
from typing import Any

from sapwood.peers.llamacpp import gguf_file
from sapwood.peers.words import Answer, Ask, Opened, Order


def open_peer(order: Order) -> Opened:
    """The pipeline on the CPU, or on its GPU."""
    import numpy as np
    import openvino
    import openvino_genai

    path = gguf_file(order) if not order.argument or order.argument.endswith(".gguf") else order.argument
    device = "CPU" if order.device == "cpu" else "GPU"
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": order.threads} if device == "CPU" else {}
    pipe = openvino_genai.LLMPipeline(path, device, **options)

    def decode(ask: Ask) -> Answer:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.apply_chat_template = ask.most, False, False
        config.ignore_eos = not ask.ends
        config.stop_token_ids = set(ask.ends)
        ids = np.array([ask.prompt], np.int64)
        given = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        start = time.perf_counter()
        made = pipe.generate(given, config)
        whole = time.perf_counter() - start
        tokens = [int(token) for token in made.tokens[0]]
        reading = made.perf_metrics.get_ttft().mean / 1000  # milliseconds
        return Answer(len(tokens), max(len(tokens) - 1, 0), whole - reading, reading, tokens)

    return Opened(decode, f"{path.rsplit('/', 1)[-1]}, converted by it", f"openvino {openvino.__version__}")
