"""What a GGUF file takes: disk, memory, and seconds from the start of a process to the first token.

    python benchmarks/memory.py --file MODEL.gguf [--file OTHER.gguf] --json FILE [--dtype int8]

Each file runs by default and in the dtypes that are named, in processes of their own with a cache
folder that is empty at first. Disk is all that the first run leaves in that folder. Memory is what
a process grows by, in resident pages, when it has answered and then loads the model once more and
answers with it: weights, tokenizer, keys and values of a short text, and what `auto` needs to
draft. Libraries and compiled code, which a process has once, are not in it; the tokenizer's part is
in the record by itself. It is measured with trained heads hidden and, where the weights have one,
with it. Kernels are compiled before: Numba does that once after installation, for a minute or two.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paired_record import command

from sapwood.backends.torch.gguf import described
from sapwood.bench import provenance
from sapwood.common.drafter_store import HIDE, has
from sapwood.common.heap import trim_heap
from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer

PROMPT = "Name three rivers and say where they rise."
TOKENS = 24  # of an answer
BEGUN = "SAPWOOD_BENCHMARK_BEGUN"  # environment variable: when the process was started
DEFAULT = "default"


def resident() -> int:
    """Bytes of this process's resident pages."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def settled() -> int:
    """`resident` after memory that is free has gone back to the system."""
    gc.collect()
    trim_heap()
    return resident()


def peak() -> int:
    """The most bytes of resident pages that this process has had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def answer(file: str, dtype: str | None, threads: int | None) -> tuple[Any, float]:
    """A loaded model that has answered, and the time of its first token."""
    from sapwood.llm import LLM

    llm = LLM(file, dtype=dtype, threads=threads)
    steps = llm.stream(PROMPT, max_tokens=TOKENS)
    next(steps)
    first = time.time()
    for _ in steps:
        pass
    return llm, first


def report(file: str, dtype: str | None, threads: int | None, again: bool) -> None:
    """Answer in this process, and print what it took as JSON."""
    begun = float(os.environ[BEGUN])
    llm, first = answer(file, dtype, threads)
    made = {"seconds": first - begun, "dtype": llm.target.info.dtype}
    made |= {"note": llm.target.info.note, "why": llm.target.info.why}
    made |= {"machine": provenance.machine(llm.target.info, None), "peak": peak()}
    made["head"] = has("eagle3", file, llm.target.info.weights)
    if again:
        before = settled()
        other, _ = answer(file, dtype, threads)
        made["growth"] = settled() - before
        before = settled()
        words = Tokenizer.load(described(Path(file), str))
        made["tokenizer"] = settled() - before
        del other, words
    sys.stdout.write(json.dumps(made) + "\n")


def start(
    file: str,
    dtype: str,
    threads: int | None,
    cache: str,
    *,
    again: bool = False,
    heads: bool = True,
) -> dict[str, Any]:
    """What a process of its own reports."""
    words = [sys.executable, __file__, "--one", "--file", file, "--dtype", dtype]
    words += ["--again"] * again + (["--threads", str(threads)] if threads else [])
    hide = {HIDE: "" if heads else "1"}
    environment = {**os.environ, **hide, "SAPWOOD_CACHE": cache, BEGUN: repr(time.time())}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SapwoodError(f"{Path(file).name} could not be run in {dtype}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def size_of(folder: str) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def measure(file: str, dtype: str, threads: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a file in a dtype, and the machine."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR") or "/var/tmp") as cache:
        first = start(file, dtype, threads, cache)
        disk = size_of(cache)
        second = start(file, dtype, threads, cache)
        plain = start(file, dtype, threads, cache, again=True, heads=False)
        headed = start(file, dtype, threads, cache, again=True) if first["head"] else None
    row = {
        "file bytes": Path(file).stat().st_size,
        "dtype": first["dtype"],
        "note": first["note"] or first["why"],
        "disk bytes": disk,
        "memory bytes": plain["growth"],
        "tokenizer bytes": plain["tokenizer"],
        "with head bytes": None if headed is None else headed["growth"],
        "peak bytes": second["peak"],
        "first start": round(first["seconds"], 2),
        "second start": round(second["seconds"], 2),
    }
    return row, first["machine"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each file, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--file", action="append", required=True, help="a GGUF file")
    parser.add_argument("--dtype", action="append", help="also in this one, as int8")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        dtype = None if args.dtype[0] == DEFAULT else args.dtype[0]
        report(args.file[0], dtype, args.threads, args.again)
        return 0
    if args.json is None:
        parser.error("--json is needed")
    busy = provenance.load()
    known = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
    rows = dict(known.get("files", {}))
    for file in args.file:
        for dtype in dict.fromkeys((DEFAULT, *(args.dtype or ()))):
            row, machine = measure(file, dtype, args.threads)
            name = Path(file).name + ("" if dtype == DEFAULT else f", {dtype}")
            rows[name] = row
            sys.stdout.write(f"{name}: {json.dumps(row)}\n")
            record = {
                "command": command(args.file),
                "commit": provenance.commit(),
                "machine": {**machine, "load": busy},
                "settings": {"prompt": PROMPT, "tokens": TOKENS},
                "files": rows,
            }
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SapwoodError as error:
        sys.exit(f"memory: {error}")
