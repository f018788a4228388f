"""Write what the code already says into the documents: tables of methods, and files shown in full.

python tools/tables.py            write docs/methods.md and the marked blocks of other documents
python tools/tables.py --check    change nothing; exit with code 1 if a document differs
"""

import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sapwood import methods
from sapwood import recipes as named
from sapwood.cli.methods import parts, recipes
from sapwood.part import Part
from sapwood.recipe import parse
from sapwood.records import Draw
from sapwood.trained import BUILT_IN, SHIPPED

ROOT = Path(__file__).parents[1]
MARKED = ("README.md", "docs/adding-a-method.md")  # documents with blocks between marks
METHODS = "docs/methods.md"
RESULTS = "benchmarks/results/methods.json"  # where the numbers of recipes come from
PAGES, RENAMED = "docs/families", {"selves": "self-drafting"}  # pages of families, and families of another name
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

A recipe is a drafter, a policy, a verifier and a controller, spelled `name(key=value, ...) + ...`. The name of
a published system stands for a whole recipe; any part of it can be replaced by another from the tables of parts.

Guarantees: **text** is the same text as plain decoding from the same seed, **law** the same distribution, **lossy**
a declared departure. Draws say how siblings are chosen: **topk** the best tokens, **iid** independent draws, **swor**
draws without replacement, **mixed** both. A policy that prunes **nodes** looks at their tokens, one that prunes
**groups** does not. Lines are those of a part's file; of a recipe, those of all its parts.
"""
NEEDS = """\
Needs: what is trained for a model before (`sapwood train NAME`; for {model} these come along: {shipped}), and what
not every backend has: **hidden** states, **layers** to stop between, **variants** of the target itself. `small` and
`head` take the draft model and the EAGLE-3 head that were trained for the model, and something else where none was.
"""

COMMAND = "sapwood bench --recipes all --limit 6 --max-tokens 48 --json benchmarks/results/methods.json"
NUMBERS = ("tokens / pass", "nodes / pass", "speedup", "same text")
LEGEND = """\
Numbers: **tokens / pass** is the speedup if drafting were free and a pass over a tree cost that of one token.
**speedup** is plain decoding's seconds per token / the recipe's, with its 95 % interval over prompts. **same text**
counts outputs equal to plain decoding's, or says which share of a lossy recipe's tokens plain decoding would not have
said there.
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
    shipped = ", ".join(folder.name for folder in sorted((SHIPPED / BUILT_IN).iterdir()))
    record = read(ROOT / RESULTS)
    sections = [PREFACE, pages(), "## Recipes\n", NEEDS.format(model=BUILT_IN, shipped=shipped)]
    sections += [LEGEND, source(record)]
    rows = {row["name"]: row for row in recipes()}
    for title, said, names in families():
        heads = ["name", "system", "paper", "guarantee", "needs", *NUMBERS, "lines", "recipe"]
        sections += [f"### {title}\n", f"{said}\n", table(heads, [recipe_row(rows[name], record) for name in names])]
    built_in = [row for row in parts() if f"{row['family']}.{row['name']}" in methods.TABLE]
    for family, (title, verb, declared) in TITLES.items():
        heads = ["name", "what it does", "paper", *declared, "options", "lines"]
        found = [part_row(row, declared) for row in built_in if row["family"] == family]
        sections += [f"## {title}\n", f"They {verb}.\n", table(heads, found)]
    return "\n".join(sections)


def families() -> Iterator[tuple[str, str, list[str]]]:
    """Title, sentence and recipes of each family, in the order of the recipes; a family with a page links to it."""
    files = [importlib.import_module(f"{named.__name__}.{item.name}") for item in pkgutil.iter_modules(named.__path__)]
    order = list(named.RECIPES)
    for family in sorted((file for file in files if hasattr(file, "ENTRIES")), key=lambda it: order.index(first(it))):
        word = family.__name__.rpartition(".")[2]
        said, title = (family.__doc__ or "").strip().split("\n")[0], word.capitalize()
        path = ROOT / PAGES / f"{RENAMED.get(word, word)}.md"
        if path.exists():
            said, title = f"{said} [What they share, and where they differ](families/{path.name}).", title_of(path)
        yield title, said, [entry.name for entry in family.ENTRIES]


def first(family: Any) -> str:
    """Name of the first recipe of a family."""
    name: str = family.ENTRIES[0].name
    return name


def title_of(page: Path) -> str:
    """The heading of a page."""
    return page.read_text().partition("\n")[0].removeprefix("# ")


def pages() -> str:
    """Links to the pages of all families."""
    links = [f"[{title_of(path)}](families/{path.name})" for path in sorted((ROOT / PAGES).glob("*.md"))]
    return f"In words, with pictures of trees: {'; '.join(links)}.\n"


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


def recipe_row(row: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """One recipe as a row of its family's table."""
    made = parse(row["recipe"])
    needs = [row["training"]] if row["training"] != "none" else []
    needs += sorted(made.drafter.needs)
    files = {file_of(type(part)) for part in everything(made.parts())}
    lines = str(sum(length(file) for file in files))
    said = [code(row["name"]), row["system"], link(row["paper"]), row["guarantee"], ", ".join(needs)]
    return [*said, *numbers(record, row["name"]), lines, code(row["recipe"])]


def everything(given: tuple[Part, ...]) -> Iterator[Part]:
    """These parts and those inside them."""
    for part in given:
        yield part
        yield from everything(tuple(part.nested()))


def file_of(made: type) -> Path:
    """The file a part is written in."""
    return Path(inspect.getsourcefile(made) or "")


def length(file: Path) -> int:
    """Lines of a file."""
    return len(file.read_text().splitlines())


def read(path: Path) -> dict[str, Any]:
    """The record of a benchmark; nothing where there is none."""
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return record


def source(record: dict[str, Any]) -> str:
    """Where the numbers come from, in words."""
    if not record:
        return f"They are filled in from the record of `{COMMAND}`.\n"
    machine, model, suite = record["machine"], record["model"], record["suite"]
    place = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    commit = f", commit {record['commit']}" if record["commit"] else ""
    return (
        f"They come from `{record['command']}`{commit}; {model['name']}, {model['dtype']} on {model['device']}, "
        f"{suite['prompts']} prompts of {suite['name']}, up to {suite['max_tokens']} tokens each "
        f"at temperature {suite['temperature']:g}; {place}. One run each: small differences are noise.\n"
    )


def numbers(record: dict[str, Any], recipe: str) -> list[str]:
    """The numbers of a recipe over all prompts, in the order of NUMBERS; empty where it was not run."""
    rows = [row for row in record.get("rows", ()) if (row["recipe"], row["category"]) == (recipe, "all")]
    if not rows or rows[0]["skipped"] is not None:
        return [""] * len(NUMBERS)
    [row] = rows
    return [
        f"{row['tokens_per_pass']:.2f}",
        f"{row['nodes_per_pass']:.1f}",
        f"{row['speedup']:.2f} ({row['speedup_low']:.2f}-{row['speedup_high']:.2f})",
        kept(row),
    ]


def kept(row: dict[str, Any]) -> str:
    """How much of plain decoding's text a recipe has kept."""
    if row["departure"] is not None:
        return f"departs {row['departure']:.1%}"
    return "" if row["identical"] is None else f"{row['identical']}/{row['prompts']}"


def part_row(row: dict[str, Any], declared: tuple[str, ...]) -> list[str]:
    """One part as a row of its family's table."""
    made = methods.lookup(row["family"], row["name"])
    file = file_of(made)
    lines = f"[{length(file)}](../{file.relative_to(ROOT)})"
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
