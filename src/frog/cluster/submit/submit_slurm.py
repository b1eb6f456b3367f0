"""`frog submit --to slurm`: render the job file, check it, pass it to sbatch."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

import msgspec

from frog.cluster.jobfile.cluster_profile import CLUSTERS, DEFAULT_PROFILE, load_profile
from frog.cluster.jobfile.explain import explain
from frog.cluster.jobfile.jobfile_commands import format_findings
from frog.cluster.submit.bundle_folder import BUNDLE_JSON, BundleFacts
from frog.cluster.submit.cluster_programs import call_cluster_program
from frog.cluster.submit.slurm_job import JOBS, REQUEST_OPTIONS, SlurmRequest, check_request, render_job
from frog.cluster.submit.submitted_work import program_work
from frog.core.config import RunConfig, load_run_config
from frog.core.errors import DataError, LaunchError, UsageError
from frog.core.files import write_atomic
from frog.core.schema import read_typed
from frog.core.units import count
from frog.observe.environment import HOOK
from frog.train.data.folder import DEFAULT_NAME, set_folder


def submit_to_slurm(args: argparse.Namespace) -> int:
    """Print the job file (`--dry-run`), or write and submit it; return the exit code.

    Raises:  UsageError, ConfigError or DataError before anything is submitted; LaunchError if sbatch refuses.
    """
    folder = args.bundle if args.bundle is not None else Path()
    request = read_request(args, folder)
    text = render_checked(request, folder)
    if args.dry_run:
        sys.stdout.write(text)
        return 0
    _check_ready(request, folder)
    path = folder / request.job_file
    try:
        (folder / JOBS).mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise LaunchError(f"{path} could not be written: {error}; nothing was submitted") from error
    job_id = _call_sbatch(request.job_file, folder)
    print(_next_steps(request, folder, job_id))
    return 0


def read_request(args: argparse.Namespace, folder: Path) -> SlurmRequest:
    """Return the checked request of the arguments.

    A bundle's run file is the one in its folder. The bundle's profile and request fill in missing arguments; with
    another --profile, which is another cluster, only the arguments count.
    """
    if args.program:
        return _program_request(args)
    facts = None if args.bundle is None else _bundle_facts(args)
    run_file, settings = (args.run_file, ()) if facts is None else (Path(facts.run_file), facts.settings)
    settings = (*settings, *args.set)
    if facts is None or args.profile is not None:
        profile, defaults = load_profile(args.profile or DEFAULT_PROFILE), {}
    else:
        profile, defaults = load_profile(facts.profile, folder / CLUSTERS), msgspec.structs.asdict(facts.request)
    request = SlurmRequest.from_arguments(
        args,
        defaults,
        profile=profile,
        config=load_run_config(folder / run_file, settings),
        run_file=run_file,
        settings=settings,
        bundled=args.bundle is not None,
        command=command_line(args),
    )
    check_request(request)
    return request


def _program_request(args: argparse.Namespace) -> SlurmRequest:
    observer = None if args.no_observe else HOOK
    work = program_work(args.program, to="slurm", requeue=args.requeue, observer=observer, name=args.name)
    request = SlurmRequest.from_arguments(
        args,
        {},
        profile=load_profile(args.profile or DEFAULT_PROFILE),
        config=work,
        run_file=Path(work.file or work.name),
        command=command_line(args),
    )
    check_request(request)
    return request


def _bundle_facts(args: argparse.Namespace) -> BundleFacts:
    """Return the facts about the bundle, and how it was made."""
    try:
        facts = read_typed(args.bundle / BUNDLE_JSON, BundleFacts, f"frog bundle {args.run_file} --to {args.bundle}")
    except FileNotFoundError:
        raise UsageError(
            f"{args.bundle}: not a bundle: {BUNDLE_JSON} is missing",
            f"frog bundle {args.run_file} --to {args.bundle}",
        ) from None
    made_of = Path(facts.run_file).name
    if made_of != args.run_file.name:
        raise UsageError(
            f"{args.bundle} was made from {made_of}, not from {args.run_file.name}",
            f"frog bundle {args.run_file} --to another folder",
        )
    return facts


def command_line(args: argparse.Namespace, command: str = "submit") -> str:
    """Return the command that repeats the request, as a one-line comment."""
    program = getattr(args, "program", [])
    words = ["frog", command, *([] if program else [str(args.run_file)])]
    options = ("to", "name", "profile", *REQUEST_OPTIONS, "bundle", "platform", "python_version", "no_wheels")
    for option in (*options, "requeue", "no_observe"):
        value = getattr(args, option, None)
        if value is not None and value is not False:
            words += [f"--{option.replace('_', '-')}", *([] if value is True else [str(value)])]
    words += [word for setting in args.set for word in ("--set", setting)]
    words += ["--", *program] if program else []
    return " ".join(shlex.join(words).split())


def render_checked(request: SlurmRequest, folder: Path) -> str:
    """Return the job file, which must have no traps: a profile can add options that cause some."""
    text = render_job(request)
    explanation = explain(text, request.job_file, request.profile, (folder,))
    traps = [trap for trap in explanation.traps if trap.code != "no-output-folder"]
    if traps:
        answer = "\n".join(format_findings(explanation)[:-1])
        raise UsageError(
            f"{request.profile.name}: the job file would not work\n{answer.rstrip()}", "correct the profile"
        )
    return text


def _check_ready(request: SlurmRequest, folder: Path) -> None:
    """Refuse a job that would fail at its start."""
    if not isinstance(request.config, RunConfig):
        return
    _check_data(request.config, folder)
    python = folder / request.profile.python
    if request.profile.container is None and not os.access(python, os.X_OK):
        what = "run its setup.sh" if request.bundled else "run make setup, or name another Python in the profile"
        raise UsageError(f"{python}: this Python does not exist, and the job would start it", what)


def _check_data(config: RunConfig, folder: Path) -> None:
    name = config.data.name
    prepared = set_folder(name, folder / "data")
    if not prepared.manifest_json.is_file() and (name != DEFAULT_NAME or folder != Path()):
        raise DataError(
            f"{prepared.path}: the prepared data set {name!r} does not exist, and the job would need it",
            f"frog data prepare --name {name} --corpus PATH",
        )


def _call_sbatch(job_file: Path, folder: Path) -> str:
    path = folder / job_file
    answer = call_cluster_program(
        ["sbatch", "--parsable", str(job_file)],
        absent=(
            f"sbatch is not on PATH: {path} was written, but nothing was submitted",
            'repeat the command on the cluster\'s login node; or here: frog slurm up, then eval "$(frog slurm env)"',
        ),
        unanswered="check with sinfo that the cluster answers",
        hint=lambda words: _hint(words, path),
        folder=folder,
    )
    match = re.match(r"\d+", answer.strip())
    if match is None:
        raise LaunchError(f"sbatch did not print a job id: {answer.strip()!r}", "squeue --me")
    return match[0]


def _hint(words: str, path: Path) -> str:
    """Return a hint for sbatch's error."""
    lower = words.lower()
    if "account" in lower:
        return "--account NAME: an account of yours that may use this partition"
    if "qos" in lower:
        return "--qos NAME: a QOS that your account may use"
    if "partition" in lower:
        return "sinfo lists the partitions: set --partition NAME, or partition in the profile"
    if "configuration source" in lower or "contact" in lower or "connect" in lower:
        return 'no cluster answers: on this machine, frog slurm up, then eval "$(frog slurm env)"'
    if "node configuration" in lower or "generic resource" in lower or "gres" in lower:
        return f"no node has these resources: see sinfo --format='%P %G %c'; then correct the profile, or edit {path}"
    return f"see the submitted file, {path}"


def _next_steps(request: SlurmRequest, folder: Path, job_id: str) -> str:
    name = request.config.name if request.named else f"{request.config.name}-{job_id}"
    of_node = folder / request.output.replace("%j", f"{job_id}-node0")
    output = folder / request.output.replace("%j", job_id)
    run = folder / "runs" / name
    return "\n".join(
        [
            f"job {job_id} is in the queue: {request.nodes} x {count(request.ranks, 'rank')} of {request.run_file}, "
            f"with a time limit of {request.time_text}",
            f"  state              squeue --job {job_id}",
            f"  output             tail -f {output}",
            f"  log of rank 0      tail -f {run}/logs/rank_0/train.log"
            if request.program is None
            else f"  output of node 0   tail -f {of_node}",
            f"  save and end it    scancel {job_id}",
            f"  report             frog report {run if folder != Path() else name}"
            if request.program is None
            else f"  if it fails        frog diagnose {run}",
        ]
    )
