"""Traps with the ranks that a job starts: their number, their GPUs, and the rank that each gets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.cluster_profile import ClusterProfile
from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job_file import RENDEZVOUS, JobFile
from frog.cluster.jobfile.launchers import SHELLS, Launch, SrunStep, program_at
from frog.cluster.jobfile.shell_script import Command
from frog.cluster.jobfile.shell_words import Assignment, Word
from frog.core.units import count

_MPI = ("mpirun", "mpiexec", "orterun")
_REACHES_NODES = re.compile(
    r"\b(srun|sbatch|mpi|ssh|pdsh|clush|horovod|ray|dask|submitit|ibrun|aprun|jsrun|torchx|parallel)", re.IGNORECASE
)
"""Programs that may start processes on other nodes."""
_WORKS = re.compile(r"\b(torchrun|python|accelerate|deepspeed)\b|\.(sh|py)\b")
_ASKS_HOST_NAME = re.compile(r"\bsrun\s[^|;)]*\bhostname\b")
"""Commands that ask for a host name and start no work."""


def rank_findings(job: JobFile, profile: ClusterProfile | None = None) -> Iterator[Finding]:
    """Find traps with the ranks of a job that starts one world."""
    for run in job.launches:
        nodes = job.step_nodes(run.step) if run.step else job.nodes
        if run.kind == "deepspeed":
            yield from _deepspeed(job, run)
            continue
        if nodes is not None and nodes > 1 and run.direct:
            yield from _every_node(job, run, nodes)
            yield from _node_rank(job, run)
        if run.kind == "torchrun":
            yield from _ranks_of_tasks(job, run)
            yield from _ranks_and_gpus(job, run)
        elif run.option("num-processes") or not run.option("config-file"):
            yield from _accelerate(job, run, nodes)
    for step in job.steps:
        yield from _plain_ranks(job, step)
    yield from _mpi_ranks(job)
    yield from _visible_devices(job)
    yield from _one_python(job)
    yield from _idle_nodes(job)
    if profile is None or profile.gpus_per_node:
        yield from _no_gpus(job)
    for step in job.steps:
        yield from _step_beyond_job(job, step)
        yield from _no_shell(step)
        yield from _rank_variables(job, step)
    yield from _slots(job)
    yield from _lightning(job)
    yield from _python_of_launcher(job)
    yield from _shared_ports(job)


PYTHON_TWICE = Trap(
    "python-twice",
    FAILS,
    "{launcher} starts Python itself: it takes the first word for a Python file, which does not exist or is not Python",
    "{launcher} ... {script}, or --no-python before the program",
)


def _python_of_launcher(job: JobFile) -> Iterator[Finding]:
    """Find `torchrun python train.py` and `torchrun ./run.sh`."""
    for run in job.launches:
        name = run.program[0] if run.program else None
        if name is None or run.option("no-python", "module", "m", "run-path"):
            continue
        if re.fullmatch(r"python[\d.]*", name.base) or name.base in SHELLS or name.base.endswith((".sh", ".bash")):
            script = next((word.text for word in run.program[1:] if word.text.endswith(".py")), "train.py")
            what = f"{run.kind} starts {name.text}"
            yield PYTHON_TWICE.at(name.line, what, launcher=run.kind, script=script)


PORT_SHARED = Trap(
    "port-shared",
    FAILS,
    "both run at the same time on the same node: the second one fails with address already in use, or joins the first",
    "another port for each: --master-port, or MASTER_PORT before the command",
)
_DEFAULT_PORT = 29500
"""torchrun's, accelerate's and deepspeed's, if no option names another one."""


