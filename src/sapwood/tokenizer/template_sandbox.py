"""A sandbox for chat templates that limits their time and memory.

Jinja's own sandbox keeps a template from Python's internals and bounds `range`. Here loops and
macros also check the time, and every operation that could make a huge text or list checks its
size first. Constant expressions are no exception: Jinja evaluates them while it compiles, with
the same guarded operations.
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


class TemplateLimit(Exception):
    """A template exceeded its time or memory limit."""


class TimeLimit:
    """Time limit of one run of a template."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.end = time.thread_time() + seconds

    def tick(self) -> None:
        """Check the time; called in every turn of a loop and every call of a macro."""
        if time.thread_time() > self.end:
            raise TemplateLimit(f"it runs for more than {self.seconds:g} s")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits on time, sizes and numbers."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters = {name: guarded(name, made) for name, made in self.filters.items()}
        self.globals[JOIN] = join
        del self.globals["lipsum"]  # writes text of any length

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be too large."""
        if operator == "**" and not (abs(right) <= POWER and abs(left) <= WIDTH):
            raise TemplateLimit("it computes too large a power")
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
        """Call a method with the checks that `guarded` has for a filter."""
        owner = getattr(called, "__self__", None)
        if isinstance(owner, str | list | dict):
            check_arguments(getattr(called, "__name__", ""), owner, args, named)
        return super().call(context, called, *args, **named)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` with Jinja's checks and those of `guarded`."""
        found = super().wrap_str_format(value)
        return (
            None if found is None else guarded("format", functools.partial(found), value.__self__)
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found: nodes.Template = LimitedCompiler().visit(super()._parse(source, name, filename))
        return found


class LimitedCompiler(NodeTransformer):
    """Adds a time check to loops and macros, and a size check to concatenation."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (named after the node)
        """Add a time check to a loop."""
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        """Add a time check to a macro."""
        return self._ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        """Add a time check to a block that is passed to a macro."""
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Concatenate the operands of ~ by `join`."""
        self.generic_visit(node)
        return call(JOIN, node.nodes, node.lineno)

    def _ticking(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body = [nodes.ExprStmt(call(TICK, [], node.lineno), lineno=node.lineno), *node.body]
        return node  # type: ignore[no-any-return]


def call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """A template's call of one of the sandbox's functions."""
    return nodes.Call(nodes.Name(name, "load", lineno=line), arguments, [], None, None, lineno=line)


def join(*texts: Any) -> str:
    """Concatenate texts, after a check of their length."""
    pieces = [str(text) for text in texts]
    check(sum(map(len, pieces)))
    return "".join(pieces)


def guarded(name: str, made: Callable[..., Any], owner: Any = None) -> Callable[..., Any]:
    """A filter, or a method of `owner`, that checks its arguments before it runs."""
    # index of the first option among the arguments
    first = 0 if owner is not None else 1 + hasattr(made, "jinja_pass_arg")

    @functools.wraps(made)
    def checked(*args: Any, **named: Any) -> Any:
        value = args[first - 1] if owner is None and len(args) >= first else owner
        check_arguments(name, value, args[first:], named)
        return made(*args, **named)

    return checked


def check_arguments(name: str, owner: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse arguments that would make something huge: widths, and texts that are multiplied."""
    for value in (*args, *named.values()):
        if isinstance(value, int) and abs(value) > WIDTH:
            raise TemplateLimit(f"it asks {name} for {value}")
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
    for char in form:
        digits = digits + 1 if char.isdigit() else 0
        if digits > 5 or char == "*":
            raise TemplateLimit("it formats to too large a width")


def size(value: Any) -> int:
    """Entries or characters of a value; 0 when it has none."""
    sized = isinstance(value, str | list | tuple | dict) and isinstance(value, Sized)
    return len(value) if sized else 0


def check(count: int) -> None:
    """Refuse a text or list of more than `SIZE` characters or entries."""
    if count > SIZE:
        raise TemplateLimit(f"it makes something of more than {SIZE} characters or entries")
