"""One shard of training data: its prompts, and the target's answers.

Every shard holds the same mixture, so that data cut short by the clock is balanced, and each is a
function of its number, the seed and the shards before it, so that an interrupted one is made again
as it would have been.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.core.rng import path_key, uniforms
from sapwood.errors import SapwoodError
from sapwood.train.decode_state import TextToContinue
from sapwood.train.generate import TextGenerator, never, nothing
from sapwood.train.journal import TextJournal
from sapwood.train.prompts import (
    ChatFrame,
    KeyedDraws,
    TrainPrompt,
    choose,
    derive,
    finished,
    library,
    repeats_itself,
)

ORDER, TURN, DERIVED, ANSWER, MIX = range(5)  # uses of random numbers
SPARE = 1.25  # turns written for each one wanted: some are unusable
LEAST = 32  # tokens an answer must have room for
TURNS, ANSWERS = "turns", "answers"  # phases of a shard
TEXTS = 512  # earlier answers that passages are made of


@dataclass(frozen=True)
class DataSettings:
    """Mixture and lengths of training data."""

    size: int | None = None  # prompts of a shard; None: 8192 on a GPU, 32 elsewhere
    own: float = 0.5  # share of the user's prompts, if there are any
    derived: float = 0.18  # share of tasks about passages; the rest is written by the target
    opened: float = 0.5  # share of written turns that begin with an opening
    long: float = 0.125  # share of written turns whose opening asks for a text
    # share of answers at temperature 0, for prompts that come for the first time
    greedy: float = 0.55
    warm: tuple[float, ...] = (0.8, 1.0)  # temperatures of the other answers
    new: int = 384  # most tokens of an answer
    turn: int = 96  # most tokens of a written turn
    long_turn: int = 400  # most tokens of a written turn that is a text
    limit: int = 1024  # most tokens of a prompt
    longest: int = 1280  # most tokens of a prompt with its answer

    def __post_init__(self) -> None:
        between(
            0,
            1,
            own=self.own,
            derived=self.derived,
            greedy=self.greedy,
            opened=self.opened,
            long=self.long,
        )
        between(0, 1, **{"own + derived": self.own + self.derived})
        at_least(
            1,
            new=self.new,
            turn=self.turn,
            long_turn=self.long_turn,
            limit=self.limit,
            size=self.size or 1,
        )
        at_least(2 * LEAST, longest=self.longest)
        if not self.warm or min(self.warm) <= 0:
            raise SapwoodError(f"warm={self.warm} must hold at least one temperature, each above 0")

    def most(self, context: int) -> int:
        """Most tokens of a prompt for a model of this context."""
        return min(self.limit, min(self.longest, context) - LEAST)


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """A prompt and its answer."""

    tokens: list[int]
    answer: int  # where the answer begins


@dataclass
class ShardWriter:
    """Makes shards of a corpus, one after the other."""

    generator: TextGenerator
    frame: ChatFrame
    prompts: Sequence[TrainPrompt]  # the user's
    context: int  # most tokens of the model
    size: int  # prompts of a shard
    seed: int
    settings: DataSettings
    seen: set[bytes] = field(default_factory=set)  # digests of prompts that came before
    folder: Path | None = None  # of the journals, from which a killed run goes on
    # True when the time for written turns, and for all, is over: texts are cut there
    turns_over: Callable[[], bool] = never
    over: Callable[[], bool] = never

    @property
    def longest(self) -> int:
        """Most tokens of a prompt with its answer."""
        return min(self.settings.longest, self.context)

    @property
    def most(self) -> int:
        """Most tokens of a prompt."""
        return self.settings.most(self.context)

    def shard(
        self,
        index: int,
        earlier: Sequence[str],
        tick: Callable[[int], None],
        asking: Callable[[int], None] = nothing,
    ) -> list[PromptAnswer]:
        """The shard of this number; `earlier` are answers of the one before.

        `tick` gets the number of answer tokens, `asking` that of tokens of written turns.
        """
        settings = self.settings
        own = self._own(index, round(self.size * settings.own) if self.prompts else 0)
        derived = round(self.size * settings.derived)
        turns = self._written(index, self.size - len(own) - derived, asking)
        self.seen.update(digest(prompt.tokens) for prompt, _ in own)
        asked = own + [(prompt, 0) for prompt in self._fresh(self.frame.prompts(turns))]
        tasks = self._derived(index, derived, earlier, turns)
        asked += [(prompt, 0) for prompt in self._fresh(self.frame.prompts(tasks))[:derived]]
        if not asked:
            raise SapwoodError(
                "the model wrote no usable prompt for itself; bring prompts of your own in a file"
            )
        order = np.argsort(uniforms(path_key([self.seed, MIX, index]), len(asked)))
        return self._answered(index, [asked[place] for place in order], tick)

    def _journal(self, index: int, phase: str) -> TextJournal | None:
        if self.folder is None:
            return None
        return TextJournal.open(self.folder / f"shard-{index:05}.{phase}.json")

    def finish(self, index: int) -> None:
        """Delete the journals of a shard that was stored."""
        for phase in (TURNS, ANSWERS):
            if (journal := self._journal(index, phase)) is not None:
                journal.close()

    def _fresh(self, prompts: Iterable[TrainPrompt]) -> list[TrainPrompt]:
        """The prompts that are short enough and new."""
        kept = []
        for prompt in prompts:
            mark = digest(prompt.tokens)
            if len(prompt.tokens) <= self.most and mark not in self.seen:
                self.seen.add(mark)
                kept.append(prompt)
        return kept

    # ------------------------------------------------------------------------------- prompts
    def _own(self, index: int, count: int) -> list[tuple[TrainPrompt, int]]:
        """The next of the user's prompts, with the number of earlier visits of each."""
        places = range(index * count, (index + 1) * count)
        visits = {
            place // len(self.prompts): self._order(place // len(self.prompts)) for place in places
        }
        each = [divmod(place, len(self.prompts)) for place in places]
        return [(self.prompts[visits[visit][rest]], visit) for visit, rest in each]

    def _order(self, visit: int) -> IntArray:
        return np.argsort(uniforms(path_key([self.seed, ORDER, visit]), len(self.prompts)))

    def _written(self, index: int, count: int, tick: Callable[[int], None]) -> list[str]:
        """User turns that the target writes by itself."""
        if count <= 0:
            return []
        draws = [KeyedDraws(self.seed, TURN, index, row) for row in range(int(SPARE * count) + 1)]
        chosen = [choose(each, self.settings.opened, self.settings.long) for each in draws]
        text = self.frame.text
        head = self.frame.opening
        cache = dict[str, list[int]]()
        asks = []
        for row, one in enumerate(chosen):
            first = cache.setdefault(
                one.words, text.encode(one.words, whole=False) if one.words else []
            )
            most = self.settings.long_turn if one.long else self.settings.turn
            room = self.most - len(head) - len(first)
            asks.append(
                TextToContinue(
                    [*head, *first],
                    max(1, min(most, room)),
                    1.0,
                    path_key([self.seed, TURN, index, row, 1]),
                )
            )
        ends = self.frame.ends
        kept = []
        written = self.generator.run(
            asks, ends, tick, journal=self._journal(index, TURNS), over=self.turns_over
        )
        for ask, out in zip(asks, written, strict=True):
            ended = bool(out) and out[-1] in ends
            turn = [*ask.tokens[len(head) :], *(out[:-1] if ended else out)]
            unusable = repeats_itself(turn) or len(out) <= ended
            words = "" if unusable else finished(text.decode(turn), ended)
            kept += [words] if words else []
        return kept[:count]

    def _derived(
        self, index: int, count: int, earlier: Sequence[str], turns: Sequence[str]
    ) -> list[str]:
        """Tasks about passages of the user's prompts and earlier answers, else of written turns."""
        own = [prompt.words for prompt in self.prompts]
        shelves = [shelf for shelf in (own, earlier[:TEXTS]) if shelf] or [list(turns)]
        if not shelves[0]:
            return []
        texts = library(shelves, [*own, *turns])
        room = self.most * 3 // 4
        draws = (KeyedDraws(self.seed, DERIVED, index, row) for row in range(int(SPARE * count)))
        return [task for each in draws if (task := derive(texts, each, self.frame.text, room))]

    # ------------------------------------------------------------------------------- answers
    def _answered(
        self, index: int, asked: Sequence[tuple[TrainPrompt, int]], tick: Callable[[int], None]
    ) -> list[PromptAnswer]:
        asks = []
        for row, (prompt, visit) in enumerate(asked):
            new = min(self.settings.new, self.longest - len(prompt.tokens))
            draws = KeyedDraws(self.seed, ANSWER, index, row, count=2)
            cold = draws.number() < self.settings.greedy and not visit
            heat = 0.0 if cold else draws.one(self.settings.warm)
            asks.append(
                TextToContinue(
                    prompt.tokens, new, heat, path_key([self.seed, ANSWER, index, row, 1])
                )
            )
        journal = self._journal(index, ANSWERS)
        answers = self.generator.run(
            asks, self.frame.text.eos, tick, journal=journal, over=self.over
        )
        return [
            PromptAnswer([*ask.tokens, *answer], len(ask.tokens))
            for ask, answer in zip(asks, answers, strict=True)
            if answer  # the time was over before it began
        ]


def digest(tokens: Sequence[int] | NDArray[np.int32]) -> bytes:
    """A hash by which a prompt is recognised."""
    return sha256(np.asarray(tokens, np.int32).tobytes()).digest()[:12]
