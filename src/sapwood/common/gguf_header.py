"""Reads and checks the header of an untrusted GGUF file.

Readers of this format have looped forever and written past their buffers on malformed files. This
one compares every count and length with the size of the file before it is used, and limits its
time. A file that passes may be given to a reader that trusts its input.
"""

import mmap
import struct
import time
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from sapwood.errors import SapwoodError

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
SECONDS = 20.0  # of reading; a vocabulary of a million tokens takes two
MOST_FIELDS, MOST_TENSORS = 10_000, 100_000
# bytes
LONGEST_NAME = 1 << 16
LONGEST_TEXT = 16 << 20
MOST_DIMENSIONS, DEEPEST_LIST = 4, 3
LARGEST_ALIGNMENT = 1 << 16
# kinds of values
TEXT = 8
LIST = 9
SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
# tensor type -> bytes of a block of 1, 32 or 256 numbers; BLOCKS: type -> (numbers, bytes)
PLAIN = {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2}
SMALL = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 9: 40, 20: 18, 39: 17}
LARGE = {
    10: 84,
    11: 110,
    12: 144,
    13: 176,
    14: 210,
    15: 292,
    16: 66,
    17: 74,
    18: 98,
    19: 50,
    21: 110,
    22: 82,
    23: 136,
    29: 56,
    34: 54,
    35: 66,
}
BLOCKS = {kind: (1, size) for kind, size in PLAIN.items()} | {
    kind: (32, size) for kind, size in SMALL.items()
}
BLOCKS |= {kind: (256, size) for kind, size in LARGE.items()} | {40: (64, 36), 41: (128, 18)}
WIDTHS = (
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.key_length",
    "attention.value_length",
)
COUNTS = (
    "block_count",
    "expert_count",
    "attention.head_count",
    "attention.head_count_kv",
    "expert_used_count",
)


def named_gguf(path: str | Path) -> bool:
    """True for the name of a GGUF file; the suffix may be written in any case."""
    return Path(path).suffix.lower() == SUFFIX


class DamagedFile(Exception):
    """A malformed file; the message is the reason."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape, offset and size of a tensor."""

    name: str
    shape: tuple[int, ...]
    offset: int  # bytes from the beginning of the data
    size: int  # bytes
    kind: int  # number format, as GGUF counts them


@dataclass
class GgufHeader:
    """The checked header of a file."""

    numbers: dict[str, int] = field(default_factory=dict)  # whole numbers among the fields
    architecture: str = ""
    tensors: list[TensorInfo] = field(default_factory=list)
    data: int = 0  # bytes from the beginning of the file to the data


