"""Hugging Face transformers' own `generate`."""

import time
from typing import Any

from sapwood.peers.messages import (
    AnswerMessage,
    LoadedPeer,
    LoadMessage,
    PeerRefused,
    PromptMessage,
)


class TokenStreamer:
    """A streamer that records the time of every token."""

    def __init__(self) -> None:
        self.asked = False  # the prompt comes first
        self.counts: list[int] = []
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Receive the prompt, then the new tokens of each round."""
        if self.asked:
            self.counts.append(value.numel())
            self.times.append(time.perf_counter())
        self.asked = True

    def end(self) -> None:
        """End of the stream."""


def open_peer(message: LoadMessage, **options: Any) -> LoadedPeer:
    """The model in transformers; `options` go to `generate`."""
    import torch
    import transformers

    from sapwood.backends.torch.resolve_model import BUILT_IN, find_folder

    torch.set_num_threads(message.threads)
    dtype = torch.float32 if message.device == "cpu" else torch.float16
    folder = find_folder(message.model, lambda _: None)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=dtype).to(message.device).eval()

    def decode(request: PromptMessage) -> AnswerMessage:
        ids = torch.tensor([request.prompt], device=message.device)
        watch = TokenStreamer()
        ends = request.ends or None
        start = time.perf_counter()
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.most,
            min_new_tokens=None if ends else request.most,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=ends[0] if ends else 0,
            streamer=watch,
            **options,
        )
        tokens = made[0, len(request.prompt) :].tolist()
        if not watch.times:
            raise PeerRefused("transformers reported no token")
        timed = max(len(tokens) - watch.counts[0], 0)
        return AnswerMessage(
            len(tokens), timed, watch.times[-1] - watch.times[0], watch.times[0] - start, tokens
        )

    same = "from the built-in GGUF file" if message.model == BUILT_IN else "of the same folder"
    return LoadedPeer(
        decode,
        f"{str(dtype).removeprefix('torch.')}, {same}",
        f"transformers {transformers.__version__}",
    )
