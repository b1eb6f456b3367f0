"""sbatch: read a job file and its options, and send the job to the daemon."""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from frog.cluster.emulator import SlurmRefusal, unknown
from frog.cluster.emulator import command_options as opt
from frog.cluster.emulator.command_options import note
from frog.cluster.emulator.emulated_job import JobRequest
from frog.cluster.emulator.notation import parse_array, parse_signal, parse_time_limit
from frog.cluster.emulator.wire import Client
from frog.cluster.slurm_options import SBATCH
from frog.core.env import child_env, host_name
from frog.core.errors import UsageError
from frog.core.schema import MOST_BYTES, read_bounded

_DEPENDENCIES = ("after", "afterany", "afterok", "afternotok")


def sbatch(client: Client, words: Sequence[str]) -> int:
    """Submit a job; with --wait, return its exit code after it ends."""
    given, rest = opt.read_words("sbatch", words, SBATCH)
    if "help" in given:
        print(usage("sbatch"))
        return 0
    _refuse_environment()
    script, name, rest = _script(given, rest)
    options = opt.read_script(script) | given
    for option in given:
        options.pop(opt.OPPOSITES.get(option, ""), None)
    opt.check_patterns(options)
    note("sbatch", options)
    request = make_request(options, default_name=name)
    request.script, request.arguments = script, rest[1:]
    request.command = "(null)" if "wrap" in given else str(Path(rest[0]).resolve())
    if len(rest) > 1:
        request.command += " " + " ".join(rest[1:])
    reply = client.ask("submit", request=asdict(request), partition=options.get("partition"))
    job = reply["job"]
    if "quiet" not in options:
        print(job if "parsable" in options else f"Submitted batch job {job}", flush=True)
    return int(client.ask("wait", job=str(job))["code"]) if "wait" in options else 0


def usage(program: str) -> str:
    names = ", ".join(f"--{name}" for name in sorted(opt.KNOWN[program]))
    return f"{program} of the Slurm emulator. Supported options: {names}"


def _refuse_environment() -> None:
    """Refuse variables from which Slurm would read options."""
    names = sorted(name for name in child_env() if name.startswith("SBATCH_"))
    if names:
        raise unknown(f"the variable {names[0]}: put options on the command line or in the job file")


