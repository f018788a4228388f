"""The tree of a round as a picture: an SVG that needs nothing else and is the same every time.

Time runs from left to right, one column for each depth. The accepted path is green and ends in the token that
the target added itself, with a dashed frame; what was refused is pale. Lines are as thick as the reach of the
node they lead to: what the policy expected. Labels stand on grounds of their own, so that the picture can be
read on light and on dark pages.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from sapwood.records import Verdict
from sapwood.tree import ROOT, Tree

Words = Callable[[int], str]  # text of a token, as `Text.spell`
Round = tuple[str, Tree, Verdict]  # caption, the tree that was checked, what became of it

LETTER, HIGH, ROW = 7.3, 22, 28  # pixels: width of a letter, height of a label, from row to row
GAP, EDGE, PAD = 44, 12, 8  # pixels: between columns, around the picture, inside a label
LONGEST = 18  # letters of a label; longer tokens are cut
BONUS = -1  # stands for the target's own token among the nodes
SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5", "\r": "\u240d"}  # what cannot be seen
STYLE = """\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.caption{font-weight:bold;fill:#868e96}
path{fill:none;stroke:#868e96;stroke-opacity:.6}
.refused rect{fill:#868e96;fill-opacity:.16;stroke:#868e96;stroke-opacity:.4}.refused text{fill:#868e96}
.accepted rect{fill:#2b8a3e;stroke:#2b8a3e}.accepted text{fill:#fff}path.accepted{stroke:#2b8a3e;stroke-opacity:1}
.root rect{fill:#495057;stroke:#495057}.root text{fill:#fff}
.bonus rect{fill:#ebfbee;stroke:#2b8a3e;stroke-width:1.5;stroke-dasharray:4 2}.bonus text{fill:#2b8a3e}
path.bonus{stroke:#2b8a3e;stroke-opacity:1;stroke-dasharray:4 2}
"""


def draw(tree: Tree, verdict: Verdict, words: Words) -> str:
    """The picture of one round."""
    return gallery([("", tree, verdict)], words)


def gallery(rounds: Sequence[Round], words: Words) -> str:
    """The pictures of several rounds below each other, each under its caption."""
    body, width, top = [], 0.0, 0.0
    for caption, tree, verdict in rounds:
        if caption:
            body.append(f'<text class="caption" x="{EDGE}" y="{top + EDGE + 10:g}">{escape(clean(caption))}</text>')
            top += HIGH
        made = Layout.of(tree, verdict, words)
        body.append(f'<g class="round" transform="translate(0 {top:g})">\n{made.picture()}</g>')
        width = max(width, made.width, 2 * EDGE + LETTER * measure(caption))
        top += made.height
    size = f'width="{width:g}" height="{top:g}" viewBox="0 0 {width:g} {top:g}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(spoken(rounds))}>'
    return "\n".join([opening, f"<style>\n{STYLE}</style>", *body, "</svg>"]) + "\n"


@dataclass(frozen=True)
class Layout:
    """Where everything of one round is drawn."""

    tree: Tree
    verdict: Verdict
    labels: dict[int, str]  # by node, BONUS included, as are the next two
    columns: dict[int, float]  # left edge
    rows: dict[int, float]  # middle
    reach: list[float]  # by node

    @classmethod
    def of(cls, tree: Tree, verdict: Verdict, words: Words) -> "Layout":
        """Columns as wide as their longest label, a row for each leaf, parents in the row of their first child."""
        labels = {node: label(words(token)) for node, token in enumerate(tree.tokens.tolist())}
        labels[BONUS] = label(words(verdict.bonus))
        reach = reaches(tree)
        depths = {**dict(enumerate(tree.depths.tolist())), BONUS: int(tree.depths[verdict.path[-1]]) + 1}
        lefts, left = {}, float(EDGE)
        for depth in range(max(depths.values()) + 1):
            lefts[depth] = left
            left += max(breadth(labels[node]) for node in depths if depths[node] == depth) + GAP
        columns = {node: lefts[depth] for node, depth in depths.items()}
        return cls(tree, verdict, labels, columns, place(tree, verdict, reach), reach)

    @property
    def width(self) -> float:
        """Of the whole picture."""
        return max(self.columns[node] + breadth(self.labels[node]) for node in self.labels) + EDGE

    @property
    def height(self) -> float:
        """Of the whole picture."""
        return max(self.rows.values()) + ROW / 2 + EDGE

    def picture(self) -> str:
        """Lines first, those of the accepted path above the others, labels above them all."""
        order = sorted(range(1, len(self.tree)), key=lambda node: node in self.verdict.path)
        lines = [self.line(node, int(self.tree.parents[node])) for node in order]
        lines.append(self.line(BONUS, self.verdict.path[-1]))
        return "".join(f"{item}\n" for item in [*lines, *(self.box(node) for node in sorted(self.labels))])

    def kind(self, node: int) -> str:
        """What became of a node."""
        if node in (ROOT, BONUS):
            return "root" if node == ROOT else "bonus"
        return "accepted" if node in self.verdict.path else "refused"

    def line(self, node: int, parent: int) -> str:
        """From a parent to its child, as thick as the child's reach."""
        start, end = self.columns[parent] + breadth(self.labels[parent]), self.columns[node]
        above, below, middle = self.rows[parent], self.rows[node], (start + end) / 2
        thick = 1.5 if node == BONUS else 1 + 5 * self.reach[node]
        course = f"M{start:g} {above:g}C{middle:g} {above:g} {middle:g} {below:g} {end:g} {below:g}"
        return f'<path class="{self.kind(node)}" data-to="{named(node)}" stroke-width="{thick:.2f}" d="{course}"/>'

    def box(self, node: int) -> str:
        """A label on its ground."""
        left, top, wide = self.columns[node], self.rows[node] - HIGH / 2, breadth(self.labels[node])
        return (
            f'<g class="{self.kind(node)}" data-node="{named(node)}">'
            f'<rect x="{left:g}" y="{top:g}" width="{wide:g}" height="{HIGH}" rx="5"/>'
            f'<text x="{left + PAD:g}" y="{top + 15:g}">{escape(self.labels[node])}</text></g>'
        )


def named(node: int) -> str:
    """A node's mark in the picture, for those who look for it there."""
    return "bonus" if node == BONUS else str(node)


def place(tree: Tree, verdict: Verdict, reach: Sequence[float]) -> dict[int, float]:
    """The row of each node: children below each other, the target's own token and the best ones first."""
    rows: dict[int, float] = {}
    used = 0
    waiting = [ROOT]
    while waiting:  # depth first, by hand: a path may be longer than Python likes to recurse
        node = waiting.pop()
        rows[node] = EDGE + ROW * (used + 0.5)
        children = sorted(tree.children(node), key=lambda child: (-reach[child], child)) if node != BONUS else []
        if node == verdict.path[-1]:
            children.insert(0, BONUS)
        waiting += reversed(children)
        used += not children  # a leaf ends its row
    return rows


def reaches(tree: Tree) -> list[float]:
    """Reach of each node as the policy saw it; where none did, what the drafters' own chances make of it."""
    found = tree.reach
    if tree.valued < len(tree):
        found = tree.probs.copy()
        for node in range(1, len(tree)):
            found[node] *= found[tree.parents[node]]
    shown: list[float] = np.clip(found, 0.0, 1.0).tolist()
    return shown


def label(word: str) -> str:
    """A token's text with its blanks made visible, short enough and fit for XML."""
    seen = "".join(SIGNS.get(letter, letter if letter.isprintable() else "\ufffd") for letter in word)
    return (seen if len(seen) <= LONGEST else f"{seen[: LONGEST - 1]}\u2026") or "\u2205"


def clean(caption: str) -> str:
    """A caption without what XML cannot hold."""
    return "".join(letter if letter.isprintable() else " " for letter in caption)


def measure(text: str) -> int:
    """Columns of a terminal that a text takes: some letters are two wide."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def breadth(label: str) -> float:
    """Pixels of a label."""
    return round(LETTER * measure(label) + 2 * PAD, 1)


def spoken(rounds: Sequence[Round]) -> str:
    """The pictures in words, for those who cannot see them."""
    found = []
    for caption, tree, verdict in rounds:
        fate = f"a tree of {len(tree) - 1} tokens, {verdict.accepted} of them accepted"
        found.append(f"{clean(caption)}: {fate}" if caption else fate)
    return "; ".join(found)
