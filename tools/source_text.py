"""Read declarations from the source: signatures, fields and their comments, without an import."""

import ast
import io
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 88  # columns of a signature on a page
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FieldText:
    """A field of a class: its name, type and default as written, and the comment beside it."""

    name: str
    kind: str
    default: str | None
    comment: str


@cache
def parsed(path: Path) -> tuple[ast.Module, tuple[tuple[int, str], ...], tuple[str, ...]]:
    """The syntax tree of a file, its comments by line, and its lines."""
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = tuple(
        (token.start[0], token.string.removeprefix("#").strip())
        for token in tokens
        if token.type == tokenize.COMMENT
    )
    return ast.parse(text), comments, tuple(text.splitlines())


def find(path: Path, name: str) -> ast.ClassDef | Function:
    """The class or function of this name at the top of a file."""
    for node in parsed(path)[0].body:
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
    raise SystemExit(f"{path} has no {name}")


def comment_of(path: Path, first: int, last: int) -> str:
    """The comments on these lines, and those on lines of their own right above them."""
    comments = dict(parsed(path)[1])
    lines = parsed(path)[2]
    above: list[str] = []
    line = first - 1
    while line in comments and lines[line - 1].lstrip().startswith("#"):
        above.insert(0, comments[line])
        line -= 1
    beside = [comments[line] for line in range(first, last + 1) if line in comments]
    return " ".join([*above, *beside])


def fields_of(path: Path, node: ast.ClassDef) -> Iterator[FieldText]:
    """The annotated fields of a class."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            default = None if item.value is None else ast.unparse(item.value)
            kind = ast.unparse(item.annotation)
            comment = comment_of(path, item.lineno, item.end_lineno or item.lineno)
            yield FieldText(item.target.id, kind, default, comment)


def methods_of(node: ast.ClassDef) -> Iterator[Function]:
    """The public methods of a class, with its constructor."""
    for item in node.body:
        if not isinstance(item, Function) or is_overload(item):
            continue
        if item.name == "__init__" or not item.name.startswith("_"):
            yield item


def is_overload(node: Function) -> bool:
    """True for one of several types of a method, whose body comes later."""
    return any(ast.unparse(item).endswith("overload") for item in node.decorator_list)


def is_property(node: Function) -> bool:
    """True for a property."""
    return any(ast.unparse(item).endswith("property") for item in node.decorator_list)


def signature(path: Path, node: Function, name: str = "") -> str:
    """A function's head with the comments beside its arguments."""
    spec = node.args
    plain = [*spec.posonlyargs, *spec.args]
    offset = len(plain) - len(spec.defaults)
    pairs: list[tuple[ast.arg, ast.expr | None, str]] = []
    for place, each in enumerate(plain):
        pairs.append((each, spec.defaults[place - offset] if place >= offset else None, ""))
    if spec.vararg:
        pairs.append((spec.vararg, None, "*"))
    made = [argument(path, each, default, mark) for each, default, mark in pairs]
    if spec.kwonlyargs:
        if not spec.vararg:
            made.append(("*", ""))
        for each, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            made.append(argument(path, each, default, ""))
    if spec.kwarg:
        made.append(argument(path, spec.kwarg, None, "**"))
    made = [item for item in made if item[0] not in ("self", "cls")]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not name else ""
    return joined(name or node.name, made, returns)


def argument(path: Path, each: ast.arg, default: ast.expr | None, mark: str) -> tuple[str, str]:
    """One argument as written, and the comment beside it."""
    kind = f": {ast.unparse(each.annotation)}" if each.annotation else ""
    value = f" = {ast.unparse(default)}" if default else ""
    last = (default or each.annotation or each).end_lineno or each.lineno
    return f"{mark}{each.arg}{kind}{value}", comment_of(path, each.lineno, last)


def joined(name: str, made: Sequence[tuple[str, str]], returns: str) -> str:
    """A call on one line if it is short enough, else one argument per line."""
    line = f"{name}({', '.join(text for text, _ in made)}){returns}"
    if len(line) <= WIDTH and not any(comment for _, comment in made):
        return line
    body = [f"    {text},{f'  # {comment}' if comment else ''}" for text, comment in made]
    return "\n".join([f"{name}(", *body, f"){returns}"])


def docstring(node: ast.AST) -> str:
    """The docstring as text."""
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | Function) else None
    return textwrap.dedent(text or "").strip()
