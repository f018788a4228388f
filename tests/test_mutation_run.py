"""The mutation run: what it changes, how it names that, and what it makes of the results."""

import ast
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest
from tools import mutants
from tools.mutation import hook
from tools.mutation.operators import Mutation, mutations
from tools.mutation.plugins import Reached
from tools.mutation.processes import Task, run_all

CODE = '''
def outer(a, b=1):
    """A docstring stays."""
    if a < b and not b:
        raise ValueError(f"{a - b}")
    total = min(a, b)
    total += 2
    return fold(total, a, key=-1.5) if a is None else reversed(b)


class Some:
    def method(self):
        for each in self.all:
            if each:
                continue
            self.count = each + 1
'''


def found(code: str = CODE) -> dict[str, Mutation]:
    return {each.identity: each for each in mutations(ast.parse(code), "some/file.py")}


def test_every_operator_finds_its_places() -> None:
    changes = {name.split("::", 1)[1]: each.change for name, each in found().items()}
    assert changes == {
        "outer::constant#0": "1  ->  2",
        "outer::negate#0": "if a < b and (not b): raise ValueError(f'{a - b}')  ->  "
        "if not (a < b and (not b)): raise ValueError(f'{a - b}')",
        "outer::bool#0": "a < b and (not b)  ->  a < b or not b",
        "outer::compare#0": "a < b  ->  a <= b",
        "outer::sign#0": "not b  ->  b",
        "outer::drop#0": "raise ValueError(f'{a - b}')  ->  pass",
        "outer::opposite#0": "min(a, b)  ->  max(a, b)",
        "outer::drop#1": "total += 2  ->  pass",
        "outer::constant#1": "2  ->  3",
        "outer::branch#0": "fold(total, a, key=-1.5) if a is None else reversed(b)  ->  "
        "reversed(b) if a is None else fold(total, a, key=-1.5)",
        "outer::compare#1": "a is None  ->  a is not None",
        "outer::swap#0": "fold(total, a, key=-1.5)  ->  fold(a, total, key=-1.5)",
        "outer::default#0": "fold(total, a, key=-1.5)  ->  fold(total, a)",
        "outer::sign#1": "-1.5  ->  1.5",
        "outer::constant#2": "1.5  ->  2.5",
        "outer::order#0": "reversed(b)  ->  iter(b)",
        "Some.method::negate#0": "if each: continue  ->  if not each: continue",
        "Some.method::loop#0": "continue  ->  break",
        "Some.method::drop#0": "self.count = each + 1  ->  pass",
        "Some.method::arithmetic#0": "each + 1  ->  each - 1",
        "Some.method::constant#0": "1  ->  2",
    }


def test_names_do_not_depend_on_lines_or_on_other_functions() -> None:
    other = "import math\n\ndef before(a):\n    return a > 1 and a < 3\n\n" + CODE
    assert found().keys() < found(other).keys()


def test_a_fault_changes_one_place() -> None:
    module = ast.parse(CODE)
    [each] = [m for m in mutations(module, "some/file.py") if m.identity.endswith("compare#0")]
    before = ast.unparse(module)
    each.apply()
    compile(module, "some/file.py", "exec")
    assert ast.unparse(module) == before.replace("a < b", "a <= b")


def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int = 9) -> mutants.Group:
    (tmp_path / "some").mkdir(exist_ok=True)
    (tmp_path / "some" / "file.py").write_text(CODE)
    monkeypatch.setattr(mutants, "SOURCE", tmp_path)
    return mutants.Group("all", ["some/*.py"], count)


def test_the_draw_repeats_and_keeps_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "EACH", 5)
    some = group(tmp_path, monkeypatch)
    first = [each.identity for each in mutants.draw(some, 1)]
    assert first == [each.identity for each in mutants.draw(some, 1)]
    assert first != [each.identity for each in mutants.draw(some, 2)]
    kept = "some/file.py::outer::order#0"
    assert kept in [each.identity for each in mutants.draw(some, 1, [kept, "some/file.py::gone"])]
    assert len(first) == 9


