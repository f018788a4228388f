"""A sandbox for the programs that come with models: no way out, and an end to time and memory.

Jinja's own sandbox keeps a template away from Python's inside and bounds `range`. Here loops and macros count the
time they take, and whatever could make a text or list of any size asks first. Constant parts are no exception: Jinja
computes them while it compiles, by the same guarded operations.
"""

import functools
import time
from collections.abc import Callable, Sized
from typing import Any

from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

SECONDS = 0.5  # of the thread's own time that one run may take
SIZE = 8 << 20  # characters of a text, and entries of a list
WIDTH = 100_000  # largest number a filter or method may be given
POWER = 256  # largest exponent
TICK, JOIN = "tick_of_sandbox", "join_in_sandbox"


class TooMuch(Exception):
    """A template took more time or room than it may."""


class Meter:
    """The time of one run."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds, self.end = seconds, time.thread_time() + seconds

    def tick(self) -> None:
        """Called by every turn of a loop and every call of a macro."""
        if time.thread_time() > self.end:
            raise TooMuch(f"it runs for more than {self.seconds:g} s")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with an end to everything."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters = {name: guarded(name, made) for name, made in self.filters.items()}
        self.globals[JOIN] = join
        del self.globals["lipsum"]  # writes as much nonsense as it is asked for

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be too large."""
        if operator == "**" and not (abs(right) <= POWER and abs(left) <= WIDTH):
            raise TooMuch("it computes a power beyond reason")
        if operator == "*":
            check(max(size(left), 1) * max(size(right), 1) if size(left) or size(right) else 0)
            for factor, other in ((left, right), (right, left)):
                if size(factor) and isinstance(other, int):
                    check(size(factor) * other)
        if operator == "+":
            check(size(left) + size(right))
        if operator == "%" and isinstance(left, str):
            check_digits(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, *args: Any, **named: Any) -> Any:
        """Call a method as `guarded` does a filter."""
        owner = getattr(called, "__self__", None)
        if isinstance(owner, str | list | dict):
            refuse(getattr(called, "__name__", ""), owner, args, named)
        return super().call(context, called, *args, **named)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """A text's `format`, as Jinja guards it, and as `guarded` does."""
        found = super().wrap_str_format(value)
        return None if found is None else guarded("format", functools.partial(found), value.__self__)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found: nodes.Template = Metered().visit(super()._parse(source, name, filename))
        return found


class Metered(NodeTransformer):
    """Puts a tick into every loop and macro, and has texts joined by a function that asks first."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (named after the node)
        """A loop."""
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        """A macro."""
        return self._ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        """A block that is handed to a macro."""
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Texts side by side, written with ~."""
        self.generic_visit(node)
        return call(JOIN, node.nodes, node.lineno)

    def _ticking(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body = [nodes.ExprStmt(call(TICK, [], node.lineno), lineno=node.lineno), *node.body]
        return node  # type: ignore[no-any-return]


def call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """A call of one of our functions, in a template."""
    return nodes.Call(nodes.Name(name, "load", lineno=line), arguments, [], None, None, lineno=line)


def join(*texts: Any) -> str:
    """Texts side by side."""
    pieces = [str(text) for text in texts]
    check(sum(map(len, pieces)))
    return "".join(pieces)


def guarded(name: str, made: Callable[..., Any], owner: Any = None) -> Callable[..., Any]:
    """A filter, or a method of `owner`, that refuses to make something huge."""
    first = 0 if owner is not None else 1 + hasattr(made, "jinja_pass_arg")  # of what it is asked for

    @functools.wraps(made)
    def ask(*args: Any, **named: Any) -> Any:
        refuse(name, args[first - 1] if owner is None and len(args) >= first else owner, args[first:], named)
        return made(*args, **named)

    return ask


def refuse(name: str, owner: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse a filter or method by what it was given: numbers that are widths, texts that are multiplied."""
    for value in (*args, *named.values()):
        if isinstance(value, int) and abs(value) > WIDTH:
            raise TooMuch(f"it asks {name} for {value}")
    texts = [value for value in args if isinstance(value, str)]
    if name == "replace" and len(texts) >= 2:
        old, new = texts[-2:]
        check((str(owner).count(old) if old else len(str(owner)) + 1) * len(new))
    if name == "join":
        pieces = [owner, *args] if isinstance(owner, list) else [*args]
        items = [item for piece in pieces if isinstance(piece, list | tuple) for item in piece]
        glue = max([size(text) for text in (owner, *args) if isinstance(text, str)], default=0)
        check(sum(size(item) for item in items) + glue * len(items))
    if name in ("format", "format_map"):
        check_digits(str(owner))


def check_digits(form: str) -> None:
    """Refuse a format with a width of six digits or more, or one that is computed."""
    digits = 0
    for letter in form:
        digits = digits + 1 if letter.isdigit() else 0
        if digits > 5 or letter == "*":
            raise TooMuch("it formats to a width beyond reason")


def size(value: Any) -> int:
    """Entries or characters; 0 of what has none."""
    return len(value) if isinstance(value, str | list | tuple | dict) and isinstance(value, Sized) else 0


def check(count: int) -> None:
    """Refuse a text or list of so many."""
    if count > SIZE:
        raise TooMuch(f"it makes something of more than {SIZE} characters or entries")
