"""Incremental detokenizing, and stop strings in the text that comes out."""

from collections.abc import Sequence

from sapwood.tokenizer.tokenizer import BROKEN, Tokenizer

# prompt tokens decoded before the first output token, so that a leading space is decided as inside
# a text
LEAD = 6
HOLD = 32  # tokens after which bytes that never became a character are output as they are


class Detokenizer:
    """Text of tokens as they arrive; decodes a short window again, never the whole output."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        shown: frozenset[int] = frozenset(),  # special tokens that stand in the text
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._restart(list(prompt[-LEAD:]))
        # a prompt may end inside a character
        text = self._decode(self._window)
        self._sent = len(text.rstrip(BROKEN))
        self._broken = text.endswith(BROKEN)  # the window begins inside a character

    def _restart(self, lead: list[int]) -> None:
        """Begin a window with tokens whose text has been output."""
        self._window = lead
        self._held = 0  # tokens since the last complete character
        self._lead = len(lead)
        self._sent = len(self._decode(lead))  # characters of the window that were output

    def _decode(self, tokens: list[int]) -> str:
        """The text of these tokens."""
        if not self._shown or self._shown.isdisjoint(tokens):
            return self._tokenizer.decode(tokens)
        return self._tokenizer.decode_showing(tokens, self._shown)

    def push(self, tokens: Sequence[int]) -> str:
        """Text that these tokens complete; half a character waits for its other half."""
        return "".join([self.push_one(token) for token in tokens])

    def push_one(self, token: int) -> str:
        """The same for one token."""
        alone = None if self._held or self._broken else self._tokenizer.text_alone(token)
        if alone is not None and token not in self._shown:
            self._window = [token]
            self._lead = 1
            self._sent = len(alone)
            return alone
        self._window.append(token)
        self._held += 1
        full = self._decode(self._window)
        late = self._held > HOLD
        complete = full if late else full.rstrip(BROKEN)
        out = complete[self._sent :]
        self._sent = max(self._sent, len(complete))
        # a token without text stays in the window, to be decoded with the next one
        if len(complete) == len(full) and (out or late):
            self._held = 0
            self._broken = False
            if len(self._window) >= self._lead + LEAD:  # each restart decodes once more
                self._restart(self._window[-LEAD:])
        return out

    def flush(self) -> str:
        """Text that is left at the end of the output, as it is."""
        out = self._decode(self._window)[self._sent :]
        self._restart([])
        return out


class StopStrings:
    """Finds the first completed stop string; holds back text that may be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """The text that belongs to no stop string; nothing once one was hit."""
        if not self._stops:
            return text
        if self.hit is not None:
            return ""
        text = self._held + text
        self._held = ""
        found = [
            (text.index(stop) + len(stop), text.index(stop), stop)
            for stop in self._stops
            if stop in text
        ]
        if found:
            _, start, self.hit = min(found)
            return text[:start]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Text that was held back, at the end of the output."""
        out, self._held = self._held, ""
        return out


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)
