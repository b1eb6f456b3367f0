"""Traps with the ranks that a job starts: their number, and the rank of each node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job import RENDEZVOUS, JobFile
from frog.cluster.jobfile.launchers import SHELLS, Launch, SrunStep, program_at
from frog.cluster.jobfile.shell.script import Command
from frog.cluster.jobfile.shell.words import Assignment, Word
from frog.core.units import count

_MPI = ("mpirun", "mpiexec", "orterun")
_REACHES = re.compile(
    r"\b(srun|sbatch|mpi|ssh|pdsh|clush|horovod|ray|dask|submitit|ibrun|aprun|jsrun|torchx|parallel)", re.IGNORECASE
)
"""Programs that may start processes on other nodes."""
_WORKS = re.compile(r"\b(torchrun|python|accelerate|deepspeed)\b|\.(sh|py)\b")
_ASKS = re.compile(r"\bsrun\s[^|;)]*\bhostname\b")
"""Commands that ask for a host name and start no work."""


def world_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps with ranks and nodes."""
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
    for step in job.steps:
        yield from _plain_ranks(job, step)
    yield from _mpi_ranks(job)
    yield from _visible(job)
    yield from _one_python(job)
    yield from _idle_nodes(job)
    yield from _no_gpus(job)


NO_GPUS = Trap(
    "no-gpus",
    WASTES,
    "Slurm gives no GPUs to a job that does not ask for them, unless the cluster allocates whole nodes",
    "#SBATCH --gpus-per-node={gpus}",
    needs_all_lines=True,
)


def _no_gpus(job: JobFile) -> Iterator[Finding]:
    """Find ranks that use GPUs in a job that does not ask for any."""
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
    ):  # perhaps the cluster allocates whole nodes
        return
    named = {item.name for item in (*job.assignments, *job.task_assignments)}
    several = [run for run in job.launches if (word := run.option("nproc-per-node", "num-processes"))
               and (word.text == "gpu" or ((job.resolve_int(word.raw) or 0) > 1))]  # fmt: skip
    if several and not any(run.option("cpu") for run in several) and job.uses_gpus:
        word = several[0].option("nproc-per-node", "num-processes")
        kind: Kind | None = "advice" if job.asks("partition") else None
        gpus = job.resolve_int(word.raw) if word else None
        yield NO_GPUS.at(several[0].line, "the job does not ask for GPUs", kind, gpus=gpus or "N")
    elif not several and any(step.python for step in job.steps) and named & {"NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"}:
        kind = "advice" if job.asks("partition") else None
        step = next(step for step in job.steps if step.python)
        yield NO_GPUS.at(step.line, "the job does not ask for GPUs", kind, gpus="N")
    elif not several and not job.by_hand and (speaks := list(filter(_wants_gpu, job.shell.commands))):
        kind = "advice" if job.asks("partition") else None
        yield NO_GPUS.at(speaks[-1].line, "the job does not ask for GPUs", kind, gpus="N")


def _wants_gpu(command: Command) -> bool:
    """True for `nvidia-smi` and `python train.py --device cuda`."""
    python = re.search(r"\bpython[\d.]* ", command.text)
    asks = python and re.search(
        r"-(-device|d)[= ]cuda\b|\bdevice=cuda\b|--(use[-_])?cuda\b(?![= ](0|[Ff]alse))", command.text
    )
    return command.way.certain and (bool(asks) or command.name == "nvidia-smi")


TORCHRUN_WITHOUT_SRUN = Trap(
    "torchrun-without-srun",
    WASTES,
    "the script runs only on the first node: the others idle, and torchrun waits for them",
    "srun ... torchrun ...",
    needs_all_lines=True,
)
NODES_APART = Trap(
    "nodes-apart",
    WASTES,
    "every node forms its own world: the same training runs several times",
    '--nnodes="$SLURM_NNODES"',
    needs_all_lines=True,
)
NNODES_DIFFER = Trap(
    "nnodes-differ", WASTES, "torchrun waits for nodes that never join, or leaves some out", '--nnodes="$SLURM_NNODES"'
)


def _every_node(job: JobFile, run: Launch, nodes: int) -> Iterator[Finding]:
    """Find nodes that do not form one world."""
    from_outside = any(item.name.startswith("PET_") for item in job.assignments) or run.option("config-file")
    if run.step is None and not run.command.way.calls and run.command.way.certain:
        yield TORCHRUN_WITHOUT_SRUN.at(run.line, f"{run.kind} without srun")
    nnodes = run.option("nnodes")
    if alone := run.option("standalone"):
        yield NODES_APART.at(alone.line, "--standalone is for one node")
    elif nnodes is None and not from_outside:
        yield NODES_APART.at(run.line, f"{run.kind} without --nnodes uses 1")
    elif nnodes and (count := job.resolve_int(nnodes.raw.split(":")[-1])) is not None and count != nodes:
        yield NNODES_DIFFER.at(nnodes.line, f"--nnodes={count}, but the job has {nodes} nodes")


