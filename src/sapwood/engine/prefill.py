"""The prefill of one prompt: for one request, or for several that begin with the same tokens."""

from collections.abc import Sequence

from sapwood.core.protocols import Backend, PrefillChunk, Session, TargetOutput, TreeInput
from sapwood.engine.prompt_scores import chain
from sapwood.engine.request import Request


class Prefill:
    """The prefill of a prompt in chunks, once for all requests that have it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = list(requests)
        first = self.requests[0]
        text = [*first.prompt, *first.output_tokens]
        # without the last token, which is the root of the first tree
        self.tokens = text if first.prompt_only else text[:-1]
        reader = first.prompt_reader
        self.reader = None if reader is None or reader.complete else reader
        self.session: Session | None = None

    @property
    def number(self) -> int:
        """The number of its oldest request."""
        return self.requests[0].number

    @property
    def tenant(self) -> str:
        """The tenant of its requests."""
        return self.requests[0].tenant

    @property
    def left(self) -> int:
        """Tokens still to be prefilled."""
        return len(self.tokens) - (0 if self.session is None else self.session.length)

    def serves(self, request: Request) -> bool:
        """True when a further request has the same prompt, and the prefill is not complete."""
        first = self.requests[0]
        same = (first.tenant, first.prompt) == (request.tenant, request.prompt)
        same = same and first.prompt_only == request.prompt_only
        same = same and first.prompt_reader is request.prompt_reader
        begun = first.output_tokens or request.output_tokens
        return bool(same and self.left and not begun)

    def start(self, target: Backend, now: float, *, at_once: bool = False) -> None:
        """Open a session; tokens found in the prefix cache are not computed again.

        `at_once` prefills the whole prompt here, in passes of its own, instead of in chunks.
        """
        if self.reader is not None:  # cached tokens have no scores
            self.reader.restart(target)
            self.reader.complete = not self.tokens
            self.session = target.start((), self.tenant)
            for request in self.requests:
                request.start(now, 0)
            return
        if at_once:
            for request in self.requests:
                request.start(now, 0)
            self.session = target.open(self.tokens)
            return
        self.session = target.start(self.tokens, self.tenant)
        for request in self.requests:
            request.start(now, self.session.length)

    def chunk(self, count: int) -> PrefillChunk:
        """The next tokens to prefill."""
        assert self.session is not None
        begun = self.session.length
        return PrefillChunk(self.session, self.tokens[begun : begun + count])

    def scored_chunk(self, count: int) -> TreeInput:
        """The next tokens as a chain to score."""
        assert self.session is not None
        begun = self.session.length
        return TreeInput(self.session, chain(self.tokens[begun : begun + count]))

    def read(self, output: TargetOutput, count: int) -> None:
        """Read the scores of a chain of so many tokens, and commit it."""
        assert self.session is not None
        assert self.reader is not None
        begun = self.session.length
        following = self.requests[0].prompt[begun + 1 : begun + 1 + count]
        self.reader.read(output, count, following)
        self.session.commit(range(count))
        self.reader.complete = not self.left

    def share(self) -> list[Session]:
        """A session for each request after the prefill: the prefilled one, and its forks."""
        session, self.session = self.session, None
        assert session is not None
        forks: list[Session] = []
        try:
            forks += [session.fork() for _ in self.requests[1:]]
        except BaseException:
            for held in (session, *forks):
                held.close()
            raise
        return [session, *forks]

    def close(self) -> None:
        """Free its memory."""
        session, self.session = self.session, None
        if session is not None:
            session.close()
