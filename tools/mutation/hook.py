"""Changed modules without changed files: import hooks for mutants and for watched functions."""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType

from tools.mutation.operators import functions, mutations

WATCH = "__mutants_watch__"  # name under which watched modules find the set to report to
Rewrite = Callable[[ast.Module, str], None]


class Loader(importlib.machinery.SourceFileLoader):
    """Compile a module from its rewritten syntax tree; nothing is cached on disk."""

    def __init__(self, name: str, path: str, file: str, rewrite: Rewrite) -> None:
        super().__init__(name, path)
        self.file = file
        self.rewrite = rewrite

    def get_code(self, fullname: str) -> CodeType:
        """The code of the rewritten module."""
        tree = ast.parse(Path(self.path).read_bytes(), filename=self.path)
        self.rewrite(tree, self.file)
        return compile(tree, self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    """Find the files that are to be rewritten before any other finder does."""

    def __init__(self, source: Path, files: set[str], rewrite: Rewrite) -> None:
        self.modules = {module_name(file): file for file in files}
        self.source = source
        self.rewrite = rewrite

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec with our loader, for the files that are ours."""
        file = self.modules.get(fullname)
        if file is None:
            return None
        where = str(self.source / file)
        loader = Loader(fullname, where, file, self.rewrite)
        return importlib.util.spec_from_file_location(fullname, where, loader=loader)


def module_name(file: str) -> str:
    """Import name of a file below src/sapwood."""
    return "sapwood." + file.removesuffix(".py").replace("/", ".")


def install(source: Path, files: set[str], rewrite: Rewrite) -> None:
    """Rewrite these files when they are imported; none of them may have been imported before."""
    early = sorted(name for name in map(module_name, files) if name in sys.modules)
    if early:
        raise RuntimeError(f"imported before it could be changed: {', '.join(early)}")
    sys.meta_path.insert(0, Finder(source, files, rewrite))


def install_mutant(source: Path, identity: str) -> None:
    """Import the file of a mutant with its fault in it."""

    def rewrite(module: ast.Module, file: str) -> None:
        [found] = [each for each in mutations(module, file) if each.identity == identity]
        found.apply()

    install(source, {identity.split("::")[0]}, rewrite)


def install_watch(source: Path, files: set[str], seen: set[str]) -> None:
    """Have every function of these files report to `seen` when it starts, as `file::function`."""

    def rewrite(module: ast.Module, file: str) -> None:
        for function, name in functions(module):
            call = ast.parse(f"{WATCH}.add({f'{file}::{name}'!r})").body[0]
            function.body.insert(ast.get_docstring(function) is not None, call)
        module.body.insert(
            after_preface(module), ast.parse(f"from builtins import {WATCH}").body[0]
        )
        ast.fix_missing_locations(module)

    import builtins

    setattr(builtins, WATCH, seen)
    install(source, files, rewrite)


def after_preface(module: ast.Module) -> int:
    """Place in a module behind its docstring and its imports from the future."""
    place = int(ast.get_docstring(module) is not None)
    while place < len(module.body) and getattr(module.body[place], "module", "") == "__future__":
        place += 1
    return place
