"""Draw the pictures of the concept pages: the four steps of a real round, and timelines.

python -m tools.concept_pictures            draw everything; the round needs the built-in model
python -m tools.concept_pictures schemes    draw only what needs no model

The round is the first of its text, after the opening, that shows every step. Timelines are schemes:
their widths are no measurements.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from sapwood.common.tree_svg import (
    BONUS,
    EDGE,
    HIGH,
    LETTER,
    Spell,
    TreeLayout,
    label,
    node_id,
    reaches,
)
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, Verdict

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
PROMPT = "Write a short poem in which every line begins with the words: In the forest there is"
RECIPE = "eagle3 + best + match + fixed(nodes=9, depth=5, width=3)"
OPENING = 3  # rounds that are not shown
ACCEPTED = 2  # tokens of a round to show
SHOWN = 7  # pruned nodes that are drawn, the likeliest

STYLE = """\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.note{font-family:system-ui,sans-serif;fill:#868e96}
path{fill:none;stroke:#868e96;stroke-opacity:.6}
.drafted rect{fill:#1971c2;fill-opacity:.14;stroke:#1971c2}.drafted text{fill:#4a90d0}
.refused rect{fill:#868e96;fill-opacity:.16;stroke:#868e96;stroke-opacity:.4}\
.refused text{fill:#868e96}
.pruned rect{fill:none;stroke:#e8590c;stroke-dasharray:3 3}\
.pruned text{fill:#e8590c;text-decoration:line-through}
path.pruned{stroke:#e8590c;stroke-dasharray:3 3}
.accepted rect{fill:#2b8a3e;stroke:#2b8a3e}.accepted text{fill:#fff}\
path.accepted{stroke:#2b8a3e;stroke-opacity:1}
.root rect{fill:#495057;stroke:#868e96}.root text{fill:#fff}
.bonus rect{fill:#ebfbee;stroke:#2b8a3e;stroke-width:1.5;stroke-dasharray:4 2}\
.bonus text{fill:#2b8a3e}
path.bonus{stroke:#2b8a3e;stroke-opacity:1;stroke-dasharray:4 2}
.lane rect{fill:#868e96;fill-opacity:.1}
.host rect{fill:#e8590c}.draft rect{fill:#1971c2}.pass rect{fill:#0b7285}\
.verify rect{fill:#2b8a3e}.vain rect{fill:#868e96}
.host text,.draft text,.pass text,.verify text,.vain text{fill:#fff;\
font-family:system-ui,sans-serif}
.mark{stroke:#868e96;stroke-dasharray:2 3}
"""


def svg(width: float, height: float, body: str, title: str) -> str:
    """An SVG without dependencies."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    aria = f'role="img" aria-label={quoteattr(title)}'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {aria}>\n'
        f"<style>\n{STYLE}</style>\n{body}</svg>\n"
    )


# -------------------------------------------------------------------------- steps of a round
@dataclass(frozen=True)
class StepLayout(TreeLayout):
    """A tree at one step of a round; nodes that are not decided yet look alike."""

    step: str = "draft"
    kept: frozenset[int] = frozenset()

    def kind(self, node: int) -> str:
        """Style of a node at this step."""
        if self.step == "verify" or node in (ROOT, BONUS):
            return super().kind(node)
        return "pruned" if self.step == "prune" and node not in self.kept else "drafted"

    def picture(self) -> str:
        """The tree; the bonus token is added when it is verified."""
        if self.step == "verify":
            return super().picture()
        marks = (f'data-to="{node_id(BONUS)}"', f'data-node="{node_id(BONUS)}"')
        lines = super().picture().splitlines()
        return "".join(f"{line}\n" for line in lines if not any(mark in line for mark in marks))


def step_picture(
    tree: Tree, verdict: Verdict, kept: frozenset[int], step: str, words: Spell
) -> str:
    """The tree at one step."""
    base = TreeLayout.of(tree, verdict, words)
    made = StepLayout(
        base.tree, base.verdict, base.labels, base.columns, base.rows, base.reach, step, kept
    )
    title = {
        "draft": f"a drafted tree of {len(tree) - 1} tokens",
        "prune": f"{len(tree) - len(kept)} of {len(tree) - 1} tokens are pruned",
        "verify": f"{verdict.accepted} tokens are accepted, and the target adds one of its own",
    }[step]
    return svg(made.width, made.height, made.picture(), title)


def commit_picture(outcome: Outcome, before: str, words: Spell) -> str:
    """The text after the round, and the root of the next one."""
    boxes = [("note", before[-28:], False)]
    tokens = [int(outcome.tree.tokens[node]) for node in outcome.verdict.path]
    boxes.append(("root", words(tokens[0]), True))
    boxes += [("accepted", words(token), True) for token in tokens[1:]]
    boxes.append(("bonus", words(outcome.verdict.bonus), True))
    body = []
    left = float(EDGE)
    for kind, text, framed in boxes:
        shown = label(text) if framed else text
        width = LETTER * len(shown) + 16
        frame = f'<rect x="{left:g}" y="{EDGE}" width="{width:g}" height="{HIGH}" rx="5"/>'
        body.append(
            f'<g class="{kind}">{frame if framed else ""}'
            f'<text class="{kind}" x="{left + 8:g}" y="{EDGE + 15}">{escape(shown)}</text></g>\n'
        )
        left += width + (6 if framed else 2)
    middle = left - 6 - width / 2
    place = f'x="{middle:g}" y="{EDGE + HIGH + 18}" text-anchor="middle"'
    body.append(f'<text class="note" {place}>next root</text>\n')
    title = f"{len(tokens) - 1} accepted tokens and one of the target's own are added to the text"
    return svg(max(left, middle + 40) + EDGE, EDGE + HIGH + 2 * EDGE, "".join(body), title)


def fitting(outcome: Outcome) -> bool:
    """True for a round that shows every step: some nodes pruned, some accepted, some rejected."""
    tree = outcome.tree
    pruned = len(outcome.grown) - len(tree)
    partly = ACCEPTED <= outcome.verdict.accepted < tree.height
    return pruned > 0 and partly and len(tree.level(1)) > 1


def trimmed(outcome: Outcome) -> tuple[Tree, frozenset[int], Verdict]:
    """The drafted tree with its likeliest pruned nodes, the kept nodes, and the verdict."""
    grown = outcome.grown
    numbers = {tuple(grown.spell(node)): node for node in range(len(grown))}
    kept = [numbers[tuple(outcome.tree.spell(node))] for node in range(len(outcome.tree))]
    reach = reaches(grown)
    others = sorted(set(range(len(grown))) - set(kept), key=lambda node: (-reach[node], node))
    drawn = {*kept}
    for node in others:
        if len(drawn | {*grown.path(node)}) <= len(kept) + SHOWN:
            drawn |= {*grown.path(node)}
    order = sorted(drawn)
    path = tuple(order.index(kept[node]) for node in outcome.verdict.path)
    mine = frozenset(order.index(node) for node in kept)
    return grown.keep(order), mine, replace(outcome.verdict, path=path)


def draw_round() -> None:
    """The four steps of a round on the built-in model."""
    from sapwood import LLM

    llm = LLM("smollm2", RECIPE)
    assert llm.text is not None
    words = llm.text.spell
    text = ""
    for number, step in enumerate(llm.stream(PROMPT, max_tokens=220)):
        if number >= OPENING and fitting(step.outcome):
            break
        text += step.text
    else:
        raise SystemExit("no round of this text shows every step; choose another prompt")
    tree = step.outcome.tree
    grown, kept, verdict = trimmed(step.outcome)
    drafted = len(step.outcome.grown) - 1
    sys.stderr.write(
        f"{drafted} nodes drafted, {len(tree) - 1} kept, {verdict.accepted} accepted\n"
    )
    for name in ("draft", "prune"):
        picture = step_picture(grown, verdict, kept, name, words)
        (PICTURES / f"round-{name}.svg").write_text(picture)
    checked = step_picture(tree, step.outcome.verdict, frozenset(), "verify", words)
    (PICTURES / "round-verify.svg").write_text(checked)
    # the root was emitted by the round before: it is shown as a box, not as text
    before = text.removesuffix(words(int(tree.tokens[0])))
    (PICTURES / "round-commit.svg").write_text(commit_picture(step.outcome, before, words))


# -------------------------------------------------------------------------------- timelines
@dataclass(frozen=True)
class Bar:
    """Work in a lane, from one moment to another."""

    lane: int
    start: float
    stop: float
    kind: str
    text: str


UNIT = 96.0  # pixels of one unit of time
NAMES = 108.0  # pixels of the lanes' names
TALL = 34.0  # pixels of a lane


def timeline(lanes: Sequence[str], bars: Sequence[Bar], marks: Sequence[tuple[float, str]]) -> str:
    """Lanes below each other, time from left to right."""
    end = max(bar.stop for bar in bars)
    width = NAMES + end * UNIT + EDGE
    height = EDGE + len(lanes) * (TALL + 8) + 28
    return svg(width, height, "".join(timeline_body(lanes, bars, marks, end)), "; ".join(lanes))


def timeline_body(
    lanes: Sequence[str], bars: Sequence[Bar], marks: Sequence[tuple[float, str]], end: float
) -> Iterator[str]:
    """The parts of a timeline from back to front."""
    for place, name in enumerate(lanes):
        top = EDGE + place * (TALL + 8)
        yield f'<text class="note" x="{EDGE}" y="{top + 21:g}">{escape(name)}</text>\n'
        yield (
            f'<g class="lane"><rect x="{NAMES:g}" y="{top:g}" width="{end * UNIT:g}" '
            f'height="{TALL:g}" rx="4"/></g>\n'
        )
    bottom = EDGE + len(lanes) * (TALL + 8)
    for moment, text in marks:
        left = NAMES + moment * UNIT
        yield f'<path class="mark" d="M{left:g} {EDGE}V{bottom + 4:g}"/>\n'
        anchor = {0.0: "start", end: "end"}.get(moment, "middle")
        yield (
            f'<text class="note" x="{left:g}" y="{bottom + 18:g}" '
            f'text-anchor="{anchor}">{escape(text)}</text>\n'
        )
    for bar in bars:
        left = NAMES + bar.start * UNIT
        width = (bar.stop - bar.start) * UNIT - 2
        top = EDGE + bar.lane * (TALL + 8) + 3
        place = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{TALL - 6:g}"'
        yield (
            f'<g class="{bar.kind}"><rect {place} '
            f'rx="4"/><text x="{left + width / 2:g}" y="{top + 18:g}" text-anchor="middle">'
            f"{escape(bar.text)}</text></g>\n"
        )


def cpu_timeline() -> str:
    """A round on a CPU: the calling thread leaves the pass, plans, and comes back to help."""
    lanes = ("caller", "helper threads")
    bars = (
        Bar(0, 0.0, 1.1, "draft", "draft tree"),
        Bar(1, 0.0, 1.1, "draft", "draft tree"),
        Bar(0, 1.1, 1.6, "host", "start"),
        Bar(1, 1.3, 4.6, "pass", "pass over the tree, item by item"),
        Bar(0, 1.6, 3.1, "host", "observe, next budget"),
        Bar(0, 3.1, 4.6, "pass", "helps the pass"),
        Bar(0, 4.6, 5.6, "verify", "verify, commit"),
        Bar(1, 4.6, 5.6, "vain", "prefetch head"),
        Bar(0, 5.6, 6.9, "draft", "next draft tree"),
        Bar(1, 5.6, 6.9, "draft", "next draft tree"),
    )
    return timeline(lanes, bars, ((0.0, "round begins"), (4.6, "scores"), (5.6, "next round")))


def gpu_timeline() -> str:
    """A round on a GPU: the next draft and pass are launched before the host has the verdict."""
    lanes = ("host", "device")
    bars = (
        Bar(1, 0.0, 1.9, "pass", "pass, round n"),
        Bar(0, 0.2, 1.4, "host", "budget, launches"),
        Bar(1, 1.9, 2.5, "verify", "verify"),
        Bar(1, 2.5, 3.9, "draft", "draft, n+1"),
        Bar(1, 3.9, 5.8, "pass", "pass, round n+1"),
        Bar(1, 5.8, 6.4, "verify", "verify"),
        Bar(1, 6.4, 7.6, "draft", "draft, n+2"),
        Bar(0, 2.7, 3.4, "host", "commit"),
        Bar(0, 3.4, 4.2, "host", "observe"),
        Bar(0, 4.2, 5.4, "host", "budget, launches"),
        Bar(0, 6.6, 7.3, "host", "commit"),
    )
    return timeline(lanes, bars, ((2.6, "one transfer"), (6.5, "one transfer")))


def batch_timeline() -> str:
    """A scheduler's round: every request drafts, one budget prunes, one pass scores all."""
    lanes = ("request a", "request b", "prompt c", "scheduler", "target")
    bars = (
        Bar(0, 0.0, 1.2, "draft", "draft"),
        Bar(1, 1.2, 2.2, "draft", "draft"),
        Bar(3, 2.2, 3.4, "host", "node budget"),
        Bar(4, 3.4, 6.0, "pass", "one pass: trees of a and b, chunk of c"),
        Bar(0, 6.0, 6.9, "verify", "verify"),
        Bar(1, 6.9, 7.8, "verify", "verify"),
        Bar(2, 3.4, 6.0, "vain", "64 tokens are read"),
    )
    return timeline(lanes, bars, ((0.0, "admit"), (7.8, "observe once")))


def main(arguments: Sequence[str]) -> int:
    """Draw the schemes, and the round unless only schemes are wanted."""
    schemes = {
        "timeline-cpu": cpu_timeline(),
        "timeline-gpu": gpu_timeline(),
        "timeline-batch": batch_timeline(),
    }
    for name, picture in schemes.items():
        (PICTURES / f"{name}.svg").write_text(picture)
    if "schemes" not in arguments:
        with tempfile.TemporaryDirectory() as cache:  # without anything measured before
            os.environ["SAPWOOD_CACHE"] = os.environ.get("SAPWOOD_CACHE") or cache
            draw_round()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
