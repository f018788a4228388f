"""Files from strangers: GGUF headers that lie, pickles, and a source that has no way to run what it reads."""

import ast
import random
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from sapwood.backends.torch.gguf import check
from sapwood.backends.torch.load import load
from sapwood.backends.torch.resolve_model import PICKLES
from sapwood.backends.torch.resolve_model import check as check_name
from sapwood.common.gguf_header import BLOCKS, read_header
from sapwood.errors import SapwoodError
from tests.helpers import tiny_gguf

SOURCE = Path(__file__).parents[2] / "src" / "sapwood"
SLOWEST = 2.0  # seconds of one small file, on a busy machine


def written(path: Path) -> bytes:
    """A small sound file: every kind of field, three tensors."""
    file = gguf.GGUFWriter(path, "llama")
    file.add_block_count(1)
    file.add_embedding_length(8)
    file.add_bool("a.bool", True)
    file.add_float32("a.float", 1.5)
    file.add_uint64("a.long", 7)
    file.add_int8("a.byte", -1)
    file.add_float64("a.double", 2.5)
    file.add_array("a.numbers", [1, 2, 3])
    file.add_token_list(["a", "bc", "é"])
    file.add_string("tokenizer.chat_template", "{{ messages }}")
    for name, shape in (
        ("token_embd.weight", (3, 8)),
        ("blk.0.attn_q.weight", (8, 8)),
        ("output_norm.weight", (8,)),
    ):
        file.add_tensor(name, np.ones(shape, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path.read_bytes()


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Fail where the body takes longer, even if it never ends."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def mutated(data: bytes, dice: random.Random) -> bytes:
    """The file with some of its bytes or numbers changed, or its end cut off."""
    out = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(4, len(out)) if len(out) > 12 else 4
        roll = dice.random()
        if roll < 0.4:
            out[place : place + 1] = bytes([dice.randrange(256)])
        elif roll < 0.7:
            value = dice.choice([0, 1, 8, 9, 255, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
            out[place : place + 8] = struct.pack("<Q", value)
        elif roll < 0.85:
            out[place : place + 4] = struct.pack(
                "<I", dice.choice([0, 7, 8, 9, 10, 13, 2**31, 2**32 - 1])
            )
        elif roll < 0.95:
            del out[place:]
        else:
            out[place:place] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 64)))
    return bytes(out)


def refused(path: Path) -> bool:
    """True where a file is refused; any other failure is a failure of ours."""
    try:
        check(path)
    except SapwoodError:
        return True
    return False


def fuzz(folder: Path, seeds: range) -> int:
    sound = written(folder / "sound.gguf")
    broken = folder / "broken.gguf"
    count = 0
    for seed in seeds:
        broken.write_bytes(mutated(sound, random.Random(seed)))
        with no_longer_than(SLOWEST):
            count += refused(broken)
    return count


def test_mutated_files_are_refused_or_sound(tmp_path: Path) -> None:
    seeds = range(1500)
    assert fuzz(tmp_path, seeds) > 0.6 * len(seeds)


@pytest.mark.slow
def test_many_more_mutated_files(tmp_path: Path) -> None:
    seeds = range(1500, 6_000)
    assert fuzz(tmp_path, seeds) > 0.6 * len(seeds)


def test_sound_files_pass(tmp_path: Path) -> None:
    written(tmp_path / "a.gguf")
    header = read_header(tmp_path / "a.gguf")
    assert header.architecture == "llama"
    assert header.numbers["a.long"] == 7
    assert [tensor.shape for tensor in header.tensors] == [(8, 3), (8, 8), (8,)]
    for kind in ("F32", "Q8_0", "Q4_0"):
        assert not refused(tiny_gguf.write(tmp_path / f"{kind}.gguf", kind))


def test_sizes_of_blocks_are_the_librarys() -> None:
    assert {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()} == BLOCKS


# -------------------------------------------------------------------------------------- single lies
def number(value: int, form: str = "<Q") -> bytes:
    return struct.pack(form, value)


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def header(tensors: int = 1, fields: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + number(version, "<I") + number(tensors) + number(fields)


def tensor(
    name: bytes = b"w",
    shape: tuple[int, ...] = (8,),
    kind: int = 0,
    offset: int = 0,
    dimensions: int | None = None,
) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return (
        text(name)
        + number(count, "<I")
        + b"".join(map(number, shape))
        + number(kind, "<I")
        + number(offset)
    )


def named(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + number(kind, "<I") + value


DATA = bytes(512)
NESTED = number(9, "<I") + number(1)
LIES = {
    "version": (header(version=1) + tensor() + DATA, "version 1"),
    "other byte order": (b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + DATA, "version"),
    "tensors": (header(2**63) + DATA, "9223372036854775808 tensors"),
    "fields": (header(1, 2**40) + DATA, "1099511627776 fields"),
    "no tensors": (header(0) + DATA, "no weights"),
    "long text": (header(1, 1) + number(2**62) + DATA, "a text of"),
    "text beyond the end": (header(1, 1) + number(1000) + DATA, "1000 bytes are announced"),
    "no UTF-8": (header(1, 1) + named(b"\xff\xfe", 0, b"\0") + DATA, "not UTF-8"),
    "kind of a field": (header(1, 1) + named(b"a", 77, b"\0") + DATA, "of kind 77"),
    "field twice": (header(1, 2) + named(b"a", 0, b"\0") * 2 + tensor() + DATA, "comes twice"),
    "long list": (
        header(1, 1) + named(b"a", 9, number(4, "<I") + number(2**61)) + DATA,
        "are announced",
    ),
    "list of texts": (
        header(1, 1) + named(b"a", 9, number(8, "<I") + number(2**40)) + DATA,
        "a list of",
    ),
    "kind of a list": (
        header(1, 1) + named(b"a", 9, number(99, "<I") + number(1)) + DATA,
        "lists values of kind 99",
    ),
    "nested lists": (header(1, 1) + named(b"a", 9, NESTED * 500) + DATA, "nested more than"),
    "alignment 0": (
        header(1, 1) + named(b"general.alignment", 4, number(0, "<I")) + tensor() + DATA,
        "alignment of 0",
    ),
    "alignment 3": (
        header(1, 1) + named(b"general.alignment", 4, number(3, "<I")) + tensor() + DATA,
        "alignment of 3",
    ),
    "alignment": (
        header(1, 1) + named(b"general.alignment", 4, number(2**31, "<I")) + tensor() + DATA,
        "alignment",
    ),
    "dimensions": (header() + tensor(dimensions=2**31) + DATA, "2147483648 dimensions"),
    "no dimension": (header() + tensor(shape=()) + DATA, "0 dimensions"),
    "kind of a tensor": (header() + tensor(kind=4) + DATA, "unknown kind 4"),
    "odd block": (header() + tensor(shape=(33,), kind=2) + DATA, "impossible shape"),
    "empty tensor": (header() + tensor(shape=(8, 0)) + DATA, "impossible shape"),
    "product too large": (header() + tensor(shape=(2**32, 2**32, 2**32)) + DATA, "beyond the end"),
    "offset beyond": (header() + tensor(offset=2**50) + DATA, "beyond the end"),
    "offset between": (header() + tensor(offset=8) + DATA, "not a multiple of"),
    "overlap": (
        header(2) + tensor(b"a", (64,)) + tensor(b"b", (64,), offset=32) + DATA,
        "overlaps another",
    ),
    "name twice": (header(2) + tensor(b"a") + tensor(b"a", offset=32) + DATA, "one name"),
    "layers": (
        header(1, 2)
        + named(b"general.architecture", 8, text(b"llama"))
        + named(b"llama.block_count", 4, number(2**31, "<I"))
        + tensor()
        + DATA,
        "block_count is 2147483648",
    ),
    "width": (
        header(1, 2)
        + named(b"general.architecture", 8, text(b"llama"))
        + named(b"llama.embedding_length", 10, number(2**40))
        + tensor()
        + DATA,
        "embedding_length is",
    ),
    "empty": (b"", "does not start with 'GGUF'"),
    "four bytes": (b"GGUF", "4 bytes are announced where 0 are left"),
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_every_lie_is_told(lie: str, tmp_path: Path) -> None:
    data, words = LIES[lie]
    (tmp_path / "a.gguf").write_bytes(data)
    start = time.thread_time()
    with pytest.raises(SapwoodError, match=words) as caught:
        read_header(tmp_path / "a.gguf")
    assert "\n" not in str(caught.value)
    assert time.thread_time() - start < SLOWEST


def test_reading_has_an_end(tmp_path: Path) -> None:
    words = b"".join(text(b"") for _ in range(20_000))
    data = header(1, 1) + named(b"a", 9, number(8, "<I") + number(20_000) + words) + tensor() + DATA
    (tmp_path / "a.gguf").write_bytes(data)
    read_header(tmp_path / "a.gguf")
    with pytest.raises(SapwoodError, match="takes more than 0 s"):
        read_header(tmp_path / "a.gguf", seconds=0)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SapwoodError, match="is not a file"):
        read_header(tmp_path)
    with pytest.raises(SapwoodError, match="is not a file"):
        read_header(Path("/dev/zero"))


# --------------------------------------------------------------------------------- pickles and code
@pytest.mark.parametrize("suffix", PICKLES)
def test_a_pickle_is_refused_by_its_name(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(
        SapwoodError, match="can run code when it is read; convert it to safetensors"
    ):
        check_name(str(path), None, None)


def test_a_folder_of_pickles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(SapwoodError, match="pickled weights, which can run code"):
        load(str(tmp_path))


MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
CALLS = {"eval", "exec", "torch.load", "yaml.load", "os.system", "joblib.load"}


def dangers(path: Path) -> Iterator[str]:
    """What in a module could run what it reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            yield from (name for name in names if name.partition(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            if (called := ast.unparse(node.func)) in CALLS:
                yield called
            for word in node.keywords:
                if (
                    word.arg in ("trust_remote_code", "shell", "allow_pickle")
                    and ast.unparse(word.value) != "False"
                ):
                    yield f"{word.arg}={ast.unparse(word.value)}"


def test_no_source_runs_what_it_reads() -> None:
    found = {str(path.relative_to(SOURCE)): list(dangers(path)) for path in SOURCE.rglob("*.py")}
    assert len(found) > 100
    assert not {path: names for path, names in found.items() if names}
