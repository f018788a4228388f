"""The tree of a round as a self-contained SVG picture, the same for the same tree.

Time runs from left to right, one column for each depth. The accepted path is green and ends in the
bonus token, with a dashed frame; refused nodes are pale. Lines are as thick as the reach of the
node they lead to. Labels have a background, so that the picture can be read on light and on dark
pages.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Verdict

Spell = Callable[[int], str]  # text of a token, as `Tokenizer.spell`
Round = tuple[str, Tree, Verdict]  # caption, verified tree, verdict

# pixels: width of a letter, height of a label, from row to row
LETTER = 7.3
HIGH = 22
ROW = 28
# pixels: between columns, around the picture, inside a label
GAP = 44
EDGE = 12
PAD = 8
LONGEST = 18  # letters of a label; longer tokens are truncated
BONUS = -1  # the node of the bonus token
SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5", "\r": "\u240d"}  # invisible characters
STYLE = """\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.caption{font-weight:bold;fill:#868e96}
path{fill:none;stroke:#868e96;stroke-opacity:.6}
.refused rect{fill:#868e96;fill-opacity:.16;stroke:#868e96;stroke-opacity:.4}\
.refused text{fill:#868e96}
.accepted rect{fill:#2b8a3e;stroke:#2b8a3e}.accepted text{fill:#fff}\
path.accepted{stroke:#2b8a3e;stroke-opacity:1}
.root rect{fill:#495057;stroke:#495057}.root text{fill:#fff}
.bonus rect{fill:#ebfbee;stroke:#2b8a3e;stroke-width:1.5;stroke-dasharray:4 2}\
.bonus text{fill:#2b8a3e}
path.bonus{stroke:#2b8a3e;stroke-opacity:1;stroke-dasharray:4 2}
"""


def draw(tree: Tree, verdict: Verdict, spell: Spell) -> str:
    """The picture of one round."""
    return gallery([("", tree, verdict)], spell)


def gallery(rounds: Sequence[Round], spell: Spell) -> str:
    """The pictures of several rounds in one column, each under its caption."""
    body = []
    width = 0.0
    top = 0.0
    for caption, tree, verdict in rounds:
        if caption:
            place = f'x="{EDGE}" y="{top + EDGE + 10:g}"'
            body.append(f'<text class="caption" {place}>{escape(clean(caption))}</text>')
            top += HIGH
        made = TreeLayout.of(tree, verdict, spell)
        body.append(f'<g class="round" transform="translate(0 {top:g})">\n{made.picture()}</g>')
        width = max(width, made.width, 2 * EDGE + LETTER * measure(caption))
        top += made.height
    size = f'width="{width:g}" height="{top:g}" viewBox="0 0 {width:g} {top:g}"'
    description = f'role="img" aria-label={quoteattr(alt_text(rounds))}'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {description}>'
    return "\n".join([opening, f"<style>\n{STYLE}</style>", *body, "</svg>"]) + "\n"


@dataclass(frozen=True)
class TreeLayout:
    """Positions of the nodes and labels of one round."""

    tree: Tree
    verdict: Verdict
    labels: dict[int, str]  # by node, BONUS included, as are the next two
    columns: dict[int, float]  # left edge
    rows: dict[int, float]  # middle
    reach: list[float]  # by node

    @classmethod
    def of(cls, tree: Tree, verdict: Verdict, spell: Spell) -> "TreeLayout":
        """Columns as wide as their labels, a row per leaf, parents beside their first child."""
        labels = {node: label(spell(token)) for node, token in enumerate(tree.tokens.tolist())}
        labels[BONUS] = label(spell(verdict.bonus))
        reach = reaches(tree)
        depths = {
            **dict(enumerate(tree.depths.tolist())),
            BONUS: int(tree.depths[verdict.path[-1]]) + 1,
        }
        lefts = {}
        left = float(EDGE)
        for depth in range(max(depths.values()) + 1):
            lefts[depth] = left
            left += max(breadth(labels[node]) for node in depths if depths[node] == depth) + GAP
        columns = {node: lefts[depth] for node, depth in depths.items()}
        return cls(tree, verdict, labels, columns, node_rows(tree, verdict, reach), reach)

    @property
    def width(self) -> float:
        """Width of the picture."""
        return max(self.columns[node] + breadth(self.labels[node]) for node in self.labels) + EDGE

    @property
    def height(self) -> float:
        """Height of the picture."""
        return max(self.rows.values()) + ROW / 2 + EDGE

    def picture(self) -> str:
        """SVG elements: lines, those of the accepted path above the others, then labels."""
        order = sorted(range(1, len(self.tree)), key=lambda node: node in self.verdict.path)
        lines = [self.line(node, int(self.tree.parents[node])) for node in order]
        lines.append(self.line(BONUS, self.verdict.path[-1]))
        return "".join(
            f"{item}\n" for item in [*lines, *(self.box(node) for node in sorted(self.labels))]
        )

    def kind(self, node: int) -> str:
        """The class of a node: root, accepted, refused or bonus."""
        if node in (ROOT, BONUS):
            return "root" if node == ROOT else "bonus"
        return "accepted" if node in self.verdict.path else "refused"

    def line(self, node: int, parent: int) -> str:
        """The line from a parent to its child, as thick as the child's reach."""
        start, end = self.columns[parent] + breadth(self.labels[parent]), self.columns[node]
        above = self.rows[parent]
        below = self.rows[node]
        middle = (start + end) / 2
        thick = 1.5 if node == BONUS else 1 + 5 * self.reach[node]
        course = f"M{start:g} {above:g}C{middle:g} {above:g} {middle:g} {below:g} {end:g} {below:g}"
        marks = f'class="{self.kind(node)}" data-to="{node_id(node)}"'
        return f'<path {marks} stroke-width="{thick:.2f}" d="{course}"/>'

    def box(self, node: int) -> str:
        """A label with its background."""
        left = self.columns[node]
        top = self.rows[node] - HIGH / 2
        wide = breadth(self.labels[node])
        return (
            f'<g class="{self.kind(node)}" data-node="{node_id(node)}">'
            f'<rect x="{left:g}" y="{top:g}" width="{wide:g}" height="{HIGH}" rx="5"/>'
            f'<text x="{left + PAD:g}" y="{top + 15:g}">{escape(self.labels[node])}</text></g>'
        )


def node_id(node: int) -> str:
    """The id of a node in the picture's data attributes."""
    return "bonus" if node == BONUS else str(node)


def node_rows(tree: Tree, verdict: Verdict, reach: Sequence[float]) -> dict[int, float]:
    """The row of each node: children below each other, bonus and largest reach first."""
    rows: dict[int, float] = {}
    used = 0
    waiting = [ROOT]
    while waiting:  # depth first, without recursion: a path may exceed Python's limit
        node = waiting.pop()
        rows[node] = EDGE + ROW * (used + 0.5)
        children = (
            sorted(tree.children(node), key=lambda child: (-reach[child], child))
            if node != BONUS
            else []
        )
        if node == verdict.path[-1]:
            children.insert(0, BONUS)
        waiting += reversed(children)
        used += not children  # a leaf ends its row
    return rows


def reaches(tree: Tree) -> list[float]:
    """Reach of each node by the policy; without one, by the drafters' own probabilities."""
    found = tree.reach
    if tree.valued < len(tree):
        found = tree.probs.copy()
        for node in range(1, len(tree)):
            found[node] *= found[tree.parents[node]]
    shown: list[float] = np.clip(found, 0.0, 1.0).tolist()
    return shown


def label(text: str) -> str:
    """A token's text with visible spaces, short enough and valid in XML."""
    seen = "".join(
        SIGNS.get(letter, letter if letter.isprintable() else "\ufffd") for letter in text
    )
    return (seen if len(seen) <= LONGEST else f"{seen[: LONGEST - 1]}\u2026") or "\u2205"


def clean(caption: str) -> str:
    """A caption without characters that XML does not allow."""
    return "".join(letter if letter.isprintable() else " " for letter in caption)


def measure(text: str) -> int:
    """Width of a text in letters: East Asian ones count two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def breadth(label: str) -> float:
    """Width of a label in pixels."""
    return round(LETTER * measure(label) + 2 * PAD, 1)


def alt_text(rounds: Sequence[Round]) -> str:
    """Alternative text of the pictures."""
    found = []
    for caption, tree, verdict in rounds:
        fate = f"a tree of {len(tree) - 1} tokens, {verdict.accepted} of them accepted"
        found.append(f"{clean(caption)}: {fate}" if caption else fate)
    return "; ".join(found)
