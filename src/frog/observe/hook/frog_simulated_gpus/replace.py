"""Replaces attributes of torch right after the import of a module; calls without effect, and calls that are refused."""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

# ---- after the import of a module ------------------------------------------------------------------------------------

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


replaced: list[str] = []
"""Names of all attributes that were replaced."""
missing: list[str] = []
"""Names that this version of torch does not have."""


def _name_of(owner: Any, name: str) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}"


def replace(owner: Any, name: str, new: Any) -> None:
    """Set an attribute that exists; skip one that this version of torch does not have."""
    if not hasattr(owner, name):
        missing.append(_name_of(owner, name))
        return
    if isinstance(new, types.FunctionType):
        new = _own_copy(new, name)
        if hasattr(getattr(owner, name), "__wrapped__"):  # torch's compiler reads it
            new.__dict__.setdefault("__wrapped__", getattr(owner, name).__wrapped__)
    _register_with_jit(getattr(owner, name), new)
    setattr(owner, name, new)
    replaced.append(_name_of(owner, name))


def _own_copy(function: types.FunctionType, name: str) -> types.FunctionType:
    """Return a copy with the name of what it replaces: torch's compiler tells functions apart by their identity."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__doc__, copy.__module__ = function.__doc__, function.__module__
    return copy


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by what `make` returns for it, under the same name."""
    original = getattr(owner, name, None)
    if original is None:
        missing.append(_name_of(owner, name))
        return
    new = functools.wraps(original)(make(original))
    if new.__module__ is None:  # a builtin, which pickle would not find
        new.__module__ = owner.__name__
    replace(owner, name, new)


def _register_with_jit(original: Any, new: Any) -> None:
    """Let TorchScript compile a wrapper as the builtin that it wraps."""
    builtins: Any = getattr(sys.modules.get("torch.jit"), "_builtins", None)
    operator = builtins and builtins._find_builtin(original)
    if operator:
        builtins._register_builtin(new, operator)


def wrap_everywhere(owner: Any, makers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]) -> None:
    """Wrap functions of a module, also where other modules of torch have imported them by name."""
    originals = {name: getattr(owner, name, None) for name in makers}
    for name, make in makers.items():
        wrap(owner, name, make)
    new_of = {id(old): getattr(owner, name) for name, old in originals.items() if old is not None}
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "torch"]:
        for name, value in list(vars(module).items()):
            if id(value) in new_of and value is not new_of[id(value)]:
                setattr(module, name, new_of[id(value)])


def called_by_torch(depth: int = 2, but: str | tuple[str, ...] = "-") -> bool:
    """Return True if the caller of the function that asks belongs to torch itself, which must see real devices."""
    module: str = sys._getframe(depth).f_globals.get("__name__", "")
    return module == "torch" or (module.startswith("torch.") and not module.startswith(but))


def called_by_compiler() -> bool:
    """Return True if the caller of the function that asks is torch's compiler or Triton, which compile for the CPU."""
    module: str = sys._getframe(2).f_globals.get("__name__", "")
    return module.startswith(("torch._dynamo", "torch._inductor", "torch.utils._triton", "triton."))


# ---- calls that have no effect on a CPU, and calls that are refused --------------------------------------------------

_ignored: Counter[str] = Counter()
_remarks: dict[str, None] = {}


def without_effect(name: str, result: Any = None) -> Callable[..., Any]:
    """Return a function that only counts its calls, under a name for the list at the end of the rank."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _ignored[name] += 1
        return result

    call.__name__ = name.rpartition(".")[2]
    call.__doc__ = f"Do nothing: {name} has no effect with simulated GPUs."
    return call


def refused(name: str, instead: str = "") -> Callable[..., NoReturn]:
    """Return a function that raises an error with the name of what cannot be simulated."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{name} is not simulated: it needs a real GPU" + (f"\n  try: {instead}" if instead else ""))

    call.__name__ = name.rpartition(".")[2]
    call.__doc__ = f"Refuse {name}, which needs a real GPU."
    return call


def refused_class(name: str, instead: str = "") -> type:
    """Return a class that cannot be instantiated, for a class that cannot be simulated."""
    call = refused(name, instead)
    return type(name.rpartition(".")[2], (), {"__new__": call, "__module__": name.rpartition(".")[0]})


def count_ignored(name: str) -> None:
    """Count a call, or an argument, that has no effect."""
    _ignored[name] += 1


def remark(text: str) -> None:
    """Add a line to the list at the end of the rank, once."""
    _remarks[text] = None


def summary(ignored: Counter[str], remarks: list[str]) -> list[str]:
    """Return the lines that rank 0 prints at the end."""
    lines = [f"simulated GPUs: {text}" for text in remarks]
    if ignored:
        calls = sum(ignored.values())
        names = ", ".join(name for name, _ in ignored.most_common())
        lines.append(f"simulated GPUs: {calls} call{'s' * (calls != 1)} had no effect: {names}")
    return lines


def _rank() -> int:
    """Return the rank that the program itself has chosen, as programs with their own launcher do, or the launcher's."""
    return _last_rank[0] if _last_rank else _launcher_rank()


def _launcher_rank() -> int:
    """Return this process's rank, 0 without a launcher."""
    names = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdigit() and len(text) <= 18), 0)


_last_rank: list[int] = []


def note_rank(rank: int) -> None:
    """Remember this process's rank, which is unknown after the program has left the world."""
    _last_rank[:] = [rank]


@functools.lru_cache(maxsize=1)
def print_at_exit() -> None:
    """Print the list when the rank ends; only rank 0 does, so that a world prints it once."""
    own = os.getpid()

    def report() -> None:
        if os.getpid() != own:  # a forked child
            return
        if _last_rank:  # gloo's threads hold the mode with which their last work began; they need the GIL to drop it
            time.sleep(0.05)
        if _rank() != 0:
            return
        for line in summary(_ignored, list(_remarks)):
            print(line, file=sys.stderr, flush=True)

    atexit.register(report)
