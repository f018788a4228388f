"""Write facts of the code into the documents: tables of methods, the file map, whole files.

python -m tools.tables            write docs/methods.md and the marked blocks of other documents
python -m tools.tables --check    change nothing; exit with code 1 if a document differs

A block stands between two marks on lines of their own:

    <!-- methods -->               the named recipes: name, system, paper, guarantee
    <!-- map -->                   packages of src/sapwood with the first lines of their docstrings
    <!-- map deep -->              the same, with the packages inside packages
    <!-- layers -->                import layers, from tests/test_layers.py
    <!-- file PATH -->             a file as a code block
    <!-- section PAGE#heading -->  the text below a heading of another page

each closed by its name, as in <!-- /map -->.
"""

import ast
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

from tools import evidence
from tools.evidence import markdown

from sapwood import recipes as named
from sapwood import registry
from sapwood.cli.methods import parts, recipes
from sapwood.common.drafter_store import BUILT_IN, SHIPPED
from sapwood.core.types import Draw
from sapwood.recipe import parse
from sapwood.recipes.without import SYSTEMS

ROOT = Path(__file__).parents[1]
METHODS = "docs/methods.md"
RESULTS = "benchmarks/results/methods.json"  # the numbers of recipes
GPU_RESULTS = "benchmarks/results/gpu-methods.json"  # the same on a GPU
# pages of families, and families of another name
PAGES = "docs/families"
RENAMED = {"selves": "self-drafting", "multi_token": "multi-token"}
# (opening mark, its argument), old text, closing mark
BLOCK = re.compile(
    r"^(<!-- (?P<what>methods|map|layers|file|section)(?: (?P<arg>[\w./#-]+))? -->\n)"
    r"(?P<old>.*?)(<!-- /(?P=what) -->)",
    re.DOTALL | re.MULTILINE,
)
SOURCE = "src/sapwood"
# packages in reading order; others follow by name
ORDER = [
    "recipes",
    "core",
    "engine",
    "tokenizer",
    "structured_output",
    "kv_cache",
    "drafters",
    "policies",
    "estimators",
    "verifiers",
    "controllers",
    "heads",
    "backends",
    "server",
    "fleet",
    "guest",
    "bench",
    "certify",
    "trace",
    "train",
    "peers",
    "testing",
    "common",
    "cli",
]

TITLES = {
    "drafter": ("Drafters", "propose children of a node", ("draws", "needs")),
    "policy": ("Policies", "choose which nodes to grow and which to keep", ("prunes",)),
    "estimator": (
        "Estimators",
        "estimate how likely a node is to be accepted; an option of a policy",
        (),
    ),
    "verifier": (
        "Verifiers",
        "turn the tree and the target's probabilities into an accepted path and one more token",
        ("accepts", "guarantee"),
    ),
    "controller": ("Controllers", "set the next round's budget", ()),
}
PREFACE = """\
<!-- written by tools/tables.py from the classes themselves: change those, then run it again -->

# Methods

A recipe is a drafter, a policy, a verifier and a controller, spelled `name(key=value, ...) + ...`.
The name of a published system stands for a whole recipe; any part of it can be replaced by another
from the tables of parts.

Guarantees: **text** is the same text as plain decoding from the same seed, **law** the same
distribution, **lossy** a declared departure. Draws say how siblings are chosen: **topk** the best
tokens, **iid** independent draws, **swor** draws without replacement, **mixed** both. A policy that
prunes **nodes** looks at their tokens, one that prunes **groups** does not. The words are those of
the [glossary](glossary.md).
"""
FIDELITY = """\
Fidelity: **faithful** is the published rule, **simplified** a part of the system or another rule in
one place, **reconstructed** a rule rebuilt where the paper or its constants were not available, and
**own** no published system. A sentence says how a recipe differs.
"""
NEEDS = """\
Needs: what has to be trained for a model first (`sapwood train NAME`; trained for {model} and part
of the package: {shipped}), and what not every backend provides: **hidden** states, **layers** to
stop between, **variants** of the target, an **mtp** module in its checkpoint, **lookahead** rows
beside the nodes of a tree. `auto-draft-model`
and `auto-head` take the draft model and the EAGLE-3 head that were trained for the model, or
another drafter where none was; the table names it after **else**, and a run says so once.
"""

