"""Traps with srun and MPI: steps larger than the job, wrong numbers of ranks, Lightning's counts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job import JobFile
from frog.cluster.jobfile.launchers import SrunStep, program_at
from frog.cluster.jobfile.shell.words import Word

_MPI = ("mpirun", "mpiexec", "orterun")
_SHARES_CORES = re.compile(
    r"oversubscribe|--?hosts?\b|-f\b|machinefile|hostfile|impi|intel|mpich|mvapich", re.IGNORECASE
)
_OPEN_MPI = re.compile(r"open[-_]?mpi|\bompi|--mca\b|\bfoss\b", re.IGNORECASE)
"""Without any of these it may be another MPI, or an Open MPI built without Slurm, which counts cores."""
_LIGHTNING = re.compile(r"(?:--)?trainer\.(devices|num_nodes)(?:=(.*))?", re.DOTALL)
_PROC_ID = re.compile(r"\"?\$\{?SLURM_PROCID\}?\"?")
_RIGHT = {"RANK": "PROCID", "LOCAL_RANK": "LOCALID"}
_OF_TASK = re.compile(r"(?<!\\)\$\{?(SLURM_NODEID|SLURM_PROCID|SLURM_LOCALID)\b")


def rank_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps with the tasks' environment and number."""
    for step in job.steps:
        yield from _beyond(job, step)
        yield from _handed_over(step)
        yield from _no_shell(step)
        yield from _numbers(job, step)
    yield from _slots(job)
    yield from _lightning(job)
    yield from _written_too_early(job)


STEP_BEYOND_JOB = Trap("step-beyond-job", FAILS, "srun refuses a step that needs more than the job has")


def _beyond(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    """Find steps with more nodes, or more GPUs per node, than the job has."""
    asked, has = job.asks("nodes"), job.nodes
    fixed = asked is not None and (asked.value or "").isdigit()
    if step.asks("jobid") or step.asks("het-group"):
        return
    used = job.step_nodes(step)
    if fixed and step.asks("nodes") and used and has and used > has:
        yield STEP_BEYOND_JOB.at(step.line, f"srun asks for {used} nodes, but the job has {has}")
    gpus, own = job.gpus_per_node, step.asks("gpus-per-node") or step.asks("gres")
    match = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z]\w*:)?(\d{1,4})", own.value or "") if own else None
    if own and own.name == "gres" and not (own.value or "").startswith("gpu:"):
        return
    if gpus and match and int(match[1]) > gpus and not job.asks("exclusive"):
        what = f"srun asks for {match[1]} GPUs per node, but the job has {gpus}"
        yield STEP_BEYOND_JOB.at(step.line, what)


EXPORT_WITHOUT_ALL = Trap(
    "export-without-all",
    WASTES,
    "the tasks get only these variables and Slurm's: no PATH, no MASTER_ADDR",
    "srun --export=ALL,{value}",
)


def _handed_over(step: SrunStep) -> Iterator[Finding]:
    """Find `srun --export=NAME=value` without ALL."""
    asked = step.asks("export")
    names = [part.partition("=")[0] for part in (asked.value or "").split(",")] if asked else []
    plain = names and all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names)
    if asked and plain and step.works and not {"ALL", "NONE", "NIL", "PATH"} & {name.upper() for name in names}:
        own_path = step.asks("container-image") or (step.program and step.program[0].text.startswith("/"))
        kind: Kind | None = "advice" if own_path else None
        yield EXPORT_WITHOUT_ALL.at(step.line, f"srun --export={asked.value}", kind, value=asked.value)


NO_SHELL = Trap(
    "no-shell",
    FAILS,
    "srun does not start a shell: it looks for a program with this whole text as its name",
    "srun ... bash -c '{text}'",
)


def _no_shell(step: SrunStep) -> Iterator[Finding]:
    """Find `srun "sleep 5; echo hello"`, quoted as for a shell."""
    first = step.program[0] if step.program else None
    if first and first.raw[:1] in "\"'" and re.search(r"\w\s+[\w-]|;", first.text) and "$" not in first.text[:1]:
        yield NO_SHELL.at(first.line, f"srun gets a whole command in quotes: {first.text[:40]}", text=first.text)


LOCAL_RANK = Trap(
    "local-rank", FAILS, "on the second node it names GPUs that do not exist", "LOCAL_RANK=$SLURM_LOCALID"
)
RANK_TWICE = Trap("rank-twice", WASTES, "several tasks get the same number", "$SLURM_{right}")
WORLD_SIZE = Trap(
    "world-size",
    WASTES,
    "if it is larger, the ranks wait for others that never start; if smaller, the last ranks are refused",
    "WORLD_SIZE=$SLURM_NTASKS",
)


