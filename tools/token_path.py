"""Write docs/token-path.md: the files that a token, and a request to the server, pass.

python -m tools.token_path                    trace a decode on the CPU, and a request to the server
python -m tools.token_path --device cuda      trace a decode on a GPU, or in Triton's interpreter
python -m tools.token_path --device rounds    trace rounds that requests share on the device
python -m tools.token_path --device planned   trace one of them in which the trees are planned
python -m tools.token_path --check            compare the lists of the CPU and the server

A small Llama with random weights and an EAGLE-3 head decodes with `auto`. Every Python function of
the package that is called between two tokens counts for its file, once rounds are steady: the
prompt was read, and all steps were captured. On a GPU a captured step is replayed as a graph and
runs no Python; so none is counted while it runs in the interpreter, where kernels are Python and
some steps are references in torch. The file that starts the step counts.
"""

import argparse
import itertools
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from sapwood.core.protocols import Backend
    from sapwood.llm import LLM

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "token-path.md"
SOURCE = f"{ROOT / 'src' / 'sapwood'}{os.sep}"
PROMPT = "abcabdabcabeabcabd" * 2
DEVICES = ("cpu", "cuda", "rounds", "planned", "server")
FIRST, LAST = 6, 20  # rounds of one request that are traced
BLOCK = re.compile(r"(<!-- path:(?P<name>\w+) -->\n).*?(<!-- /path -->)", re.DOTALL)
GRAPH = "backends/torch/cuda/cuda_graph.py"
WIDTH = 64  # of the small model
# steps of rounds on the device: of prompts and first trees, and before rounds are steady
PREFILLS, ROUNDS_BEFORE = 3, 2


class FileTrace:
    """The files of the package in which functions are called, in the order of their first calls."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by the interpreter for every call and return."""
        name = frame.f_code.co_filename
        if self.on and event == "call" and name.startswith(SOURCE):
            self.files[name.removeprefix(SOURCE)] = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread and those that are started from now on."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def replays_unseen(self) -> Iterator[None]:
        """Trace no function inside a captured step: on a GPU its run is the replay of a graph."""
        from sapwood.backends.torch.cuda.cuda_graph import CapturedStep

        run = CapturedStep.__call__

        def unseen(step: CapturedStep) -> None:
            if self.on:
                self.files[GRAPH] = None
            profile = sys.getprofile()
            sys.setprofile(None)
            try:
                run(step)
            finally:
                sys.setprofile(profile)

        with mock.patch.object(CapturedStep, "__call__", unseen):
            yield


# ------------------------------------------------------------------------------------ small models
def save_head(cache: Path, model: str) -> None:
    """An EAGLE-3 head with random weights, where recipes look for the one of this model."""
    import torch
    from tests.helpers import byte_tokenizer

    from sapwood.common.drafter_store import home
    from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
    from sapwood.heads.files import save
    from sapwood.heads.layers import LayerShape

    assert home("eagle3", model).is_relative_to(cache)
    torch.manual_seed(0)
    shape = LayerShape(WIDTH, 4, 2, 64, 96)  # heads of 64 numbers: the fast path of a CPU
    size = byte_tokenizer.SIZE
    head = Eagle3Head(Eagle3Config(shape, WIDTH, size, 128, (1, 2, 3), 512))
    head.use_vocabulary(torch.arange(128))
    save(head, home("eagle3", model))


def small_model(dtype: Any) -> Any:
    """A Llama of four layers with random weights, whose tokens are bytes."""
    from tests.helpers import byte_tokenizer, tiny_models

    return tiny_models.make(
        "llama",
        dtype,
        vocab_size=byte_tokenizer.SIZE,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=4,
        max_position_embeddings=512,
    )


def small_backend(device: str, name: str) -> "Backend":
    """A backend of the fast path of a device."""
    import torch

    if device == "cpu":
        from sapwood.backends.torch.load import build

        return build(small_model(torch.float32), name, "int8", lambda _: None)
    from tests.helpers.round_target import RoundTarget
    from tests.helpers.triton_mode import DEVICE

    kind = torch.float16 if DEVICE == "cuda" else torch.float32
    return RoundTarget(
        small_model(kind).to(DEVICE), name
    )  # drafts with kernels' references on a CPU


@contextmanager
def small_llm(device: str) -> Iterator["LLM"]:
    """A small model with its head and `auto`, which depends on nothing of this machine."""
    from tests.helpers import byte_tokenizer

    from sapwood.engine.cost_model import flat
    from sapwood.engine.loop import Engine
    from sapwood.llm import LLM
    from sapwood.recipes import resolve

    before = os.environ.get("SAPWOOD_CACHE")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SAPWOOD_CACHE"] = cache
        try:
            save_head(Path(cache), "small")
            llm = LLM(small_backend(device, "small"), "plain", text=byte_tokenizer.text())
            ticks = itertools.count()  # a clock and a cost model of their own: runs repeat exactly
            recipe = resolve("auto", controller="goodput(width=6, slack=1)")  # it never rests
            llm.engine = Engine(llm.target, recipe, flat(), now=lambda: next(ticks) * 1e-3)
            yield llm
        finally:
            os.environ.pop("SAPWOOD_CACHE")
            if before is not None:
                os.environ["SAPWOOD_CACHE"] = before


