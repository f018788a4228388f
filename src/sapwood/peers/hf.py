"""Hugging Face transformers' own `generate`."""

import time
from typing import Any

from sapwood.peers.words import Answer, Ask, Opened, Order, Refused


class Watch:
    """A streamer: sees every token as it is made."""

    def __init__(self) -> None:
        self.asked = False  # the prompt comes first
        self.counts: list[int] = []
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """The prompt, then the new tokens of each round."""
        if self.asked:
            self.counts.append(value.numel())
            self.times.append(time.perf_counter())
        self.asked = True

    def end(self) -> None:
        """Nothing is held back."""


def open_peer(order: Order, **options: Any) -> Opened:
    """The model as transformers runs it; `options` go to `generate`."""
    import torch
    import transformers

    from sapwood.backends.torch.find import BUILT_IN, find_folder

    torch.set_num_threads(order.threads)
    dtype = torch.float32 if order.device == "cpu" else torch.float16
    folder = find_folder(order.model, lambda _: None)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=dtype).to(order.device).eval()

    def decode(ask: Ask) -> Answer:
        ids = torch.tensor([ask.prompt], device=order.device)
        watch, ends = Watch(), ask.ends or None
        start = time.perf_counter()
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=ask.most,
            min_new_tokens=None if ends else ask.most,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=ends[0] if ends else 0,
            streamer=watch,
            **options,
        )
        tokens = made[0, len(ask.prompt) :].tolist()
        if not watch.times:
            raise Refused("transformers told of no token")
        timed = max(len(tokens) - watch.counts[0], 0)
        return Answer(len(tokens), timed, watch.times[-1] - watch.times[0], watch.times[0] - start, tokens)

    same = "from the built-in GGUF file" if order.model == BUILT_IN else "of the same folder"
    return Opened(decode, f"{str(dtype).removeprefix('torch.')}, {same}", f"transformers {transformers.__version__}")
