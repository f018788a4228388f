"""What is generated is up to date, and a change of the code is noticed."""

from pathlib import Path

import pytest
from tools import tables


@pytest.mark.parametrize("name", ["README.md", "docs/methods.md", "docs/adding-a-method.md"])
def test_documents_say_what_the_code_says(name: str) -> None:
    text = (tables.ROOT / name).read_text()
    if name == tables.METHODS:
        assert text == tables.page(), "run python tools/tables.py"
        return
    if "<!-- methods -->" not in text and name == "README.md":
        pytest.skip("README.md has no marked block")
    assert text == tables.filled(text), "run python tools/tables.py"
    assert tables.BLOCK.search(text)


def test_check_changes_nothing_and_names_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "page", lambda: "a page\n")
    (tmp_path / "docs").mkdir()
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- methods -->\nold\n<!-- /methods -->\nafter\n")
    assert tables.main(["--check"]) == 1
    assert "README.md differs" in capsys.readouterr().err
    assert "old" in readme.read_text()
    assert tables.main([]) == 0
    assert readme.read_text().startswith("before\n<!-- methods -->\n| name | system |")
    assert readme.read_text().endswith("|\n<!-- /methods -->\nafter\n")
    assert tables.main(["--check"]) == 0


def test_files_are_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    assert (
        tables.filled("<!-- file a.py -->\n?\n<!-- /file -->")
        == "<!-- file a.py -->\n```python\nx = 1\n```\n<!-- /file -->"
    )


def test_papers_become_links() -> None:
    assert tables.link("2406.16858") == "[2406.16858](https://arxiv.org/abs/2406.16858)"
    assert tables.link("github.com/a/b") == "[github.com/a/b](https://github.com/a/b)"
    assert tables.link("Saxena 2023") == "Saxena 2023"
    assert tables.link("") == ""
