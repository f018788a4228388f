"""Write the reference pages from the code: Python, command line, HTTP, configuration, support.

python -m tools.reference            write docs/reference
python -m tools.reference --check    change nothing; exit with code 1 if a page differs
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tools import reference_api, reference_cli, reference_server, reference_support

ROOT = Path(__file__).parents[1]
PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/python.md": reference_api.page,
    "docs/reference/cli.md": reference_cli.page,
    "docs/reference/http.md": reference_server.http_page,
    "docs/reference/configuration.md": reference_server.configuration_page,
    "docs/reference/support.md": reference_support.page,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them; the exit code."""
    stale = []
    for name, page in PAGES.items():
        path = ROOT / name
        text = page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if "--check" not in arguments:
        return 0
    for name in stale:
        sys.stderr.write(f"{name} differs from the code; run make tables\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
