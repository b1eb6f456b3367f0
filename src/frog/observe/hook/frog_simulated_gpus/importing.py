"""Functions that run right after the import of a module."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Patch = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each module of a table, after its code ran and before its importer sees it."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, whose loader also calls the function.

        A program may ask for the spec without importing the module, so the function stays in the table.
        """
        patch = self._patches.pop(fullname, None)  # this search must not find itself
        if patch is None:
            return None
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._patches[fullname] = patch
        if spec is None or spec.loader is None:
            return None
        _extend(spec.loader, patch)
        return spec


def _extend(loader: importlib.abc.Loader, patch: Patch) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        patch(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def after_import(patches: dict[str, Patch]) -> None:
    """Call each function after the import of its module, or now if the module is already imported."""
    waiting = {name: patch for name, patch in patches.items() if name not in sys.modules}
    if waiting:
        sys.meta_path.insert(0, AfterImport(waiting))
    for name in patches.keys() - waiting.keys():
        patches[name](sys.modules[name])
