"""A batch script as a process: its files, start and end."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from frog.cluster.emulator.emulated_job import EmulatedJob
from frog.cluster.emulator.notation import fill_pattern, pattern_values
from frog.cluster.emulator.processes import enter
from frog.cluster.emulator.variables import submitted_environment
from frog.cluster.node_names import NodeNames

_NO_FILE = 53
"""Signal that Slurm reports for a job whose output file cannot be opened."""

_one_at_a_time = threading.Lock()
"""Prevents a forked process from inheriting a script that another thread still writes: it could not be executed."""


def output_path(job: EmulatedJob) -> Path:
    pattern = job.request.output or ("slurm-%j.out" if job.array_job is None else "slurm-%A_%a.out")
    return _path(job, pattern)


def error_path(job: EmulatedJob) -> Path:
    return _path(job, job.request.error) if job.request.error else output_path(job)


def input_path(job: EmulatedJob) -> Path:
    return _path(job, job.request.input or "/dev/null")


def _path(job: EmulatedJob, pattern: str) -> Path:
    node = job.allocations[0].node if job.allocations else ""
    values = pattern_values(job.number, job.request.name, job.request.user, node, job.array_job, job.array_task)
    return Path(job.request.work_dir) / fill_pattern(pattern, values)


def write_error(job: EmulatedJob, text: str) -> None:
    """Append a line to the job's output."""
    with open(error_path(job), "a") as file:
        file.write(text)


def run_script(
    job: EmulatedJob,
    variables: Mapping[str, str],
    folder: Path,
    names: NodeNames | None,
    started: Callable[[int], None],
) -> int:
    """Run the job's script to its end; return its exit code, negative for a signal."""
    with contextlib.ExitStack() as files:
        try:
            process = _start(job, variables, folder, names, files)
        except OSError as error:
            return _not_started(job, folder, error)
    started(process.pid)
    try:
        return process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    job: EmulatedJob,
    variables: Mapping[str, str],
    folder: Path,
    names: NodeNames | None,
    files: contextlib.ExitStack,
) -> subprocess.Popen[bytes]:
    script = folder / "slurm_script"
    stdin = files.enter_context(input_path(job).open("rb"))
    stdout = _open_output(job, output_path(job), files)
    same = error_path(job) == output_path(job)
    stderr: IO[bytes] | int = subprocess.STDOUT if same else _open_output(job, error_path(job), files)
    work_dir, said = enter(Path(job.request.work_dir))
    if said:
        write_error(job, 2 * said)
    with _one_at_a_time:
        folder.mkdir(parents=True, exist_ok=True)
        script.write_bytes((job.request.script or "").encode(errors="surrogateescape"))
        script.chmod(0o700)
        return subprocess.Popen(
            [str(script), *job.request.arguments],
            cwd=work_dir,
            env={**submitted_environment(job.request), **variables},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            umask=job.request.umask,
            start_new_session=True,
            preexec_fn=None if names is None else lambda: names.enter_if_possible(job.allocations[0].node),
        )


def _open_output(job: EmulatedJob, path: Path, files: contextlib.ExitStack) -> IO[bytes]:
    """Open an output file: truncate it, unless --open-mode=append, then append, because the daemon writes to it too."""
    if not job.request.append:
        path.write_bytes(b"")
    return files.enter_context(path.open("ab"))


def _not_started(job: EmulatedJob, folder: Path, error: Exception) -> int:
    """Return Slurm's exit code for a job whose script did not start: 2 for a missing interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    no_interpreter = isinstance(error, FileNotFoundError) and str(error.filename).endswith("slurm_script")
    if not no_interpreter:
        return -_NO_FILE
    interpreter = (job.request.script or "").splitlines()[0].removeprefix("#!").split()[0]
    with contextlib.suppress(OSError):
        write_error(job, f"slurmstepd: error: execve(): bad interpreter({interpreter}): No such file or directory\n")
    return 2
