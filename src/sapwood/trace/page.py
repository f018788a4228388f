"""The trace as one page that needs nothing but itself: text, trees, laws, times and costs, round by round."""

import json
import math
from importlib.resources import files
from typing import Any

from sapwood.trace.rounds import Round, Trace
from sapwood.trace.view import order

DATA = "__DATA__"  # where the template takes the rounds
SHOWN = 6  # best tokens of a law that the page shows


def page(trace: Trace) -> str:
    """The page."""
    template = files("sapwood.trace").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps(content(trace), separators=(",", ":"), allow_nan=False)
    return template.replace(DATA, data.replace("<", "\\u003c"))  # nothing in it may look like a tag


def content(trace: Trace) -> dict[str, Any]:
    """What the page knows."""
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
    shown |= {token for one in trace.rounds for token in one.law.tokens[:, :SHOWN].flat}
    return {
        "recipe": header.recipe,
        "spelling": header.spelling,
        "guarantee": header.guarantee,
        "model": header.info.model,
        "device": f"{header.info.dtype} on {header.info.device}",
        "voices": [[bit, name] for bit, name in trace.voices.items() if any(used & 1 << bit for used in sources)],
        "measured": header.measured,
        "curve": header.curve.to_json(),
        "machine": header.provenance.get("machine", {}),
        "command": header.provenance.get("command", ""),
        "prompts": prompts,
        "words": {str(token): trace.spell(token) for token in sorted(map(int, shown))},
    }


def line(one: Round) -> dict[str, Any]:
    """One round; nodes keep their numbers in what was grown."""
    grown, rank = one.grown, {node: place for place, node in enumerate(one.checked)}
    valued = grown.valued >= len(grown)
    laws = [
        [[int(token), share(logp)] for token, logp in zip(tokens[:SHOWN], logps[:SHOWN], strict=True)]
        for tokens, logps in zip(one.law.tokens, one.law.logps, strict=True)
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
            "law": laws[rank[node]] if node in rank else None,
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
    """A probability, to four digits."""
    return round(math.exp(logp), 4)
