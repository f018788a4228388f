"""Links of the documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\((?P<there>[^)\s]+)\)|(?:src|href)=\"(?P<here>[^\"]+)\"")
OUTSIDE = re.compile(r"[a-z]+:")


def links(text: str) -> list[str]:
    """Where a page links to in this project, code left out."""
    found = [match["there"] or match["here"] for match in LINK.finditer(CODE.sub("", text))]
    return [link for link in found if not OUTSIDE.match(link)]


def anchors(text: str) -> set[str]:
    """Names by which headings can be linked to."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken(page: Path, text: str) -> list[str]:
    """Links of a page to files or headings that are not there."""
    bad = []
    for link in links(text):
        name, _, anchor = link.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in anchors(file.read_text())
        ):
            bad.append(link)
    return bad


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A Heading: first\n")
    text = """[a](other.md) [b](missing.md) [c](other.md#a-heading-first) [d](other.md#second) [e](https://x.org/y)
    <img src="gone.svg"> `[f](code.md)` [g](#here)

    # Here
    """.replace("    ", "")
    assert broken(tmp_path / "page.md", text) == [
        "missing.md",
        "other.md#second",
        "gone.svg",
        "#here",
    ]
    (tmp_path / "page.md").write_text(text)
    assert broken(tmp_path / "page.md", text) == ["missing.md", "other.md#second", "gone.svg"]