def _shared_ports(job: JobFile) -> Iterator[Finding]:
    """Find launchers in the background whose worlds meet at the same port of the same node."""
    if job.several_nodes or job.sources_users_files:
        return
    ports: dict[int, int] = {}
    for run in job.launches:
        context = run.step.command.context if run.step else run.command.context
        elsewhere = run.step and any(map(run.step.option, ("nodelist", "relative")))
        port = _port_of(job, run)
        if port is None or not context.background or context.loop or context.conditional or elsewhere:
            continue
        if port in ports:
            what = f"{run.kind} meets at port {port}, as in line {ports[port]}"
            yield PORT_SHARED.at(run.line, what)
        ports.setdefault(port, run.line)
    yield from _shared_port_of_tasks(job)


def _shared_port_of_tasks(job: JobFile) -> Iterator[Finding]:
    """Find steps of ranks in the background that get the same MASTER_PORT."""
    given = [item for item in job.assignments if item.name == "MASTER_PORT" and item.name in job.exported]
    if len(given) != 1 or given[0].conditional:
        return
    steps = [
        step
        for step in job.steps
        if step.command.context.background
        and job.is_rank(step)
        and (job.step_tasks_per_node(step) or 1) > 1
        and not any(map(step.option, ("nodelist", "relative", "jobid")))
        and not any(item.name == "MASTER_PORT" for each in (step.command, *step.commands) for item in each.assignments)
    ]
    if len(steps) > 1:
        what = f"the ranks of this step get the same MASTER_PORT as those of line {steps[0].line}"
        yield PORT_SHARED.at(steps[1].line, what)


def _port_of(job: JobFile, run: Launch) -> int | None:
    """Return the port where the ranks of a launcher meet; None if it is unknown or chosen freely."""
    if run.option("standalone", "config-file", "hostfile", "include") or not run.direct:
        return None
    if any(item.name.startswith(("PET_", "MASTER_PORT")) for item in (*job.assignments, *run.command.assignments)):
        return None
    if word := run.option("master-port"):
        return job.resolve_int(word.raw) or None
    endpoint = run.option("rdzv-endpoint")
    if endpoint is None:
        return _DEFAULT_PORT if run.option("rdzv-backend") is None else None
    return job.resolve_int(endpoint.raw.strip("\"'").rpartition(":")[2]) or None


NO_GPUS = Trap(
    "no-gpus",
    WASTES,
    "Slurm gives no GPUs to a job that does not ask for them, unless the cluster allocates whole nodes",
    "#SBATCH --gpus-per-node={gpus}",
    needs_all_lines=True,
)


_OF_GPUS = {"NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"}
_NCCL_RANKS = re.compile(r"-(-dist)?-?backend[= ]nccl\b|--device[= ]cuda\b")
_ON_CPUS = re.compile(r"gloo|--?(use[-_])?cpu\b|--device[= ]cpu|\b[Cc][Pp][Uu]-only", re.IGNORECASE)


def _no_gpus(job: JobFile) -> Iterator[Finding]:
    """Find ranks that use GPUs in a job that does not ask for any."""
    asked = (
        job.gpu_directive
        or job.option("exclusive")
        or job.option("gres")
        or job.option("constraint")
        or job.option("nodelist")
    )
    if (
        job.in_allocation
        or asked
        or job.option("tres-per-task")
        or job.option("gpus-per-socket")
        or any(step.requests_gpus for step in job.steps)
    ):
        return
    named = {item.name for item in (*job.assignments, *job.task_assignments)}
    asks_for_cpus = any(map(job.option, ("cpus-per-task", "mem", "mem-per-cpu")))
    if job.option("partition") and not asks_for_cpus and "CUDA_VISIBLE_DEVICES" in named:
        return  # the cluster probably allocates whole nodes
    text = " ".join(command.text for step in job.steps for command in step.commands)
    several = [run for run in job.launches if _starts_several_ranks(job, run)]
    wanting = [command for command in job.shell.commands if _wants_gpu(command)]
    if several and not any(run.option("cpu") for run in several) and not _ON_CPUS.search("\n".join(job.lines)):
        word = several[0].option("nproc-per-node", "num-processes")
        kind: Kind | None = "advice" if job.option("partition") or not job.uses_gpus else None
        gpus = job.resolve_int(word.raw) if word else None
        yield NO_GPUS.at(several[0].line, "the job does not ask for GPUs", kind, gpus=gpus or "N")
    elif not several and any(step.python for step in job.steps) and (named & _OF_GPUS or _NCCL_RANKS.search(text)):
        kind = "advice" if job.option("partition") else None
        step = next(step for step in job.steps if step.python)
        yield NO_GPUS.at(step.line, "the job does not ask for GPUs", kind, gpus="N")
    elif not several and not job.run_by_hand and wanting:
        kind = "advice" if job.option("partition") else None
        yield NO_GPUS.at(wanting[-1].line, "the job does not ask for GPUs", kind, gpus="N")


