"""Files about a training run: its curve as numbers and as a picture, and a summary page."""

import json
from pathlib import Path
from typing import Any

from sapwood.train import checkpoint
from sapwood.train.loop import CurvePoint, RunState


def write(folder: Path, notes: RunState, facts: dict[str, Any]) -> None:
    """Write `training.json`, `training.md` and, with matplotlib, `training.png` beside a head."""
    points = [vars_of(point) for point in notes.curve]
    record = {
        "facts": facts,
        "steps": notes.step,
        "seconds": round(notes.spent, 1),
        "curve": points,
    }
    texts = {
        "training.json": json.dumps(record, indent=1) + "\n",
        "training.md": page(notes, facts),
    }
    for name, text in texts.items():
        checkpoint.write(
            folder / name, lambda place, text=text: place.write_text(text, encoding="utf-8")
        )
    picture(folder / "training.png", notes, str(facts.get("kind", "head")))


def vars_of(point: CurvePoint) -> dict[str, Any]:
    """A point as JSON, rounded to four digits."""
    return {
        "step": point.step,
        "seconds": point.seconds,
        "tokens": point.tokens,
        "loss": round(point.loss, 4),
        "agreement": [round(share, 4) for share in point.agreement],
    }


def page(notes: RunState, facts: dict[str, Any]) -> str:
    """Summary of the run in Markdown."""
    first, last = notes.curve[0], notes.curve[-1]
    lines = [f"# {facts['kind']} for {facts['model']}", "", "| | |", "|---|---|"]
    lines += [
        f"| {name.replace('_', ' ')} | {value} |"
        for name, value in facts.items()
        if name != "steps"
    ]
    lines += [
        f"| steps | {notes.step} in {notes.spent / 60:.1f} minutes |",
        f"| answer tokens read | {notes.tokens / 1e6:.2f} million |",
        f"| loss | {first.loss:.3f} at step {first.step}, {last.loss:.3f} at the end |",
        "",
        "Share of the target's tokens that are the head's first choice, by depth:",
        "",
        "| step | " + " | ".join(str(depth + 1) for depth in range(len(last.agreement))) + " |",
        "|---" * (len(last.agreement) + 1) + "|",
    ]
    shown = {points.step: points for points in (first, notes.curve[len(notes.curve) // 2], last)}
    for step, point in shown.items():
        lines.append(
            f"| {step} | " + " | ".join(f"{share:.3f}" for share in point.agreement) + " |"
        )
    return "\n".join(lines) + "\n"


def picture(path: Path, notes: RunState, title: str) -> None:
    """Plot loss and agreement over the steps; nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    loss, agreement = figure.subplots(1, 2)
    steps = [point.step for point in notes.curve]
    loss.plot(steps, [point.loss for point in notes.curve], color="tab:brown")
    loss.set(title=f"{title}: loss", xlabel="step", ylabel="nats per row")
    depths = len(notes.curve[-1].agreement)
    for depth in range(depths):
        shade = 0.25 + 0.75 * (1 - depth / max(1, depths))
        shares = [point.agreement[depth] for point in notes.curve]
        agreement.plot(steps, shares, color="tab:green", alpha=shade, label=f"depth {depth + 1}")
    agreement.set(title="first choice is the target's", xlabel="step", ylabel="share", ylim=(0, 1))
    agreement.legend(fontsize="x-small", loc="lower right")
    checkpoint.write(path, lambda place: figure.savefig(place, dpi=110, format="png"))
