"""Share of an output that differs from plain decoding, for lossy recipes.

The target scores the output once more. At each position its own next token after the same text,
with the same seed, is compared with the output's. Two texts that have diverged once stay different,
so comparing them whole would say little about how often a rule departs.
"""

from collections.abc import Sequence

from sapwood.core.protocols import Backend, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.drafters.compose.draft_model import chain

ROWS = 64  # tokens scored in one pass


def count_departures(
    target: Backend, prompt: Sequence[int], output: Sequence[int], sampling: Sampling
) -> int:
    """Number of tokens that plain decoding would not have emitted after the same text."""
    session = target.open(prompt[:-1])
    sampler = Sampler(sampling, prompt)
    rng = KeyedRng(sampling.seed)
    count = 0
    last = prompt[-1]
    try:
        for start in range(0, len(output), ROWS):
            piece = list(output[start : start + ROWS])
            line = chain([last, *piece[:-1]])
            [scores] = target.score([TreeInput(session, line)])
            all_probs = PathProbs(line, scores, sampler)
            first = session.length + 1
            count += sum(
                all_probs.draw(node, first + node, rng) != token for node, token in enumerate(piece)
            )
            session.commit(range(len(line)))
            sampler.commit(piece)
            last = piece[-1]
        return count
    finally:
        session.close()
