"""Traps of the world that a job starts: how many ranks, and which node is which."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.findings import Finding, Kind, make_finding
from frog.jobfile.job import MEETING, PER_TASK, JobFile
from frog.jobfile.launchers import SHELLS, Launch, SrunStep, program_at
from frog.shell.script import Command
from frog.shell.words import Assignment, Word

_TOO_EARLY = PER_TASK - {"SLURMD_NODENAME"}
"""The first node's name may be just what is wanted: rank 0 is there."""
_MPI = ("mpirun", "mpiexec", "orterun")
_REACHES = re.compile(
    r"\b(srun|sbatch|mpi|ssh|pdsh|clush|horovod|ray|dask|submitit|ibrun|aprun|jsrun|torchx|parallel)", re.IGNORECASE
)
"""What may start something on other nodes."""
_WORKS = re.compile(r"\b(torchrun|python|accelerate|deepspeed)\b|\.(sh|py)\b")
_ASKS = re.compile(r"\bsrun\s[^|;)]*\bhostname\b")
"""It asks for a name, and starts no work."""


def world_findings(job: JobFile) -> Iterator[Finding]:
    """Everything about ranks and nodes."""
    for run in job.launches:
        nodes = job.step_nodes(run.step) if run.step else job.nodes
        if run.kind == "deepspeed":
            yield from _deepspeed(job, run)
            continue
        if nodes is not None and nodes > 1 and run.alone:
            yield from _every_node(job, run, nodes)
            yield from _node_rank(job, run)
        if run.kind == "torchrun":
            yield from _tasks(job, run)
            yield from _ranks(job, run)
        elif run.option("num-processes") or not run.option("config-file"):
            yield from _accelerate(job, run, nodes)
    yield from _early_in_steps(job)
    yield from _early_in_script(job)
    yield from _not_exported(job)
    for step in job.steps:
        yield from _plain_ranks(job, step)
    yield from _mpi_ranks(job)
    yield from _visible(job)
    yield from _one_python(job)
    yield from _idle_nodes(job)
    yield from _no_gpus(job)


def _no_gpus(job: JobFile) -> Iterator[Finding]:
    """Ranks that speak of GPUs, in a job that has not asked for any."""
    asked = (
        job.gpu_directive or job.asks("exclusive") or job.asks("gres") or job.asks("constraint") or job.asks("nodelist")
    )
    if (
        job.inside
        or asked
        or job.asks("tres-per-task")
        or job.asks("gpus-per-socket")
        or any(step.asked_gpus for step in job.steps)
    ):
        return
    if job.asks("partition") and not any(
        map(job.asks, ("cpus-per-task", "mem", "mem-per-cpu"))
    ):  # whole nodes, perhaps
        return
    named = {item.name for item in (*job.assignments, *job.task_assignments)}
    several = [run for run in job.launches if (word := run.option("nproc-per-node", "num-processes"))
               and (word.text == "gpu" or ((job.resolve_int(word.raw) or 0) > 1))]  # fmt: skip
    if several and not any(run.option("cpu") for run in several) and job.uses_gpus:
        word = several[0].option("nproc-per-node", "num-processes")
        kind: Kind | None = "advice" if job.asks("partition") else None
        gpus = job.resolve_int(word.raw) if word else None
        yield make_finding("no-gpus", several[0].line, "no GPUs are asked for", kind, gpus=gpus or "N")
    elif not several and any(step.python for step in job.steps) and named & {"NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"}:
        kind = "advice" if job.asks("partition") else None
        step = next(step for step in job.steps if step.python)
        yield make_finding("no-gpus", step.line, "no GPUs are asked for", kind, gpus="N")
    elif not several and not job.by_hand and (speaks := list(filter(_wants_gpu, job.shell.commands))):
        kind = "advice" if job.asks("partition") else None
        yield make_finding("no-gpus", speaks[-1].line, "no GPUs are asked for", kind, gpus="N")


def _wants_gpu(command: Command) -> bool:
    """`nvidia-smi`, and `python train.py --device cuda`."""
    python = re.search(r"\bpython[\d.]* ", command.text)
    asks = python and re.search(
        r"-(-device|d)[= ]cuda\b|\bdevice=cuda\b|--(use[-_])?cuda\b(?![= ](0|[Ff]alse))", command.text
    )
    return command.way.certain and (bool(asks) or command.name == "nvidia-smi")