def read_header(path: Path, seconds: float = SECONDS) -> GgufHeader:
    """The header of a file; one that is malformed, or takes too long, is refused."""
    if not path.is_file():
        raise SapwoodError(f"{path} is not a file; give the path of a .gguf file")
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise SapwoodError(
                    f"{path} is not a GGUF file: it does not start with 'GGUF'; download it again"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return GgufReader(data, seconds).read()
    except DamagedFile as error:
        raise SapwoodError(
            f"{path} is a damaged or truncated GGUF file ({error}); download it again"
        ) from error
    except OSError as error:
        raise SapwoodError(f"{path} cannot be read ({error}); check the file") from error


class GgufReader:
    """Reads a file from its beginning, never past its end."""

    def __init__(self, data: mmap.mmap, seconds: float) -> None:
        self.data = data
        self.at = len(MAGIC)
        self.end = len(data)
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.header = GgufHeader()

    def read(self) -> GgufHeader:
        """All of the header."""
        version = self.number("<I")
        if version not in VERSIONS:
            raise DamagedFile(f"version {version} is none of {', '.join(map(str, VERSIONS))}")
        tensors = self.count("tensors", MOST_TENSORS)
        fields = self.count("fields", MOST_FIELDS)
        seen: set[str] = set()
        for _ in range(fields):
            name = self.text(LONGEST_NAME)
            if name in seen:
                raise DamagedFile(f"field {name[:40]!r} comes twice")
            seen.add(name)
            self.value(name, self.number("<I"), 0)
        alignment = self.header.numbers.get("general.alignment", 32)
        if not 0 < alignment <= LARGEST_ALIGNMENT or alignment & (alignment - 1):
            raise DamagedFile(f"an alignment of {alignment} bytes")
        self.header.tensors = [self.tensor(alignment) for _ in range(tensors)]
        self.check_offsets(alignment)
        self.check_sizes()
        return self.header

    # ------------------------------------------------------------------------------- values
    def take(self, size: int) -> int:
        """Advance by this many bytes; returns where they begin."""
        start = self.at
        if size > self.end - start:
            raise DamagedFile(f"{size} bytes are announced where {self.end - start} are left")
        self.at = start + size
        return start

    def number(self, form: str) -> int:
        """Read a number."""
        return int(struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))[0])

    def count(self, what: str, most: int) -> int:
        """Read a count, which must not exceed the maximum."""
        found = self.number("<Q")
        if found > most:
            raise DamagedFile(f"{found} {what}, more than {most}")
        return found

    def text(self, longest: int) -> str:
        """Read a string."""
        size = self.number("<Q")
        if size > longest:
            raise DamagedFile(f"a text of {size} bytes, more than {longest}")
        start = self.take(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise DamagedFile("a text that is not UTF-8") from error

    def value(self, name: str, kind: int, depth: int) -> None:
        """Read a value of a field; whole numbers are stored in the header."""
        if kind == LIST:
            self.list(name, depth + 1)
        elif kind == TEXT:
            text = self.text(LONGEST_TEXT)
            if name == "general.architecture":
                self.header.architecture = text
        elif kind in (6, 12):
            self.take(struct.calcsize(SCALARS[kind]))
        elif kind in SCALARS:
            self.header.numbers[name] = self.number(SCALARS[kind])
        else:
            raise DamagedFile(f"field {name[:40]!r} has values of kind {kind}")

    def list(self, name: str, depth: int) -> None:
        """Read a list: numbers are skipped at once, strings and lists one by one."""
        if depth > DEEPEST_LIST:
            raise DamagedFile(f"lists are nested more than {DEEPEST_LIST} deep")
        kind = self.number("<I")
        count = self.number("<Q")
        if kind in SCALARS:
            self.take(count * struct.calcsize(SCALARS[kind]))
            return
        if kind not in (TEXT, LIST):
            raise DamagedFile(f"field {name[:40]!r} lists values of kind {kind}")
        if count > (self.end - self.at) // 8:  # a text, and a list, takes eight bytes or more
            raise DamagedFile(f"a list of {count} where {self.end - self.at} bytes are left")
        for index in range(count):
            if not index % 4096:
                self.check_time()
            self.value("", kind, depth)

    def check_time(self) -> None:
        """Refuse a file that takes too long."""
        if time.monotonic() > self.deadline:
            raise DamagedFile(f"reading its header takes more than {self.seconds:g} s")

    def tensor(self, alignment: int) -> TensorInfo:
        """Read an entry of the table of tensors."""
        name = self.text(LONGEST_NAME)
        dimensions = self.number("<I")
        if not 0 < dimensions <= MOST_DIMENSIONS:
            raise DamagedFile(f"tensor {name[:40]!r} has {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))
        kind = self.number("<I")
        offset = self.number("<Q")
        if kind not in BLOCKS:
            raise DamagedFile(f"tensor {name[:40]!r} is of the unknown kind {kind}")
        block, size = BLOCKS[kind]
        if not all(shape) or shape[0] % block:
            raise DamagedFile(f"tensor {name[:40]!r} has the impossible shape {shape}")
        if offset % alignment:
            raise DamagedFile(
                f"tensor {name[:40]!r} begins at {offset}, not a multiple of {alignment} bytes"
            )
        return TensorInfo(name, shape, offset, prod(shape) // block * size, kind)

    # ------------------------------------------------------------------------------- checks
    def check_offsets(self, alignment: int) -> None:
        """Refuse tensors of the same name, beyond the end, or overlapping."""
        data = -(-self.at // alignment) * alignment
        self.header.data = data
        tensors = self.header.tensors
        if not tensors:
            raise DamagedFile("it holds no weights")
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise DamagedFile("two tensors have one name")
        last = 0
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            if tensor.offset < last:
                raise DamagedFile(f"tensor {tensor.name[:40]!r} overlaps another")
            last = tensor.offset + tensor.size
            if data + last > self.end:
                raise DamagedFile(f"tensor {tensor.name[:40]!r} reaches beyond the end of the file")

    def check_sizes(self) -> None:
        """Refuse sizes of the model that its tensors do not have: a loader would allocate them."""
        widest = max(max(tensor.shape) for tensor in self.header.tensors)
        for names, most in ((WIDTHS, widest), (COUNTS, max(widest, len(self.header.tensors)))):
            for name in names:
                value = self.header.numbers.get(f"{self.header.architecture}.{name}", 0)
                if not 0 <= value <= most:
                    raise DamagedFile(
                        f"{name} is {value}, but the largest tensor has {most} in a row"
                    )
        layers = self.header.numbers.get(f"{self.header.architecture}.block_count", 0)
        if layers > len(self.header.tensors):
            raise DamagedFile(f"{layers} layers from {len(self.header.tensors)} tensors")
