"""Names of 0.1.0 that users' files import: `from frog.runs import read_run` still works, with a DeprecationWarning.

Frog's twenty packages became seven rooms (docs/development/decisions/0018-rooms-and-hooks.md). An old name gives the
very module of the new name, so that its classes are the same ones. Frog itself uses only the new names.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

OLD_NAMES = {
    "frog.config.run": "frog.core.config.run_config",
    "frog.runs.schema": "frog.core.runs.event_schema",
    "frog.config": "frog.core.config",
    "frog.runs": "frog.core.runs",
    **{
        f"frog.{package}": f"frog.train.{package}"
        for package in ("checkpoint", "comm", "data", "model", "optim", "parallel", "prove", "profile")
    },
    "frog.diagnose": "frog.observe.diagnose",
    "frog.view": "frog.observe.view",
    "frog.chaos": "frog.measure.chaos",
    "frog.peers": "frog.measure.peers",
}
"""Old module or package: the new one. The first that is the name, or a package around it, counts."""


def new_name(name: str) -> str | None:
    """Return today's name of a module of 0.1.0, or None if it is not an old name."""
    if not name.startswith("frog."):
        return None
    for old, new in OLD_NAMES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class OldNames:
    """Finds and loads modules by their old names.

    Python asks it first: an old package is the new one, in whose folder Python would find the old name's module, and
    load it a second time. It does not derive from the classes of importlib.abc, which would take 4 ms to import.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if new_name(fullname) is None else ModuleSpec(fullname, cast(Any, self))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = new_name(spec.name)
        assert name is not None
        warnings.warn(f"{spec.name} is now {name}", DeprecationWarning, stacklevel=2)
        spec.loader_state = importlib.import_module(name).__spec__
        return sys.modules[name]

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back; it ran when it was imported by its new name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def accept_old_names() -> None:
    """Let this process import modules by their names in 0.1.0."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
