"""Traps of the world that a job starts: how many ranks, and which node is which."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.job import PER_TASK, JobFile, SrunStep, Torchrun
from frog.jobfile.shell import Word


def world_findings(job: JobFile) -> Iterator[Finding]:
    """Everything about ranks and nodes."""
    for run in job.torchruns:
        if job.several_nodes:
            yield from _every_node(job, run)
            yield from _node_rank(job, run)
        yield from _tasks(job, run)
        yield from _ranks(job, run)
    yield from _early_in_steps(job)
    yield from _early_in_script(job)
    yield from _not_exported(job)
    for step in job.steps:
        yield from _plain_ranks(job, step)


def _every_node(job: JobFile, run: Torchrun) -> Iterator[Finding]:
    if run.step is None:
        yield make_finding("torchrun-without-srun", run.line, "torchrun without srun")
    nnodes = run.option("nnodes")
    if alone := run.option("standalone"):
        yield make_finding("nodes-apart", alone.line, "--standalone is for one node")
    elif nnodes is None:
        yield make_finding("nodes-apart", run.line, "torchrun without --nnodes takes 1")
    elif (count := job.resolve_int(nnodes.raw)) is not None and job.nodes and count != job.nodes:
        yield make_finding("nnodes-differ", nnodes.line, f"--nnodes={count}, but the job has {job.nodes} nodes")


def _tasks(job: JobFile, run: Torchrun) -> Iterator[Finding]:
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    word = run.option("nproc-per-node")
    ranks = job.resolve_int(word.raw) if word else 1
    if tasks is None or tasks == 1 or ranks == 1 or run.step is None:
        return
    places = [
        run.step.asks("ntasks-per-node"),
        run.step.asks("ntasks"),
        job.asks("ntasks-per-node"),
        job.asks("ntasks"),
    ]
    line = next((asked.line for asked in places if asked), run.line)
    count = f"{tasks} x {ranks} = {tasks * ranks} ranks" if ranks else f"{tasks} times as many ranks"
    what = f"{tasks} tasks on each node, and each starts torchrun"
    yield make_finding("ranks-doubled", line, what, count=f"{count} on each node, in {tasks} worlds that collide")


def _ranks(job: JobFile, run: Torchrun) -> Iterator[Finding]:
    word, gpus = run.option("nproc-per-node"), job.gpus_per_node
    if word is None:
        if gpus != 1:
            yield make_finding("one-rank", run.line, "torchrun without --nproc-per-node", gpus=gpus or "N")
        return
    ranks = job.resolve_int(word.raw)
    if ranks and gpus and ranks > gpus:
        yield make_finding("ranks-beyond-gpus", word.line, f"{ranks} ranks on each node, but {gpus} GPUs", gpus=gpus)
    elif ranks and gpus and ranks < gpus:
        yield make_finding("gpus-idle", word.line, f"{ranks} ranks on each node, but {gpus} GPUs")


def _plain_ranks(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    """srun python: a rank is a task."""
    words = [word.text for command in step.commands for word in command.words]
    python = any(re.fullmatch(r"(.*/)?python[\d.]*", word) for word in words)
    if not python or step.asks("nodes") or any(run.step is step for run in job.torchruns):
        return
    gpus = job.gpus_per_node or 0
    if job.step_tasks_per_node(step) == 1 and gpus > 1:
        yield make_finding("gpus-idle", step.line, f"one task on each node, but {gpus} GPUs: a rank uses one")


def _node_rank(job: JobFile, run: Torchrun) -> Iterator[Finding]:
    backend, word = run.option("rdzv-backend"), run.option("node-rank")
    if run.option("standalone"):
        return
    if backend is not None and job.resolve(backend.raw) != "static":
        what = "with this rendezvous nodes get their rank in the order of arrival"
        yield make_finding("ranks-by-arrival", backend.line, what)
    elif word is None:
        yield make_finding("node-rank", run.line, "torchrun without --node-rank: every node takes itself for node 0")
    elif word.text.isdigit():
        yield make_finding("node-rank", word.line, f"--node-rank={word.text} on every node")
    elif "SLURM_LOCALID" in Word(job.with_definitions(word.raw), 0).expansions():
        yield make_finding("node-rank", word.line, "SLURM_LOCALID counts the tasks of one node: it is 0 on every node")


def _early_in_steps(job: JobFile) -> Iterator[Finding]:
    """Variables of a task on an srun line, where the batch script's shell puts them in."""
    for step in job.steps:
        if job.several_nodes or job.step_tasks_per_node(step) != 1:
            for word in step.command.words[1:]:
                for name in sorted(word.expansions() & PER_TASK):
                    where = "in double quotes" if word is step.script_word else "on the srun line"
                    yield _early(name, word.line_of(name), f"${name} {where}")


def _early_in_script(job: JobFile) -> Iterator[Finding]:
    """The same in a variable of the script that a task then uses."""
    if not job.several_nodes and job.tasks_per_node == 1:
        return
    used = {name for step in job.steps for word in step.command.words for name in word.expansions()} | job.exported
    for assignment in job.assignments:
        if assignment.name in used:
            for name in sorted(Word(assignment.raw, 0).expansions() & PER_TASK):
                yield _early(name, assignment.line, f"{assignment.name} from ${name}, in the batch script")


def _early(name: str, line: int, what: str) -> Finding:
    value = "the first node's name" if name == "SLURMD_NODENAME" else "the same"
    return make_finding("read-too-early", line, what, name=name, value=value)


def _not_exported(job: JobFile) -> Iterator[Finding]:
    """A variable of the script that a task reads, but does not get."""
    given = {item.name for item in job.task_assignments} | job.exported
    scripted = {item.name: item for item in job.assignments}
    for step in job.steps:
        if step.script_word is None:
            continue
        put_in_here = Word(job.with_definitions(step.script_word.raw), 0).expansions()
        given_here = given | {item.name for item in step.command.assignments} | put_in_here
        for word in (word for command in step.commands for word in command.words):
            for name in sorted(word.expansions() & scripted.keys() - given_here):
                what = f"{name} is not exported, but a task reads it in line {word.line_of(name)}"
                yield make_finding("not-exported", scripted[name].line, what, name=name)