COMMAND = (
    "sapwood bench --recipes all --limit 6 --max-tokens 48 --json benchmarks/results/methods.json"
)
NUMBERS = ("tokens / pass", "nodes / pass", "speedup", "same text")
GPU_NUMBERS = ("GPU: tokens / pass", "GPU: speedup")
WITHOUT_RECIPE = """\
## Without a recipe

Systems of the surveys that no combination of these parts makes, and why; `sapwood methods --json`
has them too.
"""
LEGEND = """\
Numbers: **tokens / pass** would be the speedup if drafting and wide passes cost nothing.
**speedup** is plain decoding's seconds per token over the recipe's, with its 95 % interval over
prompts. **same text** counts outputs equal to plain decoding's, or gives the share of a lossy
recipe's tokens that plain decoding would not have chosen.
"""


def main(arguments: list[str]) -> int:
    """Write the documents, or compare them; the exit code."""
    marked = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    made = {str(path.relative_to(ROOT)): filled(path.read_text()) for path in sorted(marked)}
    made[METHODS] = page()
    stale = [
        name
        for name, text in made.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text() != text
    ]
    if "--check" not in arguments:
        for name in stale:
            (ROOT / name).write_text(made[name])
        return 0
    for name in stale:
        sys.stderr.write(f"{name} differs from the code; run make tables\n")
    return 1 if stale else 0


def page() -> str:
    """The whole of docs/methods.md."""
    shipped = ", ".join(folder.name for folder in sorted((SHIPPED / BUILT_IN).iterdir()))
    record = read(ROOT / RESULTS)
    on_gpu = read(ROOT / GPU_RESULTS)
    sections = [PREFACE, pages(), "## Recipes\n", FIDELITY]
    sections += [NEEDS.format(model=BUILT_IN, shipped=shipped), LEGEND, source(record)]
    sections += [f"Those of a GPU: {source(on_gpu)}"] if on_gpu else []
    rows = {row["name"]: row for row in recipes()}
    for title, text, names in families():
        heads = ["name", "system", "paper", "guarantee", "fidelity", "needs", *NUMBERS]
        heads += [*(GPU_NUMBERS if on_gpu else ()), "recipe"]
        sections += [
            f"### {title}\n",
            f"{text}\n",
            markdown(heads, [recipe_row(rows[name], record, on_gpu) for name in names]),
        ]
    built_in = [row for row in parts() if f"{row['family']}.{row['name']}" in registry.TABLE]
    for family, (title, verb, declared) in TITLES.items():
        heads = ["name", "what it does", "paper", *declared, "options", "file"]
        found = [part_row(row, declared) for row in built_in if row["family"] == family]
        sections += [f"## {title}\n", f"They {verb}.\n", markdown(heads, found)]
    return "\n".join([*sections, evidence.directions(), WITHOUT_RECIPE, without_recipe()])


def without_recipe() -> str:
    """The systems that have no recipe."""
    rows = [[code(one.name), one.system, link(one.paper), one.why] for one in SYSTEMS]
    return markdown(["name", "system", "paper", "why"], rows)


