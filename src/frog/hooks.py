"""Where `launch` and the report call a product that they do not know.

A product's function replaces the one below, which is what happens without that product. `frog/products.py`
registers all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from frog.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from frog.core.runs.history import History
    from frog.core.runs.record import RunFile

P = ParamSpec("P")
R = TypeVar("R")


class Hook(Generic[P, R]):
    """A function that a product may replace."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.__doc__ = function.__doc__
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def register(self, function: Callable[P, R]) -> None:
        """Call `function` from now on."""
        self._function = function


@Hook
def rank_environment(
    before: Mapping[str, str], folder: Path | None, modules: tuple[str, ...], num_gpus: int | None
) -> dict[str, str]:
    """Return what to add to the environment of a launch's ranks.

    before: the launcher's own variables for them.
    folder: a run folder, where the ranks of any program record what they do; None: they record nothing.
    modules: what records it.
    num_gpus: GPUs to simulate on each node.

    Without a product: nothing; UsageError if GPUs are to be simulated.
    """
    if num_gpus is not None:
        raise _missing("--simulate-gpus", "frog.observe")
    return {}


@Hook
def describe_hang(folder: Path) -> str:
    """Return a line on why the program of a run folder hangs; empty if unknown, or without a product."""
    return ""


@Hook
def watch_run(program: Callable[[Callable[[Path], None]], int], port: int, opens: bool) -> int:
    """Run a program with a live page (`frog run --watch`), and return its exit code.

    program: runs it; gets a function to call with the run folder as soon as that exists.
    port: 0 for a free one. opens: open the page in the browser.

    Without a product: UsageError.
    """
    raise _missing("--watch", "frog.observe")


@Hook
def report_sections(run: RunFile, history: History) -> dict[str, dict[str, Any] | None]:
    """Return data of sections for the report of a run, by name; without a product none, and the report omits them."""
    return {}


@Hook
def run_manifest(manifest: Path, extra: Sequence[str]) -> int:
    """Run a manifest's pods as local processes (`frog run --from`) and return the exit code.

    extra: words to append to each pod's command. Without a product: UsageError.
    """
    raise _missing("--from", "frog.cluster")


@Hook
def print_answers(folder: Path) -> int:
    """Print what a run's numbers show (`frog run --check`); return 1 if they are wrong. Without a product: UsageError.

    folder: a run folder whose ranks recorded their numbers.
    """
    raise _missing("--check", "frog.observe")


@Hook
def check_manifest(manifest: Path) -> int:
    """Print the mistakes of a manifest (`frog run --from FILE --dry-run`) and return the exit code.

    Without a product: UsageError.
    """
    raise _missing("--dry-run", "frog.cluster")


def _missing(option: str, product: str) -> UsageError:
    return UsageError(f"{option}: {product} is not registered", "register it, as frog/products.py does")