def test_a_list_is_read_back_and_what_changed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = group(tmp_path, monkeypatch)
    listed = list(mutants.entries(mutants.written({"all": mutants.draw(some, 1)})))
    same, remarks = mutants.resolve([some], listed)
    assert [each.identity for _, each in same] == [entry.identity for entry in listed]
    assert remarks == []
    gone = mutants.Entry("all", "some/file.py::vanished::drop#0", "")
    moved = mutants.Entry("all", "old/name.py::outer::bool#0", "")
    other = mutants.Entry("all", "some/file.py::outer::compare#0", "a > b  ->  a >= b")
    same, remarks = mutants.resolve([some], [gone, moved, other])
    assert [each.identity for _, each in same] == [
        "some/file.py::outer::bool#0",
        "some/file.py::outer::compare#0",
    ]
    assert [remark.split(":")[0] for remark in remarks] == ["vanished", "moved", "changed"]


def test_the_quickest_tests_that_reach_the_function_come_first() -> None:
    reached = {
        "slow": Reached("passed", 9.0, ["f"]),
        "quick": Reached("passed", 0.1, ["f", "g"]),
        "other": Reached("passed", 0.1, ["g"]),
        "red": Reached("failed", 0.0, ["f"]),
        "middle": Reached("passed", 2.0, ["f"]),
    }
    assert list(mutants.chosen_tests(reached, {"f"}, 5.0)) == ["quick", "middle"]
    assert list(mutants.chosen_tests(reached, {"f"}, 60.0)) == ["quick", "middle", "slow"]
    assert mutants.chosen_tests({"slow": reached["slow"]}, {"f"}, 5.0) == {"slow": 9.0}


def test_the_files_beside_the_source_come_first() -> None:
    tests = ["tests/test_all.py::one", "tests/core/test_tree.py::a", "tests/core/test_tree.py::b"]
    own, others = ["tests/core/test_tree.py"], ["tests/test_all.py"]
    assert mutants.stages(tests, "core") == [own, others]
    assert mutants.stages(tests, "engine") == [[*others, *own]]


def test_the_share_leaves_equivalent_mutants_out() -> None:
    [each] = list(found().values())[:1]
    outcomes = ["killed", "killed", "timed out", "survived", "unreached", "equivalent"]
    results = [mutants.Result("some", each, outcome) for outcome in outcomes]
    assert mutants.share(results) == pytest.approx(3 / 5)
    assert mutants.share([]) == 1.0
    assert mutants.table(results).splitlines()[-1].split() == [
        *["all", "2", "1", "1", "1", "1"],
        "60.0%",
    ]


def test_modules_are_changed_as_they_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe.py").write_text("def less(a, b):\n    return a < b\n")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(hook, "module_name", lambda file: file.removesuffix(".py"))
    hook.install_mutant(tmp_path, "probe.py::less::compare#0")
    finder = sys.meta_path[0]
    assert isinstance(finder, hook.Finder)
    spec = finder.find_spec("probe", None)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.less(1, 1)
    assert not list(tmp_path.rglob("*.pyc"))


def test_processes_report_status_and_time_out(tmp_path: Path) -> None:
    def forever() -> int:
        while True:
            pass

    tasks = [
        Task("well", lambda: 0, tmp_path / "well", 5.0),
        Task("badly", lambda: 1, tmp_path / "badly", 5.0),
        Task("never", forever, tmp_path / "never", 0.0),
    ]
    assert {done.name: done.status for done in run_all(tasks, 2)} == {
        "well": 0,
        "badly": 1,
        "never": None,
    }


def test_every_equivalent_mutant_is_in_the_list_with_a_reason() -> None:
    config = tomllib.loads(mutants.CONFIG.read_text())
    listed = {entry.identity for entry in mutants.entries(mutants.LIST.read_text())}
    assert config["equivalent"].keys() <= listed
    assert all(len(reason) > 20 for reason in config["equivalent"].values())
