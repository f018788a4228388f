"""Draw when the target and its drafter worked, for recipes that run both at once.

python -m tools.timelines                  draw for all pages under docs/families
python -m tools.timelines chains           draw for these pages

A page names recipes in a mark, `<!-- timelines: chain, pearl -->`; the pictures go below it, up to
the closing mark. Every recipe decodes the same prompt greedily, with the pair of models of
`benchmarks/overlap.py`: random weights, a target of twelve layers and a draft model of its first
three, a thread each. Drawn is the time after its first rounds; the machine should be quiet.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.overlap import VOCAB, Held, backend_of, first_layers, model

from sapwood.backends.torch.backend import TorchBackend
from sapwood.core.overlap import DraftWay
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.self.layer_exit import LayerExit
from sapwood.engine.loop import Engine
from sapwood.engine.pipeline import PipelineDecoder, Run
from sapwood.recipe import Recipe
from sapwood.recipes import resolve

DOCS = Path(__file__).parents[1] / "docs"
LAYERS, DRAFT_LAYERS, WIDTH = 12, 3, 1024
TOKENS = 40
SKIPPED = 8  # rounds before the drawn ones
DRAWN = 8  # target passes of time that are drawn
CHAIN = "draft-model + pearl + match + fixed(nodes=4, depth=4, width=1)"  # drafted first
DRAFTERS = ("draft", "exit")  # lanes that come last
LANE, SIZE, LEFT = 30, 720, 64  # pixels
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#495057}"
    ".target{fill:#1971c2}.draft{fill:#2f9e44}.exit{fill:#2f9e44}"
    ".token{fill:#495057}.lane{stroke:#868e96;stroke-opacity:.3}"
)
BLOCK = re.compile(
    r"(?P<mark><!-- timelines: (?P<names>[^\n]*?) -->\n)(?:.*?<!-- /timelines -->\n)?", re.DOTALL
)


@dataclass(frozen=True)
class Span:
    """One piece of work."""

    lane: str
    kind: str  # target, draft
    start: float
    end: float


@dataclass
class Recorder:
    """Spans of work, and when tokens were emitted."""

    spans: list[Span] = field(default_factory=list)
    emitted: list[tuple[float, int]] = field(default_factory=list)  # seconds, tokens

    def wrap(self, work: Callable[..., Any], name: Callable[..., tuple[str, str]]) -> Any:
        """The same work, recorded."""

        def recorded(*given: Any, **options: Any) -> Any:
            lane, kind = name(*given)
            start = time.perf_counter()
            try:
                return work(*given, **options)
            finally:
                self.spans.append(Span(lane, kind, start, time.perf_counter()))

        return recorded


@contextmanager
def recording(recorder: Recorder, target: TorchBackend) -> Iterator[None]:
    """Record passes of the target, steps of its stages, and drafts."""
    old = target.score, PipelineDecoder._step, DraftModel.expand, LayerExit.expand

    def stage(_: PipelineDecoder, run: Run) -> tuple[str, str]:
        return f"stage {run.stage + 1}", "target"

    target.score = recorder.wrap(old[0], lambda *_: ("target", "target"))  # type: ignore[method-assign]
    PipelineDecoder._step = recorder.wrap(old[1], stage)  # type: ignore[method-assign]
    DraftModel.expand = recorder.wrap(old[2], lambda *_: ("draft", "draft"))  # type: ignore[method-assign]
    LayerExit.expand = recorder.wrap(old[3], lambda *_: ("exit", "draft"))  # type: ignore[method-assign]
    try:
        yield
    finally:
        del target.score
        PipelineDecoder._step, DraftModel.expand, LayerExit.expand = old[1:]  # type: ignore[method-assign]


def play(name: str, target: TorchBackend, draft: TorchBackend) -> Recorder:
    """Decode a prompt with a recipe that keeps to its overlap."""
    found = resolve(CHAIN if name == "chain" else name)
    drafter = found.drafter
    if isinstance(drafter, AutoDraftModel | DraftModel):
        drafter = DraftModel(model=draft)
    engine = Engine(target, Recipe(drafter, found.policy, found.verifier, found.controller))
    way = DraftWay.BEFORE if name == "chain" else DraftWay.BESIDE
    engine.recipe.policy.gauge = Held(way=way)  # type: ignore[attr-defined]
    recorder = Recorder()
    prompt = torch.randint(0, VOCAB, (32,), generator=torch.Generator().manual_seed(0)).tolist()
    emitted = 0
    with recording(recorder, target):
        for outcome in engine.rounds(prompt, Sampling(max_tokens=TOKENS), KeyedRng(0)):
            recorder.emitted.append((time.perf_counter(), len(outcome.tokens)))
            emitted += len(outcome.tokens)
            if emitted >= TOKENS:
                break
    return recorder


def drawn(recorder: Recorder, seconds: float) -> tuple[str, float]:
    """So many seconds as SVG, from the end of a round on, and their tokens per second."""
    ends = [at for at, _ in recorder.emitted]
    start = ends[min(SKIPPED, len(ends) // 3)]
    spans = [span for span in recorder.spans if start < span.end and span.start < start + seconds]
    tokens = [(at, count) for at, count in recorder.emitted if start < at <= start + seconds]
    lanes = sorted(
        {span.lane for span in spans}, key=lambda lane: (lane in ("draft", "exit"), lane)
    )
    height = LANE * (len(lanes) + 1) + 24
    across = (SIZE - LEFT - 10) / seconds
    parts = []
    for place, lane in enumerate(lanes):
        y = LANE * place + 8
        parts.append(f'<text x="4" y="{y + 15}">{lane}</text>')
        line = y + LANE - 4
        parts.append(f'<line class="lane" x1="{LEFT}" x2="{SIZE - 10}" y1="{line}" y2="{line}"/>')
        for span in (one for one in spans if one.lane == lane):
            x = LEFT + max(span.start - start, 0) * across
            width = LEFT + min(span.end - start, seconds) * across - x
            parts.append(
                f'<rect class="{span.kind}" x="{x:.1f}" y="{y}" rx="2" height="{LANE - 10}" '
                f'width="{max(width - 0.6, 0.4):.1f}"/>'
            )
    y = LANE * len(lanes) + 8
    parts.append(f'<text x="4" y="{y + 15}">tokens</text>')
    for at, count in tokens:
        x = LEFT + (at - start) * across
        parts.append(
            f'<text class="token" x="{x:.1f}" y="{y + 15}" text-anchor="end">+{count}</text>'
        )
    parts.append(
        f'<text x="{SIZE - 10}" y="{height - 6}" text-anchor="end">{1000 * seconds:.0f} ms</text>'
    )
    size = f'width="{SIZE}" height="{height}" viewBox="0 0 {SIZE} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="timeline">'
    made = "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>\n"])
    return made, sum(count for _, count in tokens) / seconds


def pass_seconds(recorder: Recorder) -> float:
    """Median seconds between two rounds of plain work of the target."""
    times = sorted(span.end - span.start for span in recorder.spans if span.lane == "target")
    return times[len(times) // 2]


def main(names: Sequence[str]) -> int:
    """Draw the timelines of these pages, or of all."""
    pages = [DOCS / "families" / f"{name}.md" for name in names] or sorted(
        (DOCS / "families").glob("*.md")
    )
    torch.set_num_threads(1)
    target = backend_of(model(LAYERS, WIDTH), "random target", "int8")
    first = first_layers(model(LAYERS, WIDTH), DRAFT_LAYERS, WIDTH)
    draft = backend_of(first, "its first layers", "int8")
    play("chain", target, draft)  # not drawn
    seconds = DRAWN * pass_seconds(play("chain", target, draft))
    for page in pages:
        made = {
            name: drawn(play(name, target, draft), seconds) for name in wanted(page.read_text())
        }
        page.write_text(filled(page.read_text(), made, seconds))
    return 0


def wanted(page: str) -> list[str]:
    """The recipes that a page names in its marks."""
    return [name.strip() for match in BLOCK.finditer(page) for name in match["names"].split(",")]


def filled(page: str, made: Mapping[str, tuple[str, float]], seconds: float) -> str:
    """A page with the pictures below its marks; writes them too."""

    def block(match: re.Match[str]) -> str:
        cells = []
        for name in wanted(match["mark"]):
            picture, rate = made[name]
            (DOCS / "pictures" / f"{name}-timeline.svg").write_text(picture)
            image = f'<img src="../pictures/{name}-timeline.svg" alt="timeline of {name}">'
            speed = f", {rate:.0f} tokens per second here" if rate else ""
            cells.append(f"`{name}`{speed}:\n\n{image}\n")
        about = (
            f"{1000 * seconds:.0f} ms of each, greedy, a target of {LAYERS} random int8 layers and "
            f"its first {DRAFT_LAYERS} as draft model, a thread each; `python -m tools.timelines` "
            "draws them again."
        )
        return "\n".join([match["mark"], *cells, about, "<!-- /timelines -->\n"])

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