def _starts_several_ranks(job: JobFile, run: Launch) -> bool:
    word = run.option("nproc-per-node", "num-processes")
    return word is not None and (word.text == "gpu" or (job.resolve_int(word.raw) or 0) > 1)


def _wants_gpu(command: Command) -> bool:
    """True for `nvidia-smi` and `python train.py --device cuda`."""
    python = re.search(r"\bpython[\d.]* ", command.text)
    asks = python and re.search(
        r"-(-device|d)[= ]cuda\b|\bdevice=cuda\b|--(use[-_])?cuda\b(?![= ](0|[Ff]alse))", command.text
    )
    return command.context.certain and (bool(asks) or command.name == "nvidia-smi")


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
    if run.step is None and not run.command.context.calls and run.command.context.certain:
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
    several = run.step is None and job.several_nodes and run.command.context.certain and run.direct
    asks = run.option("nnodes")
    knows = run.option("hostfile", "launcher", "include", "node-rank", "no-ssh") or "DLTS_HOSTFILE" in job.exported
    if several and not knows and not (asks and job.resolve_int(asks.raw) == 1):
        yield NO_HOSTFILE.at(run.line, f"deepspeed on {job.nodes} nodes without --hostfile")
    everywhere = run.step is not None and (job.step_nodes(run.step) or 0) > 1 and run.direct
    if everywhere and not knows and not asks:
        yield NO_HOSTFILE.at(run.line, "deepspeed on every node without --hostfile")
    ranks, gpus = run.option("nproc-per-node"), job.gpus_per_node
    count = job.resolve_int(ranks.raw) if ranks else None
    if ranks and count and gpus and count > gpus:
        yield RANKS_BEYOND_GPUS.at(ranks.line, f"{count} ranks per node, but {gpus} GPUs", gpus=gpus)
    elif ranks and count and gpus and count < gpus and _is_only_launch(job, run):
        yield GPUS_IDLE.at(ranks.line, f"{count} ranks per node, but {gpus} GPUs")
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    if tasks is not None and tasks > 1 and run.step and run.direct and gpus and gpus > 1 and not run.step.requests_gpus:
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
    elif word and count and gpus and nodes == 1 and count < gpus and tasks == 1 and _is_only_launch(job, run):
        yield GPUS_IDLE.at(word.line, f"{count} processes, but {gpus} GPUs")
    if tasks is not None and tasks > 1 and run.step and (count or 0) > 1 and run.direct:
        what = f"{tasks} tasks per node, and each starts accelerate"
        yield RANKS_DOUBLED.at(run.line, what, count=f"{tasks} launchers per node")


def _ranks_of_tasks(job: JobFile, run: Launch) -> Iterator[Finding]:
    tasks = job.step_tasks_per_node(run.step) if run.step else 1
    word = run.option("nproc-per-node")
    ranks = job.resolve_int(word.raw) if word else 1
    if tasks is None or tasks == 1 or ranks == 1 or run.step is None or not run.direct:
        return
    places = [
        run.step.option("ntasks-per-node"),
        run.step.option("ntasks"),
        job.option("ntasks-per-node"),
        job.option("ntasks"),
    ]
    line = next((asked.line for asked in places if asked), run.line)
    count = f"{tasks} x {ranks} = {tasks * ranks} ranks" if ranks else f"{tasks} times as many ranks"
    what = f"{tasks} tasks per node, and each starts torchrun"
    yield RANKS_DOUBLED.at(line, what, count=f"{count} per node, in {tasks} worlds that collide")


