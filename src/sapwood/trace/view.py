"""Trees of a trace in the terminal: the accepted path, what was refused or never checked, who proposed each node."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree as Branches

from sapwood.trace.rounds import Round, Trace
from sapwood.tree import ROOT

ACCEPTED, REFUSED, CUT, BONUS, QUIET = "bold green", "red", "dim", "bold yellow", "dim"  # styles of nodes
VOICES = ("cyan", "magenta", "blue", "bright_cyan", "bright_magenta", "bright_blue")  # colours of drafters
TAIL = 3  # lines of text above a tree
WIDE = 76  # letters of each
HELP = "enter: next · b: back · number: go there · q: quit"
Ask = Callable[[str], str]


@dataclass(frozen=True)
class Page:
    """One round of one prompt."""

    trace: Trace
    prompt: int
    number: int
    count: int
    one: Round
    said: list[int]  # tokens before the round

    def render(self) -> Group:
        """All that is shown of it."""
        return Group(
            self.title(), self.text(), Text(), tree(self.trace, self.one), Text(), self.facts(), legend(self.trace)
        )

    def title(self) -> Text:
        """Where we are."""
        name = self.trace.asked[self.prompt].name
        return Text(f"prompt {self.prompt + 1} {name} · round {self.number + 1} of {self.count}", style="bold")

    def text(self) -> Text:
        """The end of the text so far, and what this round added."""
        before = "".join(map(self.trace.spell, self.said)).replace("\n", "⏎")[-TAIL * WIDE :]
        made = Text(before, style=QUIET)
        for place, token in enumerate(self.one.tokens):
            style = CUT if place >= self.one.kept else ACCEPTED if place < self.one.verdict.accepted else BONUS
            made.append(self.trace.spell(token).replace("\n", "⏎"), style=style)
        return made

    def facts(self) -> Text:
        """Budget, sizes, seconds."""
        one, curve, times = self.one, self.trace.header.curve, self.one.times
        rows = len(one.checked)
        words = [
            f"{len(one.grown) - 1} drafted, {rows - 1} checked, {one.verdict.accepted} accepted, {one.kept} tokens",
            f"budget {one.budget['nodes']} nodes, depth {one.budget['depth']}, width {one.budget['width']}",
            f"draft {1e3 * times.draft:.1f} ms, verify {1e3 * times.verify:.1f} ms, other {1e3 * times.other:.1f} ms",
        ]
        if self.trace.header.measured:
            words.append(f"the curve says {1e3 * curve.seconds(rows, one.context):.1f} ms for {rows} rows")
        return Text(" · ".join(words), style=QUIET)


def pages(trace: Trace, prompts: Sequence[int], first: int = 1) -> list[Page]:
    """The rounds of these prompts, from one of them on."""
    made = []
    for prompt in prompts:
        rounds, said = trace.of(prompt), list[int]()
        for number, one in enumerate(rounds):
            made.append(Page(trace, prompt, number, len(rounds), one, list(said)))
            said += one.tokens[: one.kept]
    return made[max(0, first - 1) :]


def tree(trace: Trace, one: Round) -> Branches:
    """The tree of a round; children in the order of their reach."""
    grown, checked = one.grown, {node: place for place, node in enumerate(one.checked)}
    path = {one.checked[node] for node in one.verdict.path}
    root = Branches(Text(label(trace, int(grown.tokens[ROOT])), style="bold"), guide_style=QUIET)
    drawn = {ROOT: root}
    last = one.checked[one.verdict.path[-1]]
    if last == ROOT:
        add_bonus(trace, one, root)
    for node in order(one):
        place = checked.get(node)
        style = ACCEPTED if node in path else CUT if place is None else REFUSED
        drawn[node] = drawn[int(grown.parents[node])].add(describe(trace, one, node, place, style))
        if node == last:
            add_bonus(trace, one, drawn[node])
    return root


def order(one: Round) -> list[int]:
    """Nodes without the root: parents before children, the likeliest siblings first."""
    waiting, found = [ROOT], list[int]()
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += sorted(one.grown.children(node), key=lambda child: (one.grown.reach[child], -child))
    return found[1:]


def describe(trace: Trace, one: Round, node: int, place: int | None, style: str) -> Text:
    """A node: its token, what the drafter and the target gave it, who proposed it."""
    grown = one.grown
    line = Text(label(trace, int(grown.tokens[node])), style=style)
    line.append(f"  q {grown.probs[node]:.2f}", style=QUIET)
    if grown.valued >= len(grown):
        line.append(f"  reach {grown.reach[node]:.2f}", style=QUIET)
    if place is None:
        line.append("  not checked", style=QUIET)
    else:
        line.append(f"  p {math.exp(one.logps[place]):.2f}, rank {one.ranks[place] + 1}", style=QUIET)
    for bit, name in trace.voices.items():
        if int(grown.sources[node]) >> bit & 1:
            line.append(f"  {name}", style=VOICES[bit % len(VOICES)])
    return line


def add_bonus(trace: Trace, one: Round, branch: Branches) -> None:
    """The target's own token at the end of the path."""
    line = Text(label(trace, one.verdict.bonus), style=BONUS)
    line.append("  the target's own", style=QUIET)
    branch.add(line)


def legend(trace: Trace) -> Text:
    """What the colours mean."""
    made = Text()
    kinds = (("accepted", ACCEPTED), ("refused", REFUSED), ("not checked", CUT), ("the target's own", BONUS))
    voices = [(name, VOICES[bit % len(VOICES)]) for bit, name in enumerate(trace.header.drafters)]
    for name, style in (*kinds, *voices):
        made.append(f"{name}  ", style=style)
    return made


def label(trace: Trace, token: int) -> str:
    """A token between quotes, so that its blanks are seen."""
    return repr(trace.spell(token))


def leaf_through(shown: Sequence[Page], console: Console, ask: Ask = input) -> None:
    """Show pages one by one as the reader asks for them; all of them where nobody can ask."""
    if not console.is_terminal:
        for page in shown:
            console.print(page.render())
            console.print()
        return
    for place in walk(len(shown), ask):
        console.clear()
        console.print(shown[place].render())
        console.print(f"{place + 1}/{len(shown)} · {HELP}", style=QUIET, highlight=False)


def walk(count: int, ask: Ask) -> Iterator[int]:
    """The pages in the order in which they are asked for."""
    place = 0
    while 0 <= place < count:
        yield place
        try:
            wish = ask("").strip().lower()
        except (EOFError, KeyboardInterrupt):
            return
        if wish in ("q", "quit"):
            return
        if wish.isdigit():
            place = min(max(int(wish), 1), count) - 1
        else:
            place = max(0, place - 1) if wish in ("b", "p", "back") else place + 1
