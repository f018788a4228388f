"""`sapwood certify` against vLLM's server, once with its own n-grams and once with our plug-in.

    python benchmarks/certify_vllm.py --python VLLM_PYTHON [--minutes 4] [--folder REPORTS]

VLLM_PYTHON is the interpreter of an environment with vLLM. The model is a Llama of two layers with
random weights whose tokens are letters: it answers in milliseconds, so that there are enough
samples, and letters come again so often that nearly every step has drafts. vLLM's build for CPUs
samples wrongly under speculation (its issue 55005): `top_p` must fail on the first server. The
plug-in replaces the function at fault: `top_p` must pass on the second.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.guest_vllm import QUIET, SPECULATION

ROOT = Path(__file__).parents[1]
NAME = "letters"
LETTERS = "".join(map(chr, range(32, 127))) + "\n"
SPECIALS = ("<unk>", "<bos>", "<eos>")
START_S = 240.0
LENGTH = 4  # most drafted tokens of a request
WAYS = ("ngram", "sapwood")


def make_model(folder: Path) -> str:
    """A folder with the model and its tokenizer."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = [*SPECIALS, *LETTERS]
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.12,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)  # type: ignore[no-untyped-call]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(SPECIALS))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>",'
        ' "tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    return str(folder)


@contextlib.contextmanager
def serving(python: str, model: str, way: str, log: Path) -> Iterator[str]:
    """The URL of a server of vLLM with one way of drafting."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    speculation = {**SPECULATION[way], "num_speculative_tokens": LENGTH}
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", NAME, "--dtype", "float32", "--max-model-len", "1024"]
    command += ["--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching"]
    command += ["--generation-config", "vllm", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--speculative-config", json.dumps(speculation)]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, **QUIET, "PYTHONPATH": paths, "SAPWOOD_CACHE": str(log.parent)}
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, process, log)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"vLLM did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.5)


def main() -> int:
    """Certify both servers; the reports say what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--without", default="", help="checks that are left out, by commas")
    parser.add_argument("--folder", type=Path, help="for reports and logs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder: Path = given.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        model = make_model(Path(place) / NAME)
        for way in given.ways:
            with serving(given.python, model, way, folder / f"{way}.log") as url:
                command = [sys.executable, "-m", "sapwood", "certify", url]
                for name in ("minutes", "prompts", "samples", "concurrency", "without"):
                    command += [f"--{name}", str(vars(given)[name])]
                command += ["--report", str(folder / f"{way}.json")]
                print(f"vLLM with {way}:", flush=True)
                subprocess.run(command, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