NO_HOSTFILE = Trap(
    "no-hostfile",
    FAILS,
    "deepspeed finds other nodes in a hostfile: without one it starts ranks on this node only",
    "--hostfile, written from scontrol show hostnames; or srun torchrun",
    needs_all_lines=True,
)
RANKS_BEYOND_GPUS = Trap(
    "ranks-beyond-gpus", FAILS, "ranks would share a GPU, which NCCL refuses", "--nproc-per-node={gpus}"
)
GPUS_IDLE = Trap("gpus-idle", WASTES, "the other GPUs idle")
RANKS_DOUBLED = Trap(
    "ranks-doubled", WASTES, "the launcher itself starts one rank per GPU: {count}", "#SBATCH --ntasks-per-node=1"
)


def _deepspeed(job: JobFile, run: Launch) -> Iterator[Finding]:
    """Find traps with deepspeed, whose launcher reaches other nodes over ssh or srun if a hostfile names them."""
    several = run.step is None and job.several_nodes and run.command.way.certain and run.alone
    asks = run.option("nnodes")
    knows = run.option("hostfile", "launcher", "include", "node-rank", "no-ssh") or "DLTS_HOSTFILE" in job.exported
    if several and not knows and not (asks and job.resolve_int(asks.raw) == 1):
        yield NO_HOSTFILE.at(run.line, f"deepspeed on {job.nodes} nodes without --hostfile")
    everywhere = run.step is not None and (job.step_nodes(run.step) or 0) > 1 and run.alone
    if everywhere and not knows and not asks:
        yield NO_HOSTFILE.at(run.line, "deepspeed on every node without --hostfile")
    ranks, gpus = run.option("nproc-per-node"), job.gpus_per_node
    count = job.resolve_int(ranks.raw) if ranks else None
    if ranks and count and gpus and count > gpus:
        yield RANKS_BEYOND_GPUS.at(ranks.line, f"{count} ranks per node, but {gpus} GPUs", gpus=gpus)
    elif ranks and count and gpus and count < gpus and _only(job, run):
        yield GPUS_IDLE.at(ranks.line, f"{count} ranks per node, but {gpus} GPUs")
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    if tasks is not None and tasks > 1 and run.step and run.alone and gpus and gpus > 1 and not run.step.asked_gpus:
        what = f"{tasks} tasks per node, and each starts deepspeed"
        yield RANKS_DOUBLED.at(run.line, what, count=f"{tasks} launchers per node")


def _accelerate(job: JobFile, run: Launch, nodes: int | None) -> Iterator[Finding]:
    """Find wrong counts for accelerate, whose number of processes counts all nodes."""
    word, gpus = run.option("num-processes"), job.gpus_per_node
    count = job.resolve_int(word.raw) if word else None
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    if word and count and gpus and nodes and count > gpus * nodes:
        what = f"{count} processes, but {gpus * nodes} GPUs"
        yield RANKS_BEYOND_GPUS.at(word.line, what, gpus=gpus)
    elif word and count and gpus and nodes and nodes > 1 and count < gpus * nodes and tasks == 1:
        what = f"{count} processes in total, but {gpus * nodes} GPUs: accelerate counts all nodes"
        yield GPUS_IDLE.at(word.line, what)
    elif word and count and gpus and nodes == 1 and count < gpus and tasks == 1 and _only(job, run):
        yield GPUS_IDLE.at(word.line, f"{count} processes, but {gpus} GPUs")
    if tasks is not None and tasks > 1 and run.step and (count or 0) > 1 and run.alone:
        what = f"{tasks} tasks per node, and each starts accelerate"
        yield RANKS_DOUBLED.at(run.line, what, count=f"{tasks} launchers per node")


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
    what = f"{tasks} tasks per node, and each starts torchrun"
    yield RANKS_DOUBLED.at(line, what, count=f"{count} per node, in {tasks} worlds that collide")


ONE_RANK = Trap("one-rank", WASTES, "it starts one rank per node", "--nproc-per-node={gpus}", needs_all_lines=True)


def _ranks(job: JobFile, run: Launch) -> Iterator[Finding]:
    word, gpus = run.option("nproc-per-node"), job.gpus_per_node
    if any(item.name.startswith("PET_") for item in job.assignments):
        return
    if word is None:
        tasks = job.step_tasks_per_node(run.step) if run.step else 1
        if gpus is not None and gpus > 1 and tasks == 1:
            yield ONE_RANK.at(run.line, "torchrun without --nproc-per-node", gpus=gpus)
        return
    ranks = job.resolve_int(word.raw)
    if ranks and gpus and ranks > gpus:
        yield RANKS_BEYOND_GPUS.at(word.line, f"{count(ranks, 'rank')} per node, but {count(gpus, 'GPU')}", gpus=gpus)
    elif ranks and gpus and ranks < gpus and _only(job, run):
        yield GPUS_IDLE.at(word.line, f"{count(ranks, 'rank')} per node, but {count(gpus, 'GPU')}")


