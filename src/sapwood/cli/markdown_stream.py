"""Markdown of an answer on a terminal while it is written: finished blocks stay, the last redraws.

A block (paragraph, list, table, code) is finished when another one begins. Only the last block is
drawn again as it grows, so a line is wrapped between words even if a word came in two pieces.
"""

import itertools
import time
from types import TracebackType
from typing import Self

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments

REDRAW_S = 0.08  # between two drawings of the last block
SPARE = 2  # lines of the terminal that the last block leaves free
# all but tab and line feed: text of a model cannot move the cursor or change the terminal
CONTROL = {code: None for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
# tags are shown as text: rich leaves them out, and with them a model's <think>
PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class AnswerMarkdown(Markdown):
    """Markdown with tags shown as text and addresses beside their links."""

    def __init__(self, text: str) -> None:
        super().__init__(text, hyperlinks=False)
        self.parsed = PARSER.parse(text)


class LastLines:
    """The last lines of a block, as many as the terminal holds."""

    def __init__(self, block: str) -> None:
        self.block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(AnswerMarkdown(self.block), options, pad=False)
        for line in lines[-max(options.max_height - SPARE, 1) :]:
            yield Segments(line)
            yield Segment.line()


class MarkdownStream:
    """Writes an answer to a console piece by piece; a context that ends with all of it written."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.text = ""  # of blocks that are not finished
        self.started = False  # True once a block was printed: a blank line separates the next
        self._drawn = 0.0  # time of the last drawing
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        if self.text.strip():
            self._print(self.text)

    def write(self, text: str) -> None:
        """Add text; finished blocks are printed for good."""
        self.text += text.translate(CONTROL)
        finished, self.text = split_finished(self.text)
        for block in finished:
            self._print(block)
        now = time.monotonic()
        if finished or now - self._drawn > REDRAW_S:
            self._drawn = now
            self._live.update(LastLines(self.text), refresh=True)

    def _print(self, block: str) -> None:
        if self.started:
            self.console.print()
        self.started = True
        self.console.print(AnswerMarkdown(block))


def split_finished(text: str) -> tuple[list[str], str]:
    """The finished blocks of a text, and the rest, which more text may still change."""
    starts = [
        token.map[0]
        for token in PARSER.parse(text)
        if token.level == 0 and token.map is not None and token.nesting >= 0
    ]
    if len(starts) < 2:
        return [], text
    lines = text.splitlines(keepends=True)
    bounds = [0, *starts[1:]]
    blocks = ["".join(lines[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return blocks, "".join(lines[bounds[-1] :])
