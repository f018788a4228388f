"""Trees of a trace in the terminal: accepted, rejected and unchecked nodes with their drafters."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree as Branches

from sapwood.core.tree import ROOT
from sapwood.trace.rounds import Trace, TracedRound

# styles of nodes
ACCEPTED = "bold green"
REFUSED = "red"
CUT = "dim"
BONUS = "bold yellow"
QUIET = "dim"
COLOURS = ("cyan", "magenta", "blue", "bright_cyan", "bright_magenta", "bright_blue")  # drafters
TAIL = 3  # lines of text above a tree
WIDE = 76  # characters of each
HELP = "enter: next · b: back · number: go there · q: quit"
Ask = Callable[[str], str]


@dataclass(frozen=True)
class RoundView:
    """One round of one prompt."""

    trace: Trace
    prompt: int
    number: int
    count: int
    one: TracedRound
    before: list[int]  # tokens before the round

    def render(self) -> Group:
        """The whole view."""
        return Group(
            self.title(),
            self.text(),
            Text(),
            tree(self.trace, self.one),
            Text(),
            self.facts(),
            legend(self.trace),
        )

    def title(self) -> Text:
        """Prompt and round."""
        name = self.trace.asked[self.prompt].name
        return Text(
            f"prompt {self.prompt + 1} {name} · round {self.number + 1} of {self.count}",
            style="bold",
        )

    def text(self) -> Text:
        """The end of the text so far, and the tokens of this round."""
        before = "".join(map(self.trace.spell, self.before)).replace("\n", "⏎")[-TAIL * WIDE :]
        made = Text(before, style=QUIET)
        for place, token in enumerate(self.one.tokens):
            style = (
                CUT
                if place >= self.one.kept
                else ACCEPTED
                if place < self.one.verdict.accepted
                else BONUS
            )
            made.append(self.trace.spell(token).replace("\n", "⏎"), style=style)
        return made

    def facts(self) -> Text:
        """Budget, sizes, seconds."""
        one = self.one
        curve = self.trace.header.curve
        times = self.one.times
        rows = len(one.checked)
        facts = [
            f"{len(one.grown) - 1} drafted, {rows - 1} checked, {one.verdict.accepted} accepted, "
            f"{one.kept} tokens",
            f"budget {one.budget['nodes']} nodes, depth {one.budget['depth']}, "
            f"width {one.budget['width']}",
            f"draft {1e3 * times.draft:.1f} ms, verify {1e3 * times.verify:.1f} ms, "
            f"other {1e3 * times.other:.1f} ms",
        ]
        if self.trace.header.measured:
            facts.append(
                f"the cost model has {1e3 * curve.seconds(rows, one.context):.1f} ms "
                f"for {rows} rows"
            )
        return Text(" · ".join(facts), style=QUIET)


def pages(trace: Trace, prompts: Sequence[int], first: int = 1) -> list[RoundView]:
    """The rounds of these prompts, from the `first` on."""
    made = []
    for prompt in prompts:
        rounds = trace.of(prompt)
        before = list[int]()
        for number, one in enumerate(rounds):
            made.append(RoundView(trace, prompt, number, len(rounds), one, list(before)))
            before += one.tokens[: one.kept]
    return made[max(0, first - 1) :]


def tree(trace: Trace, one: TracedRound) -> Branches:
    """The tree of a round; children in the order of their reach."""
    grown = one.grown
    checked = {node: place for place, node in enumerate(one.checked)}
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


def order(one: TracedRound) -> list[int]:
    """Nodes without the root: parents before children, the likeliest siblings first."""
    waiting = [ROOT]
    found = list[int]()
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += sorted(
            one.grown.children(node), key=lambda child: (one.grown.reach[child], -child)
        )
    return found[1:]


def describe(trace: Trace, one: TracedRound, node: int, place: int | None, style: str) -> Text:
    """A node: its token, q, reach, p and drafters."""
    grown = one.grown
    line = Text(label(trace, int(grown.tokens[node])), style=style)
    line.append(f"  q {grown.probs[node]:.2f}", style=QUIET)
    if grown.valued >= len(grown):
        line.append(f"  reach {grown.reach[node]:.2f}", style=QUIET)
    if place is None:
        line.append("  not checked", style=QUIET)
    else:
        line.append(
            f"  p {math.exp(one.logps[place]):.2f}, rank {one.ranks[place] + 1}", style=QUIET
        )
    for bit, name in trace.source_names.items():
        if int(grown.sources[node]) >> bit & 1:
            line.append(f"  {name}", style=COLOURS[bit % len(COLOURS)])
    return line


def add_bonus(trace: Trace, one: TracedRound, branch: Branches) -> None:
    """Add the bonus token at the end of the path."""
    line = Text(label(trace, one.verdict.bonus), style=BONUS)
    line.append("  the target's own", style=QUIET)
    branch.add(line)


def legend(trace: Trace) -> Text:
    """Legend of the colours."""
    made = Text()
    kinds = (
        ("accepted", ACCEPTED),
        ("refused", REFUSED),
        ("not checked", CUT),
        ("the target's own", BONUS),
    )
    drafters = [
        (name, COLOURS[bit % len(COLOURS)]) for bit, name in enumerate(trace.header.drafters)
    ]
    for name, style in (*kinds, *drafters):
        made.append(f"{name}  ", style=style)
    return made


def label(trace: Trace, token: int) -> str:
    """A token in quotes, so that its whitespace is visible."""
    return repr(trace.spell(token))


def show_pages(shown: Sequence[RoundView], console: Console, ask: Ask = input) -> None:
    """Show pages one by one on a terminal, as the user asks for them; all of them otherwise."""
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
    """Page numbers in the order in which the user asks for them."""
    place = 0
    while 0 <= place < count:
        yield place
        try:
            command = ask("").strip().lower()
        except (EOFError, KeyboardInterrupt):
            return
        if command in ("q", "quit"):
            return
        if command.isdigit():
            place = min(max(int(command), 1), count) - 1
        else:
            place = max(0, place - 1) if command in ("b", "p", "back") else place + 1