def families() -> Iterator[tuple[str, str, list[str]]]:
    """Title, sentence and recipes of each family, in the order of the recipes."""
    files = [
        importlib.import_module(f"{named.__name__}.{item.name}")
        for item in pkgutil.iter_modules(named.__path__)
    ]
    order = list(named.RECIPES)
    for family in sorted(
        (file for file in files if hasattr(file, "ENTRIES")), key=lambda it: order.index(first(it))
    ):
        word = family.__name__.rpartition(".")[2]
        text = (family.__doc__ or "").strip().split("\n")[0]
        title = word.capitalize()
        path = ROOT / PAGES / f"{RENAMED.get(word, word)}.md"
        if path.exists():
            text = f"{text} [What they share, and where they differ](families/{path.name})."
            title = title_of(path)
        yield title, text, [entry.name for entry in family.ENTRIES]


def first(family: Any) -> str:
    """Name of the first recipe of a family."""
    name: str = family.ENTRIES[0].name
    return name


def title_of(page: Path) -> str:
    """The heading of a page."""
    return page.read_text().partition("\n")[0].removeprefix("# ")


def pages() -> str:
    """Links to the pages of all families."""
    links = [
        f"[{title_of(path)}](families/{path.name})" for path in sorted((ROOT / PAGES).glob("*.md"))
    ]
    return f"In words, with pictures of trees: {'; '.join(links)}.\n"


def filled(text: str) -> str:
    """A document with its marked blocks written anew."""
    return BLOCK.sub(
        lambda match: f"{match[1]}{block(match['what'], match['arg'])}{match[5]}", text
    )


def block(what: str, argument: str) -> str:
    """The inside of a marked block."""
    if what == "file":
        return shown(ROOT / argument)
    if what == "section":
        return section(*argument.split("#"))
    if what == "layers":
        return layers()
    if what == "map":
        return file_map(deep=argument == "deep")
    return recipe_table(("name", "system", "paper", "guarantee"))