def _only(job: JobFile, run: Launch) -> bool:
    """True if no other launch uses the job's GPUs."""
    return len(job.launches) == 1 and not (run.step and run.step.asked_gpus) and not run.command.way.behind


TASKS_BEYOND_GPUS = Trap(
    "tasks-beyond-gpus", WASTES, "ranks would share a GPU, which NCCL refuses", "#SBATCH --ntasks-per-node={gpus}"
)
SAME_WORK = Trap(
    "same-work",
    ADVICE,
    "srun starts the program {tasks} times, and nothing in the file distinguishes the copies",
    "#SBATCH --ntasks=1, and --cpus-per-task={tasks} if you need CPUs",
    needs_all_lines=True,
)


def _plain_ranks(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    """Find wrong task counts of `srun python`, where each task is a rank."""
    if not job.is_rank(step) or step.asked_gpus:
        return
    gpus, tasks = job.gpus_per_node or 0, job.step_tasks_per_node(step)
    if gpus and tasks is not None and tasks > gpus and (gpus > 1 or job.several_nodes) and job.distributed:
        what = f"{tasks} tasks per node, but {gpus} GPUs"
        yield TASKS_BEYOND_GPUS.at(step.line, what, gpus=gpus)
    shared = gpus == 1 and tasks and tasks > 1 and not job.several_nodes and not step.asks("multi-prog")
    if shared and not job.tells_tasks_apart:
        yield SAME_WORK.at(step.line, f"{tasks} tasks and one GPU", tasks=tasks)


VISIBLE_REPLACED = Trap(
    "visible-replaced",
    WASTES,
    "srun sets CUDA_VISIBLE_DEVICES itself for each task, so the tasks do not get this value",
    "srun bash -c 'export CUDA_VISIBLE_DEVICES={value}; ...', in single quotes",
)
GPU_NOT_THERE = Trap("gpu-not-there", WASTES, "Slurm numbers a job's own GPUs from 0, so this number does not exist")


def _visible(job: JobFile) -> Iterator[Finding]:
    """Find CUDA_VISIBLE_DEVICES=1 in a job of one GPU, or of four."""
    named = [item for item in job.assignments if item.name == "CUDA_VISIBLE_DEVICES"]
    has = job.gpus_per_node or 0
    for item in named if has and not job.asks("exclusive") else ():
        text = item.word.text
        numbers = set(map(int, text.split(","))) if re.fullmatch(r"\d{1,2}(,\d{1,2})*", text) else set()
        if _only_steps_work(job, item.line):
            if (numbers and numbers != set(range(has))) or item.word.expansions() & {"SLURM_LOCALID", "SLURM_PROCID"}:
                what = f"the batch script sets CUDA_VISIBLE_DEVICES={text}"
                yield VISIBLE_REPLACED.at(item.line, what, value=text.replace("SLURM_PROCID", "SLURM_LOCALID"))
            continue
        if not numbers:
            continue
        what = f"CUDA_VISIBLE_DEVICES={text}, but the job has {has} GPU" + "s" * (has != 1)
        if max(numbers) >= has:
            yield GPU_NOT_THERE.at(item.line, what)
        elif len(numbers) < has and len(named) == 1 and not item.maybe and not job.launches:
            yield GPUS_IDLE.at(item.line, what)
        elif len(named) == 1 and not item.maybe:
            yield from _unseen(job, item, len(numbers))


def _only_steps_work(job: JobFile, line: int) -> bool:
    """True if an srun step starts a program below the line, and the batch script itself starts none."""
    starts = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
    others = [command for command in job.shell.commands if starts.fullmatch(_base(command))]
    return not others and any(step.works and step.line > line for step in job.steps)


def _unseen(job: JobFile, visible: Assignment, seen: int) -> Iterator[Finding]:
    """Find more ranks than CUDA_VISIBLE_DEVICES lists GPUs."""
    for run in job.launches:
        word = run.option("nproc-per-node") if run.kind == "torchrun" else None
        ranks = job.resolve_int(word.raw) if word else None
        if word and ranks and ranks > seen and run.line > visible.line:
            what = f"{count(ranks, 'rank')} per node, but CUDA_VISIBLE_DEVICES lists {count(seen, 'GPU')}"
            yield RANKS_BEYOND_GPUS.at(word.line, what, gpus=seen)


def _mpi_ranks(job: JobFile) -> Iterator[Finding]:
    """Find `mpirun -n 3 python` on GPUs that three ranks cannot share evenly."""
    gpus = (job.gpus_per_node or 0) * (job.nodes or 0)
    started = [command for command in job.shell.commands if _base(command) in _MPI]
    if len(started) != 1 or started[0].way.maybe or started[0].way.loop:
        return
    words = job.values.split(started[0].words)
    python = any(re.fullmatch(r"python[\d.]*", word.base) for word in words)
    named = next((place for place, word in enumerate(words[:-1]) if re.fullmatch(r"-n|--?np", word.text)), None)
    count = job.resolve_int(words[named + 1].raw) if named is not None else None
    if python and count and 1 < count < gpus and gpus % count:
        yield GPUS_IDLE.at(started[0].line, f"{count} ranks, but {gpus} GPUs")


FIRST_NODE_ONLY = Trap(
    "first-node-only",
    ADVICE,
    "the script runs only on the first node: the others idle unless the program itself reaches them",
    "srun python ...",
    needs_all_lines=True,
)


def _one_python(job: JobFile) -> Iterator[Finding]:
    """Find Python in the batch script itself, on several nodes with GPUs, where nothing reaches another node."""
    text = "\n".join(_ASKS.sub("", line) for line in job.lines if not line.startswith("#"))
    if not job.several_nodes or job.launches or job.sourced or _REACHES.search(text):
        return
    if not job.gpus_per_node:
        yield from _one_program(job)
        return
    plain = [item for item in job.shell.commands if item.way.certain and re.fullmatch(r"python[\d.]*", _base(item))]
    meets = any(item.name in RENDEZVOUS for item in job.assignments)
    trains = [item for item in plain if meets or re.search(r"\b(pre)?train|train\w*\.py|finetun", item.text)]
    if trains and not any(item.name in SHELLS or item.text.endswith(".sh") for item in job.shell.commands):
        yield FIRST_NODE_ONLY.at(trains[0].line, f"python without srun on {job.nodes} nodes")


def _one_program(job: JobFile) -> Iterator[Finding]:
    """Find `./solver` alone in a job with several tasks on each of several nodes."""
    plain = [item for item in job.shell.commands if item.way.certain and item.words and not item.way.calls]
    runs = [item for item in plain if re.match(r"\./\w[\w.-]*$", item.words[0].text) and not item.name.endswith(".sh")]
    if runs and (job.tasks_per_node or 1) > 1 and len(job.shell.functions) == 0:
        what = f"{item_name(runs[0])} without srun on {job.nodes} nodes"
        yield FIRST_NODE_ONLY.at(runs[0].line, what)


def item_name(command: Command) -> str:
    return command.words[0].text


def _idle_nodes(job: JobFile) -> Iterator[Finding]:
    """Find a job whose only working srun leaves nodes out."""
    steps = [step for step in job.steps if not _ASKS.search(step.command.text)]
    if len(steps) != 1 or not job.gpus_per_node or not steps[0].asks("nodes"):
        return
    works = any(_WORKS.search(job.with_definitions(word.raw)) for word in steps[0].program)
    used, has, way = job.step_nodes(steps[0]), job.nodes, steps[0].command.way
    others = [item for item in job.shell.commands if item.name in _MPI or re.search(r"\b(ray|ssh|pdsh)\b", item.text)]
    if works and used and has and used < has and way.certain and not way.loop and not others:
        yield GPUS_IDLE.at(steps[0].line, f"srun on {used} of the job's {has} nodes")


def _base(command: Command) -> str:
    place = program_at(command.words)
    return command.words[place].base if place < len(command.words) else ""


NODE_RANK = Trap(
    "node-rank",
    WASTES,
    "exactly one node must have rank 0: the node at MASTER_ADDR",
    '--node-rank="$SLURM_NODEID", in single quotes after srun bash -c',
    needs_all_lines=True,
)


def _node_rank(job: JobFile, run: Launch) -> Iterator[Finding]:
    backend, word = run.option("rdzv-backend"), run.option("node-rank")
    if run.option("standalone", "config-file") or run.step is None or run.option("nnodes") is None:
        return
    if backend is not None and job.resolve(backend.raw) != "static":
        return
    if word is None:
        if not any(item.name in ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK") for item in job.assignments):
            what = f"{run.kind} without --node-rank: every node becomes node 0"
            yield NODE_RANK.at(run.line, what)
    elif word.text.isdigit():
        yield NODE_RANK.at(word.line, f"--node-rank={word.text} on every node")
    elif "SLURM_LOCALID" in Word(job.with_definitions(word.raw), 0).expansions():
        yield NODE_RANK.at(word.line, "SLURM_LOCALID counts tasks within a node: it is 0 on every node")
