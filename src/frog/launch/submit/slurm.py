"""`frog submit --to slurm`: render the job file, check it, hand it to sbatch."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from frog.config import RunConfig, load_run_config
from frog.core.env import child_env
from frog.core.errors import DataError, LaunchError, UsageError
from frog.core.files import write_atomic
from frog.data.folder import DEFAULT_NAME, set_folder
from frog.launch.slurm.explain import explain
from frog.launch.slurm.explain_command import told_findings
from frog.launch.submit.job import JOBS, JobRequest, check_request, render_job

BUNDLE_JSON = "bundle.json"

_SBATCH_TIMEOUT_S = 120


def submit_to_slurm(args: argparse.Namespace) -> int:
    """Print the job file (`--dry-run`), or write it and hand it in; return the exit code.

    Raises:  UsageError, ConfigError or DataError before anything is handed in; LaunchError if sbatch refuses.
    """
    folder = args.bundle if args.bundle is not None else Path()
    request = read_request(args, folder)
    text = render_checked(request, folder)
    if args.dry_run:
        sys.stdout.write(text)
        return 0
    _ready(request, folder)
    path = folder / request.job_file
    try:
        (folder / JOBS).mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise LaunchError(f"{path} could not be written: {error}; nothing was handed in") from error
    job_id = _hand_in(request.job_file, folder)
    print(_next_steps(request, folder, job_id))
    return 0


def read_request(args: argparse.Namespace, folder: Path) -> JobRequest:
    """What the arguments ask for, checked. In a bundle the run file is the one that lies there."""
    run_file, settings = args.run_file, list(args.set)
    if args.bundle is not None:
        run_file, settings = _bundled_run(args, settings)
    request = JobRequest.asked_for(
        args,
        config=load_run_config(folder / run_file, settings),
        run_file=run_file,
        settings=tuple(settings),
        bundled=args.bundle is not None,
        command=command_line(args),
    )
    check_request(request)
    return request


def _bundled_run(args: argparse.Namespace, settings: list[str]) -> tuple[Path, list[str]]:
    """The run file of a bundle, and all settings: those it was made with, then the user's."""
    try:
        facts = json.loads((args.bundle / BUNDLE_JSON).read_text())
        run_file, made_with = Path(facts["run_file"]), [str(setting) for setting in facts["settings"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{args.bundle}: no bundle there: {BUNDLE_JSON} is missing or cannot be read",
            f"frog bundle {args.run_file} --to {args.bundle}",
        ) from None
    if run_file.name != args.run_file.name:
        raise UsageError(
            f"{args.bundle} was made of {run_file.name}, not of {args.run_file.name}",
            f"frog bundle {args.run_file} --to another folder",
        )
    return run_file, made_with + settings


def command_line(args: argparse.Namespace, command: str = "submit") -> str:
    """The command that asks for the same again."""
    words = ["frog", command, str(args.run_file)]
    if command == "submit":
        words += ["--to", "slurm"]
    for option in ("profile", "nodes", "ranks_per_node", "time", "account", "partition", "qos", "bundle"):
        value = getattr(args, option, None)
        if value is not None and (option, value) != ("nodes", 1):
            words += [f"--{option.replace('_', '-')}", str(value)]
    return shlex.join(words + [word for setting in args.set for word in ("--set", setting)])


def render_checked(request: JobRequest, folder: Path) -> str:
    """The job file, which must walk into no trap: a profile can add options that do."""
    text = render_job(request)
    explanation = explain(text, request.job_file, request.profile, (folder,))
    traps = [trap for trap in explanation.traps if trap.code != "no-output-folder"]
    if traps:
        told = "\n".join(told_findings(explanation)[:-1])
        raise UsageError(f"{request.profile.name}: the job file would not work\n{told.rstrip()}", "correct the profile")
    return text


def _ready(request: JobRequest, folder: Path) -> None:
    """Refuse a job that would fail as soon as it starts."""
    _data_is_there(request.config, folder)
    python = folder / request.profile.python
    if request.profile.container is None and not os.access(python, os.X_OK):
        what = "run its setup.sh" if request.bundled else "make setup, or name another in the profile"
        raise UsageError(f"{python}: no Python there, and the job would start it", what)


def _data_is_there(config: RunConfig, folder: Path) -> None:
    name = config.data.name
    prepared = set_folder(name, folder / "data")
    if not prepared.manifest_json.is_file() and (name != DEFAULT_NAME or folder != Path()):
        raise DataError(
            f"{prepared.path}: no prepared data set {name!r} there, and the job would look for it",
            f"frog data prepare --name {name} --corpus PATH",
        )


def _hand_in(job_file: Path, folder: Path) -> str:
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise LaunchError(
            f"sbatch is not on PATH; {folder / job_file} is written, and nothing was handed in",
            'on the cluster\'s login node: the same command; here: frog slurm up, then eval "$(frog slurm env)"',
        )
    try:
        done = subprocess.run(
            [sbatch, "--parsable", str(job_file)],
            cwd=folder,
            env=child_env(),
            capture_output=True,
            text=True,
            timeout=_SBATCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"sbatch: no answer within {_SBATCH_TIMEOUT_S} s", "sinfo: does the cluster answer?"
        ) from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()
        raise LaunchError(f"sbatch ended with exit code {done.returncode}\n{words}", _hint(words, folder / job_file))
    match = re.match(r"\d+", done.stdout.strip())
    if match is None:
        raise LaunchError(f"sbatch did not tell a job's number: {done.stdout.strip()!r}", "squeue --me")
    return match[0]


def _hint(words: str, path: Path) -> str:
    """What to do about sbatch's error."""
    lower = words.lower()
    if "account" in lower:
        return "--account NAME: a project of yours that may use this partition"
    if "qos" in lower:
        return "--qos NAME: one that your account may use"
    if "partition" in lower:
        return "sinfo shows the partitions: --partition NAME, or partition in the profile"
    if "configuration source" in lower or "contact" in lower or "connect" in lower:
        return 'no cluster answers: here, frog slurm up, then eval "$(frog slurm env)"'
    if "node configuration" in lower or "generic resource" in lower or "gres" in lower:
        return f"no node is like that: sinfo --format='%P %G %c'; then correct the profile, or edit {path}"
    return f"{path} is what was handed in"


def _next_steps(request: JobRequest, folder: Path, job_id: str) -> str:
    name = request.config.name if request.named else f"{request.config.name}-{job_id}"
    output = folder / request.output.replace("%j", job_id)
    run = folder / "runs" / name
    return "\n".join(
        [
            f"job {job_id} is in the queue: {request.nodes} x {request.ranks} ranks of {request.run_file}, "
            f"for {request.time_text} at a time",
            f"  is it running?     squeue --job {job_id}",
            f"  what it says       tail -f {output}",
            f"  what rank 0 says   tail -f {run}/logs/rank_0/train.log",
            f"  end it, saved      scancel {job_id}",
            f"  afterwards         frog report {run if folder != Path() else name}",
        ]
    )