def _every_node(job: JobFile, run: Launch, nodes: int) -> Iterator[Finding]:
    """What must hold so that the nodes form one world."""
    from_outside = any(item.name.startswith("PET_") for item in job.assignments) or run.option("config-file")
    if run.step is None and not run.command.way.calls and run.command.way.certain:
        yield make_finding("torchrun-without-srun", run.line, f"{run.kind} without srun")
    nnodes = run.option("nnodes")
    if alone := run.option("standalone"):
        yield make_finding("nodes-apart", alone.line, "--standalone is for one node")
    elif nnodes is None and not from_outside:
        yield make_finding("nodes-apart", run.line, f"{run.kind} without --nnodes takes 1")
    elif nnodes and (count := job.resolve_int(nnodes.raw.split(":")[-1])) is not None and count != nodes:
        yield make_finding("nnodes-differ", nnodes.line, f"--nnodes={count}, but the job has {nodes} nodes")


def _deepspeed(job: JobFile, run: Launch) -> Iterator[Finding]:
    """Its launcher reaches other nodes by itself, over ssh or srun, if a hostfile names them."""
    several = run.step is None and job.several_nodes and run.command.way.certain and run.alone
    asks = run.option("nnodes")
    knows = run.option("hostfile", "launcher", "include", "node-rank", "no-ssh") or "DLTS_HOSTFILE" in job.exported
    if several and not knows and not (asks and job.resolve_int(asks.raw) == 1):
        yield make_finding("no-hostfile", run.line, f"deepspeed on {job.nodes} nodes without --hostfile")
    everywhere = run.step is not None and (job.step_nodes(run.step) or 0) > 1 and run.alone
    if everywhere and not knows and not asks:
        yield make_finding("no-hostfile", run.line, "deepspeed on each of the nodes, without --hostfile")
    ranks, gpus = run.option("nproc-per-node"), job.gpus_per_node
    count = job.resolve_int(ranks.raw) if ranks else None
    if ranks and count and gpus and count > gpus:
        yield make_finding("ranks-beyond-gpus", ranks.line, f"{count} ranks on a node, but {gpus} GPUs", gpus=gpus)
    elif ranks and count and gpus and count < gpus and _only(job, run):
        yield make_finding("gpus-idle", ranks.line, f"{count} ranks on a node, but {gpus} GPUs")
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    if tasks is not None and tasks > 1 and run.step and run.alone and gpus and gpus > 1 and not run.step.asked_gpus:
        what = f"{tasks} tasks on each node, and each starts deepspeed"
        yield make_finding("ranks-doubled", run.line, what, count=f"{tasks} launchers on each node")


def _accelerate(job: JobFile, run: Launch, nodes: int | None) -> Iterator[Finding]:
    """Its number of processes is that of all nodes together."""
    word, gpus = run.option("num-processes"), job.gpus_per_node
    count = job.resolve_int(word.raw) if word else None
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    if word and count and gpus and nodes and count > gpus * nodes:
        what = f"{count} processes, but {gpus * nodes} GPUs"
        yield make_finding("ranks-beyond-gpus", word.line, what, gpus=gpus)
    elif word and count and gpus and nodes and nodes > 1 and count < gpus * nodes and tasks == 1:
        what = f"{count} processes in all, but {gpus * nodes} GPUs: accelerate counts over all nodes"
        yield make_finding("gpus-idle", word.line, what)
    elif word and count and gpus and nodes == 1 and count < gpus and tasks == 1 and _only(job, run):
        yield make_finding("gpus-idle", word.line, f"{count} processes, but {gpus} GPUs")
    if tasks is not None and tasks > 1 and run.step and (count or 0) > 1 and run.alone:
        what = f"{tasks} tasks on each node, and each starts accelerate"
        yield make_finding("ranks-doubled", run.line, what, count=f"{tasks} launchers on each node")


def _tasks(job: JobFile, run: Launch) -> Iterator[Finding]:
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    word = run.option("nproc-per-node")
    ranks = job.resolve_int(word.raw) if word else 1
    if tasks is None or tasks == 1 or ranks == 1 or run.step is None or not run.alone:
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


def _ranks(job: JobFile, run: Launch) -> Iterator[Finding]:
    word, gpus = run.option("nproc-per-node"), job.gpus_per_node
    if any(item.name.startswith("PET_") for item in job.assignments):
        return
    if word is None:
        tasks = job.step_tasks_per_node(run.step) if run.step else 1
        if gpus is not None and gpus > 1 and tasks == 1:
            yield make_finding("one-rank", run.line, "torchrun without --nproc-per-node", gpus=gpus)
        return
    ranks = job.resolve_int(word.raw)
    if ranks and gpus and ranks > gpus:
        yield make_finding("ranks-beyond-gpus", word.line, f"{ranks} ranks on each node, but {gpus} GPUs", gpus=gpus)
    elif ranks and gpus and ranks < gpus and _only(job, run):
        yield make_finding("gpus-idle", word.line, f"{ranks} ranks on each node, but {gpus} GPUs")


