"""OpenVINO GenAI's pipeline, straight from a GGUF file or from a converted folder."""

import time
from typing import Any

from sapwood.common.gguf_header import named_gguf
from sapwood.peers.llamacpp import gguf_file
from sapwood.peers.messages import AnswerMessage, LoadedPeer, LoadMessage, PromptMessage


def open_peer(message: LoadMessage) -> LoadedPeer:
    """The pipeline on the CPU, or on Intel's GPU."""
    import numpy as np
    import openvino
    import openvino_genai

    path = (
        gguf_file(message)
        if not message.argument or named_gguf(message.argument)
        else message.argument
    )
    device = "CPU" if message.device == "cpu" else "GPU"
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": message.threads} if device == "CPU" else {}
    pipe = openvino_genai.LLMPipeline(path, device, **options)

    def decode(request: PromptMessage) -> AnswerMessage:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.most
        config.do_sample = False
        config.apply_chat_template = False
        config.ignore_eos = not request.ends
        config.stop_token_ids = set(request.ends)
        ids = np.array([request.prompt], np.int64)
        given = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        )
        start = time.perf_counter()
        made = pipe.generate(given, config)
        whole = time.perf_counter() - start
        tokens = [int(token) for token in made.tokens[0]]
        reading = made.perf_metrics.get_ttft().mean / 1000  # milliseconds
        return AnswerMessage(len(tokens), max(len(tokens) - 1, 0), whole - reading, reading, tokens)

    return LoadedPeer(
        decode, f"{path.rsplit('/', 1)[-1]}, converted by it", f"openvino {openvino.__version__}"
    )