def _numbers(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    """Find wrong values for a task's number and for the number of tasks."""
    given = {item.name: item for command in step.commands for item in command.assignments}
    local, nodes, tasks = given.get("LOCAL_RANK"), job.step_nodes(step), job.step_tasks_per_node(step)
    if local and _PROC_ID.fullmatch(local.raw) and nodes and nodes > 1:
        yield LOCAL_RANK.at(local.line, "LOCAL_RANK=$SLURM_PROCID, which counts over all nodes")
    rank = given.get("RANK")
    for item, wrong, several in ((rank, "NODEID", tasks), (rank, "LOCALID", nodes), (local, "NODEID", tasks)):
        if (
            item
            and re.fullmatch(rf'"?\$\{{?SLURM_{wrong}\}}?"?', item.raw)
            and (several or 0) > 1
            and job.is_rank(step)
        ):
            yield RANK_TWICE.at(item.line, f"{item.name}=$SLURM_{wrong}", right=_RIGHT[item.name])
    numbered = rank is not None and _PROC_ID.fullmatch(rank.raw)
    world = given.get("WORLD_SIZE") or (job.assigned("WORLD_SIZE") if "WORLD_SIZE" in job.exported else None)
    once = sum(item.name == "WORLD_SIZE" for item in job.assignments) < 2
    if not (world and once and nodes and tasks and job.is_rank(step) and (numbered or not rank)) or job.launches:
        return
    several = tasks > 1 or (numbered and job.gpus_per_node == 1)
    said = job.resolve_int(world.raw)
    if several and said and said != nodes * tasks and job.gpus_per_node:
        what = f"WORLD_SIZE is {said}, but srun starts {nodes * tasks} tasks"
        yield WORLD_SIZE.at(world.line, what)


SLOTS = Trap("slots", WASTES, "Open MPI refuses it (not enough slots); other MPIs run several ranks per core")


def _slots(job: JobFile) -> Iterator[Finding]:
    """Find `mpirun -n 16` where Slurm has eight tasks."""
    tasks, nodes = job.tasks_per_node, job.nodes
    if not (job.asks("ntasks") or job.asks("ntasks-per-node")) or not tasks or not nodes or job.asks("exclusive"):
        return
    if _SHARES_CORES.search("\n".join(line for line in job.lines if not line.startswith("#"))):
        return
    for command in job.shell.commands:
        words = job.values.split(command.words)
        begins = program_at(words)
        if begins >= len(words) or words[begins].base not in _MPI:
            continue
        place = next((n for n, word in enumerate(words[:-1]) if re.fullmatch(r"-n|--?np", word.text)), None)
        count = job.resolve_int(words[place + 1].raw) if place is not None else None
        has = job.number("ntasks") or nodes * tasks
        if count and count > has:
            what = f"{words[begins].base} starts {count} ranks, but the job has {has} tasks"
            kind: Kind | None = None if _OPEN_MPI.search("\n".join(job.lines)) else "advice"
            yield SLOTS.at(command.line, what, kind)


LIGHTNING_TASKS = Trap(
    "lightning-tasks",
    FAILS,
    "Lightning compares the two at startup and stops",
    "--ntasks-per-node equal to trainer.devices, --nodes equal to trainer.num_nodes, and srun before the program",
)


def _lightning(job: JobFile) -> Iterator[Finding]:
    """Find `--trainer.devices 4` where Slurm starts another number of tasks per node."""
    resized = any(any(map(step.asks, ("nodes", "ntasks", "ntasks-per-node"))) for step in job.steps)
    commands = [*job.shell.commands, *(inner for step in job.steps for inner in step.commands)]
    per_node, nodes = job.asks("ntasks-per-node"), job.nodes
    if job.launches or resized or per_node is None or not any(command.name != "echo" for command in commands):
        return
    if job.text("job-name") in ("bash", "interactive"):  # Lightning treats it as an interactive session
        return
    said: dict[str, tuple[int, Word]] = {}
    for command in commands:
        for place, word in enumerate(command.words):
            if match := _LIGHTNING.fullmatch(word.raw):
                value = (
                    match[2] if match[2] is not None else "".join(w.raw for w in command.words[place + 1 : place + 2])
                )
                if count := job.resolve_int(value):
                    said[match[1]] = (count, word)
    devices, given = said.get("devices"), job.number("ntasks-per-node")
    if devices and given and devices[0] != given and (devices[0] > 1 or said.get("num_nodes", (1,))[0] > 1):
        what = f"trainer.devices={devices[0]}, but --ntasks-per-node={given}"
        yield LIGHTNING_TASKS.at(devices[1].line, what)
    several = said.get("num_nodes")
    if several and nodes and several[0] != nodes:
        what = f"trainer.num_nodes={several[0]}, but the job has {nodes} node{'s' * (nodes > 1)}"
        yield LIGHTNING_TASKS.at(several[1].line, what)


WRITTEN_TOO_EARLY = Trap(
    "written-too-early",
    WASTES,
    "the shell expands it when it writes the file, on the first node, so all tasks get the same value",
    "quote the delimiter after <<, as in <<'EOF'; or write \\${name}",
)


def _written_too_early(job: JobFile) -> Iterator[Finding]:
    """Find task scripts in an unquoted here-document, where the shell expands `$SLURM_NODEID` too early."""
    quoted = {line: kept for _, line, kept in job.shell.heredocs}
    for command in job.shell.commands:
        text, target = command.heredoc, command.writes
        if text is None or target is None or quoted.get(text.line, True) or re.search("^#SBATCH", text.raw, re.M):
            continue
        runs = [step for step in job.steps if any(target.text in word.text for word in step.command.words)
                and (job.step_nodes(step) or 1) * (job.step_tasks_per_node(step) or 1) > 1]  # fmt: skip
        for match in _OF_TASK.finditer(text.raw) if runs else ():
            line = text.line + text.raw.count("\n", 0, match.start())
            what = f"${match[1]} in an unquoted here-document"
            yield WRITTEN_TOO_EARLY.at(line, what, name=match[1])
