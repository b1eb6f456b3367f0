"""Traps in a job's requests: tasks, GPUs, time, memory, and the limits of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.cluster_profile import ClusterProfile
from frog.cluster.jobfile.directives import GivenOption, time_limit_s, write_time
from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Trap
from frog.cluster.jobfile.job import JobFile
from frog.cluster.jobfile.values import GAP

_LEAST_MB = 512
"""Megabytes; no program that uses a GPU runs with less."""
_HOURS = (24, 36, 48, 72, 96, 168)


def resource_findings(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    """Find traps in the resources that a job requests."""
    yield from _tasks(job)
    yield from _total_gpus(job)
    yield from _gpus_per_node(job, profile)
    yield from _time(job, profile)
    yield from _memory(job)
    if profile is not None:
        yield from _against_profile(job, profile)


TASKS_BEYOND_NODES = Trap(
    "tasks-beyond-nodes",
    FAILS,
    "sbatch refuses it, or the job waits forever",
    "#SBATCH --ntasks={most}, or remove it",
)
TASKS_BELOW_NODES = Trap(
    "tasks-below-nodes", WASTES, "Slurm allocates at most one node per task", "#SBATCH --ntasks-per-node=1 instead"
)


def _tasks(job: JobFile) -> Iterator[Finding]:
    """Find tasks that do not fit the nodes, as sbatch of Slurm 22.05 handles them."""
    asked, nodes, per_node = job.asks("ntasks"), job.number("nodes"), job.number("ntasks-per-node")
    ntasks = job.number("ntasks")
    if not (asked and ntasks and nodes):
        return
    if per_node and ntasks > nodes * per_node:
        what = f"{ntasks} tasks, but at most {per_node} on each of {nodes} nodes"
        yield TASKS_BEYOND_NODES.at(asked.line, what, most=nodes * per_node)
    elif ntasks < nodes:
        what = f"{ntasks} task{'s' * (ntasks > 1)} for {nodes} nodes"
        yield TASKS_BELOW_NODES.at(asked.line, what, nodes=nodes)


UNEVEN_GPUS = Trap(
    "uneven-gpus",
    ADVICE,
    "the nodes get different numbers of GPUs, but launchers start the same number of ranks on every node",
    "#SBATCH --gpus-per-node=N",
)


def _total_gpus(job: JobFile) -> Iterator[Finding]:
    total, nodes = job.asks("gpus"), job.nodes
    if total is None or not total.value or not nodes or nodes == 1:
        return
    if job.asks("gpus-per-node") or job.asks("exclusive"):
        return
    match = re.search(r"(\d+)$", total.value)
    if match and int(match[1]) % nodes:
        what = f"{total.written} {total.value} counts for the whole job of {nodes} nodes"
        yield UNEVEN_GPUS.at(total.line, what)


TOTAL_GPUS = Trap("total-gpus", WASTES, "{why}", "#SBATCH {instead}")


def _gpus_per_node(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    asked, gpus, nodes = job.gpu_directive, job.gpus_per_node, job.nodes
    if asked is None or asked.name == "gpus" or not gpus:
        return
    written = f"--{asked.name}={asked.value}"
    if profile and profile.gpus_per_node and gpus > profile.gpus_per_node:
        yield TOTAL_GPUS.at(
            asked.line,
            f"{written} asks for {gpus} GPUs on each node; {profile.name} has {profile.gpus_per_node}",
            why="the number is per node: the job would wait forever or be refused",
            instead=_with_number(written, gpus, profile.gpus_per_node),
        )
        return
    ranks = [
        job.resolve_int(word.raw)
        for run in job.launches
        if run.kind == "torchrun" and (word := run.option("nproc-per-node"))
    ]
    if nodes and nodes > 1 and any(number and number * nodes == gpus for number in ranks):
        yield TOTAL_GPUS.at(
            asked.line,
            f"{written} asks for {gpus} GPUs on each of {nodes} nodes, but each starts {gpus // nodes} ranks",
            why=f"the number is per node: the job holds {gpus * nodes} GPUs and uses {gpus}",
            instead=_with_number(written, gpus, gpus // nodes),
        )


def _with_number(written: str, old: int, new: int) -> str:
    return re.sub(rf"{old}\b(?!.*\d)", str(new), written)


NO_TIME_LIMIT = Trap(
    "no-time-limit",
    ADVICE,
    "the partition's default applies, which may be minutes or unlimited; jobs with a limit start earlier",
    "#SBATCH --time=01:00:00",
    needs_all_lines=True,
)
NOT_A_TIME = Trap("not-a-time", FAILS, "sbatch refuses it", "--time=HH:MM:SS, or D-HH:MM:SS")
TIME_LIMIT_TOO_LONG = Trap(
    "time-limit-too-long", FAILS, "the job would wait forever, or be refused", "#SBATCH --time={longest}"
)


def _time(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    asked = job.asks("time")
    if asked is None:
        asks = any(map(job.asks, ("partition", "account", "qos", "mem", "cpus-per-task", "constraint")))
        if not job.inner and (asks or job.gpu_directive or job.several_nodes):
            yield NO_TIME_LIMIT.at(1, "no --time")
        return
    if not asked.value or "$" in asked.value or GAP in asked.value:
        return
    try:
        limit_s = time_limit_s(asked.value or "")
    except ValueError:
        yield NOT_A_TIME.at(asked.line, f"{asked.written} {asked.value}: not a time")
        return
    yield from _minutes(job, asked, limit_s)
    longest_s = profile.max_time_s(job.text("qos")) if profile else None
    if profile and longest_s and (limit_s is None or limit_s > longest_s):
        what = f"{asked.value} exceeds the longest time of {profile.name}"
        yield TIME_LIMIT_TOO_LONG.at(asked.line, what, longest=write_time(longest_s))


TIME_IN_MINUTES = Trap(
    "time-in-minutes",
    WASTES,
    "a plain number means minutes: Slurm kills the job after {limit}",
    "#SBATCH --time={instead}",
)


def _minutes(job: JobFile, asked: GivenOption, limit_s: int | None) -> Iterator[Finding]:
    """Find `--time=24` and `--time=24:00` where hours were intended."""
    match = re.fullmatch(r"0*(\d+)(:00)?", asked.value or "")
    if match is None or limit_s is None or len(match[1]) > 3:
        return
    place = asked.line - job.first_line
    line = job.lines[place] if 0 <= place < len(job.lines) else ""
    comment = line.partition(" #")[2]
    said = re.search(rf"\b{match[1]}\s*(h|hr|hrs)\b|\bhours?\b(?!.*\bmin)", comment)
    if said or (int(match[1]) in _HOURS and not re.search(r"min|mm:ss|MM:SS", re.sub("HH:MM:SS", "", comment))):
        what = f"{asked.written} {asked.value} is {match[1]} minutes"
        yield TIME_IN_MINUTES.at(asked.line, what, limit=f"{match[1]} minutes", instead=f"{match[1]}:00:00")


MEMORY_IN_MEGABYTES = Trap(
    "memory-in-megabytes",
    WASTES,
    "a plain number means megabytes: Slurm kills a job that uses more",
    "#SBATCH --{name}={value}G",
)


def _memory(job: JobFile) -> Iterator[Finding]:
    """Find `--mem=80` where gigabytes were intended."""
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        asked = job.asks(name)
        alone = re.fullmatch(r"[1-9]\d{0,2}", asked.value or "") if asked else None
        if asked and alone and job.gpu_directive and int(alone[0]) <= (_LEAST_MB if name == "mem" else _LEAST_MB // 2):
            what = f"{asked.written} {asked.value} is {asked.value} megabytes, in a job with GPUs"
            yield MEMORY_IN_MEGABYTES.at(asked.line, what, name=name, value=asked.value)


NO_ACCOUNT = Trap("no-account", FAILS, "{cluster} requires an account", "#SBATCH --account=NAME", needs_all_lines=True)
NO_QOS = Trap("no-qos", FAILS, "{cluster} requires a QOS", "#SBATCH --qos={qos}", needs_all_lines=True)
TOO_MANY_NODES = Trap("too-many-nodes", FAILS, "the job would wait forever, or be refused", "#SBATCH --nodes={most}")
FEW_CPUS = Trap(
    "few-cpus",
    WASTES,
    "{cluster} has {each} CPUs per GPU, and some sites refuse jobs with fewer",
    "#SBATCH --cpus-per-task={right}",
)


def _against_profile(job: JobFile, profile: ClusterProfile) -> Iterator[Finding]:
    if profile.account_required and job.asks("account") is None:
        yield NO_ACCOUNT.at(1, "no --account", cluster=profile.name)
    if profile.qos is not None and job.asks("qos") is None:
        yield NO_QOS.at(1, "no --qos", cluster=profile.name, qos=profile.qos)
    most, nodes = profile.max_nodes_of(job.text("qos")), job.asks("nodes")
    if most and nodes and (job.nodes or 0) > most:
        yield TOO_MANY_NODES.at(nodes.line, f"{job.nodes} nodes; {profile.name} allows {most}", most=most)
    each, gpus, tasks = profile.cpus_per_gpu, job.gpus_per_node, job.tasks_per_node or 1
    cpus = (job.number("cpus-per-task") or 1) * tasks
    if each and gpus and cpus < gpus * each:
        asked = job.asks("cpus-per-task")
        line = asked.line if asked else 1
        what = f"{cpus} CPUs per node for {gpus} GPUs"
        yield FEW_CPUS.at(line, what, cluster=profile.name, each=each, right=-(-gpus * each // tasks))
