"""What is generated is up to date, and a change of the code is noticed."""

from pathlib import Path

import pytest
from tools import tables

from sapwood.recipes import RECIPES


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "docs/adding-a-method.md"])
def test_blocks_say_what_the_code_says(name: str) -> None:
    text = (tables.ROOT / name).read_text()
    assert tables.BLOCK.search(text)
    assert text == tables.filled(text), "run make tables"


def test_the_page_of_methods_says_what_the_code_says() -> None:
    assert (tables.ROOT / tables.METHODS).read_text() == tables.page(), "run make tables"


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


def test_numbers_of_recipes_come_from_the_record_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tables.numbers({}, "pld") == [""] * len(tables.NUMBERS)
    assert tables.COMMAND in tables.source(tables.read(tmp_path / "nowhere.json"))
    row = {
        "recipe": "pld",
        "category": "all",
        "prompts": 6,
        "tokens_per_pass": 1.2345,
        "nodes_per_pass": 3.0,
        "speedup": 1.5,
        "speedup_low": 1.25,
        "speedup_high": 1.75,
        "identical": 6,
        "departure": None,
        "skipped": None,
    }
    lossy = {**row, "recipe": "bild", "departure": 0.031}
    other = {**row, "category": "chat", "tokens_per_pass": 9.0}
    record = {
        "machine": {"cpu": "a processor", "threads": 2, "cores": 4},
        "model": {"name": "smollm2", "dtype": "int8", "device": "cpu"},
        "suite": {"name": "chat", "prompts": 6, "max_tokens": 48, "temperature": 0.0},
        "command": "sapwood bench --recipes all",
        "commit": "0123abc",
        "rows": [other, row, lossy, {**row, "recipe": "eagle3", "skipped": "no head"}],
    }
    assert tables.numbers(record, "pld") == ["1.23", "3.0", "1.50 (1.25-1.75)", "6/6"]
    assert tables.numbers(record, "bild")[-1] == "departs 3.1%"
    assert tables.numbers(record, "eagle3") == tables.numbers(record, "suffix") == [""] * 4
    for word in (
        "`sapwood bench --recipes all`",
        "commit 0123abc",
        "smollm2, int8 on cpu",
        "a processor, 2 of 4 cores",
    ):
        assert word in tables.source(record)
    monkeypatch.setattr(tables, "read", lambda path: record)
    [line] = [line for line in tables.page().splitlines() if line.startswith("| `pld` |")]
    assert "| 1.23 | 3.0 | 1.50 (1.25-1.75) | 6/6 |" in line


def test_every_recipe_has_one_row_in_one_family() -> None:
    assert sorted(name for _, _, names in tables.families() for name in names) == sorted(RECIPES)


def test_the_map_has_every_package_and_says_what_it_is() -> None:
    lines = tables.file_map(deep=True).splitlines()[1:-1]
    packages = [path.parent.name for path in (tables.ROOT / tables.SOURCE).glob("*/**/__init__.py")]
    assert sorted(line.split("/")[0].strip() for line in lines if "/ " in line) == sorted(packages)
    assert [line for line in lines if len(line.split(maxsplit=1)) < 2] == []


def test_every_package_is_in_one_import_layer() -> None:
    rows = tables.layers().splitlines()[2:]
    for folder in (tables.ROOT / tables.SOURCE).glob("*/__init__.py"):
        assert sum(f"`{folder.parent.name}`" in row for row in rows) == 1, folder.parent.name


def test_a_section_of_another_page_is_shown_without_its_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# A\n\n## The loop\n\ntext\n\n## Next\n")
    assert (
        tables.filled("<!-- section a.md#the-loop -->\n<!-- /section -->")
        == "<!-- section a.md#the-loop -->\ntext\n<!-- /section -->"
    )
