"""srun: starts a program on the nodes of a job, once per task, and returns its output and exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frog.cluster.emulator import command_options as opt
from frog.cluster.emulator.harmless import OF_A_JOB, note
from frog.cluster.emulator.layout import StepRequest
from frog.cluster.emulator.notation import parse_whole
from frog.cluster.emulator.refusal import SlurmRefusal, unknown
from frog.cluster.emulator.sbatch import make_request, usage
from frog.cluster.emulator.tasks import StepRun
from frog.cluster.emulator.wire import Client, Conversation
from frog.cluster.jobfile.slurm_options import SRUN
from frog.core.env import child_env, variable

_ONLY_OUTSIDE = ("exclusive", "gpus", "time")
"""Options of an allocation, which the emulator does not support for a step inside a job."""


def srun(client: Client, words: Sequence[str]) -> int:
    """Run a step; return the highest exit code of its tasks."""
    given, program = opt.read_words("srun", words, SRUN)
    if "help" in given:
        print(usage("srun"))
        return 0
    options = opt.srun_variables(child_env()) | given
    opt.export_changes(options.get("export"))
    if not program:
        raise SlurmRefusal("srun: fatal: No command given to execute.", plain=True)
    job = variable("SLURM_JOB_ID")
    if options.get("jobid", job) != job:
        raise unknown(f"--jobid={options['jobid']} of srun: a step in another job")
    if job is not None:
        if outside := [name for name in _ONLY_OUTSIDE if name in options]:
            raise unknown(f"--{outside[0]} of srun inside a job")
        note("srun", options, others=OF_A_JOB)
        return _step(client, job, dict(child_env()), options, program)
    return _alone(client, options, program)


def _alone(client: Client, options: Mapping[str, str | None], program: Sequence[str]) -> int:
    """Request a job, run the step in it, and release the job."""
    request = make_request(options, default_name=Path(program[0]).name, program="srun")
    if request.node_names:
        options = {**options, "nodelist": ",".join(request.node_names)}  # perhaps fewer than the option named
    allocation = client.open("allocate", request=asdict(request), partition=options.get("partition"))
    code = 1
    try:
        answer = allocation.hear()
        if "queued" in answer:
            _say(f"job {answer['queued']} queued and waiting for resources")
            answer = allocation.hear()
            _say(f"job {answer['job']} has been allocated resources")
        base = {**child_env(), **answer["variables"]}
        code = _step(client, str(answer["job"]), base, options, program)
        allocation.send(code=code)
    finally:
        allocation.close()
    return code


def _step(
    client: Client, job: str, base: dict[str, str], options: Mapping[str, str | None], program: Sequence[str]
) -> int:
    base |= opt.export_changes(options.get("export"))
    if options.get("job-name"):
        base["SLURM_JOB_NAME"] = options["job-name"] or ""
    wanted = _wanted(options, base)
    opt.count(options, "wait", least=0)
    cpus = opt.count(options, "cpus-per-task")
    conversation = client.open("step", job=job, step=asdict(wanted), label="label" in options, cpus=cpus)
    try:
        answer = _granted(conversation, job)
        return StepRun(answer, options, list(program), base, conversation).run()
    finally:
        conversation.close()


def _granted(conversation: Conversation, job: str) -> dict[str, Any]:
    """Wait for the step's resources, which other steps may still use."""
    answer = conversation.hear()
    if "busy" in answer:
        _say(f"Job {job} step creation temporarily disabled, retrying (Requested nodes are busy)")
        answer = conversation.hear()
        _say(f"Step created for job {job}")
    return answer


def _wanted(options: Mapping[str, str | None], env: Mapping[str, str]) -> StepRequest:
    """Return the number of tasks and the nodes, from the options or otherwise from the job's variables."""
    job_nodes = int(env.get("SLURM_JOB_NUM_NODES") or env["SLURM_NNODES"])
    num_nodes = opt.count(options, "nodes") or job_nodes
    ntasks = opt.count(options, "ntasks") or _number(env, "SLURM_NTASKS")
    per_node = opt.count(options, "ntasks-per-node") or _number(env, "SLURM_NTASKS_PER_NODE")
    if ntasks is None:
        ntasks = num_nodes * (per_node or 1)
    elif "nodes" not in options and ntasks < num_nodes:
        _say(f"Warning: can't run {ntasks} processes on {num_nodes} nodes, setting nnodes to {ntasks}")
        num_nodes = ntasks
    if per_node is not None and ntasks > num_nodes and ntasks != per_node * num_nodes:
        _say(
            f"Warning: can't honor --ntasks-per-node set to {per_node} which doesn't match the requested tasks "
            f"{ntasks} with the number of requested nodes {num_nodes}. Ignoring --ntasks-per-node."
        )
    return StepRequest(
        ntasks=ntasks,
        num_nodes=num_nodes,
        node_names=tuple(opt.hosts(options)),
        cpus_per_task=opt.count(options, "cpus-per-task") or 1,
        overlap="overlap" in options,
        exact="exact" in options or "cpus-per-task" in options,
        per_node=per_node,
        gpus_per_task=opt.gpus_per_task(options),
        all_gpus="SLURM_GPUS_PER_NODE" in env,
        gpus_per_node=opt.gpus(options)[0] or None,
    )


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return parse_whole(text)


def _say(text: str) -> None:
    print(f"srun: {text}", file=sys.stderr, flush=True)
