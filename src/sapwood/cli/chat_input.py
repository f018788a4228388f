"""Lines of a chat: edited with history on a terminal, plain lines from anywhere else."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sapwood.common.cache_dir import cache_folder

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "
MORE = ". "  # before further lines of one message
BLOCK = '"""'  # opens and closes a message of several lines


class ChatReader(Protocol):
    """Reads the user's messages."""

    def read(self) -> str | None:
        """The next message; None at the end of input."""


def open_reader(complete: Callable[[str], Iterable[str]]) -> ChatReader:
    """An editor with history where input and output are a terminal, else plain lines.

    `complete` gives the words that may stand at the end of a line.
    """
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        return TerminalReader(complete)
    return LineReader()


def history_file() -> Path:
    """The file of what was typed in chats, in the cache folder."""
    return cache_folder() / "chat" / "history"


def is_open(text: str) -> bool:
    """True for a message whose block of several lines has not ended."""
    text = text.strip()
    return text.startswith(BLOCK) and (len(text) < 2 * len(BLOCK) or not text.endswith(BLOCK))


def without_marks(text: str) -> str:
    """A message without the marks of a block."""
    text = text.rstrip()
    if text.lstrip().startswith(BLOCK):
        text = text.strip().removeprefix(BLOCK).removesuffix(BLOCK).strip("\n")
    return text


class LineReader:
    """Reads messages from standard input, a line each; a block may have several lines."""

    def read(self) -> str | None:
        """The next message; None at the end of input."""
        text = self._line(PROMPT)
        while text is not None and is_open(text):
            line = self._line(MORE)
            if line is None:
                break
            text += f"\n{line}"
        return None if text is None else without_marks(text)

    def _line(self, prompt: str) -> str | None:
        if sys.stdin is None:
            return None
        try:
            return input(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return None


class TerminalReader:
    """Reads messages from a terminal: editing, history of earlier chats, several lines."""

    def __init__(self, complete: Callable[[str], Iterable[str]]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import CompleteEvent, Completer, Completion
        from prompt_toolkit.document import Document
        from prompt_toolkit.shortcuts import CompleteStyle

        class WordCompleter(Completer):
            """Completes the last word of a command."""

            def get_completions(
                self, document: Document, complete_event: CompleteEvent
            ) -> Iterable[Completion]:
                """Words that begin as the last one does."""
                line = document.text_before_cursor
                last = line.rpartition(" ")[2]
                found = [word for word in complete(line) if word.startswith(last)]
                return [Completion(word, start_position=-len(last)) for word in found]

        self.session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=MORE,
            key_bindings=key_bindings(),
            history=open_history(history_file()),
            completer=WordCompleter(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,  # no lines reserved for a menu
            reserve_space_for_menu=0,
        )

    def read(self) -> str | None:
        """The next message; None at the end of input. Ctrl-C empties the line."""
        while True:
            try:
                return without_marks(self.session.prompt())
            except KeyboardInterrupt:
                sys.stderr.write("Ctrl-D or /exit leaves\n")
            except EOFError:
                return None


def key_bindings() -> "KeyBindings":
    """Enter sends, but adds a line to an open block; Alt-Enter always adds a line."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def add_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def open_history(path: Path) -> "History":
    """The history in a file that only its owner may read; in memory if it cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class SavedHistory(FileHistory):
        """History that loses a line rather than ending the chat."""

        def store_string(self, string: str) -> None:
            """Append a message; characters that are no text become question marks."""
            with contextlib.suppress(OSError):
                super().store_string(string.encode("utf-8", "replace").decode("utf-8"))

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return SavedHistory(str(path))