# ------------------------------------------------------------------------------------------ traces
def decode_files(device: str, trace: FileTrace) -> list[str]:
    """Files that a token passes: those used from one round of a request to another."""
    with small_llm(device) as llm, trace.installed():
        for number, _ in enumerate(llm.stream(PROMPT, raw=True, max_tokens=160)):
            trace.on = FIRST <= number < LAST
            if number == LAST:
                break
    return list(trace.files)


def cuda_files() -> list[str]:
    """The same on a GPU, or in Triton's interpreter."""
    import pytest
    from tests.helpers import triton_mode

    from sapwood.backends.torch.cuda import network

    trace = FileTrace()
    triton_mode.require()
    with pytest.MonkeyPatch.context() as patch:
        triton_mode.few_programs(patch)
        patch.setattr(network, "CAPTURE_AFTER", 0)  # not after the first passes of each shape
        with trace.replays_unseen():
            return decode_files("cuda", trace)


@cache
def shared_rounds() -> tuple[list[str], list[str]]:
    """Files of rounds that two requests share on the device; further ones of a planned round."""
    import pytest
    import torch
    from tests.helpers import tiny_models, triton_mode
    from tests.helpers.eagle_heads import tame_head
    from tests.helpers.engine_rounds import make_text
    from tests.helpers.round_target import RoundTarget
    from tests.helpers.scheduler_harness import Stage

    from sapwood.backends.torch.cuda import pass_inputs
    from sapwood.controllers.fixed import Fixed
    from sapwood.core.sampling import Sampling
    from sapwood.drafters.heads.eagle3 import Eagle3
    from sapwood.engine.round_planner import PLANNED
    from sapwood.estimators.raw import Raw
    from sapwood.policies.beam import Beam
    from sapwood.recipe import Recipe
    from sapwood.verifiers.match import Match

    trace, planned = FileTrace(), FileTrace()
    triton_mode.require()
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        triton_mode.few_programs(patch)
        target = RoundTarget(tiny_models.make("llama").to(triton_mode.DEVICE), "tiny")
        policy = Beam(beam=2, estimator=Raw())
        controller = Fixed(nodes=3, depth=2, width=3)
        stage = Stage(target, Recipe(Eagle3(head=tame_head()), policy, Match(), controller))
        for number in range(2):
            stage.ask(make_text(4, number), Sampling(max_tokens=60))
        stage.run(PREFILLS)
        drafter: Any = stage.requests[0].running.drafter
        launcher = drafter.builder.rounds  # captures its rounds, as a server does when it starts
        shape = launcher.launched[-1].shape
        launcher.captured.capture(shape, 2, pass_inputs.SHORT, target.watched)
        stage.run(ROUNDS_BEFORE)
        for one, rounds in ((trace, PLANNED - len(launcher.launched)), (planned, 1)):
            assert rounds > 0
            with one.replays_unseen(), one.installed():
                one.on = True
                stage.run(rounds)
                one.on = False
    return list(trace.files), [name for name in planned.files if name not in trace.files]


def server_files() -> list[str]:
    """Files of the server, the engine and the tokenizer that a chat request passes."""
    from tests.helpers import asgi_client

    trace = FileTrace()
    with trace.installed(), asgi_client.served(asgi_client.model()) as client:
        client.chat(max_tokens=4)
        trace.on = True
        client.chat(max_tokens=16, stream=True)
        trace.on = False
    homes = ("server/", "engine/", "tokenizer/", "kv_cache/")
    return [name for name in trace.files if name.startswith(homes)]


def listed(files: list[str]) -> str:
    """A list in Markdown, each file with the first line of its docstring."""
    import ast

    lines = []
    for name in files:
        text = (ROOT / "src" / "sapwood" / name).read_text(encoding="utf-8")
        said = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        lines.append(f"| [`{name}`](../src/sapwood/{name}) | {said} |\n")
    return f"{len(files)} files:\n\n| file | what it is |\n| --- | --- |\n{''.join(lines)}"


def committed(name: str) -> list[str]:
    """The files that the page lists under a name."""
    found = next(match for match in BLOCK.finditer(PAGE.read_text()) if match["name"] == name)
    return re.findall(r"\[`([\w/]+\.py)`\]", found[0])


def traced(name: str) -> list[str]:
    """A fresh list."""
    if name in ("rounds", "planned"):
        return shared_rounds()[name == "planned"]
    special = {"server": server_files, "cuda": cuda_files}
    return special[name]() if name in special else decode_files(name, FileTrace())


def write(name: str) -> None:
    """Fill one list of the page."""

    def block(match: re.Match[str]) -> str:
        return match[0] if match["name"] != name else f"{match[1]}{made}{match[3]}"

    made = listed(traced(name))
    PAGE.write_text(BLOCK.sub(block, PAGE.read_text()))


def main(arguments: list[str]) -> int:
    """Write a list, or compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=DEVICES, action="append", default=[])
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    if not given.check:
        for name in given.device or ("cpu", "server"):
            write(name)
        return 0
    stale = [
        name
        for name in given.device or ("cpu", "server")
        if set(traced(name)) != set(committed(name))
    ]
    for name in stale:
        sys.stderr.write(f"{PAGE.name} ({name}) differs; run python -m tools.token_path\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
