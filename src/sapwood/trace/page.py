"""The trace as one HTML page without dependencies: text, trees, probs, times, costs by round."""

import json
import math
from importlib.resources import files
from typing import Any

from sapwood.trace.rounds import Trace, TracedRound
from sapwood.trace.view import order

DATA = "__DATA__"  # placeholder in the template
SHOWN = 6  # top tokens of a distribution that the page shows


def page(trace: Trace) -> str:
    """The page as HTML."""
    template = files("sapwood.trace").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps(content(trace), separators=(",", ":"), allow_nan=False)
    return template.replace(DATA, data.replace("<", "\\u003c"))  # no tags inside the script


def content(trace: Trace) -> dict[str, Any]:
    """The data of the page."""
    header = trace.header
    prompts = [
        {
            "name": asked.name or f"prompt {asked.prompt + 1}",
            "text": "".join(map(trace.spell, asked.tokens)),
            "rounds": [line(one) for one in trace.of(asked.prompt)],
            "stats": trace.ended[asked.prompt].stats if asked.prompt in trace.ended else None,
        }
        for asked in trace.asked
    ]
    sources = {int(source) for one in trace.rounds for source in one.grown.sources}
    shown = {token for one in trace.rounds for token in [*one.grown.tokens.tolist(), *one.tokens]}
    shown |= {token for one in trace.rounds for token in one.probs.tokens[:, :SHOWN].flat}
    return {
        "recipe": header.recipe,
        "spelling": header.spelling,
        "guarantee": header.guarantee,
        "model": header.info.model,
        "device": f"{header.info.dtype} on {header.info.device}",
        "voices": [
            [bit, name]
            for bit, name in trace.source_names.items()
            if any(used & 1 << bit for used in sources)
        ],
        "measured": header.measured,
        "curve": header.curve.to_json(),
        "machine": header.provenance.get("machine", {}),
        "command": header.provenance.get("command", ""),
        "prompts": prompts,
        "words": {str(token): trace.spell(token) for token in sorted(map(int, shown))},
    }


def line(one: TracedRound) -> dict[str, Any]:
    """One round; nodes keep their numbers in the grown tree."""
    grown = one.grown
    rank = {node: place for place, node in enumerate(one.checked)}
    valued = grown.valued >= len(grown)
    all_probs = [
        [
            [int(token), share(logp)]
            for token, logp in zip(tokens[:SHOWN], logps[:SHOWN], strict=True)
        ]
        for tokens, logps in zip(one.probs.tokens, one.probs.logps, strict=True)
    ]
    nodes = [
        {
            "t": int(grown.tokens[node]),
            "up": int(grown.parents[node]),
            "q": round(float(grown.probs[node]), 4),
            "reach": round(float(grown.reach[node]), 4) if valued else None,
            "by": int(grown.sources[node]),
            "p": share(one.logps[rank[node]]) if node in rank else None,
            "rank": one.ranks[rank[node]] + 1 if node in rank else None,
            "law": all_probs[rank[node]] if node in rank else None,
        }
        for node in range(len(grown))
    ]
    return {
        "context": one.context,
        "budget": one.budget,
        "nodes": nodes,
        "order": order(one),  # from top to bottom
        "path": [one.checked[node] for node in one.verdict.path],
        "bonus": one.verdict.bonus,
        "tokens": one.tokens,
        "kept": one.kept,
        "rows": len(one.checked),
        "times": [one.times.draft, one.times.verify, one.times.other],
    }


def share(logp: float) -> float:
    """A probability, rounded to four digits."""
    return round(math.exp(logp), 4)