def section(page: str, anchor: str) -> str:
    """The text below a heading of a page, up to the next heading."""
    parts = re.split(r"^#+ (.+)\n", (ROOT / page).read_text(), flags=re.MULTILINE)
    found = {
        re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-"): body
        for head, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return f"{found[anchor].strip()}\n"


def file_map(*, deep: bool) -> str:
    """Modules and packages of the source folder, each with the first line of its docstring."""
    root = ROOT / SOURCE
    rows = [(path.name, summary(path)) for path in sorted(root.glob("[a-z]*.py"))]
    for folder in sorted(
        (path.parent for path in root.glob("*/__init__.py")),
        key=lambda folder: (
            ORDER.index(folder.name) if folder.name in ORDER else len(ORDER),
            folder.name,
        ),
    ):
        rows.append((f"{folder.name}/", summary(folder / "__init__.py")))
        inner = sorted(path.parent for path in folder.glob("**/__init__.py"))[1:] if deep else []
        rows += [
            (
                f"{'  ' * len(each.relative_to(folder).parts)}{each.name}/",
                summary(each / "__init__.py"),
            )
            for each in inner
        ]
    width = max(len(name) for name, _ in rows) + 2
    return "```\n" + "".join(f"{name:{width}}{text}\n" for name, text in rows) + "```\n"


def summary(path: Path) -> str:
    """The first line of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].rstrip(".").replace("`", "")


def layers() -> str:
    """Import layers from the bottom up, as the test has them."""
    from tests.helpers.source_tree import MODULES
    from tests.test_layers import FACE, LAYERS, layer

    tops = {name.partition(".")[0] for name in MODULES}
    listed = {name.partition(".")[0] for names in LAYERS for name in names}
    listed -= {name for name in tops if layer(name) == FACE}
    rows = []
    for place, names in enumerate(LAYERS):
        shown = names if place != FACE else tuple(sorted(tops - listed - {"__main__"}))
        rows.append([str(place + 1), ", ".join(f"`{name}`" for name in shown if "__" not in name)])
    return markdown(["layer", "packages and modules"], rows)


def shown(path: Path) -> str:
    """A file as a code block."""
    return f"```{path.suffix.removeprefix('.').replace('py', 'python')}\n{path.read_text()}```\n"


def recipe_table(keys: tuple[str, ...]) -> str:
    """The named recipes, with these columns."""
    shape = {"name": code, "recipe": code, "paper": link}
    return markdown(
        list(keys), [[shape.get(key, str)(row[key]) for key in keys] for row in recipes()]
    )


def recipe_row(
    row: dict[str, Any], record: dict[str, Any], on_gpu: dict[str, Any] | None = None
) -> list[str]:
    """One recipe as a row of its family's table."""
    made = parse(row["recipe"])
    needs = [row["training"]] if row["training"] != "none" else []
    needs += sorted(made.drafter.needs)
    needs += [f"else {name}" for name in dict.fromkeys(row["stand_ins"])]
    cells = [
        code(row["name"]),
        row["system"],
        link(row["paper"]),
        row["guarantee"],
        ": ".join(filter(None, (row["fidelity"], row["note"]))),
        ", ".join(needs),
    ]
    other = numbers(on_gpu, row["name"])[::2] if on_gpu else []
    return [*cells, *numbers(record, row["name"]), *other, code(row["recipe"])]


def file_of(made: type) -> Path:
    """The file of a part."""
    return Path(inspect.getsourcefile(made) or "")


def read(path: Path) -> dict[str, Any]:
    """The record of a benchmark; empty if there is none."""
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return record


def source(record: dict[str, Any]) -> str:
    """The source of the numbers as text."""
    if not record:
        return f"They are filled in from the record of `{COMMAND}`.\n"
    machine = record["machine"]
    model = record["model"]
    suite = record["suite"]
    place = (
        machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    )
    commit = f", commit {record['commit']}" if record["commit"] else ""
    return (
        f"They come from `{record['command']}`{commit}; {model['name']}, {model['dtype']} on "
        f"{model['device']}, {suite['prompts']} prompts of {suite['name']}, up to "
        f"{suite['max_tokens']} tokens each at temperature {suite['temperature']:g}; {place}. "
        "One run each: small differences are noise.\n"
    )


def numbers(record: dict[str, Any], recipe: str) -> list[str]:
    """Numbers of a recipe over all prompts, in the order of NUMBERS; empty if it did not run."""
    rows = [
        row
        for row in record.get("rows", ())
        if (row["recipe"], row["category"], row.get("temperature", 0)) == (recipe, "all", 0)
    ]
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
    """Share of plain decoding's text that a recipe keeps."""
    if row["departure"] is not None:
        return f"departs {row['departure']:.1%}"
    return "" if row["identical"] is None else f"{row['identical']}/{row['prompts']}"


def part_row(row: dict[str, Any], declared: tuple[str, ...]) -> list[str]:
    """One part as a row of its family's table."""
    made = registry.lookup(row["family"], row["name"])
    file = file_of(made)
    source = f"[{file.name}](../{file.relative_to(ROOT)})"
    options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
    cells = [kinds(made, row, key) for key in declared]
    return [code(row["name"]), row["summary"], link(row["paper"]), *cells, code(options), source]


def kinds(made: type, row: dict[str, Any], key: str) -> str:
    """A declared attribute of a part, in one cell."""
    if key == "draws" and isinstance(inspect.getattr_static(made, key, None), property):
        return "as its drafters"
    if key == "draws" and key in [option.name for option in dataclasses.fields(made)]:
        return f"any, {row[key]} by default"
    value = row[key] if isinstance(row[key], list) else [row[key]]
    return "any" if set(value) == {draw.value for draw in Draw} else ", ".join(value)


def code(text: str) -> str:
    """Text as code; empty for no text."""
    return f"`{text}`" if text else ""


def link(paper: str) -> str:
    """A paper as a link, if its name is an address."""
    if re.fullmatch(r"\d{4}\.\d{4,5}", paper):
        return f"[{paper}](https://arxiv.org/abs/{paper})"
    return f"[{paper}](https://{paper})" if re.match(r"[\w-]+\.(com|org)/", paper) else paper


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
