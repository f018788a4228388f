"""Throughput with a drafter elsewhere, by delay and losses of the link, against plain decoding.

    python benchmarks/remote.py [--prompts 16] [--tokens 128] [--seconds 200] --json FILE

Draft servers, one for each row, are in a process of their own and look the text up; none has seen
the texts of another row. A proxy in front of each, in the same process, delays its replies and
loses messages in both directions. The target decodes with one thread, so that the server has a
core. On every prompt plain decoding, three times, and all recipes on all links take turns, in
another order each time. Greedy; every text is compared with plain's.

Seconds are those from the first round to the last. Two are kept: by the clock, and the processor
time of the decoder with what it waited for replies, to which other work on the machine adds less.
A row's figure is the tokens per second of all prompts together over plain's, which is the median
of its three runs of a prompt, with a bootstrap interval over prompts. `plain again` is one of those
three held against the two others: what noise alone does. `--seconds` ends a run early; the same
command goes on.
"""

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.lossy_link import LossyLink
from benchmarks.paired_record import Estimate, PairedRecord, difference, until

from sapwood.bench import provenance
from sapwood.bench.suites import gather
from sapwood.drafters.compose.remote import Remote
from sapwood.llm import LLM
from sapwood.recipe import parse
from sapwood.recipes import named
from sapwood.remote.draft_client import DraftClient
from sapwood.remote.messages import RemoteMessage

ROOT = Path(__file__).parents[1]
LINKS = ((0.0, 0.0), (0.005, 0.0), (0.02, 0.0), (0.0, 0.1), (0.005, 0.1), (0.02, 0.1))
RECIPES = ("sled", "dsd", "edgellm")
PAIRS = tuple(itertools.product(LINKS, RECIPES))  # rows of the table, but for plain decoding
PLAIN = "plain"
PLAINS = ("plain 1", "plain 2", "plain 3")
# values of a run; `work` is processor time and waits, both in seconds
COLUMNS = ("tokens", "work", "clock", "passes", "calls", "late", "same_text")
WARM = 8  # tokens of a first text, in which kernels are compiled


@dataclass
class RemoteRow:
    """Results of one recipe on one link."""

    recipe: str
    delay_ms: float
    loss: float
    prompts: int
    tokens: int
    passes: int
    calls: int  # to the draft server
    late: int  # of these, given up
    same_text: int
    against_plain: Estimate  # by processor time and waits
    by_clock: Estimate


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


class WaitedClient:
    """Adds up the seconds that a client waited for replies, its own work not counted."""

    def __init__(self, client: DraftClient) -> None:
        self.seconds = 0.0
        self._wait = client.wait
        client.wait = self.wait  # type: ignore[method-assign]

    def wait(self, call: int, until: float = 0.0) -> RemoteMessage | None:
        """The client's own method, timed."""
        began, worked = time.perf_counter(), time.thread_time()
        try:
            return self._wait(call, until)
        finally:
            self.seconds += time.perf_counter() - began - (time.thread_time() - worked)


class Contender:
    """One recipe on one link, with all that it has learned."""

    def __init__(self, llm: LLM, name: str, recipe: str) -> None:
        self.llm = llm.with_recipe(recipe)
        self.name = name
        drafter = self.llm.recipe.drafter
        self.client = drafter.client if isinstance(drafter, Remote) else None
        self.waited = None if self.client is None else WaitedClient(self.client)
        self.llm.generate("Hello", max_tokens=WARM)

    @property
    def spent(self) -> tuple[float, float]:
        """Seconds by the clock, and of the processor and of waits."""
        waits = 0.0 if self.waited is None else self.waited.seconds
        return time.perf_counter(), time.process_time() + waits

    @property
    def counted(self) -> tuple[int, int]:
        """Calls so far, and those given up."""
        return (0, 0) if self.client is None else (self.client.calls, self.client.late)

    def run(self, prompt: list[int], most: int) -> tuple[list[int], list[float]]:
        """Answer a prompt: its tokens, and the values of COLUMNS but the last."""
        calls, late = self.counted
        steps = self.llm.stream(prompt, max_tokens=most)
        tokens = list(next(steps).tokens)
        first = len(tokens)
        clock, work = self.spent
        passes = 0
        for step in steps:
            tokens += step.tokens
            passes += 1
        clock, work = self.spent[0] - clock, self.spent[1] - work
        now = self.counted
        return tokens, [len(tokens) - first, work, clock, passes, now[0] - calls, now[1] - late]


def name_of(recipe: str, delay: float, loss: float) -> str:
    """The name of a row."""
    return f"{recipe} {1000 * delay:.0f} ms {loss:.0%}"


