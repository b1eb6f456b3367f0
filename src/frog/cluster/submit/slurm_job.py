"""A Slurm job for a run: the request, checked against the run file and the cluster, and the job file."""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.cluster.jobfile.cluster_profile import ClusterProfile, is_slurm_name
from frog.cluster.slurm_options import time_limit_s, write_time
from frog.cluster.submit.submitted_work import ProgramWork, Work
from frog.core.errors import ConfigError
from frog.core.units import count

if TYPE_CHECKING:
    from jinja2 import Template

JOBS = Path("runs/jobs")
DEFAULT_TIME = "00:30:00"
REQUEST_OPTIONS = ("nodes", "ranks_per_node", "time", "account", "partition", "qos")
"""Fields of a request that have options in `frog submit` and `frog bundle`."""
_SIGNAL_S, _PROGRAM_SIGNAL_S, _LEAST_SIGNAL_S, _MARGIN_S = 120, 60, 15, 10
_TEMPLATE = Path(__file__).with_name("templates") / "job.sbatch.jinja"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class SlurmRequest:
    """The user's request. The profile sets a field that is None."""

    config: Work
    """The run, or a program."""
    run_file: Path
    """The run file, or the program's file."""
    profile: ClusterProfile
    nodes: int = 1
    ranks_per_node: int | None = None
    time: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    settings: tuple[str, ...] = ()
    """KEY=VALUE for --set."""
    bundled: bool = False
    """The bundle's folder if the job runs there; it is submitted from that folder."""
    command: str = "frog submit"
    file: Path | None = None
    """Path of the job file, relative to the folder of submission; None for the jobs folder and the run's name."""

    @classmethod
    def from_arguments(cls, args: argparse.Namespace, defaults: Mapping[str, Any], **fields: Any) -> SlurmRequest:
        """Return the request of the arguments, with `defaults` for missing ones, and the other `fields`."""
        given = {name: value for name in REQUEST_OPTIONS if (value := getattr(args, name)) is not None}
        return cls(**{**defaults, **given}, **fields)

    @property
    def program(self) -> ProgramWork | None:
        """The program; None for a run of Frog's trainer."""
        return self.config if isinstance(self.config, ProgramWork) else None

    @property
    def ranks(self) -> int:
        """Ranks per node."""
        return self.ranks_per_node or self.profile.gpus_per_node or 1

    @property
    def cpus_per_node(self) -> int:
        return self.ranks * (self.profile.cpus_per_gpu or 1)

    @property
    def time_text(self) -> str:
        longest_s = self.profile.max_time_s(self.qos)
        default_s = time_limit_s(DEFAULT_TIME) or 0
        return self.time or (write_time(longest_s) if longest_s and longest_s < default_s else DEFAULT_TIME)

    @property
    def named(self) -> bool:
        """True if the user named the run; otherwise the job id names it."""
        return any(setting.partition("=")[0].strip() == "name" for setting in self.settings)

    @property
    def job_file(self) -> Path:
        return self.file or JOBS / f"{self.config.name}.sbatch"

    @property
    def output(self) -> str:
        """Pattern of its log's path."""
        return f"{JOBS / self.config.name}-%j.out"


def check_request(request: SlurmRequest) -> None:
    """Raise ConfigError with every mistake, before anything is written or submitted."""
    profile, problems = request.profile, []
    if not str(request.run_file).isprintable():
        problems.append(f"{str(request.run_file)!r}: the name of a run file must be one line")
    if request.nodes < 1:
        problems.append(f"--nodes {request.nodes}: must be at least 1")
    if request.ranks_per_node is not None and request.ranks_per_node < 1:
        problems.append(f"--ranks-per-node {request.ranks_per_node}: must be at least 1")
    if profile.gpus_per_node and request.ranks > profile.gpus_per_node:
        problems.append(
            f"--ranks-per-node {request.ranks}: a node of {profile.name} has {profile.gpus_per_node} GPUs, "
            "and each rank needs its own"
        )
    most = profile.max_nodes_of(request.qos)
    if most and request.nodes > most:
        problems.append(f"--nodes {request.nodes}: {profile.name} allows {most} with qos {request.qos or profile.qos}")
    problems += _time_problems(request)
    if profile.account_required and not (request.account or profile.account):
        problems.append(f"--account: {profile.name} requires the account to charge")
    for option in ("account", "partition", "qos"):
        value = getattr(request, option)
        if value is not None and not is_slurm_name(value):
            problems.append(f"--{option} {value!r}: not a valid name")
    if request.nodes >= 1 and request.ranks >= 1:
        problems += request.config.world_problems(request.nodes * request.ranks)
    if problems:
        listing = "\n".join(f"  - {problem}" for problem in problems)
        mistakes = f"{len(problems)} mistakes" if len(problems) > 1 else "a mistake"
        where = f"{request.run_file} on {request.profile.name}, {request.nodes} x {count(request.ranks, 'rank')}"
        raise ConfigError(f"{where}: {mistakes}\n{listing}", "correct the lines above; nothing was submitted")


