"""Conversations under way: what each turn asks, given the answers so far, and how prompts are made longer.

The answers that become history are plain decoding's, so that every recipe and every peer is asked the same. A
prompt is filled up to a given length with lines of a ledger before the first words of the user.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sapwood.bench.prompts import Noise, ledger
from sapwood.bench.suites import Prompt
from sapwood.errors import SapwoodError
from sapwood.records import BackendInfo
from sapwood.text import Text

FILLER = 600  # key of the ledger that fills prompts up
LINE = 24  # tokens that a line of it has at least
NEAR = 8  # tokens by which a filled prompt may fall short


@dataclass(frozen=True, slots=True)
class Asked:
    """One turn, ready to be answered."""

    prompt: Prompt
    turn: int  # 0 is the first
    tokens: list[int]
    text: str  # the same in words, special tokens shown

    @property
    def name(self) -> str:
        """The prompt and its turn."""
        return self.prompt.name if not self.turn else f"{self.prompt.name}#{self.turn + 1}"


@dataclass
class Talk:
    """One prompt with its turns."""

    prompt: Prompt
    info: BackendInfo
    text: Text | None
    answers: list[str] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """Turns of the user."""
        return 1 + len(self.prompt.later)

    @property
    def goes_on(self) -> bool:
        """True unless the history has filled the context, which ends a talk before its last turn."""
        try:
            return not self.answers or bool(self.ask())
        except SapwoodError:
            return False

    def ask(self) -> Asked:
        """The turn that comes next."""
        turn = len(self.answers)
        tokens = self.current().tokens(self.info, self.text)
        return Asked(self.prompt, turn, tokens, self.text.show(tokens) if self.text else "")

    def hear(self, tokens: Sequence[int]) -> None:
        """Take the answer to the last turn."""
        self.answers.append(self.text.decode(tokens) if self.text else "")

    def current(self) -> Prompt:
        """The prompt with its history."""
        if not self.answers:
            return self.prompt
        first, said = self.prompt.content, [*zip(self.answers, self.prompt.later, strict=False)]
        if self.text is None or self.text.template is None:
            return replace(self.prompt, content="\n\n".join([str(first), *(word for pair in said for word in pair)]))
        messages: list[dict[str, Any]] = [{"role": "user", "content": first}]
        for answer, turn in said:
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        return replace(self.prompt, content=messages)


def lengthened(prompt: Prompt, length: int | None, info: BackendInfo, text: Text | None) -> Prompt:
    """The same prompt, filled up to nearly so many tokens."""
    if length is None:
        return prompt
    if isinstance(prompt.content, Noise):
        return replace(prompt, content=Noise(prompt.content.key, length))
    have = len(prompt.tokens(info, text))
    if have > length:
        raise SapwoodError(
            f"prompt {prompt.name} has {have} tokens, more than context {length}; give more, or leave its suite out"
        )
    assert text is not None  # or the prompt's own words could not have been read
    filler = text.encode(ledger(FILLER, length // LINE + 1), whole=False)
    count, longer = min(length - have, len(filler)), prompt
    while count > 0:
        longer = before(prompt, text.decode(filler[:count]))
        over = len(longer.tokens(info, text)) - length
        if over <= 0:
            break
        count -= max(over, 1)
    return longer if count > 0 and length - have > NEAR else prompt


def before(prompt: Prompt, filler: str) -> Prompt:
    """The prompt with further text before the first words of its user."""
    content = prompt.content
    if isinstance(content, str):
        return replace(prompt, content=f"{filler}\n\n{content}")
    assert isinstance(content, list)
    messages, place = list(content), next((at for at, it in enumerate(content) if it.get("role") == "user"), 0)
    messages[place] = {**messages[place], "content": f"{filler}\n\n{messages[place].get('content', '')}"}
    return replace(prompt, content=messages)
