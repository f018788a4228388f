"""Markdown while it is written: blocks, words that come in pieces, long blocks, odd characters."""

import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sapwood.cli.markdown_stream import AnswerMarkdown, LastLines, MarkdownStream, split_finished

TEXT = """# Uses

A paperclip holds *several* sheets of paper together without a hole in any of them.

1. It opens the tray of a drive.

   A second paragraph of the same item.
2. It resets a router.

```python
print("one")

print("two")
```

| a | b |
|---|---|
| 1 | 2 |

<think>shown</think>

Done.
"""


def console(width: int = 40, *, terminal: bool = True, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None
    )


def printed(text: str, pieces: list[str], width: int = 40) -> str:
    """Lines that are left on the screen: not those of drawings that were erased."""
    screen = console(width, terminal=False)
    with MarkdownStream(screen) as stream:
        for piece in pieces:
            stream.write(piece)
    assert "".join(pieces) == text
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_only_the_last_block_may_still_change() -> None:
    blocks, rest = split_finished(TEXT)
    assert "".join(blocks) + rest == TEXT
    assert [block.split()[0] for block in blocks] == [
        "#",
        "A",
        "1.",
        "```python",
        "|",
        "<think>shown</think>",
    ]
    assert rest.strip() == "Done."
    assert split_finished("one line\nof a paragraph") == ([], "one line\nof a paragraph")
    assert split_finished("") == ([], "")
    # code that has not ended holds back everything after its fence
    assert split_finished("a\n\n```\nb\n\nc")[1] == "```\nb\n\nc"


@given(st.lists(st.integers(1, len(TEXT) - 1), max_size=30).map(sorted))
def test_pieces_make_no_difference(cuts: list[int]) -> None:
    bounds = [0, *cuts, len(TEXT)]
    pieces = [TEXT[a:b] for a, b in itertools.pairwise(bounds)]
    assert printed(TEXT, pieces) == printed(TEXT, [TEXT])


@given(st.text(st.sampled_from("ab #*-`1.\n>|~<[]("), max_size=60))
def test_no_text_is_lost_or_crashes(text: str) -> None:
    blocks, rest = split_finished(text)
    assert "".join(blocks) + rest == text
    letters = re.sub(r"[^ab]", "", printed(text, list(text), 200))
    assert letters == re.sub(r"[^ab]", "", printed(text, [text] if text else [], 200))


def test_words_are_not_broken() -> None:
    out = printed(TEXT, list(TEXT), 30)
    shown = {word for line in out.splitlines() for word in line.split()}
    assert {"several", "without", "paragraph", "together", "router."} <= shown
    assert max(len(line) for line in out.splitlines()) <= 30
    assert "<think>shown</think>" in out


def test_a_long_block_shows_its_end() -> None:
    screen = console(height=8)
    screen.print(LastLines("\n".join(f"- item {number}" for number in range(50))))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "item 49" in lines[-1]
    assert len(lines) == 6


def test_a_model_cannot_move_the_cursor() -> None:
    screen = console()
    with MarkdownStream(screen) as stream:
        stream.write("a\x1b[2Jb\x9bc\x07\rd")
    assert "a[2Jbcd" in screen.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in screen.file.getvalue()  # type: ignore[attr-defined]


def test_the_addresses_of_links_are_shown() -> None:
    screen = console(80)
    screen.print(AnswerMarkdown("[the page](https://example.org/x)"))
    assert "https://example.org/x" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_an_interrupt_keeps_what_was_written() -> None:
    screen = console(terminal=False)

    def interrupted() -> None:
        with MarkdownStream(screen) as stream:
            stream.write("half an answer")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "half an answer" in screen.file.getvalue()  # type: ignore[attr-defined]
