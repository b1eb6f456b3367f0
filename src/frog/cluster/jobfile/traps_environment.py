"""Traps with variables that should reach the tasks of a batch script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import WASTES, Finding, Trap
from frog.cluster.jobfile.job import PER_TASK, JobFile
from frog.cluster.jobfile.launchers import SrunStep
from frog.cluster.jobfile.shell.words import Assignment, Word

_TOO_EARLY = PER_TASK - {"SLURMD_NODENAME"}
"""Per-task variables except the node's name: the first node's name may be intended, because rank 0 runs there."""


def environment_findings(job: JobFile) -> Iterator[Finding]:
    """Find variables that the shell expands too early and variables that do not reach the tasks."""
    yield from _early_in_steps(job)
    yield from _early_in_script(job)
    yield from _not_exported(job)


def _early_in_steps(job: JobFile) -> Iterator[Finding]:
    """Find per-task variables on an srun line, which the batch script's shell expands."""
    for step in job.steps:
        one = (job.step_nodes(step) or 1, job.step_tasks_per_node(step) or 1) == (1, 1)
        if one and not _spans(job, step):
            continue
        one_on_each = job.step_tasks_per_node(step) == 1
        for word in step.program:
            for name in sorted(word.expansions() & _TOO_EARLY):
                if name in _unread(job) and len(re.findall(rf"\$\{{?{name}\b", word.raw)) == 1:
                    continue
                if name == "SLURM_LOCALID" and one_on_each:
                    continue
                where = "in double quotes" if word is step.script_word else "on the srun line"
                yield _early(name, word.line_of(name), f"${name} {where}")


def _spans(job: JobFile, step: SrunStep) -> bool:
    """True if the command line sets the number of nodes and the launcher reads it from Slurm."""
    counts = [run.option("nnodes") for run in job.launches if run.step is step]
    return job.asks("nodes") is None and any(word and job.resolve_int(word.raw) is None for word in counts)


def _unread(job: JobFile) -> set[str]:
    """Return the names of variables in a --node-rank that no launcher reads."""
    return {name for run in job.launches if not run.numbers_nodes and (word := run.option("node-rank"))
            for name in word.expansions()}  # fmt: skip


def _early_in_script(job: JobFile) -> Iterator[Finding]:
    """Find the same mistake in a script variable that a task then uses."""
    spans = any(_spans(job, step) for step in job.steps)
    if not job.several_nodes and job.tasks_per_node == 1 and not spans:
        return
    plain = any(job.is_rank(step) for step in job.steps)
    words = [word for step in job.steps for word in step.command.words]
    words += [word for step in job.steps for command in step.inner for word in command.words]
    used = {name for word in words for name in word.expansions()}
    used |= {name for item in job.assignments if item.name in used for name in item.word.expansions()}
    used -= {item.name for item in job.task_assignments} | _unread(job)
    one_on_each = all(job.step_tasks_per_node(step) == 1 for step in job.steps)
    early = _TOO_EARLY - {"SLURM_LOCALID"} if one_on_each else _TOO_EARLY  # SLURM_LOCALID is 0 on every node there
    if plain and job.launches == []:
        used |= job.exported & {"RANK", "LOCAL_RANK"}
    for assignment in job.assignments:
        if assignment.name in used and not assignment.maybe:
            for name in sorted(assignment.word.expansions() & early):
                yield _early(name, assignment.line, f"the batch script sets {assignment.name} from ${name}")


READ_TOO_EARLY = Trap(
    "read-too-early",
    WASTES,
    "the batch shell expands it on the first node, before srun starts, so all tasks get {value}",
    "srun bash -c '... \"${name}\" ...', in single quotes",
)


def _early(name: str, line: int, what: str) -> Finding:
    return READ_TOO_EARLY.at(line, what, name=name, value="the same")


NOT_EXPORTED = Trap("not-exported", WASTES, "the tasks see an empty value", "export {name}", needs_all_lines=True)


def _not_exported(job: JobFile) -> Iterator[Finding]:
    """Find script variables that a task reads but does not receive."""
    given = {item.name for item in job.task_assignments} | job.exported
    scripted = {item.name: item for item in job.assignments if not item.maybe}
    for step in job.steps:
        if step.script_word is None:
            continue
        put_in_here = Word(job.with_definitions(step.script_word.raw), 0).expansions()
        given_here = given | {item.name for item in step.command.assignments} | put_in_here
        given_here |= {
            name for asked in step.asked if asked.name == "export" for name in re.findall(r"\w+", asked.value or "")
        }
        for word in (word for command in step.commands for word in command.words):
            for name in sorted(word.expansions() & scripted.keys() - given_here):
                what = f"{name} is not exported, but a task reads it in line {word.line_of(name)}"
                yield NOT_EXPORTED.at(scripted[name].line, what, name=name)
    yield from _meeting_not_exported(job, scripted)


def _meeting_not_exported(job: JobFile, scripted: dict[str, Assignment]) -> Iterator[Finding]:
    """Find MASTER_ADDR and MASTER_PORT set but not exported where each task is a rank and reads them itself."""
    plain = [step for step in job.steps if job.is_rank(step)]
    read = {name for command in job.shell.everything for word in command.words for name in word.expansions()
            if command.name not in ("echo", "printf")}  # fmt: skip
    read |= {name for item in job.assignments for name in item.word.expansions()}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        passed = name in job.exported or any(item.name == name for step in plain for item in step.command.assignments)
        if plain and name in scripted and not passed and name not in read:
            yield NOT_EXPORTED.at(scripted[name].line, f"{name} is set, but not exported", name=name)
