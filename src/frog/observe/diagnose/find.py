"""Diagnose what a user names: a run of Frog's own trainer, or anything that another program left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from frog.core.errors import RunError
from frog.core.runs.folder import RunFolder, find_evidence
from frog.observe.diagnose.diagnosis import Diagnosis

if TYPE_CHECKING:
    from frog.observe.diagnose.known_errors.explain import Explanation

_STDIN = "-"


class Answer(NamedTuple):
    """What went wrong, and what the logs say by the table of known errors, if logs were read."""

    name: str
    diagnosis: Diagnosis
    explanation: Explanation | None = None

    def as_json(self) -> dict[str, Any]:
        log = self.explanation.as_json() if self.explanation is not None else {}
        return {**log, **self.diagnosis.shortened().as_json()}


def diagnose_paths(texts: Sequence[str]) -> Answer:
    """Return what went wrong in the run or program that the user names by folders, files, or `-`.

    Only the rules that apply are imported: those for Frog's own runs, or those for other programs.

    Raises:  RunError if nothing is there that can be read.
    """
    places = [_find(text) for text in texts]
    others = [path for path in places if isinstance(path, Path)]
    diagnoses = [_of_own_run(folder) for folder in places if isinstance(folder, RunFolder)]
    explanation = None
    if others:
        from frog.observe.diagnose.program.program_diagnosis import diagnose_all

        diagnosis, explanation = diagnose_all(others)
        diagnoses.append(_with_kind(diagnosis, explanation))
    first, *rest = diagnoses
    name = ", ".join(str(each.path if isinstance(each, RunFolder) else each) for each in places)
    return Answer(name, first.with_more(also=(*first.also, *rest)), explanation)


def _with_kind(diagnosis: Diagnosis, explanation: Explanation | None) -> Diagnosis:
    """Add what an exception means by its kind, if the logs show the one that the rules name."""
    from frog.observe.diagnose.known_errors.log_answer import words_of_raiser

    cause = explanation.cause if explanation is not None else None
    if diagnosis.fault != "raise" or diagnosis.meaning or cause is None or not cause.exception:
        return diagnosis
    first = cause.text.partition(": ")[2].strip().splitlines()[:1]
    if not first or first[0][:200] not in diagnosis.finding:
        return diagnosis
    meaning = cause.meaning
    said = (meaning.says, meaning.advice) if meaning is not None else words_of_raiser(cause)
    if said is None:
        return diagnosis
    return diagnosis.with_more(meaning=said[0], advice=f"{said[1]}\n{diagnosis.advice}")


def diagnose_path(text: str) -> tuple[Path, Diagnosis]:
    """Return the path that a user means, and what went wrong there.

    Raises:  RunError if nothing is there that can be read.
    """
    answer = diagnose_paths([text])
    return Path(answer.name), answer.diagnosis


def _find(text: str) -> RunFolder | Path:
    """Return a run of Frog's own, or the path of anything else."""
    if text == _STDIN:
        return Path(_STDIN)
    try:
        folder = find_evidence(text)
    except RunError:
        path = Path(text)
        if not path.exists():
            raise
        return path
    return folder if is_own_run(folder) else folder.path


def _of_own_run(folder: RunFolder) -> Diagnosis:
    from frog.observe.diagnose.run_diagnosis import diagnose

    return diagnose(folder)


def is_own_run(folder: RunFolder) -> bool:
    """True for a run of Frog's trainer, False for other programs' folders."""
    if folder.run_json.is_file():
        return folder.read_run_json().program is None
    if (folder.path / "observed").is_dir():  # the events are what another program recorded, below plain torchrun
        return False
    return bool(folder.event_ranks() or folder.heartbeat_ranks())
