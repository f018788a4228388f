"""Paths and names that the documents spell as code are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sapwood"
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
BLOCK = re.compile(r"```.*?```", re.DOTALL)
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
CODE = "\n".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))
# classes, functions, assigned and annotated names
DEFINED = {
    name for pair in re.findall(r"(?:class|def) (\w+)|\b(\w+)(?= =|:)", CODE) for name in pair
}


def paths(text: str) -> list[str]:
    """Code spans that look like a file or a folder."""
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    return [span for span in spans if re.fullmatch(r"\w[\w./-]*(\.py|\.md|\.json|/\w*)", span)]


@pytest.mark.parametrize("page", PAGES)
def test_paths_are_there(page: str) -> None:
    found = paths((ROOT / page).read_text())
    assert [
        path for path in found if not any((base / path).exists() for base in (ROOT, SOURCE))
    ] == []


def test_paths_are_told_from_other_code() -> None:
    text = "`a/b.py` `c/` `--json FILE` `/` `next` `d/e` `f.g`\n```\n`h.py`\n```"
    assert paths(text) == ["a/b.py", "c/", "d/e"]


def names() -> list[str]:
    """What the last column of the glossary says a word is called in the code."""
    rows = [line.split("|")[3] for line in GLOSSARY.splitlines() if line.count("|") == 4]
    return [name.rpartition(".")[2] for row in rows for name in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("name", sorted(set(names())))
def test_words_of_the_glossary_are_in_the_code(name: str) -> None:
    assert name in DEFINED or list(SOURCE.rglob(f"{name}.py")) or (SOURCE / name).is_dir()


def test_the_glossary_defines_a_word_once() -> None:
    rows = [line.split("|")[1].strip() for line in GLOSSARY.splitlines() if line.count("|") == 4]
    words = [word for row in rows for word in row.split(", ") if word not in ("word", "---")]
    assert sorted(words) == sorted(set(words))
