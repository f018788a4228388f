"""Program of the process that test-compiles grammars: one JSON string per line in, its error out.

It is run by its path and imports nothing of the package, so that it starts fast.
"""

import json
import sys

MEMORY = 1 << 30  # bytes of address space
READY = "ready"


def limit_memory() -> None:
    """Limit the address space, on systems that have such limits."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def write_line(text: str) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(text) + "\n")
    sys.stdout.flush()


def serve() -> None:
    """Validate grammars until the end of the input."""
    import llguidance

    limit_memory()
    write_line(READY)
    for line in sys.stdin:
        fault = llguidance.LLMatcher.validate_grammar(json.loads(line))
        write_line(" ".join(fault.split())[:400])


if __name__ == "__main__":
    serve()
