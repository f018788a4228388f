"""The site's own pages: all in its navigation, references as the code has them, messages that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tools import reference, reference_support, token_path

from sapwood.backends.torch.cpu_int8 import int8_gemm

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOLE = "…"  # stands for names and numbers


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md\b", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    root = {"architecture.md", "contributing.md", "changelog.md"}  # documents of the root
    assert listed == pages | root


@pytest.mark.parametrize("name", [name for name in reference.PAGES if "support" not in name])
def test_reference_pages_are_what_the_code_has(name: str) -> None:
    assert (ROOT / name).read_text() == reference.PAGES[name](), "run make tables"


def test_the_support_table_is_what_the_code_does() -> None:
    text = (DOCS / "reference" / "support.md").read_text()
    for name in ("llama", "gpt2"):
        assert f"| {' | '.join(reference_support.row(name))} |" in text, "run make tables"


@pytest.mark.skipif(not int8_gemm.available(), reason="no eight-bit dot products: another path")
def test_a_token_passes_the_files_that_are_listed() -> None:
    assert set(token_path.traced("cpu")) == set(token_path.committed("cpu")), (
        "run python -m tools.token_path"
    )


def test_a_request_passes_the_files_that_are_listed() -> None:
    assert set(token_path.traced("server")) == set(token_path.committed("server")), (
        "run python -m tools.token_path"
    )


@pytest.mark.parametrize(("name", "most"), [("cpu", 40), ("rounds", 25)])
def test_a_token_passes_few_files(name: str, most: int) -> None:
    assert len(token_path.committed(name)) <= most


@cache
def sentences() -> str:
    """All texts in the source, formatted values as holes."""
    found = []
    for path in sorted((ROOT / "src" / "sapwood").rglob("*.py")):
        text = path.read_text()
        if "Error" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else HOLE
                        for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def messages(text: str) -> list[str]:
    """The messages in the first column of a page's tables."""
    cells = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    return [cell for cell in cells if " " in cell]


def test_messages_under_troubleshooting_are_real() -> None:
    found = messages((DOCS / "troubleshooting.md").read_text())
    assert len(found) > 20
    for message in found:
        for piece in filter(None, (part.strip(" ;,") for part in message.split(HOLE))):
            assert piece in sentences(), f"no part of the code says {piece!r}"


def test_an_invented_message_is_noticed() -> None:
    assert messages("| `the moon is … full` | wait |") == ["the moon is … full"]
    assert "the moon is" not in sentences()
