"""Runners for many clients: the scheduler in this process, and a server over HTTP."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from sapwood.bench.clients import ClientAnswer, ClientLoad, take
from sapwood.core.sampling import Sampling
from sapwood.engine.engine_cache import EngineCache
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.request_pool import RequestPool
from sapwood.engine.scheduler import Scheduler
from sapwood.engine.step_stats import StepStats
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.peers import http
from sapwood.peers.messages import PeerRefused

START_S = 600.0  # longest start of a server: a first start compiles and measures
STOP_S = 30.0
ADDRESS = re.compile(r" is served at (\S+)/v1")


class ScheduledClients:
    """One recipe under a scheduler of its own, on weights that all recipes share."""

    way = "in process"

    def __init__(self, llm: LLM, name: str, engine: Engine, sampling: Sampling, most: int) -> None:
        self.name = name
        self.sampling = sampling
        self.runs = count()
        pool = RequestPool(
            llm.target, EngineCache(lambda _: engine), llm.text, measured=llm.profile.measured
        )
        self.scheduler = Scheduler(pool, engine.cost, max_requests=most)
        self.steps: list[StepStats] = []  # of all runs

    def run(self, prompts: Sequence[list[int]], clients: int) -> ClientLoad:
        """Answer prompts, `clients` of them at a time, without what earlier runs have cached."""
        tenant = f"{self.name} {next(self.runs)}"
        pool = self.scheduler.pool
        answers: list[ClientAnswer] = []
        running = 0
        steps: list[StepStats] = []

        def on_step(answer: ClientAnswer, step: Step | Exception) -> None:
            nonlocal running
            if isinstance(step, Exception):
                raise step
            answer.text += step.text
            answer.tokens += step.tokens
            answer.length += len(step.tokens)
            answer.times.append(time.perf_counter())
            answer.counts.append(len(step.tokens))
            running -= step.done

        coming = iter(prompts)
        start = time.perf_counter()
        while True:
            for prompt in take(coming, clients - running):
                running += 1
                answers.append(ClientAnswer(time.perf_counter()))
                taken = partial(on_step, answers[-1])
                pool.add(Request(tuple(prompt), self.sampling, tenant, on_step=taken))
            if not running:
                break
            done = self.scheduler.step()
            if done is not None:
                steps.append(done)
        seconds = time.perf_counter() - start
        self.steps += steps
        trees = [step for step in steps if step.trees]
        return ClientLoad(
            answers,
            seconds,
            len(trees),
            sum(step.nodes for step in trees),
            sum(step.accepted for step in trees),
        )


@dataclass(frozen=True, slots=True)
class HttpClients:
    """One recipe of a server."""

    name: str
    url: str  # with /v1
    keys: Iterator[str]  # one for each run: requests share cached prefixes with their key's alone
    body: dict[str, Any]  # of every request, without its prompt
    way: str = "http"

    def run(self, prompts: Sequence[list[int]], clients: int) -> ClientLoad:
        """Answer prompts over `clients` connections at a time."""
        ask = partial(self.ask, key=next(self.keys))
        start = time.perf_counter()
        with ThreadPoolExecutor(clients) as threads:
            answers = list(threads.map(ask, prompts))
        return ClientLoad(answers, time.perf_counter() - start)

    def ask(self, prompt: list[int], key: str) -> ClientAnswer:
        """Stream one completion."""
        answer = ClientAnswer(time.perf_counter())
        body = {**self.body, "prompt": prompt, "speculation": {"recipe": self.name}}
        try:
            for event in http.events(f"{self.url}/completions", body, key):
                self._add(answer, event)
        except PeerRefused as error:
            raise SapwoodError(f"recipe {self.name!r} failed: {error}") from error
        if not answer.times:  # a text of no letters
            answer.times.append(time.perf_counter())
        return answer

    def _add(self, answer: ClientAnswer, event: dict[str, Any]) -> None:
        """Take one event of the stream."""
        if "error" in event:
            raise SapwoodError(f"recipe {self.name!r} failed: {event['error']}")
        for choice in event.get("choices") or ():
            if choice.get("text"):
                answer.text += choice["text"]
                answer.times.append(time.perf_counter())
        if usage := event.get("usage"):
            answer.length = usage["completion_tokens"]


def request_body(sampling: Sampling, *, ignore_eos: bool) -> dict[str, Any]:
    """The options of a completion request."""
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "ignore_eos": ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class ServerProcess:
    """`sapwood serve` in a process of its own, on a free port of this machine."""

    def __init__(self, options: Sequence[str], keys: Sequence[str], most: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        listed = Path(self.folder.name) / "keys"
        listed.touch(mode=0o600)
        listed.write_text("\n".join(keys) + "\n", encoding="utf-8")
        self.log = (Path(self.folder.name) / "log").open("w+b")
        command = [sys.executable, "-m", "sapwood", "serve", "--port", "0", "--keys", str(listed)]
        # twice as many: the server may hear of an answer's end after the client's next request
        command += ["--limit", f"per_key={2 * most}", "--limit", f"queue={2 * most}", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ}
        )
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        try:
            self.url = self._address()
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()

    def _address(self) -> str:
        """The address that the server prints when it is ready."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := ADDRESS.search(line):
                return found[1] + "/v1"
        self.log.seek(0)
        last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
        raise SapwoodError(f"sapwood serve did not start: {''.join(last) or 'no message'}")

    def close(self) -> None:
        """End the server; kill it if it does not end by itself."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()
