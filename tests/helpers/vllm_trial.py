"""Plain decoding and the plug-in in an installed vLLM, on a tiny model; JSON by `python -m`.

The model is a Llama of two layers with random weights. The recipe drafts whatever a lookup finds,
right or wrong, so that texts are tried most. Texts, draft lengths, preemptions and cancellations
are reported.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

VOCAB = 256
TOKENS = 40
PROMPTS = 24
REQUESTS = 8
LENGTH = 6
RECIPE = f"suffix + best + match + fixed(nodes={LENGTH}, depth={LENGTH}, width=1)"
PROPOSER = "sapwood.guest.vllm.SapwoodProposer"


def tiny_model(folder: str) -> str:
    """A folder with a Llama of random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
    )
    model: Any = LlamaForCausalLM(shape)  # type: ignore[no-untyped-call]
    model.to(torch.float32).save_pretrained(folder)
    return folder


def open_engine(folder: str, speculation: dict[str, Any] | None, blocks: int | None = None) -> Any:
    """vLLM on the tiny model."""
    from vllm import LLM

    more: dict[str, Any] = {}
    if speculation is not None:
        more["speculative_config"] = {**speculation, "num_speculative_tokens": LENGTH}
    if blocks is not None:
        more |= {"num_gpu_blocks_override": blocks, "block_size": 32}
    return LLM(
        folder,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=REQUESTS,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        enforce_eager=True,
        disable_log_stats=False,
        **more,
    )


def prompts() -> list[list[int]]:
    """Prompts of tokens; half of them repeat a phrase."""
    phrase = [5, 9, 77, 31, 8, 120]
    return [
        [1 + number, *(phrase * 4 if number % 2 else range(40, 60 - number % 5))]
        for number in range(PROMPTS)
    ]


def sampling(tokens: int = TOKENS) -> Any:
    """Greedy, to the last token."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def decode(engine: Any) -> dict[str, Any]:
    """Texts of all prompts, and vLLM's counts."""
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts()]
    made = engine.generate(inputs, sampling(), use_tqdm=False)
    counts: dict[str, int] = {}
    for metric in engine.get_metrics():
        if metric.name in ("vllm:num_preemptions", "vllm:spec_decode_num_accepted_tokens"):
            counts[metric.name] = counts.get(metric.name, 0) + int(metric.value)
    return {
        "texts": [list(one.outputs[0].token_ids) for one in made],
        "preemptions": counts.get("vllm:num_preemptions", 0),
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
    }


def cancel(engine: Any) -> dict[str, list[int]]:
    """Texts of the requests that were not cancelled while others ran, by number."""
    inner = engine.llm_engine
    for number, prompt in enumerate(prompts()):
        inner.add_request(str(number), {"prompt_token_ids": prompt}, sampling())
    texts = {}
    step = 0
    while inner.has_unfinished_requests():
        step += 1
        if step == 12:
            inner.abort_request([str(number) for number in range(0, PROMPTS, 3)])
        for output in inner.step():
            if output.finished and int(output.request_id) % 3:
                texts[output.request_id] = list(output.outputs[0].token_ids)
    return texts


def main() -> None:
    """Run plain decoding and the plug-in one after the other, and print what came out."""
    speculation = {"method": "custom_class", "model": PROPOSER}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SAPWOOD_CACHE"] = folder
        os.environ["SAPWOOD_GUEST_RECIPE"] = RECIPE
        log = Path(folder) / "steps.jsonl"
        model = tiny_model(folder + "/model")
        found: dict[str, Any] = {"plain": decode(open_engine(model, None))}
        os.environ["SAPWOOD_GUEST_LOG"] = str(log)
        engine = open_engine(model, speculation)
        found["sapwood"] = decode(engine)
        found["drafted"] = [json.loads(line)["drafted"] for line in log.read_text().splitlines()]
        found["cancelled"] = cancel(engine)
        found["preempted"] = decode(open_engine(model, speculation, blocks=12))
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
