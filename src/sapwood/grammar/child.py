"""The program of the process that tries grammars: a JSON text per line in, a line out that says what is wrong.

It is run by its path and imports nothing of the package, so that it is there in a moment.
"""

import json
import sys

MEMORY = 1 << 30  # bytes of address space
READY = "ready"


def limit_memory() -> None:
    """Take no more memory than a grammar needs, where the system knows such limits."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def say(answer: str) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def serve() -> None:
    """Answer until there is nothing more to read."""
    import llguidance

    limit_memory()
    say(READY)
    for line in sys.stdin:
        fault = llguidance.LLMatcher.validate_grammar(json.loads(line))
        say(" ".join(fault.split())[:400])


if __name__ == "__main__":
    serve()
