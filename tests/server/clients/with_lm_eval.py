"""What the evaluator `lm-eval` reads of a server: python with_lm_eval.py URL MODEL KEY."""

import json
import os
import sys
import urllib.request

url, model, key = sys.argv[1:]
os.environ["OPENAI_API_KEY"] = key

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402


class ByteTokens(LocalCompletionsAPI):  # type: ignore[misc]
    """The model of lm-eval, with a tokenizer that needs no download."""

    def tok_encode(self, string: str, **_: object) -> list[int]:
        """Any numbers that the server's vocabulary has."""
        return [5 + byte % 90 for byte in string.encode()]


def request(*arguments: object, kind: str = "loglikelihood") -> Instance:
    """A request as tasks make them."""
    return Instance(kind, {}, arguments, 0)


def direct(context: str, continuation: str) -> float:
    """The likelihood by a plain request."""
    both = evaluator.tok_encode(context + continuation)
    body = {"prompt": both, "max_tokens": 0, "echo": True, "logprobs": 0}
    asked = urllib.request.Request(
        f"{url}/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(asked) as answer:
        logs = json.load(answer)["choices"][0]["logprobs"]["token_logprobs"]
    return float(sum(logs[len(evaluator.tok_encode(context)) :]))


evaluator = ByteTokens(
    base_url=f"{url}/completions",
    model=model,
    tokenizer_backend=None,
    batch_size=3,
    max_retries=1,
)
evaluator.tokenizer = evaluator  # checked for being there
evaluator.tokenized_requests = True  # unset where no tokenizer was loaded
pairs = [("Once upon a", " time"), ("One plus one is", " two"), ("Rain in", " Rome"), ("A", " B")]
found = evaluator.loglikelihood([request(*pair) for pair in pairs])
for (total, greedy), pair in zip(found, pairs, strict=True):
    wanted = direct(*pair)
    assert abs(total - wanted) < 1e-3 * abs(wanted), (total, wanted)
    assert isinstance(greedy, bool)
print("ok loglikelihood")
