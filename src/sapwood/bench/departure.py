"""How much of an output plain decoding would not have said, for recipes that depart by design.

The target reads the output once more. At each place it is asked for its own next token after the same text, by
the same seed; what it would have said otherwise is counted. Two texts that once part differ for ever, so comparing
them whole would say little about how often a rule departs.
"""

from collections.abc import Sequence

from sapwood.drafters.model import chain
from sapwood.laws import PathLaws
from sapwood.protocols import Backend, Work
from sapwood.rng import Keyed
from sapwood.sampling import Sampler, Sampling

ROWS = 64  # tokens read in one pass


def strayed(target: Backend, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> int:
    """Tokens of the output that plain decoding would not have said after the same text."""
    session, sampler, rng = target.open(prompt[:-1]), Sampler(sampling, prompt), Keyed(sampling.seed)
    count, last = 0, prompt[-1]
    try:
        for start in range(0, len(output), ROWS):
            piece = list(output[start : start + ROWS])
            line = chain([last, *piece[:-1]])
            [scores] = target.score([Work(session, line)])
            laws, first = PathLaws(line, scores, sampler), session.length + 1
            count += sum(laws.draw(node, first + node, rng) != token for node, token in enumerate(piece))
            session.commit(range(len(line)))
            sampler.commit(piece)
            last = piece[-1]
        return count
    finally:
        session.close()
