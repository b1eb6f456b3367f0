"""A job file explained: what each line does, and the traps that it walks into."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.schema import read_bounded
from frog.jobfile.cluster import ClusterProfile
from frog.jobfile.directives import GivenOption
from frog.jobfile.findings import UNLESS_PARTIAL, Finding, make_finding
from frog.jobfile.job import JobFile, language, read_job_file
from frog.jobfile.templates import inner_jobs
from frog.jobfile.traps_header import header_findings
from frog.jobfile.traps_node import node_findings
from frog.jobfile.traps_ranks import rank_findings
from frog.jobfile.traps_rendezvous import rendezvous_findings
from frog.jobfile.traps_script import script_findings
from frog.jobfile.traps_shell import shell_findings
from frog.jobfile.traps_signal import signal_findings
from frog.jobfile.traps_variables import hand_in_findings, variable_findings
from frog.jobfile.traps_world import world_findings
from frog.jobfile.values import GAP

_BLANKS = re.compile(r"\s*(?:export )?([A-Za-z_]\w*)(?: +=\s*|= +)\(")
"""A list behind blanks, which no parser of shell takes."""
_LONGEST = 1 << 20
_IGNORE = re.compile(r"#\s*frog:\s*ignore\s+([\w, -]+)")


@dataclass(frozen=True)
class View:
    """What a file is looked at with: as which cluster, which Slurm, from which folders, with which options given."""

    profile: ClusterProfile | None = None
    places: Sequence[Path] = (Path(),)
    """Where sbatch may be called: folders are looked for there."""
    given: tuple[GivenOption, ...] = ()
    version: tuple[int, int] | None = None


@dataclass(frozen=True)
class Explanation:
    """A job file, and what was found in it, by line."""

    job: JobFile
    findings: tuple[Finding, ...]
    inner: tuple[JobFile, ...] = field(default=())
    """The job files that it writes and hands in itself."""

    @property
    def traps(self) -> list[Finding]:
        """What will fail, hang or waste."""
        return [finding for finding in self.findings if finding.kind != "advice"]

    @property
    def partial(self) -> bool:
        """Whether something of it, or of a job file within, was not understood."""
        return any(each.partial for each in (self.job, *self.inner))


def explain(
    text: str, path: Path, profile: ClusterProfile | None = None, places: Sequence[Path] = (Path(),)
) -> Explanation:
    """Read a job file's text. `places` are the folders where sbatch may be called: folders are looked for there."""
    return explain_as(text, path, View(profile, places))


def explain_as(text: str, path: Path, view: View) -> Explanation:
    """Read a job file's text, and the job files within."""
    job = read_job_file(text, path, view.given)
    within = [
        replace(read_job_file(item.text, path, view.given, item.first_line), inner=True)
        for item in inner_jobs(job.shell.heredocs)
    ]
    found = [finding for each in (job, *within) if each.is_job for finding in _of_job(each, view)]
    found += [*_of_gaps(job), *hand_in_findings(job)]
    found += [finding for each in (job, *within) for finding in _of_reading(each)]
    ignored = _ignored(job.lines)
    unique = {(finding.code, finding.line): finding for finding in reversed(found)}.values()
    kept = [
        item for item in unique if item.code not in ignored.get(item.line, ()) and item.code not in ignored.get(0, ())
    ]
    order = sorted(kept, key=lambda item: (item.line, item.kind == "advice", item.code))
    return Explanation(job, tuple(order), tuple(within))


def _of_job(job: JobFile, view: View) -> Iterator[Finding]:
    for finding in (
        *header_findings(job, view.profile, view.places, view.version),
        *(() if job.several else (*world_findings(job), *rank_findings(job), *rendezvous_findings(job))),
        *script_findings(job, view.profile, view.version),
        *shell_findings(job),
        *(() if job.several else node_findings(job)),
        *signal_findings(job),
        *variable_findings(job),
    ):
        unknown = GAP in finding.what or finding.line in job.gaps or finding.line in job.shell.unread
        if not unknown and not (job.partial and finding.code in UNLESS_PARTIAL):
            yield finding


def _of_gaps(job: JobFile) -> Iterator[Finding]:
    """What is to be filled in: one message for all of it, also in the job files within."""
    if job.gaps:
        lines, first = list(job.gaps), next(iter(job.gaps))
        some = ", ".join(list(dict.fromkeys(job.gaps.values()))[:4])
        yield make_finding("template", first, f"a template: {some} in {_lines(lines)} is to be filled in")


def _of_reading(job: JobFile) -> Iterator[Finding]:
    """What was not understood: one message each."""
    unread = [line for line in job.shell.unread if line not in job.gaps]
    for line in unread:
        text = job.lines[line - job.first_line] if line - job.first_line < len(job.lines) else ""
        if match := _BLANKS.match(text):
            what = f"blanks around the = behind {match[1]}"
            yield make_finding("blank-behind-equals", line, what, name=match[1], value="(...)")
    if job.shell.unclosed is not None:
        what = "what is opened here, a quote or an if or a loop, is never closed"
        yield make_finding("quote-not-closed", job.shell.unclosed, what)
    elif unread and (other := language(job.lines)):
        yield make_finding("not-understood", unread[0], f"written for {other}: only its head is read")
    elif unread:
        yield make_finding("not-understood", unread[0], f"{_lines(unread)} not understood as shell")


def _lines(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"line{'' if len(numbers) == 1 else 's'} {shown}"


def _ignored(lines: list[str]) -> dict[int, set[str]]:
    """Codes that comments switch off: behind a line for that line, on a line of their own (0) for the whole file."""
    found: dict[int, set[str]] = {}
    for number, line in enumerate(lines, 1):
        if match := _IGNORE.search(line):
            whole = line.strip().startswith("#") and not line.startswith("#SBATCH")
            found.setdefault(0 if whole else number, set()).update(re.split(r"[\s,]+", match[1].strip()))
    return found


def explain_file(path: Path, profile: ClusterProfile | None = None, view: View | None = None) -> Explanation:
    """Read a job file, `-` being standard input. Raises UsageError if it cannot be read."""
    view = view or View(profile, (Path(), path.parent))
    data = _read(path)
    if b"\0" in data[:4096] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{path}: not a text: it holds zero bytes", "name a job file")
    text, found = _decode(data)
    explanation = explain_as(text, path, view)
    marks = (
        [make_finding("byte-order-mark", 1, f"the file begins with a mark of its encoding, {found}")] if found else []
    )
    return replace(explanation, findings=(*marks, *explanation.findings))


def _read(path: Path) -> bytes:
    if str(path) != "-":
        try:
            return read_bounded(path, UsageError, "name a job file", _LONGEST)
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file", "config/slurm_example.sbatch is one") from None
    data = sys.stdin.buffer.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise UsageError(f"{path}: found more than {_LONGEST} bytes, expected at most as many", "name a job file")
    return data


def _decode(data: bytes) -> tuple[str, str | None]:
    """The text, and the encoding that a mark at its beginning names: sbatch stumbles over that."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "UTF-8"),
        (codecs.BOM_UTF16_LE, "UTF-16"),
        (codecs.BOM_UTF16_BE, "UTF-16"),
    ):
        if data.startswith(mark):
            return data.decode("utf-16" if encoding == "UTF-16" else "utf-8-sig", errors="replace"), encoding
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return data.decode("latin-1"), None
