"""The header of a GGUF file, read with suspicion: every count and length is held against the file before it is used.

Readers of this format have looped for ever and written past their buffers on files that lie about themselves. This one
makes nothing of a size that the file names unless the file is that large, and looks at the clock. What passes may be
handed to a reader that trusts its input.
"""

import mmap
import struct
import time
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from sapwood.errors import SapwoodError

MAGIC, VERSIONS = b"GGUF", (2, 3)
SECONDS = 20.0  # of reading; a vocabulary of a million words takes two
MOST_FIELDS, MOST_TENSORS = 10_000, 100_000
LONGEST_NAME, LONGEST_TEXT = 1 << 16, 16 << 20  # bytes
MOST_DIMENSIONS, DEEPEST_LIST = 4, 3
LARGEST_ALIGNMENT = 1 << 16
TEXT, LIST = 8, 9  # kinds of values
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
# kind of tensor -> bytes of a block of 1, 32 or 256 numbers; together: -> (numbers, bytes)
PLAIN = {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2}
SMALL = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 9: 40, 20: 18, 39: 17}
LARGE = {10: 84, 11: 110, 12: 144, 13: 176, 14: 210, 15: 292, 16: 66, 17: 74, 18: 98, 19: 50, 21: 110, 22: 82}
LARGE |= {23: 136, 29: 56, 34: 54, 35: 66}
BLOCKS = {kind: (1, size) for kind, size in PLAIN.items()} | {kind: (32, size) for kind, size in SMALL.items()}
BLOCKS |= {kind: (256, size) for kind, size in LARGE.items()} | {40: (64, 36), 41: (128, 18)}
WIDTHS = ("embedding_length", "feed_forward_length", "vocab_size", "attention.key_length", "attention.value_length")
COUNTS = ("block_count", "expert_count", "attention.head_count", "attention.head_count_kv", "expert_used_count")


class Damaged(Exception):
    """What is wrong with a file."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and how large it is."""

    name: str
    shape: tuple[int, ...]
    offset: int  # bytes from the beginning of the data
    size: int  # bytes


@dataclass
class Header:
    """What a file says of itself, found to be possible."""

    numbers: dict[str, int] = field(default_factory=dict)  # whole numbers among the fields
    architecture: str = ""
    tensors: list[TensorInfo] = field(default_factory=list)