ONE_RANK = Trap("one-rank", WASTES, "it starts one rank per node", "--nproc-per-node={gpus}", needs_all_lines=True)


def _ranks_and_gpus(job: JobFile, run: Launch) -> Iterator[Finding]:
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
    elif ranks and gpus and ranks < gpus and _is_only_launch(job, run):
        yield GPUS_IDLE.at(word.line, f"{count(ranks, 'rank')} per node, but {count(gpus, 'GPU')}")


def _is_only_launch(job: JobFile, run: Launch) -> bool:
    """True if no other launch uses the job's GPUs."""
    return len(job.launches) == 1 and not (run.step and run.step.requests_gpus) and not run.command.context.background


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
    if not job.is_rank(step) or step.requests_gpus:
        return
    gpus, tasks = job.gpus_per_node or 0, job.step_tasks_per_node(step)
    if gpus and tasks is not None and tasks > gpus and (gpus > 1 or job.several_nodes) and job.distributed:
        what = f"{tasks} tasks per node, but {gpus} GPUs"
        yield TASKS_BEYOND_GPUS.at(step.line, what, gpus=gpus)
    shared = gpus == 1 and tasks and tasks > 1 and not job.several_nodes and not step.option("multi-prog")
    if shared and not job.distinguishes_tasks:
        yield SAME_WORK.at(step.line, f"{tasks} tasks and one GPU", tasks=tasks)


VISIBLE_REPLACED = Trap(
    "visible-replaced",
    WASTES,
    "srun sets CUDA_VISIBLE_DEVICES itself for each task, so the tasks do not get this value",
    "srun bash -c 'export CUDA_VISIBLE_DEVICES={value}; ...', in single quotes",
)
GPU_NOT_THERE = Trap("gpu-not-there", WASTES, "Slurm numbers a job's own GPUs from 0, so this number does not exist")


def _visible_devices(job: JobFile) -> Iterator[Finding]:
    """Find CUDA_VISIBLE_DEVICES=1 in a job of one GPU, or of four."""
    named = [item for item in job.assignments if item.name == "CUDA_VISIBLE_DEVICES"]
    has = job.gpus_per_node or 0
    for item in named if has and not job.option("exclusive") else ():
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
        elif len(numbers) < has and len(named) == 1 and not item.conditional and not job.launches:
            yield GPUS_IDLE.at(item.line, what)
        elif len(named) == 1 and not item.conditional:
            yield from _ranks_beyond_visible(job, item, len(numbers))


def _only_steps_work(job: JobFile, line: int) -> bool:
    """True if an srun step starts a program below the line, and the batch script itself starts none."""
    starts = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
    others = [command for command in job.shell.commands if starts.fullmatch(_program_name(command))]
    return not others and any(step.works and step.line > line for step in job.steps)


def _ranks_beyond_visible(job: JobFile, visible: Assignment, seen: int) -> Iterator[Finding]:
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
    started = [command for command in job.shell.commands if _program_name(command) in _MPI]
    if len(started) != 1 or started[0].context.conditional or started[0].context.loop:
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
    text = "\n".join(_ASKS_HOST_NAME.sub("", line) for line in job.lines if not line.startswith("#"))
    if not job.several_nodes or job.launches or job.sources_users_files or _REACHES_NODES.search(text):
        return
    if not job.gpus_per_node:
        yield from _one_program(job)
        return
    plain = [
        item
        for item in job.shell.commands
        if item.context.certain and re.fullmatch(r"python[\d.]*", _program_name(item))
    ]
    meets = any(item.name in RENDEZVOUS for item in job.assignments)
    trains = [item for item in plain if meets or re.search(r"\b(pre)?train|train\w*\.py|finetun", item.text)]
    if trains and not any(item.name in SHELLS or item.text.endswith(".sh") for item in job.shell.commands):
        yield FIRST_NODE_ONLY.at(trains[0].line, f"python without srun on {job.nodes} nodes")