def _time_problems(request: SlurmRequest) -> list[str]:
    longest_s = request.profile.max_time_s(request.qos)
    try:
        limit_s = time_limit_s(request.time_text)
    except ValueError:
        return [f"--time {request.time}: not a time; write HH:MM:SS or D-HH:MM:SS"]
    if limit_s is None:
        return [f"--time {request.time}: a job needs a limit; write HH:MM:SS or D-HH:MM:SS"]
    if limit_s < 60:
        return [f"--time {request.time}: {limit_s} s, but Slurm counts in minutes"]
    if longest_s is not None and limit_s > longest_s:
        qos = request.qos or request.profile.qos
        allowed = f"{request.profile.name} allows at most {write_time(longest_s)}"
        return [f"--time {request.time}: {allowed}" + (f" with qos {qos}" if qos else "")]
    return []


def render_job(request: SlurmRequest) -> str:
    """Return the job file. Assumes that `check_request` found no mistakes."""
    return _template().render(**_template_values(request))


@functools.cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = shlex.quote
    return environment.from_string(_TEMPLATE.read_text())


def _template_values(request: SlurmRequest) -> dict[str, Any]:
    profile, name = request.profile, request.config.name
    signal_s = _signal_s(request)
    node_output = request.output.replace("%j", "%j-node%n")
    name_in_words = name if request.named else f"{name}-$SLURM_JOB_ID"
    program = request.program
    own_name = "" if request.named else f' --set name="{name}-$SLURM_JOB_ID"'
    settings = "".join(f" --set {shlex.quote(setting)}" for setting in request.settings)
    return {
        "profile": profile,
        "program": program,
        "needed": str(request.run_file) if program is None else _needed(program),
        "python": profile.python if program is None else _python_of(program, profile),
        "run_file": str(request.run_file),
        "nodes": request.nodes,
        "ranks": request.ranks,
        "world": request.nodes * request.ranks,
        "command": request.command,
        "path": str(request.job_file),
        "bundled": request.bundled,
        "directives": _directives(request, signal_s),
        "modules": profile.modules,
        "environment": {**profile.environment, **({} if profile.network else _OFFLINE)},
        "output_words": node_output.replace("%j", "$SLURM_JOB_ID").replace("%n", "0"),
        "node_output": node_output,
        "name_in_words": name_in_words,
        "name_says": f"The run is named {name}." if request.named else "The run is named after the job.",
        "container": _container(profile, bound="$PWD" if program is None or program.folder is None else "$OLDPWD"),
        "grace_s": max(5, signal_s - _MARGIN_S),
        "arguments": shlex.quote(str(request.run_file)) + settings + own_name,
    }


def _signal_s(request: SlurmRequest) -> int:
    """Return the seconds between the warning signal and the time limit: at most a quarter of a short job.

    torchrun gives a program 30 s after SIGTERM, so a minute is enough; Frog's trainer takes its time to save.
    """
    limit_s = time_limit_s(request.time_text) or 0
    return min(_SIGNAL_S if request.program is None else _PROGRAM_SIGNAL_S, max(_LEAST_SIGNAL_S, limit_s // 4))


def _directives(request: SlurmRequest, signal_s: int) -> list[str]:
    profile = request.profile
    options: list[tuple[str, object]] = [
        ("job-name", request.config.name),
        ("account", request.account or profile.account),
        ("partition", request.partition or profile.partition),
        ("qos", request.qos or profile.qos),
        ("nodes", request.nodes),
        ("ntasks-per-node", 1),
    ]
    if profile.gpus_per_node:
        count = f"gpu:{request.ranks}" if profile.gpu_option == "gres" else str(request.ranks)
        options.append((profile.gpu_option, count))
    options += [
        ("cpus-per-task", request.cpus_per_node),
        ("time", request.time_text),
        ("signal", None if request.program and not request.program.requeue else f"B:USR1@{signal_s}"),
        ("open-mode", "append"),
        ("output", request.output),
    ]
    requeue = "--requeue" if request.program is None or request.program.requeue else "--no-requeue"
    return [f"--{name}={value}" for name, value in options if value is not None] + [requeue, *profile.directives]


def _python_of(program: ProgramWork, profile: ClusterProfile) -> str:
    """Return the profile's Python; if it is the default and absent, the one of the submitting shell."""
    if program.folder is not None:
        return profile.python if program.own_python else "python"
    default = ClusterProfile.__dataclass_fields__["python"].default
    return "python" if profile.python == default and not Path(default).exists() else profile.python


def _needed(program: ProgramWork) -> str | None:
    """Return the file that must exist where the job is submitted."""
    if program.file is None or program.folder is None:
        return program.file
    return f"{program.folder}/{program.file}"


def _container(profile: ClusterProfile, bound: str) -> str:
    """Return the words that start Python in the profile's image, which sees the folder `bound`."""
    if profile.container is None:
        return ""
    nvidia = "--nv " if profile.gpus_per_node else ""
    return f'apptainer exec {nvidia}--bind "{bound}" --pwd "$PWD" {_for_single_quotes(profile.container)} '


def _for_single_quotes(text: str) -> str:
    """Return a shell word inside single-quoted text."""
    return '"' + re.sub(r'([\\"`])', r"\\\1", text).replace("'", "'\\''") + '"'