def _only(job: JobFile, run: Launch) -> bool:
    """Whether the job's GPUs are for this launch alone."""
    return len(job.launches) == 1 and not (run.step and run.step.asked_gpus) and not run.command.way.behind


def _plain_ranks(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    """srun python: a rank is a task."""
    if not job.is_rank(step) or step.asked_gpus:
        return
    gpus, tasks = job.gpus_per_node or 0, job.step_tasks_per_node(step)
    if gpus and tasks is not None and tasks > gpus and (gpus > 1 or job.several_nodes) and job.distributed:
        what = f"{tasks} tasks on each node, but {gpus} GPUs"
        yield make_finding("tasks-beyond-gpus", step.line, what, gpus=gpus)
    shared = gpus == 1 and tasks and tasks > 1 and not job.several_nodes and not step.asks("multi-prog")
    if shared and not job.tells_tasks_apart:
        yield make_finding("same-work", step.line, f"{tasks} tasks, and one GPU", tasks=tasks)


def _visible(job: JobFile) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES=1 in a job of one GPU, or of four."""
    named = [item for item in job.assignments if item.name == "CUDA_VISIBLE_DEVICES"]
    has = job.gpus_per_node or 0
    for item in named if has and not job.asks("exclusive") else ():
        text = item.word.text
        if not re.fullmatch(r"\d{1,2}(,\d{1,2})*", text):
            continue
        numbers = set(map(int, text.split(",")))
        what = f"CUDA_VISIBLE_DEVICES={text}, but the job has {has} GPU" + "s" * (has != 1)
        if max(numbers) >= has:
            yield make_finding("gpu-not-there", item.line, what)
        elif len(numbers) < has and len(named) == 1 and not item.maybe and not job.launches:
            yield make_finding("gpus-idle", item.line, what)
        elif len(named) == 1 and not item.maybe:
            yield from _unseen(job, item, len(numbers))


def _unseen(job: JobFile, visible: Assignment, seen: int) -> Iterator[Finding]:
    """More ranks than CUDA_VISIBLE_DEVICES leaves GPUs."""
    for run in job.launches:
        word = run.option("nproc-per-node") if run.kind == "torchrun" else None
        ranks = job.resolve_int(word.raw) if word else None
        if word and ranks and ranks > seen and run.line > visible.line:
            what = f"{ranks} ranks on each node, but CUDA_VISIBLE_DEVICES names {seen} GPU" + "s" * (seen != 1)
            yield make_finding("ranks-beyond-gpus", word.line, what, gpus=seen)


def _mpi_ranks(job: JobFile) -> Iterator[Finding]:
    """mpirun -n 3 python, on GPUs that three ranks cannot share evenly."""
    gpus = (job.gpus_per_node or 0) * (job.nodes or 0)
    started = [command for command in job.shell.commands if _base(command) in _MPI]
    if len(started) != 1 or started[0].way.maybe or started[0].way.loop:
        return
    words = job.values.split(started[0].words)
    python = any(re.fullmatch(r"python[\d.]*", word.base) for word in words)
    named = next((place for place, word in enumerate(words[:-1]) if re.fullmatch(r"-n|--?np", word.text)), None)
    count = job.resolve_int(words[named + 1].raw) if named is not None else None
    if python and count and 1 < count < gpus and gpus % count:
        yield make_finding("gpus-idle", started[0].line, f"{count} ranks, but {gpus} GPUs")


def _one_python(job: JobFile) -> Iterator[Finding]:
    """Python in the batch script itself, on several nodes with GPUs, and nothing in the file that reaches another."""
    text = "\n".join(_ASKS.sub("", line) for line in job.lines if not line.startswith("#"))
    if not job.several_nodes or job.launches or job.sourced or _REACHES.search(text):
        return
    if not job.gpus_per_node:
        yield from _one_program(job)
        return
    plain = [item for item in job.shell.commands if item.way.certain and re.fullmatch(r"python[\d.]*", _base(item))]
    meets = any(item.name in MEETING for item in job.assignments)
    trains = [item for item in plain if meets or re.search(r"\b(pre)?train|train\w*\.py|finetun", item.text)]
    if trains and not any(item.name in SHELLS or item.text.endswith(".sh") for item in job.shell.commands):
        yield make_finding("first-node-only", trains[0].line, f"python without srun, on {job.nodes} nodes")


def _one_program(job: JobFile) -> Iterator[Finding]:
    """`./solver` alone, in a job that asks for several tasks on each of several nodes."""
    plain = [item for item in job.shell.commands if item.way.certain and item.words and not item.way.calls]
    runs = [item for item in plain if re.match(r"\./\w[\w.-]*$", item.words[0].text) and not item.name.endswith(".sh")]
    if runs and (job.tasks_per_node or 1) > 1 and len(job.shell.functions) == 0:
        what = f"{item_name(runs[0])} without srun, on {job.nodes} nodes"
        yield make_finding("first-node-only", runs[0].line, what)


def item_name(command: Command) -> str:
    return command.words[0].text


def _idle_nodes(job: JobFile) -> Iterator[Finding]:
    """The only srun that works leaves nodes out."""
    steps = [step for step in job.steps if not _ASKS.search(step.command.text)]
    if len(steps) != 1 or not job.gpus_per_node or not steps[0].asks("nodes"):
        return
    works = any(_WORKS.search(job.with_definitions(word.raw)) for word in steps[0].program)
    used, has, way = job.step_nodes(steps[0]), job.nodes, steps[0].command.way
    others = [item for item in job.shell.commands if item.name in _MPI or re.search(r"\b(ray|ssh|pdsh)\b", item.text)]
    if works and used and has and used < has and way.certain and not way.loop and not others:
        yield make_finding("gpus-idle", steps[0].line, f"srun on {used} of the job's {has} nodes")


def _base(command: Command) -> str:
    place = program_at(command.words)
    return command.words[place].base if place < len(command.words) else ""


def _node_rank(job: JobFile, run: Launch) -> Iterator[Finding]:
    backend, word = run.option("rdzv-backend"), run.option("node-rank")
    if run.option("standalone", "config-file") or run.step is None or run.option("nnodes") is None:
        return
    if backend is not None and job.resolve(backend.raw) != "static":
        return
    if word is None:
        if not any(item.name in ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK") for item in job.assignments):
            what = f"{run.kind} without --node-rank: every node takes itself for node 0"
            yield make_finding("node-rank", run.line, what)
    elif word.text.isdigit():
        yield make_finding("node-rank", word.line, f"--node-rank={word.text} on every node")
    elif "SLURM_LOCALID" in Word(job.with_definitions(word.raw), 0).expansions():
        yield make_finding("node-rank", word.line, "SLURM_LOCALID counts the tasks of one node: it is 0 on every node")


def _early_in_steps(job: JobFile) -> Iterator[Finding]:
    """Variables of a task on an srun line, where the batch script's shell puts them in."""
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
    """Whether the nodes are left to the command line, and the launcher asks Slurm how many there are."""
    counts = [run.option("nnodes") for run in job.launches if run.step is step]
    return job.asks("nodes") is None and any(word and job.resolve_int(word.raw) is None for word in counts)


def _unread(job: JobFile) -> set[str]:
    """Variables in a --node-rank that no launcher reads."""
    return {name for run in job.launches if not run.numbers_nodes and (word := run.option("node-rank"))
            for name in word.expansions()}  # fmt: skip


def _early_in_script(job: JobFile) -> Iterator[Finding]:
    """The same in a variable of the script that a task then uses."""
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
    early = _TOO_EARLY - {"SLURM_LOCALID"} if one_on_each else _TOO_EARLY  # there it is 0 on every node
    if plain and job.launches == []:
        used |= job.exported & {"RANK", "LOCAL_RANK"}
    for assignment in job.assignments:
        if assignment.name in used and not assignment.maybe:
            for name in sorted(assignment.word.expansions() & early):
                yield _early(name, assignment.line, f"{assignment.name} from ${name}, in the batch script")


def _early(name: str, line: int, what: str) -> Finding:
    return make_finding("read-too-early", line, what, name=name, value="the same")


def _not_exported(job: JobFile) -> Iterator[Finding]:
    """A variable of the script that a task reads, but does not get."""
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
                yield make_finding("not-exported", scripted[name].line, what, name=name)
    yield from _meeting_not_exported(job, scripted)


def _meeting_not_exported(job: JobFile, scripted: dict[str, Assignment]) -> Iterator[Finding]:
    """MASTER_ADDR and MASTER_PORT that nobody passes on, where each task is a rank and looks for them itself."""
    plain = [step for step in job.steps if job.is_rank(step)]
    read = {name for command in job.shell.everything for word in command.words for name in word.expansions()
            if command.name not in ("echo", "printf")}  # fmt: skip
    read |= {name for item in job.assignments for name in item.word.expansions()}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        passed = name in job.exported or any(item.name == name for step in plain for item in step.command.assignments)
        if plain and name in scripted and not passed and name not in read:
            yield make_finding("not-exported", scripted[name].line, f"{name} is set, but not exported", name=name)