def contenders(llm: LLM, urls: list[str]) -> list[Contender]:
    """Plain decoding three times, and every recipe on every link."""
    made = [Contender(llm, name, PLAIN) for name in PLAINS]
    for url, ((delay, loss), recipe) in zip(urls, PAIRS, strict=True):
        spelled = named(recipe).replace("remote(", f"remote(url='{url}', ")
        made.append(Contender(llm, name_of(recipe, delay, loss), spelled))
    return made


def measure(
    all_of_them: list[Contender],
    prompts: dict[str, list[int]],
    most: int,
    record: PairedRecord,
    over: Callable[[], bool],
) -> None:
    """Let all answer each prompt that is left, in turns."""
    for name, prompt in prompts.items():
        if not record.left([one.name for one in all_of_them], [name]):
            continue
        if over():
            return
        noise = random.Random(name)
        found = {
            one.name: one.run(prompt, most) for one in noise.sample(all_of_them, len(all_of_them))
        }
        for one in all_of_them:
            tokens, values = found[one.name]
            record.add(one.name, name, [*values, tokens == found[PLAINS[0]][0]])


# ------------------------------------------------------------------------------------- the table
def rates(rows: list[list[float]], column: str) -> list[list[float]]:
    """Tokens and seconds of each prompt."""
    place = COLUMNS.index(column)
    return [[row[0], row[place]] for row in rows]


def middle(several: list[list[list[float]]]) -> list[list[float]]:
    """Tokens and seconds of each prompt: the median of several runs."""
    return [
        [runs[0][0], statistics.median(run[1] for run in runs)]
        for runs in zip(*several, strict=True)
    ]


def against(record: PairedRecord, name: str, column: str, plains: Sequence[str]) -> Estimate:
    """Throughput over plain decoding's."""
    prompts = list(record.values[name])
    own = rates([record.values[name][one] for one in prompts], column)
    base = middle(
        [rates([record.values[plain][one] for one in prompts], column) for plain in plains]
    )
    mean, low, high = difference(own, base)
    return Estimate(round(1 + mean, 4), round(1 + low, 4), round(1 + high, 4))


def table(record: PairedRecord) -> list[RemoteRow]:
    """A row for each recipe and link, the first for plain decoding held against itself."""
    wanted = [("plain again", 0.0, 0.0, PLAINS[0], PLAINS[1:])]
    wanted += [
        (recipe, delay, loss, name_of(recipe, delay, loss), PLAINS)
        for (delay, loss), recipe in PAIRS
    ]
    made = []
    for recipe, delay, loss, name, plains in wanted:
        rows = list(record.values[name].values())
        sums = dict(zip(COLUMNS, map(sum, zip(*rows, strict=True)), strict=True))
        counts = {one: int(sums[one]) for one in ("tokens", "passes", "calls", "late", "same_text")}
        made.append(
            RemoteRow(
                recipe,
                1000 * delay,
                loss,
                len(rows),
                **counts,
                against_plain=against(record, name, "work", plains),
                by_clock=against(record, name, "clock", plains),
            )
        )
    return made


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--suite", default="chat,edit")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, help="after which no further prompt is begun")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--links", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.links:
        return serve_links()
    over = until(given.seconds)
    load = provenance.load()
    llm = LLM(given.model, PLAIN, threads=1)
    bench = gather(given.suite, limit=given.prompts, turns=1)
    prompts = {
        f"{number}": prompt.tokens(llm.target.info, llm.text) for number, prompt in enumerate(bench)
    }
    settings = {name: vars(given)[name] for name in ("model", "suite", "prompts", "tokens")}
    with tempfile.TemporaryDirectory() as folder:
        record = PairedRecord(given.json or Path(folder) / "record.json", settings)
        with links() as urls:
            measure(contenders(llm, urls), prompts, given.tokens, record, over)
        rows = table(record)
        origin = provenance.origin(llm.target.info, load)
        record.write(origin, columns=COLUMNS, rows=[readable(row) for row in rows])
    for row in rows:
        print(
            f"{row.recipe:12} {row.delay_ms:3.0f} ms {row.loss:4.0%} lost "
            f" {shown(row.against_plain)}  by the clock {shown(row.by_clock)}"
            f"  {row.late} of {row.calls} late  same text {row.same_text}/{row.prompts}"
        )
    return None


def readable(row: RemoteRow) -> dict[str, Any]:
    """A row with its estimates by name."""
    return {
        **asdict(row),
        "against_plain": row.against_plain._asdict(),
        "by_clock": row.by_clock._asdict(),
    }


def shown(found: Estimate) -> str:
    """An estimate with its interval."""
    return f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"


if __name__ == "__main__":
    main()
