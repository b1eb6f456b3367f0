"""Diagnose what a user names: a run of Frog's own trainer, or anything that another program left."""

from __future__ import annotations

from pathlib import Path

from frog.core.errors import RunError
from frog.core.runs.folder import RunFolder, find_evidence
from frog.observe.diagnose.diagnosis import Diagnosis


def diagnose_path(text: str) -> tuple[Path, Diagnosis]:
    """Return the path that a user means, and what went wrong there.

    Only the rules that apply are imported: those for Frog's own runs, or those for other programs.

    Raises:  RunError if nothing is there that can be read.
    """
    try:
        folder = find_evidence(text)
    except RunError:
        path = Path(text)
        if not path.exists():
            raise
        return path, _of_program(path)
    if is_own_run(folder):
        return folder.path, _of_own_run(folder)
    return folder.path, _of_program(folder.path)


def _of_own_run(folder: RunFolder) -> Diagnosis:
    from frog.observe.diagnose.run_diagnosis import diagnose

    return diagnose(folder)


def _of_program(path: Path) -> Diagnosis:
    from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

    return diagnose_folder(path)


def is_own_run(folder: RunFolder) -> bool:
    """True for a run of Frog's trainer, False for other programs' folders."""
    if folder.run_json.is_file():
        return folder.read_run_json().program is None
    if (folder.path / "observed").is_dir():  # the events are what another program recorded, below plain torchrun
        return False
    return bool(folder.event_ranks() or folder.heartbeat_ranks())
