"""Small faults that can be put into a Python function: where they fit, and the changed code.

A mutation replaces one node of a function's syntax tree. It is known by the file, the function, the
operator and its place among the mutations of that operator in that function, so that its identity
survives any edit outside the function.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
    "any": "all",
    "all": "any",
}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPE = (*FUNCTION, ast.ClassDef)
# parts of a tree that say nothing of behaviour, or whose fault is a wrong message only
UNTOUCHED = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
ANNOTATIONS = {"annotation", "returns", "decorator_list", "type_params"}


@dataclass(frozen=True)
class Mutation:
    """One changed node of one function."""

    file: str  # below src/sapwood
    function: str  # qualified name
    operator: str
    index: int  # among the mutations of this operator in this function
    line: int
    old: ast.AST
    new: ast.AST
    holder: Any  # the list or node that holds the old node
    key: Any  # where it holds it

    @property
    def identity(self) -> str:
        """Name of the mutation that does not depend on line numbers."""
        return f"{self.file}::{self.function}::{self.operator}#{self.index}"

    @property
    def change(self) -> str:
        """Old and new code on one line."""
        return f"{brief(self.old)}  ->  {brief(self.new)}"

    def apply(self) -> None:
        """Put the new node in the place of the old one."""
        ast.copy_location(self.new, self.old)
        ast.fix_missing_locations(self.new)
        if isinstance(self.holder, list):
            self.holder[self.key] = self.new
        else:
            setattr(self.holder, self.key, self.new)


def brief(node: ast.AST) -> str:
    """Code of a node, cut to one readable line."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else text[:87] + "..."


def mutations(module: ast.Module, file: str) -> Iterator[Mutation]:
    """Every mutation of the functions of a module, in the order of the code."""
    for function, name in functions(module):
        counts: Counter[str] = Counter()
        for holder, key, node in slots(function):
            for operator, new in variants(node, function):
                line = getattr(node, "lineno", function.lineno)
                yield Mutation(file, name, operator, counts[operator], line, node, new, holder, key)
                counts[operator] += 1


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[ast.FunctionDef, str]]:
    """The functions of a module with their qualified names, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPE):
            name = f"{prefix}{child.name}"
            if isinstance(child, ast.FunctionDef):
                yield child, name
            yield from functions(child, f"{name}.")
        else:
            yield from functions(child, prefix)


def slots(node: ast.AST) -> Iterator[tuple[Any, Any, ast.AST]]:
    """Nodes of a function's body with their holders; inner functions are left out."""
    for field, value in ast.iter_fields(node):
        if field in ANNOTATIONS:
            continue
        holder = value if isinstance(value, list) else node
        children = list(enumerate(value)) if isinstance(value, list) else [(field, value)]
        for key, child in children:
            if not isinstance(child, ast.AST) or isinstance(child, (*SCOPE, *UNTOUCHED)):
                continue
            yield holder, key, child
            if not isinstance(child, ast.Raise):
                yield from slots(child)


def variants(node: ast.AST, function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    """The ways to change one node, each with the name of its operator."""
    if isinstance(node, ast.stmt):
        yield from of_statement(node, function)
    elif isinstance(node, ast.Call):
        yield from of_call(node)
    elif isinstance(node, ast.expr):
        yield from of_expression(node)


def of_statement(node: ast.stmt, function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    """Statements are dropped, conditions negated, loops left instead of continued."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "drop", ast.Pass()
    elif isinstance(node, ast.Assign):
        # a name that is never set fails at once, as does an attribute missing in __init__
        place = isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        if place and function.name != "__init__":
            yield "drop", ast.Pass()
    elif isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Return):
        if not isinstance(node, ast.Return) or node is not function.body[-1]:
            yield "drop", ast.Pass()
    elif isinstance(node, ast.If):
        negated = ast.UnaryOp(ast.Not(), node.test)
        yield "negate", changed(node, test=negated)
    elif isinstance(node, ast.Break):
        yield "loop", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "loop", ast.Break()


def of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """Opposite functions, exchanged arguments, arguments left to their defaults."""
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name in NAMES:
        field = "id" if isinstance(node.func, ast.Name) else "attr"
        yield "opposite", changed(node, func=changed(node.func, **{field: NAMES[name]}))
    if name == "reversed" and len(node.args) == 1:
        yield "order", ast.Call(ast.Name("iter", ast.Load()), node.args, [])
    plain = not any(isinstance(each, ast.Starred) for each in node.args[:2])
    if len(node.args) > 1 and plain and name not in {*NAMES, "isinstance", "getattr", "zip"}:
        first, second, *others = node.args
        if ast.dump(first) != ast.dump(second):
            yield "swap", changed(node, args=[second, first, *others])
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in {None, "strict", "dtype"}:
            rest = [each for other, each in enumerate(node.keywords) if other != place]
            yield "default", changed(node, keywords=rest)


def of_expression(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    """Comparisons, signs, constants and branches."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "compare", changed(node, ops=[COMPARE[type(node.ops[0])]()])
    elif isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            ops = [*node.ops[:place], COMPARE[type(operator)](), *node.ops[place + 1 :]]
            yield "compare", changed(node, ops=ops)
    elif isinstance(node, ast.BoolOp):
        yield "bool", changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield "arithmetic", changed(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield "sign", node.operand
    elif isinstance(node, ast.IfExp):
        yield "branch", changed(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)


def changed(node: ast.AST, **fields: Any) -> ast.AST:
    """A copy of a node with other fields; what it holds is shared with the original."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def read(root: Path, file: str) -> ast.Module:
    """The syntax tree of a source file."""
    return ast.parse((root / file).read_text(), filename=str(root / file))
