"""Import torch without garbage collection, in every Python process that the tests start.

Python imports this module by itself, because `tests/conftest.py` puts its folder on PYTHONPATH. torch creates 250,000
objects and no garbage, which the collector scans again and again: without it, the import of torch takes 1.0 s of
processor time instead of 1.5 s, and that of its compiler, which `torch.optim` loads, 1.7 s instead of 3.0 s. The suite
imports torch in many hundred processes. Frog's own programs do the same by `frog.core.processes`.

A program whose parent asks for it by FROG_TEST_NESTED does not import torch at all: it is forked (tests/warm_frog).
"""

from __future__ import annotations

import gc
import os
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


def _start_warm() -> None:
    """Become the client of tests/warm_frog if this is an installed program, a script, or `python -m MODULE`."""
    words = sys.orig_argv[1:]
    plain = words[1:] if words[:1] == ["-u"] else words
    if not plain:
        return
    name = "python"
    if os.path.dirname(plain[0]) == os.path.dirname(sys.executable):
        name = os.path.basename(plain[0])
        words = plain[1:]
    if name in ("frog", "torchrun") or (name == "python" and (plain[0] == "-m" or plain[0].endswith(".py"))):
        client = os.path.join(os.path.dirname(__file__), "..", "warm_frog", "bin", name)
        os.execv(os.path.abspath(client), [client, *words])


if "FROG_TEST_NESTED" in os.environ and "FROG_TEST_SERVER" in os.environ:
    _start_warm()
