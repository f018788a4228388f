"""Progress of long work on standard error: bars on a terminal, a line at intervals in a log."""

import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

EVERY_S = 20.0  # between lines of a log


class ProgressBars:
    """One bar per stage, added when its stage begins."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[pace]}"))
        self.progress = Progress(
            *columns, TimeElapsedColumn(), console=self.console, transient=True
        )
        self.tasks: dict[str, Any] = {}
        self.last = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:  # in a log it would leave an empty line
            self.progress.stop()

    def say(self, message: str) -> None:
        """Print a message."""
        if self.console.is_terminal:
            self.progress.console.print(message, style="dim", markup=False, highlight=False)
        else:
            self._line(message)

    def data(self, pace: Any) -> None:
        """Show the progress of the corpus."""
        left = (
            ""
            if pace.left is None
            else f", {pace.left / 60:.1f} min left"
            if pace.left
            else ", finishing the last answers"
        )
        if pace.note:
            self.say(pace.note)
        doing = (
            f"writing questions, {pace.asked:,} tokens"
            if pace.asked
            else f"{pace.rate:,.0f} tokens/s{left}"
        )
        self._show("training data", "tokens", pace.done, pace.goal, doing)

    def steps(self, notes: Any) -> None:
        """Show a new point of the curve."""
        point = notes.curve[-1]
        shares = " ".join(f"{share:.2f}" for share in point.agreement)
        rate = point.tokens / max(point.seconds, 1e-9)
        left = ""
        if notes.plan:
            left = f", {(notes.plan - notes.step) * point.seconds / notes.step / 60:.1f} min left"
        self._show(
            "training",
            "steps",
            notes.step,
            notes.plan,
            f"{point.tokens:,} tokens, {rate:,.0f} tokens/s{left}, "
            f"loss {point.loss:.3f}, agreement {shares}{expected_speedup(point.agreement)}",
        )

    def _show(self, stage: str, unit: str, done: float, goal: float | None, pace: str) -> None:
        share = f"{done:,.0f} of {goal:,.0f}" if goal else f"{done:,.0f}"
        pace = f"{share} {unit}, {pace}"
        if not self.console.is_terminal:
            if time.monotonic() - self.last >= EVERY_S:
                self._line(f"{stage}: {pace}")
            return
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=goal, pace="")
        self.progress.update(self.tasks[stage], completed=done, total=goal, pace=pace)

    def _line(self, message: str) -> None:
        self.last = time.monotonic()
        self.console.print(f"sapwood: {message}", markup=False, highlight=False, soft_wrap=True)


def expected_speedup(agreement: list[float]) -> str:
    """The speedup that a head of this agreement may bring; empty where several are trained."""
    from sapwood.train.gain import expected_speedup, expected_tokens

    if not agreement:
        return ""
    tokens = expected_tokens(agreement)
    return f", {tokens:.1f} tokens per pass, about {expected_speedup(agreement):.1f}x expected"
