"""Import torch without garbage collection, in every Python process that the tests start.

Python imports this module by itself, because `tests/conftest.py` puts its folder on PYTHONPATH. torch creates 250,000
objects and no garbage, which the collector scans again and again: without it, the import of torch takes 1.0 s of
processor time instead of 1.5 s, and that of its compiler, which `torch.optim` loads, 1.7 s instead of 3.0 s. The suite
imports torch in many hundred processes. Frog's own programs do the same by `frog.core.loading`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class QuickImports:
    """A finder for the modules that import most."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in ("torch", "torch._dynamo"):
            return None
        others = (finder for finder in sys.meta_path if finder is not QuickImports)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                was_on = gc.isenabled()
                gc.disable()
                try:
                    execute(module)
                finally:
                    gc.freeze()
                    if was_on:
                        gc.enable()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, QuickImports)
