"""A job file explained: what each line does, and the traps that it walks into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.core.errors import UsageError
from frog.jobfile.cluster import ClusterProfile
from frog.jobfile.findings import Finding
from frog.jobfile.job import JobFile, read_job_file
from frog.jobfile.traps_header import header_findings
from frog.jobfile.traps_rendezvous import rendezvous_findings
from frog.jobfile.traps_script import script_findings
from frog.jobfile.traps_world import world_findings


@dataclass(frozen=True)
class Explanation:
    """A job file, and what was found in it, by line."""

    job: JobFile
    findings: tuple[Finding, ...]

    @property
    def traps(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == "trap"]


def explain(
    text: str, path: Path, profile: ClusterProfile | None = None, places: Sequence[Path] = (Path(),)
) -> Explanation:
    """Read a job file's text. `places` are the folders where sbatch may be called: folders are looked for there."""
    job = read_job_file(text, path)
    found = [*header_findings(job, profile, places), *world_findings(job), *rendezvous_findings(job)]
    found += script_findings(job, profile)
    unique = {(finding.code, finding.line): finding for finding in reversed(found)}.values()
    return Explanation(job, tuple(sorted(unique, key=lambda item: (item.line, item.kind == "note", item.code))))


def explain_file(path: Path, profile: ClusterProfile | None = None) -> Explanation:
    """Read a job file. Raises UsageError if it cannot be read."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", "config/slurm_example.sbatch is one") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text: {error}", "name a job file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return explain(text, path, profile, (Path(), path.parent))
