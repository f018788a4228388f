"""Write what the code already says into the documents: tables of methods, and files shown in full.

python tools/tables.py            write docs/methods.md and the marked blocks of other documents
python tools/tables.py --check    change nothing; exit with code 1 if a document differs
"""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from sapwood import methods
from sapwood.cli.methods import parts, recipes
from sapwood.records import Draw

ROOT = Path(__file__).parents[1]
MARKED = ("README.md", "docs/adding-a-method.md")  # documents with blocks between marks
METHODS = "docs/methods.md"
# (opening mark, its argument), old text, closing mark
BLOCK = re.compile(
    r"(<!-- (?P<what>methods|file)(?: (?P<path>[\w./-]+))? -->\n)(?P<old>.*?)(<!-- /(?P=what) -->)", re.DOTALL
)

TITLES = {
    "drafter": ("Drafters", "propose children of a node", ("draws", "needs")),
    "policy": ("Policies", "choose which nodes to grow and which to keep", ("prunes",)),
    "estimator": ("Estimators", "say how likely a node is to be accepted; an option of a policy", ()),
    "verifier": (
        "Verifiers",
        "turn tree and target law into an accepted path and one more token",
        ("accepts", "guarantee"),
    ),
    "controller": ("Controllers", "set the next round's budget", ()),
}
PREFACE = """\
<!-- written by tools/tables.py from the classes themselves: change those, then run it again -->

# Methods

A recipe is a drafter, a policy, a verifier and a controller, spelled `name(key=value, ...) + ...`. A name from the
first table stands for a whole recipe; any part of it can be replaced by another from the tables below.

Guarantees: **text** is the same text as plain decoding from the same seed, **law** the same distribution, **lossy**
a declared departure. Draws say how siblings are chosen: **topk** the best tokens, **iid** independent draws, **swor**
draws without replacement, **mixed** both. A policy that prunes **nodes** looks at their tokens, one that prunes
**groups** does not.
"""


def main(arguments: list[str]) -> int:
    """Write the documents, or compare them; the exit code."""
    made = {METHODS: page(), **{name: filled((ROOT / name).read_text()) for name in MARKED if (ROOT / name).exists()}}
    stale = [name for name, text in made.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if "--check" not in arguments:
        for name in stale:
            (ROOT / name).write_text(made[name])
        return 0
    for name in stale:
        sys.stderr.write(f"{name} differs from the code; run python tools/tables.py\n")
    return 1 if stale else 0


def page() -> str:
    """The whole of docs/methods.md."""
    built_in = [row for row in parts() if f"{row['family']}.{row['name']}" in methods.TABLE]
    sections = [PREFACE, "## Recipes\n", recipe_table(("name", "system", "paper", "guarantee", "training", "recipe"))]
    for family, (title, verb, declared) in TITLES.items():
        heads = ["name", "what it does", "paper", *declared, "options", "lines"]
        rows = [part_row(row, declared) for row in built_in if row["family"] == family]
        sections += [f"## {title}\n", f"They {verb}.\n", table(heads, rows)]
    return "\n".join(sections)


def filled(text: str) -> str:
    """A document with its marked blocks written anew."""

    def block(match: re.Match[str]) -> str:
        what, path = match["what"], match["path"]
        new = recipe_table(("name", "system", "paper", "guarantee")) if what == "methods" else shown(ROOT / path)
        return f"{match[1]}{new}{match[5]}"

    return BLOCK.sub(block, text)


def shown(path: Path) -> str:
    """A file as a code block."""
    return f"```{path.suffix.removeprefix('.').replace('py', 'python')}\n{path.read_text()}```\n"


def recipe_table(keys: tuple[str, ...]) -> str:
    """The named recipes, with these columns."""
    shape = {"name": code, "recipe": code, "paper": link}
    return table(list(keys), [[shape.get(key, str)(row[key]) for key in keys] for row in recipes()])


def part_row(row: dict[str, Any], declared: tuple[str, ...]) -> list[str]:
    """One part as a row of its family's table."""
    made = methods.lookup(row["family"], row["name"])
    source = Path(inspect.getsourcefile(made) or "")
    lines = f"[{len(source.read_text().splitlines())}](../{source.relative_to(ROOT)})"
    options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
    says = [kinds(made, row, key) for key in declared]
    return [code(row["name"]), row["summary"], link(row["paper"]), *says, code(options), lines]


def kinds(made: type, row: dict[str, Any], key: str) -> str:
    """What a part declares, in one cell."""
    if key == "draws" and isinstance(inspect.getattr_static(made, key, None), property):
        return "as its drafters"
    if key == "draws" and key in [option.name for option in dataclasses.fields(made)]:
        return f"any, {row[key]} by default"
    value = row[key] if isinstance(row[key], list) else [row[key]]
    return "any" if set(value) == {draw.value for draw in Draw} else ", ".join(value)


def code(text: str) -> str:
    """Text as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def link(paper: str) -> str:
    """A paper as a link, where its name shows where it is."""
    if re.fullmatch(r"\d{4}\.\d{4,5}", paper):
        return f"[{paper}](https://arxiv.org/abs/{paper})"
    return f"[{paper}](https://{paper})" if re.match(r"[\w-]+\.(com|org)/", paper) else paper


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    body = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
