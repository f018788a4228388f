"""Draw the trees of recipes for the pages of families, all at the same place of the same text.

python -m tools.pictures                  draw for all pages under docs/families
python -m tools.pictures chains trees     draw for these pages
python -m tools.pictures --new            draw below marks that have no pictures yet

A page names recipes in a mark, `<!-- trees: pld, suffix -->`; the pictures go below it, up to the
closing mark. One prompt is decoded greedily with each recipe. A round that would go beyond the
place is cut short there, so that every lossless recipe has a tree whose root is the same token. A
recipe that drafts nothing there is shown at the first round behind it in which it does.
Some recipes choose by time: another machine may draw others. Recipes with a drafter elsewhere, on
docs/remote.md, ask a draft server of lookups in this process.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sapwood import LLM, SapwoodError
from sapwood.common.tree_svg import draw, reaches
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, Verdict
from sapwood.engine.input_processor import read_grammar, read_prompt
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.recipe import parse
from sapwood.remote.draft_server import DraftService
from sapwood.remote.message_server import MessageServer
from sapwood.structured_output.grammar import json_schema
from sapwood.tokenizer.tokenizer import Tokenizer

DOCS = Path(__file__).parents[1] / "docs"
MODEL = "smollm2"
PROMPT = "Write a short poem in which every line begins with the words: In the forest there is"
# tokens of the answer before the tree: its fourth line begins, as lines two and three did
PLACE = 34
BEYOND = 64  # further tokens that a tree may propose
MOST = 12  # pictures of a mark
SCALE = 0.6  # their size on it
HALF = 400  # pixels of half a page
REMOTE = "remote"  # the page about drafters elsewhere
PORT = 8765  # of their draft server
LOOKUP = "suffix + best(stride=8, estimator=raw) + match + fixed(nodes=32, depth=16, width=4)"
# a recipe that drafts what a grammar forces, and the fields of the JSON that it writes
CONSTRAINED = "constrained"
FIELDS = ("title", "first line", "second line", "third line", "fourth line", "last line")
POEM = {
    "type": "object",
    "properties": {field: {"type": "string", "maxLength": 40} for field in FIELDS},
    "required": [*FIELDS],
    "additionalProperties": False,
}
# drawn of a tree: the likeliest nodes, and all that were accepted
NODES = 16
DEPTH = 12


def blocks(word: str, *, drawn: bool = True) -> re.Pattern[str]:
    """Opening marks of this word with their names, and old text with the closing mark if any.

    Without `drawn`, only marks that have no such text yet.
    """
    opening = rf"(?P<mark><!-- {word}: (?P<names>[^\n]*?) -->\n)"
    rest = r"(?:(?!trees: ).)*?<!-- /trees -->\n"
    return re.compile(rf"{opening}(?:{rest})?" if drawn else rf"{opening}(?!{rest})", re.DOTALL)


BLOCK = blocks("trees")


class Stopping(RequestDecoder):
    """A request one of whose rounds begins at PLACE."""

    def room(self, most: int, *, begun: bool = False) -> tuple[int, int]:
        """Nodes and depth of a tree that does not go beyond PLACE, before that is reached."""
        nodes, depth = super().room(most, begun=begun)
        left = PLACE - self.sampler.emitted
        return nodes, min(depth, left - 1) if left > 0 else depth


@dataclass(frozen=True)
class Round:
    """The text up to the place, and the round that begins there."""

    text: tuple[int, ...]
    outcome: Outcome

    def like(self, other: "Round") -> bool:
        """True if both have the same drafts after the same text."""
        return self.text == other.text and paths(self.outcome.tree) == paths(other.outcome.tree)

    def behind(self, plain: "Round") -> str:
        """How the text before the tree differs from that of plain decoding."""
        count = len(plain.text)
        if self.text == plain.text:
            return ""
        later = len(self.text) - count
        same = self.text[:count] == plain.text
        return f", {later} token{'s'[: later != 1]} later" if same else ", after another text"

    def drawn(self, text: Tokenizer) -> str:
        """The tree as SVG."""
        return draw(*trimmed(self.outcome.tree, self.outcome.verdict), text.spell)

    def caption(self, plain: "Round") -> str:
        """The tree in numbers."""
        tree, verdict = self.outcome.tree, self.outcome.verdict
        nodes = len(tree) - 1
        hidden = len(tree) - len(trimmed(tree, verdict)[0])
        more = f" (+{hidden} more)" if hidden else ""
        counts = f"{nodes} node{'s'[: nodes != 1]}{more}, depth {tree.height}"
        return f"{counts}, {verdict.accepted} accepted{self.behind(plain)}"


def paths(tree: Tree) -> set[tuple[int, ...]]:
    """All beginnings of a text that a tree proposes."""
    return {tuple(tree.spell(node)) for node in range(len(tree))}


def trimmed(tree: Tree, verdict: Verdict, most: int = NODES) -> tuple[Tree, Verdict]:
    """The part of a tree that fits a small picture."""
    reach = reaches(tree)
    kept = {*verdict.path}
    for node in sorted(range(len(tree)), key=lambda node: (-reach[node], node)):
        if len(kept | {*tree.path(node)}) <= most + 1 and tree.depths[node] <= DEPTH:
            kept |= {*tree.path(node)}
    order = sorted(kept)
    return tree.keep(order), replace(
        verdict, path=tuple(order.index(node) for node in verdict.path)
    )


def main(names: Sequence[str]) -> int:
    """Draw the trees of these pages, or of all."""
    pattern = blocks("trees", drawn=False) if "--new" in names else BLOCK
    named = [name for name in names if name != "--new"]
    pages = [page_of(name) for name in named] or [
        *sorted((DOCS / "families").glob("*.md")),
        page_of(REMOTE),
    ]
    (DOCS / "pictures").mkdir(exist_ok=True)
    server = MessageServer("127.0.0.1", PORT, DraftService(parse(LOOKUP)))
    # without anything measured before
    with tempfile.TemporaryDirectory() as cache, server.running():
        os.environ["SAPWOOD_CACHE"] = cache
        llm = LLM(MODEL, "plain")
        assert llm.text is not None
        plain = play(llm.engine, llm.text)
        rounds: dict[str, Round] = {}
        for page in pages:
            for recipe in wanted(page.read_text(), pattern):
                try:
                    rounds[recipe] = rounds.get(recipe) or play(
                        llm.with_recipe(recipe).engine,
                        llm.text,
                        forced=recipe == CONSTRAINED,
                    )
                    sys.stderr.write(f"{page.stem}: {recipe}, {rounds[recipe].caption(plain)}\n")
                except SapwoodError as error:
                    sys.stderr.write(f"{page.stem}: {recipe} is left out: {error}\n")
            made = filled(page.read_text(), rounds, plain, llm.text, pattern)
            page.write_text(
                made if page.parent != DOCS else made.replace("../pictures", "pictures")
            )
    return 0


def page_of(name: str) -> Path:
    """A page of families, or the one about drafters elsewhere."""
    return DOCS / f"{name}.md" if name == REMOTE else DOCS / "families" / f"{name}.md"


def play(engine: Engine, text: Tokenizer, asked: str = PROMPT, *, forced: bool = False) -> Round:
    """The round at PLACE, or the first one behind it that has drafts.

    `forced` has the answer written as JSON of FIELDS.
    """
    info = engine.target.info
    prompt = read_prompt(asked, info, text, raw=False)
    grammar = read_grammar(json_schema(POEM), info, text) if forced else None
    sampling = Sampling(max_tokens=PLACE + BEYOND, grammar=grammar)
    decoding = Stopping(engine, prompt, sampling, KeyedRng(0))
    emitted: list[int] = []
    first: Round | None = None  # at PLACE
    try:
        while True:
            [scores] = engine.target.score([decoding.draft()])
            outcome = decoding.finish_round(scores)
            if len(emitted) >= PLACE:
                found = Round(tuple(emitted), outcome)
                first = first or found
                if len(outcome.tree) > 1 or decoding.left < 1:
                    return found if len(outcome.tree) > 1 else first
            emitted += outcome.tokens
    finally:
        decoding.close()


def wanted(page: str, pattern: re.Pattern[str] = BLOCK) -> list[str]:
    """The recipes that a page names in its marks."""
    return [name.strip() for match in pattern.finditer(page) for name in match["names"].split(",")]


def filled(
    page: str,
    rounds: Mapping[str, Round],
    plain: Round,
    text: Tokenizer,
    pattern: re.Pattern[str] = BLOCK,
    about: str = f"{MODEL}, greedy; `python -m tools.pictures` draws them again.",
) -> str:
    """A page with the pictures below its marks; writes them too."""

    def block(match: re.Match[str]) -> str:
        mine = {name: rounds[name] for name in wanted(match["mark"], pattern) if name in rounds}
        shown, notes = choose(mine)
        cells = [cell(name, mine[name].drawn(text), mine[name].caption(plain)) for name in shown]
        place = " / ".join(text.show(plain.text).split("\n")[-2:])
        place = "random bytes" if "\ufffd" in place else place
        sentence = f"One round of each after *{place}*, {about}"
        words = " ".join([sentence, *notes])
        return f"{match['mark']}{grid(cells)}\n{words}\n<!-- /trees -->\n"

    return pattern.sub(block, page)


def choose(rounds: Mapping[str, Round]) -> tuple[list[str], list[str]]:
    """The first recipes with trees; notes about those without, and about equal trees."""
    shown: list[str] = []
    notes = []
    for name, found in rounds.items():
        if len(shown) == MOST:
            break
        if len(found.outcome.tree) == 1:
            notes.append(f"`{name}` drafts nothing here.")
            continue
        twin = next((other for other in shown if found.like(rounds[other])), None)
        if twin:
            notes.append(f"`{name}` drafts the same here as `{twin}`.")
        shown.append(name)
    return shown, notes


def cell(name: str, picture: str, caption: str) -> tuple[str, int]:
    """Write a picture; the content of the cell that shows it, and its width in pixels."""
    (DOCS / "pictures" / f"{name}.svg").write_text(picture)
    found = re.search(r'width="([\d.]+)"', picture)
    width = round(SCALE * float(found[1])) if found else HALF
    image = f'<img src="../pictures/{name}.svg" width="{width}" alt="tree of {name}">'
    return f"<code>{name}</code>: {caption}<br>{image}", width


def grid(cells: Sequence[tuple[str, int]]) -> str:
    """Cells in rows of two, wide ones by themselves; the order is kept."""
    rows: list[list[str]] = []
    room = False  # in the last row
    for inside, width in cells:
        wide = width > HALF
        made = f'<td valign="top"{" colspan=2" if wide else ""}>{inside}</td>\n'
        if room and not wide:
            rows[-1].append(made)
        else:
            rows.append([made])
        room = not wide and len(rows[-1]) == 1
    body = "".join(f"<tr>\n{''.join(row)}</tr>\n" for row in rows)
    return f"<table>\n{body}</table>\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
