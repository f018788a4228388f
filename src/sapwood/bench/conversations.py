"""Turns of a conversation, with the answers so far as history, and filling of prompts.

The answers that become history are plain decoding's, so that every recipe and every peer gets the
same prompts. A prompt is filled up to a given length with generated lines before the first user
message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sapwood.bench.prompts import RandomPrompt, ledger
from sapwood.bench.suites import BenchPrompt
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer

FILLER = 600  # key of the generated text that fills prompts up
LINE = 24  # fewest tokens of a line of it
NEAR = 8  # tokens by which a filled prompt may be too short


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One turn as a prompt, with its history."""

    prompt: BenchPrompt
    turn: int  # 0 is the first
    tokens: list[int]
    text: str  # the tokens as text, special tokens included

    @property
    def name(self) -> str:
        """Name of the prompt, with the number of the turn after the first."""
        return self.prompt.name if not self.turn else f"{self.prompt.name}#{self.turn + 1}"


@dataclass
class Conversation:
    """One prompt with its turns and the answers so far."""

    prompt: BenchPrompt
    info: BackendInfo
    text: Tokenizer | None
    answers: list[str] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """Number of user turns."""
        return 1 + len(self.prompt.later)

    @property
    def fits_context(self) -> bool:
        """False when the history has filled the context, which ends a conversation early."""
        try:
            return not self.answers or bool(self.next_turn())
        except SapwoodError:
            return False

    def next_turn(self) -> ConversationTurn:
        """The next turn."""
        turn = len(self.answers)
        tokens = self.current().tokens(self.info, self.text)
        return ConversationTurn(
            self.prompt, turn, tokens, self.text.show(tokens) if self.text else ""
        )

    def add_answer(self, tokens: Sequence[int]) -> None:
        """Add the answer to the last turn."""
        self.answers.append(self.text.decode(tokens) if self.text else "")

    def current(self) -> BenchPrompt:
        """The prompt with its history as messages, or as text without a chat template."""
        if not self.answers:
            return self.prompt
        first = self.prompt.content
        pairs = [*zip(self.answers, self.prompt.later, strict=False)]
        if self.text is None or self.text.template is None:
            return replace(
                self.prompt,
                content="\n\n".join([str(first), *(word for pair in pairs for word in pair)]),
            )
        messages: list[dict[str, Any]] = [{"role": "user", "content": first}]
        for answer, turn in pairs:
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": turn},
            ]
        return replace(self.prompt, content=messages)


def lengthened(
    prompt: BenchPrompt, length: int | None, info: BackendInfo, text: Tokenizer | None
) -> BenchPrompt:
    """The same prompt, filled up to nearly `length` tokens."""
    if length is None:
        return prompt
    if isinstance(prompt.content, RandomPrompt):
        return replace(prompt, content=RandomPrompt(prompt.content.key, length))
    have = len(prompt.tokens(info, text))
    if have > length:
        raise SapwoodError(
            f"prompt {prompt.name} has {have} tokens, more than context {length}; "
            "give more, or leave its suite out"
        )
    assert text is not None  # without a tokenizer, prompt.tokens has raised
    filler = text.encode(ledger(FILLER, length // LINE + 1), whole=False)
    count = min(length - have, len(filler))
    longer = prompt
    while count > 0:
        longer = before(prompt, text.decode(filler[:count]))
        over = len(longer.tokens(info, text)) - length
        if over <= 0:
            break
        count -= max(over, 1)
    return longer if count > 0 and length - have > NEAR else prompt


def before(prompt: BenchPrompt, filler: str) -> BenchPrompt:
    """The prompt with further text before the first user message."""
    content = prompt.content
    if isinstance(content, str):
        return replace(prompt, content=f"{filler}\n\n{content}")
    assert isinstance(content, list)
    messages = list(content)
    place = next((at for at, it in enumerate(content) if it.get("role") == "user"), 0)
    messages[place] = {
        **messages[place],
        "content": f"{filler}\n\n{messages[place].get('content', '')}",
    }
    return replace(prompt, content=messages)
