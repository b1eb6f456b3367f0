"""Explain a job file: what each line does, and the traps in it."""

from __future__ import annotations

import codecs
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from frog.cluster.jobfile import traps_across_nodes, traps_ranks, traps_request, traps_shell, traps_signals, traps_steps
from frog.cluster.jobfile.cluster_profile import ClusterProfile
from frog.cluster.jobfile.findings import Finding, Trap
from frog.cluster.jobfile.job_file import JobFile, nested_jobs, read_job_file
from frog.cluster.jobfile.launcher_files import named_findings
from frog.cluster.jobfile.variable_values import PLACEHOLDER
from frog.cluster.slurm_options import GivenOption
from frog.core.errors import UsageError
from frog.core.schema import read_bounded

TRAP_MODULES = (traps_request, traps_shell, traps_steps, traps_signals, traps_ranks, traps_across_nodes)
TRAPS = {trap.code: trap for module in TRAP_MODULES for trap in vars(module).values() if isinstance(trap, Trap)}
"""Every trap of `frog slurm explain`, by code."""
_LONGEST = 1 << 20
_IGNORE = re.compile(r"#\s*frog:\s*ignore\s+([\w, -]+)")


@dataclass(frozen=True)
class CheckContext:
    """Context of a check: the cluster, the Slurm version, the folders and the options on the command line."""

    profile: ClusterProfile | None = None
    places: Sequence[Path] = (Path(),)
    """Folders where sbatch may be called; output folders are looked up there."""
    given: tuple[GivenOption, ...] = ()
    version: tuple[int, int] | None = None


@dataclass(frozen=True)
class Explanation:
    """A job file and its findings, by line."""

    job: JobFile
    findings: tuple[Finding, ...]
    nested: tuple[JobFile, ...] = field(default=())
    """Job files that this file writes and submits itself."""

    @property
    def traps(self) -> list[Finding]:
        """Findings about a failure, a hang or waste."""
        return [finding for finding in self.findings if finding.kind != "advice"]

    @property
    def partial(self) -> bool:
        """True if Frog did not understand a part of the file, or of a nested job file."""
        return any(job.partial for job in (self.job, *self.nested))


def explain(
    text: str, path: Path, profile: ClusterProfile | None = None, places: Sequence[Path] = (Path(),)
) -> Explanation:
    """Read a job file's text. `places` are folders where sbatch may be called; output folders are looked up there."""
    return explain_with(text, path, CheckContext(profile, places))


def explain_with(text: str, path: Path, context: CheckContext) -> Explanation:
    """Read a job file's text and its nested job files."""
    job = read_job_file(text, path, context.given)
    nested = [
        replace(read_job_file(item.text, path, context.given, item.first_line), nested=True)
        for item in nested_jobs(job.shell.heredocs)
    ]
    findings: list[Finding] = []
    for file in (job, *nested):
        if file.is_job:
            findings += _job_findings(file, context)
    findings += [*traps_shell.placeholder_findings(job), *traps_shell.submission_findings(job)]
    for file in (job, *nested):
        findings += traps_shell.not_understood_findings(file)
    ignored = _ignored_codes(job.lines)
    unique = {(finding.code, finding.line): finding for finding in reversed(findings)}.values()
    in_files = [finding for file in (job, *nested) for finding in named_findings(file, context.places)]
    kept = [finding for finding in (*unique, *in_files) if finding.code not in ignored[0] | ignored[finding.line]]
    order = sorted(kept, key=lambda finding: (finding.line, finding.kind == "advice", finding.code))
    return Explanation(job, tuple(order), tuple(nested))


def _job_findings(job: JobFile, context: CheckContext) -> Iterator[Finding]:
    """Yield the traps of one job file, except those that lines which Frog did not understand may refute."""
    finders = [
        traps_request.request_findings(job, context.profile, context.places, context.version),
        traps_steps.step_findings(job, context.profile, context.version),
        traps_signals.signal_findings(job),
        traps_shell.shell_findings(job),
    ]
    if not job.heterogeneous:
        finders += [traps_ranks.rank_findings(job, context.profile), traps_across_nodes.node_findings(job)]
    for finding in chain.from_iterable(finders):
        filled_in_later = PLACEHOLDER in finding.what or finding.line in job.placeholders
        unknown = filled_in_later or finding.line in job.shell.not_understood
        if not unknown and not (job.partial and TRAPS[finding.code].needs_all_lines):
            yield finding


def _ignored_codes(lines: list[str]) -> dict[int, set[str]]:
    """Return the codes that comments disable, by line; a comment on a separate line counts for the whole file, as 0."""
    codes: dict[int, set[str]] = defaultdict(set)
    for number, line in enumerate(lines, 1):
        if match := _IGNORE.search(line):
            whole = line.strip().startswith("#") and not line.startswith("#SBATCH")
            codes[0 if whole else number].update(re.split(r"[\s,]+", match[1].strip()))
    return codes


def explain_file(path: Path, profile: ClusterProfile | None = None, context: CheckContext | None = None) -> Explanation:
    """Read a job file; `-` is standard input. Raises UsageError if it cannot be read."""
    context = context or CheckContext(profile, (Path(), path.parent))
    data = _read(path)
    if b"\0" in data[:4096] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{path}: not a text file: it contains zero bytes", "name a job file")
    text, mark = _decode(data)
    explanation = explain_with(text, path, context)
    return replace(explanation, findings=(*traps_shell.encoding_findings(mark), *explanation.findings))


def _read(path: Path) -> bytes:
    if str(path) != "-":
        try:
            return read_bounded(path, UsageError, "name a job file", _LONGEST)
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file", "for example, config/slurm_example.sbatch") from None
    data = sys.stdin.buffer.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise UsageError(f"{path}: larger than {_LONGEST} bytes, the limit for a job file", "name a job file")
    return data


def _decode(data: bytes) -> tuple[str, str | None]:
    """Decode the text; return it with the encoding named by its BOM, which sbatch cannot read."""
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
