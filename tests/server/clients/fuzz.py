"""Generated requests against our own document, right and wrong ones: python fuzz.py URL KEY COUNT.

No answer may be a 5xx, and every answer must have a documented status and the documented form.
"""

import subprocess
import sys
from pathlib import Path

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
MANY = 200  # from here on the edges of every field are tried one by one as well
POSTS = 2  # routes that take a body, which most of the requests go to


def command(url: str, key: str, count: int) -> list[str]:
    """The call of schemathesis."""
    program = Path(sys.executable).with_name("st")
    return [
        str(program),
        "run",
        f"{url}/openapi.json",
        "--header",
        f"Authorization: Bearer {key}",
        "--checks",
        ",".join(CHECKS),
        "--mode",
        "all",
        "--phases",
        "examples,coverage,fuzzing" if count >= MANY else "fuzzing",
        "--max-examples",
        str(max(1, count // POSTS)),
        "--seed",
        "1",
        "--generation-database",
        "none",
        "--continue-on-failure",
        "--request-timeout",
        "60",
    ]


if __name__ == "__main__":
    sys.exit(
        subprocess.run(command(sys.argv[1], sys.argv[2], int(sys.argv[3])), check=False).returncode
    )