def read_header(path: Path, seconds: float = SECONDS) -> Header:
    """The header of a file; one that lies, or takes longer than it may, is refused."""
    if not path.is_file():
        raise SapwoodError(f"{path} is no file; give the path of a .gguf file")
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise SapwoodError(f"{path} is not a GGUF file: it does not start with 'GGUF'; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return Reader(data, seconds).read()
    except Damaged as error:
        raise SapwoodError(f"{path} is a damaged or truncated GGUF file ({error}); download it again") from error
    except OSError as error:
        raise SapwoodError(f"{path} cannot be read ({error}); check the file") from error


class Reader:
    """Goes through a file from its beginning; never past its end."""

    def __init__(self, data: mmap.mmap, seconds: float) -> None:
        self.data, self.at, self.end = data, len(MAGIC), len(data)
        self.seconds, self.deadline, self.header = seconds, time.monotonic() + seconds, Header()

    def read(self) -> Header:
        """All of the header."""
        version = self.number("<I")
        if version not in VERSIONS:
            raise Damaged(f"version {version} is none of {', '.join(map(str, VERSIONS))}")
        tensors = self.count("tensors", MOST_TENSORS)
        fields = self.count("fields", MOST_FIELDS)
        seen: set[str] = set()
        for _ in range(fields):
            name = self.text(LONGEST_NAME)
            if name in seen:
                raise Damaged(f"field {name[:40]!r} comes twice")
            seen.add(name)
            self.value(name, self.number("<I"), 0)
        alignment = self.header.numbers.get("general.alignment", 32)
        if not 0 < alignment <= LARGEST_ALIGNMENT or alignment & (alignment - 1):
            raise Damaged(f"an alignment of {alignment} bytes")
        self.header.tensors = [self.tensor(alignment) for _ in range(tensors)]
        self.check_places(alignment)
        self.check_sizes()
        return self.header

    # ------------------------------------------------------------------------------- pieces
    def take(self, size: int) -> int:
        """Go past so many bytes; where they begin."""
        start = self.at
        if size > self.end - start:
            raise Damaged(f"{size} bytes are announced where {self.end - start} are left")
        self.at = start + size
        return start

    def number(self, form: str) -> int:
        """One number."""
        return int(struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))[0])

    def count(self, what: str, most: int) -> int:
        """How many there are of something."""
        found = self.number("<Q")
        if found > most:
            raise Damaged(f"{found} {what}, more than {most}")
        return found

    def text(self, longest: int) -> str:
        """One text."""
        size = self.number("<Q")
        if size > longest:
            raise Damaged(f"a text of {size} bytes, more than {longest}")
        start = self.take(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise Damaged("a text that is not UTF-8") from error

    def value(self, name: str, kind: int, depth: int) -> None:
        """One value of a field; whole numbers are kept."""
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
            raise Damaged(f"field {name[:40]!r} has values of kind {kind}")

    def list(self, name: str, depth: int) -> None:
        """A list: plain values are passed at once, texts and lists one by one."""
        if depth > DEEPEST_LIST:
            raise Damaged(f"lists are nested more than {DEEPEST_LIST} deep")
        kind, count = self.number("<I"), self.number("<Q")
        if kind in SCALARS:
            self.take(count * struct.calcsize(SCALARS[kind]))
            return
        if kind not in (TEXT, LIST):
            raise Damaged(f"field {name[:40]!r} lists values of kind {kind}")
        if count > (self.end - self.at) // 8:  # a text, and a list, takes eight bytes or more
            raise Damaged(f"a list of {count} where {self.end - self.at} bytes are left")
        for place in range(count):
            if not place % 4096:
                self.look_at_the_clock()
            self.value("", kind, depth)

    def look_at_the_clock(self) -> None:
        """Give up on a file that takes too long."""
        if time.monotonic() > self.deadline:
            raise Damaged(f"reading its header takes more than {self.seconds:g} s")

    def tensor(self, alignment: int) -> TensorInfo:
        """One entry of the table of tensors."""
        name, dimensions = self.text(LONGEST_NAME), self.number("<I")
        if not 0 < dimensions <= MOST_DIMENSIONS:
            raise Damaged(f"tensor {name[:40]!r} has {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))
        kind, offset = self.number("<I"), self.number("<Q")
        if kind not in BLOCKS:
            raise Damaged(f"tensor {name[:40]!r} is of the unknown kind {kind}")
        block, size = BLOCKS[kind]
        if not all(shape) or shape[0] % block:
            raise Damaged(f"tensor {name[:40]!r} has the impossible shape {shape}")
        if offset % alignment:
            raise Damaged(f"tensor {name[:40]!r} begins at {offset}, between two places of {alignment} bytes")
        return TensorInfo(name, shape, offset, prod(shape) // block * size)

    # ------------------------------------------------------------------------------- the whole
    def check_places(self, alignment: int) -> None:
        """Refuse tensors of one name, beyond the end, or on top of each other."""
        data, tensors = -(-self.at // alignment) * alignment, self.header.tensors
        if not tensors:
            raise Damaged("it holds no weights")
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise Damaged("two tensors have one name")
        last = 0
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            if tensor.offset < last:
                raise Damaged(f"tensor {tensor.name[:40]!r} lies on top of another")
            last = tensor.offset + tensor.size
            if data + last > self.end:
                raise Damaged(f"tensor {tensor.name[:40]!r} reaches beyond the end of the file")

    def check_sizes(self) -> None:
        """Refuse sizes of the model that its tensors do not bear out: whoever builds it would build them."""
        widest = max(max(tensor.shape) for tensor in self.header.tensors)
        for names, most in ((WIDTHS, widest), (COUNTS, max(widest, len(self.header.tensors)))):
            for name in names:
                value = self.header.numbers.get(f"{self.header.architecture}.{name}", 0)
                if not 0 <= value <= most:
                    raise Damaged(f"{name} is {value}, but the largest tensor has {most} in a row")
        layers = self.header.numbers.get(f"{self.header.architecture}.block_count", 0)
        if layers > len(self.header.tensors):
            raise Damaged(f"{layers} layers from {len(self.header.tensors)} tensors")
