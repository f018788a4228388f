"""Commands of a chat: what a line that begins with a slash does to the conversation."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.common.suggest import suggestion
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from sapwood.llm import LLM

HELP = "/help lists the commands, /exit leaves"
ALIASES = {"/quit": "/exit", "/reset": "/clear"}


@dataclass
class ChatSession:
    """A model, the recipe in use, and the messages so far."""

    llm: "LLM"
    title: str  # of the recipe
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    over: bool = False  # True once the user left

    @property
    def messages(self) -> list[dict[str, str]]:
        """The system message and all turns."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def add(self, question: str, answer: str) -> None:
        """Append a turn of each side."""
        self.turns += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]


def show_help(chat: ChatSession, rest: str) -> str:
    """The list of all commands."""
    width = max(len(f"{name} {command.argument}") for name, command in COMMANDS.items())
    rows = [
        f"{f'{name} {command.argument}':<{width}}  {command.help}"
        for name, command in COMMANDS.items()
    ]
    keys = (
        "Alt-Enter, or a message between two lines of three quotes, writes several lines; "
        "Ctrl-C stops an answer; a space before the slash sends the line as it is"
    )
    return "\n".join([*rows, keys])


def leave(chat: ChatSession, rest: str) -> str:
    """End the chat."""
    chat.over = True
    return ""


def clear(chat: ChatSession, rest: str) -> str:
    """Forget all turns; the system message stays."""
    chat.turns.clear()
    return "the conversation starts over"


def set_system(chat: ChatSession, rest: str) -> str:
    """Show the system message, or set it from here on."""
    if rest:
        chat.system = None if rest == "none" else rest
    return f"system: {chat.system or 'none'}"


def set_recipe(chat: ChatSession, rest: str) -> str:
    """Show the recipe, or go on with another one."""
    if rest:
        chat.llm = chat.llm.with_recipe(rest)
        chat.title = rest
    return f"recipe: {chat.title} ({chat.llm.recipe})"


def save(chat: ChatSession, rest: str) -> str:
    """Write the conversation to a new file: messages as JSON if it ends in .json, else Markdown."""
    if not rest:
        raise SapwoodError("/save needs a file, such as chat.md or chat.json")
    path = Path(rest).expanduser()
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(as_json(chat) if path.suffix == ".json" else as_markdown(chat))
    except FileExistsError as error:
        raise SapwoodError(f"{path} exists; name another file") from error
    except OSError as error:
        raise SapwoodError(f"{path} cannot be written ({error}); name another file") from error
    return f"{len(chat.messages)} messages saved in {path}"


def as_json(chat: ChatSession) -> str:
    """The messages, as clients of the server send them."""
    return json.dumps(chat.messages, ensure_ascii=False, indent=2) + "\n"


def as_markdown(chat: ChatSession) -> str:
    """The messages under the names of their roles."""
    parts = [f"**{message['role']}**\n\n{message['content']}\n" for message in chat.messages]
    return "\n".join(parts)


@dataclass(frozen=True)
class ChatCommand:
    """One command: its argument and description in the help, and the function that runs it."""

    argument: str
    help: str
    run: Callable[[ChatSession, str], str]


COMMANDS = {
    "/help": ChatCommand("", "list the commands", show_help),
    "/exit": ChatCommand("", "end the chat; so does Ctrl-D", leave),
    "/clear": ChatCommand("", "forget the conversation, but not the system message", clear),
    "/system": ChatCommand("[TEXT]", "show or set the system message; none removes it", set_system),
    "/recipe": ChatCommand("[NAME]", "show or change the recipe", set_recipe),
    "/save": ChatCommand("FILE", "write the conversation as Markdown, or as JSON", save),
}


def run_command(chat: ChatSession, line: str) -> str:
    """Run the command of a line and return its answer; raises an error for an unknown one."""
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        raise SapwoodError(f"{name} is no command; {suggestion(name, COMMANDS, HELP)}")
    return command.run(chat, rest.strip())


def complete(line: str) -> Iterable[str]:
    """Words that may stand at the end of a line: commands, and recipes after /recipe."""
    if line.startswith("/recipe "):
        from sapwood.recipes import RECIPES

        return RECIPES
    return COMMANDS if line.startswith("/") and " " not in line else ()