def _one_program(job: JobFile) -> Iterator[Finding]:
    """Find `./solver` alone in a job with several tasks on each of several nodes."""
    plain = [item for item in job.shell.commands if item.context.certain and item.words and not item.context.calls]
    runs = [item for item in plain if re.match(r"\./\w[\w.-]*$", item.words[0].text) and not item.name.endswith(".sh")]
    if runs and (job.tasks_per_node or 1) > 1 and len(job.shell.functions) == 0:
        what = f"{runs[0].words[0].text} without srun on {job.nodes} nodes"
        yield FIRST_NODE_ONLY.at(runs[0].line, what)


def _idle_nodes(job: JobFile) -> Iterator[Finding]:
    """Find a job whose only working srun leaves nodes out."""
    steps = [step for step in job.steps if not _ASKS_HOST_NAME.search(step.command.text)]
    if len(steps) != 1 or not job.gpus_per_node or not steps[0].option("nodes"):
        return
    works = any(_WORKS.search(job.with_definitions(word.raw)) for word in steps[0].program)
    used, has, context = job.step_nodes(steps[0]), job.nodes, steps[0].command.context
    others = [item for item in job.shell.commands if item.name in _MPI or re.search(r"\b(ray|ssh|pdsh)\b", item.text)]
    if works and used and has and used < has and context.certain and not context.loop and not others:
        yield GPUS_IDLE.at(steps[0].line, f"srun on {used} of the job's {has} nodes")


def _program_name(command: Command) -> str:
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


STEP_BEYOND_JOB = Trap("step-beyond-job", FAILS, "srun refuses a step that needs more than the job has")


def _step_beyond_job(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    """Find steps with more nodes, or more GPUs per node, than the job has."""
    asked, has = job.option("nodes"), job.nodes
    fixed = asked is not None and (asked.value or "").isdigit()
    if step.option("jobid") or step.option("het-group"):
        return
    used = job.step_nodes(step)
    if fixed and step.option("nodes") and used and has and used > has:
        yield STEP_BEYOND_JOB.at(step.line, f"srun asks for {used} nodes, but the job has {has}")
    yield from _more_tasks(job, step)
    without = job.gpus_per_node == 0 and not any(map(job.option, ("exclusive", "tres-per-task", "gpus-per-socket")))
    asks_for_gpus = next(filter(None, map(step.option, ("gpus", "gpus-per-node", "gpus-per-task"))), None)
    if without and asks_for_gpus and asks_for_gpus.value != "0" and not job.in_allocation and not job.run_by_hand:
        what = f"srun {asks_for_gpus.written} in a job that asks for no GPUs"
        yield STEP_BEYOND_JOB.at(step.line, what, "may hang or waste")
    gpus, own = job.gpus_per_node, step.option("gpus-per-node") or step.option("gres")
    match = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z]\w*:)?(\d{1,4})", own.value or "") if own else None
    if own and own.name == "gres" and not (own.value or "").startswith("gpu:"):
        return
    if gpus and match and int(match[1]) > gpus and not job.option("exclusive"):
        what = f"srun asks for {match[1]} GPUs per node, but the job has {gpus}"
        yield STEP_BEYOND_JOB.at(step.line, what)


_THREADS_PER_CORE = 2
"""A job gets whole cores, and so up to twice the CPUs that it asks for."""


