"""Registers what the products add to `launch` and to the report. Each is imported when it is first called.

The hooks are in `hooks.py`. `frog/__init__.py` calls `register_products`, so that every
process has them: commands, `python -m frog.train`, ranks, notebooks and programs that use Frog as a library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frog import hooks

if TYPE_CHECKING:
    from pathlib import Path

    from frog.core.runs.history import History
    from frog.core.runs.record import RunFile


def register_products() -> None:
    """Register all products."""
    hooks.rank_environment.register(_rank_environment)
    hooks.describe_hang.register(_describe_hang)
    hooks.watch_run.register(_watch_run)
    hooks.report_sections.register(_report_sections)
    hooks.run_manifest.register(_run_manifest)
    hooks.print_answers.register(_print_answers)
    hooks.check_manifest.register(_check_manifest)


def _rank_environment(
    before: Mapping[str, str], folder: Path | None, modules: tuple[str, ...], num_gpus: int | None
) -> dict[str, str]:
    from frog.observe.environment import rank_environment

    return rank_environment(before, folder, modules, num_gpus)


def _describe_hang(folder: Path) -> str:
    from frog.observe.diagnose.program.program_diagnosis import describe_hang  # loads numpy

    return describe_hang(folder)


def _watch_run(program: Callable[[Callable[[Path], None]], int], port: int, opens: bool) -> int:
    from frog.observe.watch.watch_commands import watch_run

    return watch_run(program, port, opens)


def _report_sections(run: RunFile, history: History) -> dict[str, dict[str, Any] | None]:
    from frog.plan.report.sections import report_sections

    return report_sections(run, history)


def _check_manifest(manifest: Path) -> int:
    from frog.cluster.kubernetes.check_manifest import check_manifest

    return check_manifest(manifest)


def _run_manifest(manifest: Path, extra: Sequence[str]) -> int:
    from frog.cluster.kubernetes.local_cluster import run_manifest

    return run_manifest(manifest, extra=extra)


def _print_answers(folder: Path) -> int:
    from frog.observe.check.check_commands import print_answers

    return print_answers(folder)
