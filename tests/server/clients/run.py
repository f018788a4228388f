"""Clients that need environments of their own: makes them in a cache folder, starts a server, runs each script.

    python -m tests.server.clients.run            all of them
    python -m tests.server.clients.run litellm    one
    python -m tests.server.clients.run fuzz 2000  generated requests against our own document

The tests run the same scripts where an environment is there, and say so where it is not.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("SAPWOOD_CLIENTS") or Path.home() / ".cache" / "sapwood-clients")
LONGEST = 600  # seconds of one script


@dataclass(frozen=True)
class Environment:
    """One client and what it needs."""

    name: str
    packages: tuple[str, ...]
    script: str

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return CACHE / self.name

    @property
    def node(self) -> bool:
        """True for a client that runs under Node."""
        return self.script.endswith(".mjs")

    @property
    def program(self) -> Path:
        """What runs the script; it is there once the environment is complete."""
        return self.folder / ("node_modules" if self.node else "bin/python")

    def make(self) -> None:
        """Install it, once."""
        mark = self.folder / ".ready"
        if mark.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.node:
            subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", *self.packages],
                cwd=self.folder,
                check=True,
            )
        else:
            subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
            subprocess.run(
                [str(self.program), "-m", "pip", "install", "--quiet", *self.packages], check=True
            )
        mark.touch()

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run its script with these arguments."""
        if self.node:  # modules are looked for beside the script
            shutil.copy(HERE / self.script, self.folder / self.script)
            command = ["node", str(self.folder / self.script)]
        else:
            command = [str(self.program), str(HERE / self.script)]
        clean = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME")
        }
        clean |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*", "no_proxy": "*"}
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=LONGEST,
            env=clean,
            check=False,
        )


OTHERS = (
    Environment("litellm", ("litellm", "mcp"), "with_litellm.py"),
    Environment("langchain", ("langchain-openai",), "with_langchain.py"),
    Environment("node", ("openai@6",), "with_node.mjs"),
    Environment("anthropic", ("anthropic",), "with_anthropic.py"),
    Environment("ollama", ("ollama",), "with_ollama.py"),
    Environment("lm-eval", ("lm_eval[api]",), "with_lm_eval.py"),
)
# the same environment; it also needs torch and transformers, which it takes from the one of the tests
LM_EVAL_TASKS = Environment("lm-eval", ("lm_eval[api]",), "lm_eval_tasks.py")
FUZZ = Environment("schemathesis", ("schemathesis>=4,<5",), "fuzz.py")


def ready(one: Environment) -> str:
    """Why a client cannot be run here; empty where it can."""
    if one.node and shutil.which("node") is None:
        return "node is not installed"
    if not (one.folder / ".ready").exists():
        return f"{one.name} is not set up; run python -m tests.server.clients.run {one.name}"
    return ""


def score_tasks(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Score tasks through a server in float32 and through transformers."""
    from tests.server.clients.server import KEY, MODEL, make_model, running

    model = make_model(folder)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>"}
    config = json.dumps({**about, "eos_token": "<eos>"})  # as transformers reads it
    (model / "tokenizer_config.json").write_text(config)
    with running(folder, "--dtype", "float32", model=model) as server:
        packages = sysconfig.get_path("purelib")
        return LM_EVAL_TASKS.run(server.api, MODEL, KEY, str(model), packages)


def main(names: list[str]) -> int:
    """Make what is missing, run, and say what came of it."""
    from tests.server.clients.server import KEY, MODEL, running, small

    count = names.pop() if names and names[-1].isdecimal() else "2000"
    wanted = [
        one
        for one in (*OTHERS, FUZZ)
        if not names or one.name in names or (one is FUZZ and "fuzz" in names)
    ]
    bad = 0
    for one in wanted:
        one.make()
        start = small if one is FUZZ else running
        with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as server:
            done = (
                one.run(server.url, KEY, count) if one is FUZZ else one.run(server.api, MODEL, KEY)
            )
            statuses = Counter(
                line["status"] for line in server.lines if line["event"] == "request"
            )
        print(done.stdout + done.stderr)
        failed = done.returncode != 0 or any(status >= 500 for status in statuses)
        print(one.name, "FAILED" if failed else "passed", dict(sorted(statuses.items())))
        bad += failed
    if not names or "lm-eval" in names:
        with tempfile.TemporaryDirectory() as folder:
            done = score_tasks(Path(folder))
        print(done.stdout + done.stderr[-3000:] * bool(done.returncode))
        print("tasks of lm-eval", "FAILED" if done.returncode else "passed")
        bad += done.returncode != 0
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
