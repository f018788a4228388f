"""Journal of texts that are being generated: a killed run goes on from the last tokens it wrote."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sapwood.common.cache_dir import write_cached

SAVE_S = 15.0  # between two writes


@dataclass(frozen=True, slots=True)
class WrittenText:
    """Tokens that were added to a text, and whether no more are to come."""

    tokens: list[int]
    finished: bool


@dataclass
class TextJournal:
    """The texts of one phase of a shard, by their number, in a file."""

    path: Path
    texts: dict[int, WrittenText] = field(default_factory=dict)
    saved: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, path: Path) -> "TextJournal":
        """The journal in this file; an empty one if there is none that can be read."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            texts = {
                int(number): WrittenText([int(token) for token in tokens], bool(finished))
                for number, (tokens, finished) in record.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            texts = {}
        return cls(path, texts)

    def is_due(self) -> bool:
        """True when the last write is long enough ago."""
        return time.monotonic() - self.saved >= SAVE_S

    def note(self, texts: Mapping[int, WrittenText]) -> None:
        """Write these texts beside the earlier ones."""
        self.texts.update(texts)
        record = {number: [text.tokens, text.finished] for number, text in self.texts.items()}
        write_cached(self.path, json.dumps(record).encode())
        self.saved = time.monotonic()

    def close(self) -> None:
        """Delete the file: the shard is complete."""
        self.path.unlink(missing_ok=True)
