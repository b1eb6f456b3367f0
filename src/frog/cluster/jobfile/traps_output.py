"""Traps with the files that receive a job's output."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from frog.cluster.jobfile.directives import GivenOption
from frog.cluster.jobfile.findings import ADVICE, Finding, Kind, Trap
from frog.cluster.jobfile.job import JobFile
from frog.cluster.jobfile.values import GAP

_SEVERAL = re.compile(r"(?!(\d+)-\1\b).*[-,]")
"""An array of more than one task; 1-1 does not match."""
_PROGRAM = re.compile(r"[^/~-].*\.(py|sh|toml|json|ya?ml)|\./.+")
_MAKES_FOLDERS = (23, 2)
"""First release in which Slurm creates the folders of --output and --error, with or without %j in them."""


def output_findings(job: JobFile, places: Sequence[Path], version: tuple[int, int] | None) -> Iterator[Finding]:
    """Find traps in --output and --error; `places` are folders where sbatch may be called."""
    yield from _overwritten(job)
    if version is None or version < _MAKES_FOLDERS:
        yield from _folders(job, places, None if version is None else "may hang or waste")


def _outputs(job: JobFile) -> Iterator[tuple[GivenOption, str]]:
    """Yield each option that names an output file, with the file."""
    for asked in map(job.asks, ("output", "error")):
        value = asked.value if asked else None
        if asked and value and not value.startswith("/dev/") and not re.search(rf"[${{<{GAP}]", value):
            yield asked, value


OUTPUT_OVERWRITTEN = Trap(
    "output-overwritten", ADVICE, "the next job overwrites the output of this one", "--{name}={instead}"
)


def _overwritten(job: JobFile) -> Iterator[Finding]:
    for asked, value in _outputs(job):
        if not re.search(r"%\d*[jAJ]", value) and job.text("open-mode") != "append":
            what = f"{asked.written} {value}: every job writes to the same file"
            yield OUTPUT_OVERWRITTEN.at(asked.line, what, name=asked.name, instead=_with_job(value))
            return
        array = job.asks("array")
        if array and _SEVERAL.match(array.value or "") and not re.search(r"%\d*[ajJNns]", value):
            what = f"{asked.written} {value}: every task of the array writes to the same file"
            instead = _with_job(value).replace("%j", "%a")
            yield OUTPUT_OVERWRITTEN.at(asked.line, what, name=asked.name, instead=instead)
            return


NO_OUTPUT_FOLDER = Trap(
    "no-output-folder",
    ADVICE,
    "Slurm before 23.02 does not create it, and a job without its output folder fails immediately and prints nothing",
    "{instead}",
)


def _folders(job: JobFile, places: Sequence[Path], gravest: Kind | None) -> Iterator[Finding]:
    """Find missing output folders; `gravest` is the severity of folders that cannot exist yet."""
    told: set[Path] = set()
    starts = [place / (job.text("chdir") or "") for place in places]
    for asked, value in _outputs(job):
        folder = Path(value).parent
        of_job = re.search(r"%\d*[jAJ]", str(folder)) is not None
        made = any(command.name == "mkdir" and folder.name in command.text for command in job.shell.everything)
        if folder in told or not (of_job or _absent(folder, starts)):
            continue
        if of_job or made or any(_is_start(job, place) for place in starts):
            told.add(folder)
            what = f"{folder}/ does not exist here" + (", and mkdir in the script runs too late" if made else "")
            instead = f"mkdir -p {folder}, before sbatch"
            if of_job:
                what = f"{folder}/ contains the job's number, so it cannot be created before sbatch"
                instead = f"--{asked.name}={_flat(value)}"
            yield NO_OUTPUT_FOLDER.at(asked.line, what, gravest if made or of_job else None, instead=instead)


def _flat(value: str) -> str:
    """Rewrite `logs/%j/out` as `logs/%j-out`."""
    return re.sub(r"(%\d*[jAJ][^/]*)/", r"\1-", value)


def _is_start(job: JobFile, place: Path) -> bool:
    """True if sbatch is probably called in `place`: a file that the script names exists there."""
    commands = [*job.shell.everything, *(command for step in job.steps for command in step.commands)]
    words = {word.text for command in commands for word in command.words}
    with contextlib.suppress(OSError, ValueError):
        return any((place / word).is_file() for word in words if _PROGRAM.fullmatch(word))
    return False


def _absent(folder: Path, places: Sequence[Path]) -> bool:
    """True if the folder certainly does not exist: its parent exists and it does not, or no start folder has it."""
    if "%" in str(folder) or "~" in str(folder):
        return False
    try:
        if folder.is_absolute():
            return len(folder.parts) > 3 and folder.parent.is_dir() and not folder.is_dir()
        return not any((place / folder).is_dir() for place in places)
    except (OSError, ValueError):
        return False


def _with_job(value: str) -> str:
    stem, dot, ending = value.rpartition(".")
    return f"{stem}-%j.{ending}" if dot and "/" not in ending else f"{value}-%j"
