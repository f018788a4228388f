"""Terminal output: progress, coloured text, the line about speculation, the tree of a round."""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text as Line
from rich.tree import Tree as Branches

from sapwood.core.tree import ROOT
from sapwood.engine.outputs import Stats, Step
from sapwood.tokenizer.tokenizer import Tokenizer

PATIENCE_S = 10.0  # before a log gets a progress line, so that an early error is the only line
TAIL = 12  # lines of text above a live tree
ACCEPTED = "green"  # style of accepted drafted tokens
REFUSED = "dim"
QUIET = "dim"  # style of notes


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Report slow work on standard error: a spinner on a terminal, else a line after a while."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("starting", spinner_style=QUIET) as status:
            yield lambda message: status.update(Line(message, style=QUIET))
        return
    status_line = StatusLine(console)
    try:
        yield status_line.update
    finally:
        status_line.timer.cancel()


class StatusLine:
    """Prints a message after PATIENCE_S, unless another comes first; its numbers may change."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.kind = ""
        self.timer = threading.Timer(0, lambda: None)

    def update(self, message: str) -> None:
        """Begin waiting with a new message."""
        kind = re.sub(r"\d+", "", message)
        if kind == self.kind:
            return
        self.kind = kind
        self.timer.cancel()
        self.timer = threading.Timer(PATIENCE_S, self.print, [message])
        self.timer.daemon = True
        self.timer.start()

    def print(self, message: str) -> None:
        """Print a message."""
        self.console.print(f"sapwood: {message}", markup=False, highlight=False, soft_wrap=True)


def write(console: Console, step: Step) -> None:
    """Print a step's text; on a terminal, accepted drafted tokens in their own colour."""
    if not console.is_terminal:
        sys.stdout.write(step.text)
    else:
        for piece in step.pieces:
            console.out(
                piece.text, style=ACCEPTED if piece.drafted else None, end="", highlight=False
            )
    sys.stdout.flush()


def note(stats: Stats, title: str) -> str:
    """One line of statistics about speculation."""
    stages = {
        "prompt": stats.prefill_s,
        "draft": stats.draft_s,
        "verify": stats.verify_s,
        "other": stats.other_s,
    }
    facts = [
        f"{counted(stats.tokens, 'token')} in {counted(stats.passes, 'pass', 'passes')}",
        f"{stats.tokens_per_pass:.2f} tokens per pass",
        f"{stats.tokens_per_second:.1f} tokens/s",
        ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in stages.items()),
        title,
    ]
    if stats.speedup is not None:
        facts.insert(2, f"{stats.speedup:.2f}x plain decoding")
    return " · ".join(facts)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, in the singular or the plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def brief(stats: Stats) -> str:
    """The statistics in a few words."""
    faster = "" if stats.speedup is None else f", {stats.speedup:.2f}x plain decoding"
    return f"{stats.tokens_per_pass:.2f} tokens per pass{faster}"


def print_dim(sentence: str) -> None:
    """Print a dim line on standard error."""
    Console(stderr=True).print(sentence, style=QUIET, markup=False, highlight=False, soft_wrap=True)


def picture(step: Step, text: Tokenizer | None) -> Branches:
    """The round's tree: the accepted path bright, rejected nodes dim, the bonus token bold."""
    tree, verdict = step.outcome.tree, step.outcome.verdict

    def label(token: int) -> str:
        return repr(text.spell(token)) if text else str(token)

    drawn = {ROOT: Branches(Line(label(int(tree.tokens[ROOT]))), guide_style=QUIET)}
    for node in range(1, len(tree)):
        style = ACCEPTED if node in verdict.path else REFUSED
        name = Line(f"{label(int(tree.tokens[node]))} {tree.probs[node]:.2f}", style=style)
        drawn[node] = drawn[int(tree.parents[node])].add(name)
    drawn[verdict.path[-1]].add(Line(label(verdict.bonus), style="bold"))
    return drawn[ROOT]


def watched(steps: Iterator[Step], text: Tokenizer | None, console: Console) -> Iterator[Step]:
    """Show the end of the text with the round's tree below it; leave the whole text when done."""
    shown = Line()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for step in steps:
            for piece in step.pieces:
                shown.append(piece.text, style=ACCEPTED if piece.drafted else "")
            tail = Line("\n").join(shown.split("\n")[-TAIL:])
            live.update(Group(tail, Line(), picture(step, text)), refresh=True)
            yield step
    console.print(shown, end="", soft_wrap=True)
