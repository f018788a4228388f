"""The page of the Python API: signatures as written, with the comments beside their arguments."""

import ast

from tools.source_text import (
    ROOT,
    FieldText,
    docstring,
    fields_of,
    find,
    is_property,
    methods_of,
    signature,
)

PREFACE = """\
<!-- written by tools/reference.py from the source: change that, then run `make tables` -->

# Python API

Everything here can be imported from the module that its section names; what is listed under
`sapwood` is loaded when it is first used, so `import sapwood` costs nothing.
"""
# module to import from, what it is for, and (file, names)
SECTIONS: tuple[tuple[str, str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    (
        "sapwood",
        "A model that generates text, and its results.",
        (
            ("llm.py", ("LLM",)),
            ("engine/outputs.py", ("Completion", "Stats", "Step")),
            ("engine/sampling_options.py", ("SamplingOptions",)),
            ("core/sampling.py", ("Sampling",)),
            ("errors.py", ("SapwoodError",)),
        ),
    ),
    (
        "sapwood",
        "The parts of a recipe, and the tree they work on.",
        (
            ("recipe.py", ("Recipe",)),
            ("core/part.py", ("Part",)),
            ("core/tree.py", ("Tree",)),
        ),
    ),
    (
        "sapwood.structured_output",
        "Grammars that an output must follow.",
        (("structured_output/grammar.py", ("json_schema", "json_object", "regex", "lark")),),
    ),
    (
        "sapwood.core.protocols",
        "The protocols that a backend and the five families of parts implement.",
        (
            (
                "core/protocols.py",
                (
                    "Backend",
                    "Session",
                    "TargetOutput",
                    "Drafter",
                    "Policy",
                    "Estimator",
                    "Verifier",
                    "Controller",
                ),
            ),
        ),
    ),
    (
        "sapwood.testing",
        "Checks for a part or a backend of your own.",
        (
            ("testing/contracts.py", ("check_part",)),
            ("testing/backend_contract.py", ("check_backend",)),
            ("testing/exact.py", ("law_error",)),
            ("testing/divergence.py", ("departure",)),
            ("testing/yields.py", ("expected_tokens",)),
        ),
    ),
)


def page() -> str:
    """The whole page."""
    made = [PREFACE]
    for module, title, files in SECTIONS:
        made.append(f"## {title.rstrip('.')}\n\n`from {module} import ...`\n")
        for name, names in files:
            made += [entry(name, each) for each in names]
    return "\n".join(made)


def entry(file: str, name: str) -> str:
    """The section of a class or function."""
    path = ROOT / "src" / "sapwood" / file
    node = find(path, name)
    source = f"[`{file}`](../../src/sapwood/{file})"
    if not isinstance(node, ast.ClassDef):
        return f"### {name}\n\n{block(signature(path, node))}\n{docstring(node)} ({source})\n"
    made = [f"### {name}\n", f"{docstring(node)} ({source})\n"]
    fields = [
        field
        for field in fields_of(path, node)
        if not field.name.startswith("_") and not field.name.endswith("_")
    ]
    if fields:
        made.append(table(fields))
    for method in methods_of(node):
        if method.name == "__init__":
            made.append(block(signature(path, method, name)))
        elif is_property(method):
            made.append(f"- `{name.lower()}.{method.name}`: {first_line(method)}\n")
        else:
            made.append(f"{block(signature(path, method))}\n{docstring(method)}\n")
    return "\n".join(made)


def first_line(node: ast.AST) -> str:
    """The first line of a docstring."""
    return docstring(node).partition("\n")[0]


def block(code: str) -> str:
    """Code as a block."""
    return f"```python\n{code}\n```\n"


def table(fields: list[FieldText]) -> str:
    """The fields of a class."""
    rows = []
    for field in fields:
        cells = [f"`{field.name}`", f"`{escaped(field.kind)}`", default(field)]
        rows.append(f"| {' | '.join([*cells, escaped(field.comment)])} |")
    return "\n".join(["| field | type | default | |", "| --- | --- | --- | --- |", *rows]) + "\n"


def default(field: FieldText) -> str:
    """A field's default as a cell."""
    return "" if field.default is None else f"`{escaped(field.default)}`"


def escaped(text: str) -> str:
    """A text with escaped bars, for the cell of a table."""
    return text.replace("|", "\\|")
