"""Throughput with a drafter elsewhere, by delay and losses of the link, against plain decoding.

    python benchmarks/remote.py [--prompts 8] [--tokens 128] [--json FILE]

Draft servers, one for each row, are in a process of their own and look the text up; none has seen
the texts of another row. A proxy in front of each, in the same process, delays its replies and
loses messages in both directions. The target decodes with one
thread, so that the server has a core. On every prompt plain decoding and all recipes on all links
take turns, in another order each time. Greedy; every text is compared with plain's.
"""

import argparse
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.lossy_link import LossyLink

from sapwood.bench import provenance
from sapwood.bench.suites import gather
from sapwood.llm import LLM
from sapwood.recipe import parse
from sapwood.recipes import named

ROOT = Path(__file__).parents[1]
LINKS = ((0.0, 0.0), (0.005, 0.0), (0.02, 0.0), (0.0, 0.1), (0.005, 0.1), (0.02, 0.1))
RECIPES = ("sled", "dsd", "edgellm")
PAIRS = tuple(itertools.product(LINKS, RECIPES))  # rows of the table, but for plain decoding
PLAIN = "plain"
WARM = 8  # tokens of a first text, in which kernels are compiled


@dataclass
class RemoteRow:
    """Results of one recipe on one link."""

    recipe: str
    delay_ms: float = 0.0
    loss: float = 0.0
    tokens: int = 0
    seconds: float = 0.0  # without prefill
    passes: int = 0
    calls: int = 0  # to the draft server
    late: int = 0  # of these, given up
    same_text: int = 0
    against_plain: float = 0.0
    by_prompt: list[float] = field(default_factory=list)  # the same for every prompt


def serve_links() -> None:
    """Serve drafts behind a proxy for each row; print their URLs, and end with standard input."""
    from sapwood.remote.draft_server import DraftService
    from sapwood.remote.message_server import MessageServer

    with ExitStack() as stack:
        for seed, ((delay, loss), _) in enumerate(PAIRS):
            recipe = parse("suffix + best(stride=8, estimator=raw) + match + fixed")
            server = MessageServer("127.0.0.1", 0, DraftService(recipe))
            url = stack.enter_context(server.running())
            link = stack.enter_context(LossyLink(url, delay, loss, seed).running())
            print(link.url, flush=True)
        sys.stdin.read()


@contextmanager
def links() -> Iterator[list[str]]:
    """The URLs of the rows' links, which are in a process of their own."""
    command = [sys.executable, str(Path(__file__)), "--links"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield [process.stdout.readline().strip() for _ in PAIRS]
    finally:
        process.stdin.close()
        process.wait(10)


class Contender:
    """One recipe on one link, with all that it has learned."""

    def __init__(self, llm: LLM, row: RemoteRow, recipe: str) -> None:
        self.llm = llm.with_recipe(recipe)
        self.row = row
        self.llm.generate("Hello", max_tokens=WARM)

    def run(self, prompt: list[int], most: int) -> tuple[list[int], float]:
        """Answer a prompt; tokens, and seconds without prefill."""
        found = self.llm.generate(prompt, max_tokens=most)
        seconds = found.stats.seconds - found.stats.prefill_s
        self.row.tokens += len(found.tokens)
        self.row.seconds += seconds
        self.row.passes += found.stats.passes
        return list(found.tokens), seconds


def contenders(llm: LLM, urls: list[str]) -> list[Contender]:
    """Plain decoding, and every recipe on every link."""
    made = [Contender(llm, RemoteRow(PLAIN), PLAIN)]
    for url, ((delay, loss), name) in zip(urls, PAIRS, strict=True):
        spelled = named(name).replace("remote(", f"remote(url='{url}', ")
        made.append(Contender(llm, RemoteRow(name, 1000 * delay, loss), spelled))
    return made


def measure(all_of_them: list[Contender], prompts: list[list[int]], most: int) -> list[RemoteRow]:
    """Let all answer each prompt in turns."""
    noise = random.Random(1)
    plain = all_of_them[0]
    for prompt in prompts:
        found = {
            id(one): one.run(prompt, most) for one in noise.sample(all_of_them, len(all_of_them))
        }
        text, seconds = found[id(plain)]
        for one in all_of_them:
            tokens, own = found[id(one)]
            one.row.same_text += tokens == text
            one.row.by_prompt.append(round(seconds / own, 3))
    for one in all_of_them:
        one.row.against_plain = round(plain.row.seconds / one.row.seconds, 3)
        one.row.seconds = round(one.row.seconds, 3)
        if one is not plain:
            client = one.llm.recipe.drafter.client  # type: ignore[attr-defined]
            one.row.calls, one.row.late = client.calls, client.late
    return [one.row for one in all_of_them]


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--suite", default="chat,edit")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--links", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.links:
        return serve_links()
    load = provenance.load()
    llm = LLM(given.model, PLAIN, threads=1)
    bench = gather(given.suite, limit=given.prompts, turns=1)
    prompts = [prompt.tokens(llm.target.info, llm.text) for prompt in bench]
    with links() as urls:
        rows = measure(contenders(llm, urls), prompts, given.tokens)
    for row in rows:
        print(
            f"{row.recipe:8} {row.delay_ms:4.0f} ms {row.loss:4.1f} lost  {row.against_plain:.3f}"
            f"  {row.tokens / row.passes:.2f} tokens/pass  {row.late} of {row.calls} late"
            f"  same text {row.same_text}/{len(prompts)}"
        )
    if given.json is not None:
        record = {**provenance.origin(llm.target.info, load), "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