def _script(given: Mapping[str, str | None], rest: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the text of the job file, the job's name, and the words starting with the file's name."""
    wrapped = given.get("wrap")
    if wrapped is not None:
        if rest:
            raise SlurmRefusal("Script arguments not permitted with --wrap option")
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrapped}\n", "wrap", ["wrap"]
    if not rest:
        return _checked(sys.stdin.buffer.read(MOST_BYTES).decode(errors="surrogateescape")), "sbatch", ["sbatch"]
    try:
        text = read_bounded(Path(rest[0]), UsageError).decode(errors="surrogateescape")
    except (OSError, UsageError):
        raise SlurmRefusal(f"Unable to open file {rest[0]}") from None
    return _checked(text), Path(rest[0]).name, list(rest)


def _checked(text: str) -> str:
    if not text:
        raise SlurmRefusal("Batch script is empty!")
    if not text.startswith("#!"):
        raise SlurmRefusal(
            "This does not look like a batch script.  The first\n"
            "line must start with #! followed by the path to an interpreter.\nFor instance: #!/bin/sh"
        )
    if "\r\n" in text:
        raise SlurmRefusal(
            "Batch script contains DOS line breaks (\\r\\n)\ninstead of expected UNIX line breaks (\\n)."
        )
    return text


def make_request(options: Mapping[str, str | None], *, default_name: str, program: str = "sbatch") -> JobRequest:
    """Return the request that the options of sbatch, or of an srun outside a job, describe."""
    gpus, gpus_per_node_option = opt.gpus(options)
    here = Path.cwd()
    array = parse_array(options["array"] or "") if "array" in options else None
    warning = parse_signal(options["signal"] or "") if "signal" in options else None
    request = JobRequest(
        name=options.get("job-name") or default_name,
        user=getpass.getuser(),
        submit_dir=str(here),
        work_dir=str((here / (options.get("chdir") or ".")).resolve()),
        submit_host=host_name(),
        umask=_umask(),
        environment=child_env(**opt.export_changes(options.get("export"))),
        command=default_name,
        export=options.get("export"),
        nodes=opt.count(options, "nodes"),
        node_names=opt.hosts(options),
        ntasks=opt.count(options, "ntasks"),
        ntasks_per_node=opt.count(options, "ntasks-per-node"),
        cpus_per_task=opt.count(options, "cpus-per-task"),
        gpus_per_node=gpus,
        gpus_per_node_option=gpus_per_node_option,
        gpus_per_task=opt.gpus_per_task(options),
        exclusive=_exclusive(options),
        mem_mb=opt.memory_mb(options, "mem"),
        mem_per_cpu_mb=opt.memory_mb(options, "mem-per-cpu"),
        mem_per_gpu_mb=opt.memory_mb(options, "mem-per-gpu"),
        gpus_option=opt.total_gpus(options),
        constraint=options.get("constraint"),
        account=options.get("account"),
        comment=options.get("comment"),
        time_limit_min=parse_time_limit(options["time"] or "") if "time" in options else None,
        signal=None if warning is None else (warning.number, warning.before_s, warning.to_batch),
        output=options.get("output"),
        error=options.get("error"),
        input=options.get("input"),
        append=opt.appends(options),
        array=None if array is None else (list(array.tasks), array.step, array.at_once),
        dependency_text=options.get("dependency"),
        dependency=parse_dependency(options["dependency"] or "") if "dependency" in options else [],
        kill_on_invalid_dependency=_yes_no(options, "kill-on-invalid-dep"),
        requeue="no-requeue" not in options,
        hold="hold" in options,
    )
    _settle_nodes(request, program)
    if request.gpus_per_task is not None:
        _settle_gpus(request, options)
    return request


def _settle_gpus(request: JobRequest, options: Mapping[str, str | None]) -> None:
    """Check --gpus-per-task, which needs a number of tasks; Slurm counts one task per node."""
    for name in ("gpus-per-node", "gres"):
        if name in options:
            raise unknown(f"--gpus-per-task together with --{name}")
    if request.nodes is None and request.ntasks is None and request.ntasks_per_node is None:
        raise SlurmRefusal(
            "Failed to validate job spec. --gpus-per-task used without either --gpus or -n/--ntasks is not allowed.\n"
            "Invalid generic resource (gres) specification"
        )
    if request.ntasks is None:
        request.ntasks = (request.nodes or 1) * (request.ntasks_per_node or 1)


def _settle_nodes(request: JobRequest, program: str) -> None:
    """Resolve contradictions between the numbers of nodes, tasks and node names, as Slurm does."""
    named = len(request.node_names)
    if request.nodes is not None and named > request.nodes:
        if program == "sbatch":
            raise SlurmRefusal(f"invalid number of nodes (-N {named}-{request.nodes})")
        said = f"Required nodelist includes more nodes than permitted by max-node count ({named} > {request.nodes})"
        print(f"{program}: error: {said}. Eliminating nodes from the nodelist.", file=sys.stderr)
        request.node_names = request.node_names[: request.nodes]
    nodes, processes = request.nodes or named, request.ntasks
    if processes is not None and processes < nodes:
        said = f"can't run {processes} processes on {nodes} nodes, setting nnodes to {processes}"
        print(f"{program}: Warning: {said}", file=sys.stderr)
        request.nodes, request.node_names = processes, request.node_names[:processes]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _exclusive(options: Mapping[str, str | None]) -> bool:
    if options.get("exclusive") is not None:
        raise unknown(f"--exclusive={options['exclusive']}")
    return "exclusive" in options


def _yes_no(options: Mapping[str, str | None], name: str) -> bool:
    text = options.get(name)
    if name in options and text not in ("yes", "no"):
        raise SlurmRefusal(f"Invalid --{name} specification", exit_code=255)
    return text == "yes"


def parse_dependency(text: str) -> list[tuple[str, list[str]]]:
    """Parse afterok:12:13,singleton into [("afterok", ["12", "13"]), ("singleton", [])]. A job must satisfy all."""
    conditions: list[tuple[str, list[str]]] = []
    for part in text.split(","):
        kind, *jobs = part.split(":")
        if kind == "singleton" and not jobs:
            conditions.append((kind, []))
        elif kind in _DEPENDENCIES and jobs and all(re.fullmatch(r"\d+(_\d+)?", job) for job in jobs):
            conditions.append((kind, jobs))
        elif kind in (*_DEPENDENCIES, "aftercorr", "afterburstbuffer", "expand") or "?" in part:
            raise unknown(f"--dependency={text}")
        else:
            raise SlurmRefusal("Batch job submission failed: Job dependency problem")
    return conditions
