"""Prefill of a whole prompt, for backends that read it in chunks."""

from collections.abc import Sequence

from sapwood.core.protocols import Backend, PrefillChunk, Session
from sapwood.errors import OutOfMemory


def prefill(backend: Backend, session: Session, tokens: Sequence[int], rows: int) -> None:
    """Prefill the rest of a text, `rows` tokens a pass; close the session if memory runs out."""
    try:
        while rest := tokens[session.length : session.length + rows]:
            backend.score((), [PrefillChunk(session, rest)])
    except OutOfMemory:
        session.close()
        raise
