"""Takes a guard out of the code before it is imported: nothing is written to the files."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[2]


class NotPlanted(Exception):
    """The code to be replaced is not there once."""


Change = tuple[str, str]


def changed(path: Path, changes: Sequence[Change]) -> str:
    """The text of a file with some code replaced. Raises NotPlanted."""
    text = path.read_text()
    for code, without in changes:
        if text.count(code) != 1:
            raise NotPlanted(f"{path} holds {text.count(code)} times, not once:\n{code}")
        text = text.replace(code, without)
    return text


class _PlantingLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, changes: Sequence[Change]) -> None:
        super().__init__(fullname, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType | None:
        compiled: CodeType = compile(changed(Path(self.path), self._changes), self.path, "exec")
        return compiled


class _Planter(importlib.abc.MetaPathFinder):
    def __init__(self, path: Path, changes: Sequence[Change]) -> None:
        self._path, self._changes = path, changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        if Path(spec.origin).resolve() != self._path:
            return None
        spec.loader = _PlantingLoader(fullname, spec.origin, self._changes)
        return spec


def path_of(file: str) -> Path:
    """Of a file below the project, or below src/bucketsched."""
    return ROOT / file if file.startswith("tests/") else ROOT / "src" / "bucketsched" / file


def plant(file: str, *changes: Change) -> None:
    """From now on the module of this file is imported with the changes."""
    path = path_of(file)
    changed(path, changes)
    sys.meta_path.insert(0, _Planter(path, changes))