def _more_tasks(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    """Find a step with more tasks than the job has CPUs."""
    asked, total = step.option("ntasks"), job.number("ntasks")
    tasks = job.resolve_int(asked.value) if asked and asked.value else None
    cpus = job.number("cpus-per-task") or 1
    whole = any(map(job.option, ("exclusive", "overcommit"))) or job.text("mem") == "0" or step.option("overcommit")
    if asked and tasks and total and tasks > total * cpus * _THREADS_PER_CORE and not whole:
        what = f"srun starts {tasks} tasks, but the job has {total} with {cpus} CPU{'s' * (cpus > 1)} each"
        yield STEP_BEYOND_JOB.at(asked.line, what, "may hang or waste")


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


_PROC_ID = re.compile(r"\"?\$\{?SLURM_PROCID\}?\"?")
_RIGHT = {"RANK": "PROCID", "LOCAL_RANK": "LOCALID"}

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


def _rank_variables(job: JobFile, step: SrunStep) -> Iterator[Finding]:
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
    stated = job.resolve_int(world.raw)
    if several and stated and stated != nodes * tasks and job.gpus_per_node:
        what = f"WORLD_SIZE is {stated}, but srun starts {nodes * tasks} tasks"
        yield WORLD_SIZE.at(world.line, what)


_SHARES_CORES = re.compile(
    r"oversubscribe|--?hosts?\b|-f\b|machinefile|hostfile|impi|intel|mpich|mvapich", re.IGNORECASE
)
_OPEN_MPI = re.compile(r"open[-_]?mpi|\bompi|--mca\b|\bfoss\b", re.IGNORECASE)
"""Without any of these it may be another MPI, or an Open MPI built without Slurm, which counts cores."""

SLOTS = Trap("slots", WASTES, "Open MPI refuses it (not enough slots); other MPIs run several ranks per core")


def _slots(job: JobFile) -> Iterator[Finding]:
    """Find `mpirun -n 16` where Slurm has eight tasks."""
    tasks, nodes = job.tasks_per_node, job.nodes
    if not (job.option("ntasks") or job.option("ntasks-per-node")) or not tasks or not nodes or job.option("exclusive"):
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


_LIGHTNING = re.compile(r"(?:--)?trainer\.(devices|num_nodes)(?:=(.*))?", re.DOTALL)

LIGHTNING_TASKS = Trap(
    "lightning-tasks",
    FAILS,
    "Lightning compares the two at startup and stops",
    "--ntasks-per-node equal to trainer.devices, --nodes equal to trainer.num_nodes, and srun before the program",
)


def _lightning(job: JobFile) -> Iterator[Finding]:
    """Find `--trainer.devices 4` where Slurm starts another number of tasks per node."""
    resized = any(any(map(step.option, ("nodes", "ntasks", "ntasks-per-node"))) for step in job.steps)
    commands = [*job.shell.commands, *(inner for step in job.steps for inner in step.commands)]
    per_node, nodes = job.option("ntasks-per-node"), job.nodes
    if job.launches or resized or per_node is None or not any(command.name != "echo" for command in commands):
        return
    if job.text("job-name") in ("bash", "interactive"):  # Lightning treats it as an interactive session
        return
    counts: dict[str, tuple[int, Word]] = {}
    for command in commands:
        for place, word in enumerate(command.words):
            if match := _LIGHTNING.fullmatch(word.raw):
                value = (
                    match[2] if match[2] is not None else "".join(w.raw for w in command.words[place + 1 : place + 2])
                )
                if count := job.resolve_int(value):
                    counts[match[1]] = (count, word)
    devices, given = counts.get("devices"), job.number("ntasks-per-node")
    if devices and given and devices[0] != given and (devices[0] > 1 or counts.get("num_nodes", (1,))[0] > 1):
        what = f"trainer.devices={devices[0]}, but --ntasks-per-node={given}"
        yield LIGHTNING_TASKS.at(devices[1].line, what)
    several = counts.get("num_nodes")
    if several and nodes and several[0] != nodes:
        what = f"trainer.num_nodes={several[0]}, but the job has {nodes} node{'s' * (nodes > 1)}"
        yield LIGHTNING_TASKS.at(several[1].line, what)
