"""The animated picture of the README: a recorded run of the built-in model, drawn as an SVG.

python -m tools.living_tree --record    decode the prompt again, then draw
python -m tools.living_tree             draw docs/pictures/living-tree.svg from the record
python -m tools.living_tree --check     change nothing; exit with code 1 if the picture differs

The record, docs/pictures/living-tree.json, holds the tree and the accepted path of every round. Its
run uses the recipe `auto` with the seconds of a pass that benchmarks/results/gpu-h200.json has, so
that trees do not depend on how busy the machine is that records them. The picture is SVG and CSS
alone; it follows the light or dark scheme and stands still where motion is not wanted.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tools.pictures import trimmed

from sapwood.common.tree_svg import BONUS, HIGH, PAD, TreeLayout, breadth, label
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Verdict

FOLDER = Path(__file__).parents[1]
RECORD = FOLDER / "docs/pictures/living-tree.json"
PICTURE = FOLDER / "docs/pictures/living-tree.svg"
CURVE = FOLDER / "benchmarks/results/gpu-h200.json"

MODEL = "smollm2"
PROMPT = "Write a Python function that reverses a list."
TOKENS = 58  # the function and its explanation
DRAFT = 0.0003  # seconds that a tree takes in the record's time

# pixels
WIDTH = 960
HEIGHT = 560
MARGIN = 28
LETTER = 7.83  # width of a character of the output
LINE = 21
COLUMNS = 84  # characters of a line of the output
TEXT_TOP = 92
TREE_TOP = 282
TREE_HIGH = 226
MOST = 22  # nodes drawn of a tree; the likeliest, and all that were accepted

# seconds
LEVEL = 0.08  # a level of the tree appears
CHECK = 0.5  # the pass
STEP = 0.07  # an accepted token lights up
HOLD = 0.8  # to look at what was accepted
FADE = 0.12
END = 3.0  # the finished text

STYLE = """\
:root{--card:#fff;--edge:#d0d7de;--ink:#1f2328;--dim:#59636e;--node:#f3f5f7;--line:#afb8c1;\
--go:#1a7f37;--soft:#dafbe1;--root:#57606a}
@media(prefers-color-scheme:dark){:root{--card:#0d1117;--edge:#3d444d;--ink:#e6edf3;--dim:#9198a1;\
--node:#1c2128;--line:#59636e;--go:#2ea043;--soft:#12361f;--root:#656c76}}
.card{fill:var(--card);stroke:var(--edge)}
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;\
fill:var(--ink);white-space:pre}
.s{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:var(--dim)}
.b{font-weight:600;fill:var(--ink)}.n{font-size:26px;font-weight:600;fill:var(--go)}\
.r{text-anchor:end}
.o{fill:var(--go)}
.k rect{fill:var(--node);stroke:var(--line)}.k text,.g text,.q text,.t text{font-size:12px}
.k path{fill:none;stroke:var(--line)}
.g rect{fill:var(--go);stroke:var(--go)}.g text{fill:#fff}.g path{fill:none;stroke:var(--go)}
.q rect{fill:var(--soft);stroke:var(--go);stroke-dasharray:4 2}.q text{fill:var(--go)}
.q path{fill:none;stroke:var(--go);stroke-dasharray:4 2}
.t rect{fill:var(--root);stroke:var(--root)}.t text{fill:#fff}
.sweep{fill:var(--go);opacity:0;animation:sweep linear infinite}
@media(prefers-reduced-motion:reduce){*{animation:none!important}}
"""


# -------------------------------------------------------------------------------- recording
class PricedBackend:
    """A backend whose passes take the seconds of a measured cost model, on a clock of its own."""

    def __init__(self, target: Any, cost: Any) -> None:
        self.target = target
        self.cost = cost
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def now(self) -> float:
        """The clock."""
        return self.seconds

    def score(self, works: Sequence[Any], chunks: Sequence[Any] = ()) -> Any:
        """Score, and advance the clock by the cost model's seconds."""
        found = self.target.score(works, chunks)
        for work in works:
            self.seconds += self.cost.seconds(len(work.tree), work.session.length) + DRAFT
        return found


def record() -> dict[str, Any]:
    """Decode the prompt, and record every round."""
    from sapwood import LLM
    from sapwood.bench import provenance
    from sapwood.common.tree_svg import reaches
    from sapwood.core.rng import KeyedRng
    from sapwood.core.sampling import Sampling
    from sapwood.engine.cost_model import CostModel
    from sapwood.engine.input_processor import read_prompt
    from sapwood.engine.loop import Engine
    from sapwood.recipes import resolve

    rows = json.loads(CURVE.read_text())["pass"]["rows"]
    table = [[row["replay_us"] * 1e-6 for row in rows]]
    cost = CostModel([row["nodes"] for row in rows], [512], table)
    llm = LLM(MODEL, "plain")
    assert llm.text is not None
    target: Any = PricedBackend(llm.target, cost)
    engine = Engine(target, resolve("auto"), cost, llm._draft_model, now=target.now)
    prompt = read_prompt(PROMPT, llm.target.info, llm.text, raw=False)
    plain: list[int] = []
    for outcome in llm.engine.rounds(prompt, Sampling(max_tokens=TOKENS), KeyedRng(0)):
        plain += outcome.tokens
        if len(plain) == TOKENS:
            break
    made = []
    emitted: list[int] = []
    for outcome in engine.rounds(prompt, Sampling(max_tokens=TOKENS), KeyedRng(0)):
        tree, verdict = outcome.tree, outcome.verdict
        made.append(
            {
                "tokens": [llm.text.spell(token) for token in tree.tokens.tolist()],
                "parents": tree.parents.tolist(),
                "reach": [round(reach, 4) for reach in reaches(tree)],
                "path": list(verdict.path),
                "bonus": llm.text.spell(verdict.bonus),
            }
        )
        emitted += outcome.tokens
        if len(emitted) == TOKENS:
            break
    assert emitted == plain, "the text is not plain decoding's"
    about = {"model": MODEL, "recipe": "auto", "prompt": PROMPT, "passes": CURVE.name}
    return {
        "command": "python -m tools.living_tree --record",
        "commit": provenance.commit(),
        **about,
        "rounds": made,
    }


# ----------------------------------------------------------------------------------- rounds
class Round:
    """A round to draw: its tree, its text, and its place in time."""

    def __init__(self, made: dict[str, Any], start: float) -> None:
        self.words = [*made["tokens"], made["bonus"]]
        tree = Tree(0, len(self.words))
        for node in range(1, len(made["tokens"])):
            parent = made["parents"][node]
            tree.add(parent, node, made["reach"][node] / max(made["reach"][parent], 1e-9))
        verdict = Verdict(tuple(made["path"]), len(self.words) - 1)
        self.nodes = len(tree) - 1
        self.accepted = verdict.accepted
        self.emitted = [made["tokens"][node] for node in made["path"][1:]] + [made["bonus"]]
        self.tree, self.verdict = trimmed(tree, verdict, MOST)
        self.layout = TreeLayout.of(self.tree, self.verdict, self.words.__getitem__)
        self.start = start
        self.grown = start + LEVEL * (self.tree.height + 1)
        self.checked = self.grown + (CHECK if self.nodes else CHECK / 2)
        self.lit = self.checked + STEP * len(self.emitted)
        self.end = self.lit + HOLD


class Film:
    """Keyframes of one loop, each written once and named when first used."""

    def __init__(self, length: float, still: float) -> None:
        self.length = length
        self.still = still  # the second at which the loop begins, and which is shown without motion
        self.rules: dict[str, tuple[str, float]] = {}  # name and opacity of the still, by keyframes

    def shown(self, start: float, end: float | None, low: float = 0.0, high: float = 1.0) -> str:
        """The attribute that shows a group between two seconds; None: to the end of the loop."""
        end = self.length - FADE if end is None else end
        stops = [(start, low), (start + FADE, high), (end, high), (end + FADE, low)]
        return self.name(stops)

    def name(self, stops: Sequence[tuple[float, float]]) -> str:
        """The attribute of an animation of opacity through these (second, opacity) stops."""
        parts = [
            f"{100 * second / self.length:.2f}%{{opacity:{value:g}}}" for second, value in stops
        ]
        rule = f"0%{{opacity:{stops[0][1]:g}}}{''.join(parts)}100%{{opacity:{stops[-1][1]:g}}}"
        before = [value for second, value in stops if second <= self.still]
        now = before[-1] if before else stops[0][1]
        name, _ = self.rules.setdefault(rule, (f"a{len(self.rules)}", now))
        return f'class="{name}"'

    def sweep(self, rounds: Sequence[Round]) -> str:
        """The rule of a bar that crosses a tree while the pass checks it."""
        parts = []
        for one in rounds:
            far = min(one.layout.width, WIDTH - 2 * MARGIN)
            for second, opacity, at in (
                (one.grown, 0.0, 0.0),
                (one.grown + 0.05, 0.16, 0.1 * far),
                (one.checked - 0.05, 0.16, 0.9 * far),
                (one.checked, 0.0, far),
            ):
                moved = f"opacity:{opacity:g};transform:translateX({at:.0f}px)"
                parts.append(f"{100 * second / self.length:.2f}%{{{moved}}}")
        time = f"animation-duration:{self.length:.2f}s;animation-delay:-{self.still:.2f}s"
        return f"@keyframes sweep{{{''.join(parts)}}}\n.sweep{{{time}}}\n"

    def css(self) -> str:
        """All rules."""
        time = f"{self.length:.2f}s linear -{self.still:.2f}s infinite"
        return "".join(
            f"@keyframes {name}{{{rule}}}\n.{name}{{opacity:{now:g};animation:{name} {time}}}\n"
            for rule, (name, now) in self.rules.items()
        )


# ---------------------------------------------------------------------------------- drawing
def draw(made: dict[str, Any]) -> str:
    """The whole picture."""
    rounds: list[Round] = []
    start = 0.6
    for one in made["rounds"]:
        rounds.append(Round(one, start))
        start = rounds[-1].end
    widest = max(rounds, key=lambda one: (one.accepted, one.start))
    film = Film(start + END, widest.lit + FADE)
    body = [
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="12"/>',
        *header(made, rounds, film),
        *output(rounds, film),
        f'<path d="M{MARGIN} {TREE_TOP - 22}H{WIDTH - MARGIN}" stroke="var(--edge)"/>',
        *stages(rounds, film),
        *(line for one in rounds for line in tree(one, film)),
        *closing(rounds, film),
        f'<rect class="sweep" x="{MARGIN - 6}" y="{TREE_TOP - 8}" width="40" '
        f'height="{TREE_HIGH + 16}" rx="8"/>',
    ]
    tokens = sum(len(one.emitted) for one in rounds)
    title = (
        f"{MODEL} answers a prompt: {tokens} tokens in {len(rounds)} passes. In every round a tree "
        "of guesses grows, one pass checks it, and the path that the model agrees with becomes "
        "text."
    )
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    )
    return (
        "\n".join(
            [opening, f"<style>\n{STYLE}{film.css()}{film.sweep(rounds)}</style>", *body, "</svg>"]
        )
        + "\n"
    )


def header(made: dict[str, Any], rounds: Sequence[Round], film: Film) -> Iterator[str]:
    """Prompt and counters."""
    yield f'<text class="s b" x="{MARGIN}" y="40">{escape(made["prompt"])}</text>'
    yield (
        f'<text class="s" x="{MARGIN}" y="62">{made["model"]}, recipe {made["recipe"]}, passes '
        "priced as on an H200; green: drafted and accepted</text>"
    )
    right = WIDTH - MARGIN
    yield f'<text class="s r" x="{right}" y="62">tokens per pass</text>'
    tokens = 0
    since = 0.0
    for place in range(len(rounds) + 1):
        until = rounds[place].lit if place < len(rounds) else None
        value = f"{tokens / place:.1f}" if place else "-"
        counts = f"{tokens} tokens in {place} pass{'es'[: 2 * (place > 1)]}" if place else ""
        yield f'<g {film.shown(since, until)}><text class="s n r" x="{right}" y="42">{value}</text>'
        yield f'<text class="s r" x="{right - 120}" y="40">{counts}</text></g>'
        if until is not None:
            tokens += len(rounds[place].emitted)
            since = until


def wrapped(text: str) -> list[tuple[int, int]]:
    """Row and column of every character, with lines broken between words."""
    places: list[tuple[int, int]] = []
    row = column = 0
    for piece in re.findall(r"\n| +|[^ \n]+", text):
        if piece == "\n":
            places.append((row, column))
            row, column = row + 1, 0
            continue
        if column + len(piece) > COLUMNS:
            row, column = row + 1, 0
        places += [(row, column + place) for place in range(len(piece))]
        column += len(piece)
    return places


def output(rounds: Sequence[Round], film: Film) -> Iterator[str]:
    """The text, a group for each round; drafted tokens are green."""
    places = wrapped("".join(word for one in rounds for word in one.emitted))
    at = 0
    for one in rounds:
        yield f"<g {film.shown(one.lit - STEP, None)}>"
        for place, word in enumerate(one.emitted):
            kind = ' class="o"' if place < one.accepted else ""
            for found in re.finditer(r"[^ \n]+", word):
                row, column = places[at + found.start()]
                x, y = MARGIN + LETTER * column, TEXT_TOP + LINE * row
                fixed = f' textLength="{LETTER * len(found[0]):.1f}"' if len(found[0]) > 1 else ""
                yield f'<text{kind} x="{x:.1f}" y="{y}"{fixed}>{escape(found[0])}</text>'
            at += len(word)
        yield "</g>"


def closing(rounds: Sequence[Round], film: Film) -> Iterator[str]:
    """The run in one line, beside the finished text."""
    tokens = sum(len(one.emitted) for one in rounds)
    middle = TREE_TOP + TREE_HIGH / 2
    counts = f"{tokens} tokens in {len(rounds)} passes"
    place = f'x="{WIDTH / 2}" text-anchor="middle"'
    yield f"<g {film.shown(rounds[-1].end + FADE, None)}>"
    yield f'<text class="s n" {place} y="{middle - 8:g}">{counts}</text>'
    note = f"plain decoding writes the same text in {tokens}"
    yield f'<text class="s" {place} y="{middle + 18:g}">{note}</text></g>'


def stages(rounds: Sequence[Round], film: Film) -> Iterator[str]:
    """The three steps of a round, the present one bright, and the round in numbers."""
    names: tuple[tuple[str, Callable[[Round], tuple[float, float]]], ...] = (
        ("draft a tree", lambda one: (one.start, one.grown)),
        ("check it in one pass", lambda one: (one.grown, one.checked)),
        ("keep what the model agrees with", lambda one: (one.checked, one.end)),
    )
    x = MARGIN
    y = HEIGHT - 22
    for number, (name, span) in enumerate(names, 1):
        stops: list[tuple[float, float]] = [(0.0, 0.35)]
        for one in rounds:
            begin, end = span(one)
            stops += [(begin, 0.35), (begin + 0.05, 1.0), (end - 0.02, 1.0), (end, 0.35)]
        yield f'<g {film.name(stops)}><text class="s b" x="{x}" y="{y}">{number}  {name}</text></g>'
        x += 44 + round(7.1 * len(name))
    for one in rounds:
        grown = f"{one.nodes} nodes" if one.nodes != 1 else "1 node"
        hidden = one.nodes - (len(one.tree) - 1)
        grown += f" ({hidden} not drawn)" if hidden else ""
        place = f'class="s r" x="{WIDTH - MARGIN}" y="{y}"'
        yield f"<g {film.shown(one.start, one.checked)}><text {place}>{grown}</text></g>"
        counts = f"{grown}, {one.accepted} accepted"
        yield f"<g {film.shown(one.checked, one.end - FADE)}><text {place}>{counts}</text></g>"


def tree(one: Round, film: Film) -> Iterator[str]:
    """A round's tree: levels appear, a pass sweeps over them, the path lights up, others fade."""
    made = one.layout
    scale = min(1.0, (WIDTH - 2 * MARGIN) / made.width, TREE_HIGH / made.height)
    left = MARGIN - 12 * scale
    top = TREE_TOP + (TREE_HIGH - made.height * scale) / 2
    yield f'<g transform="translate({left:.1f} {top:.1f}) scale({scale:.3f})">'
    path = one.verdict.path
    for depth in range(one.tree.height + 1):
        begin = one.start + LEVEL * depth
        kept = [node for node in one.tree.level(depth) if node in path]
        lost = [node for node in one.tree.level(depth) if node not in path]
        yield f"<g {film.shown(begin, one.end - FADE)}>"
        kind = "t" if depth == 0 else "k"
        yield f'<g class="{kind}">{"".join(pill(made, node) for node in kept)}</g></g>'
        if lost:
            stops = [
                (begin, 0.0),
                (begin + FADE, 1.0),
                (one.checked, 1.0),
                (one.checked + 0.3, 0.3),
                (one.end - FADE, 0.3),
                (one.end, 0.0),
            ]
            pills = "".join(pill(made, node) for node in lost)
            yield f'<g {film.name(stops)}><g class="k">{pills}</g></g>'
    for place, node in enumerate([*path[1:], BONUS]):
        kind = "q" if node == BONUS else "g"
        yield f"<g {film.shown(one.checked + STEP * place, one.end - FADE)}>"
        yield f'<g class="{kind}">{pill(made, node)}</g></g>'
    yield "</g>"


def pill(made: TreeLayout, node: int) -> str:
    """A label in its box, and the line that leads to it."""
    left, middle, text = made.columns[node], made.rows[node], made.labels[node]
    wide = breadth(text)
    line = ""
    if node != ROOT:
        parent = made.verdict.path[-1] if node == BONUS else int(made.tree.parents[node])
        start = made.columns[parent] + breadth(made.labels[parent])
        above = made.rows[parent]
        bend = (start + left) / 2
        thick = 1.5 if node == BONUS else 1 + 4 * made.reach[node]
        line = (
            f'<path stroke-width="{thick:.1f}" d="M{start:g} {above:g}C{bend:g} {above:g} '
            f'{bend:g} {middle:g} {left:g} {middle:g}"/>'
        )
    box = f'x="{left:g}" y="{middle - HIGH / 2:g}" width="{wide:g}" height="{HIGH}" rx="6"'
    return (
        f"{line}<rect {box}/>"
        f'<text x="{left + PAD:g}" y="{middle + 4:g}">{escape(label(text))}</text>'
    )


def main(arguments: list[str]) -> int:
    """Record, draw or compare; the exit code."""
    if "--record" in arguments:
        RECORD.write_text(json.dumps(record(), ensure_ascii=False) + "\n", encoding="utf-8")
    picture = draw(json.loads(RECORD.read_text(encoding="utf-8")))
    if "--check" not in arguments:
        PICTURE.write_text(picture, encoding="utf-8")
        return 0
    if PICTURE.read_text(encoding="utf-8") != picture:
        sys.stderr.write(
            f"{PICTURE.name} differs from its record; run python -m tools.living_tree\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
