"""Explanations line by line: the meaning of each part of a job file, and the origin of its values."""

from __future__ import annotations

import re
from collections import defaultdict

from frog.cluster.jobfile.job_file import PER_TASK, JobFile
from frog.cluster.jobfile.launchers import Launch, SrunStep
from frog.cluster.jobfile.shell_script import Command
from frog.cluster.jobfile.shell_words import Assignment, Word
from frog.cluster.slurm_options import GivenOption, time_limit_s
from frog.core.units import format_seconds

OTHER_SLURM_VARIABLES = frozenset((
    "ARRAY_TASK_COUNT", "ARRAY_TASK_MAX", "ARRAY_TASK_MIN", "ARRAY_TASK_STEP", "CLUSTERS", "CLUSTER_NAME", "CONF",
    "CONSTRAINT", "CONTAINER", "CORE_SPEC", "CPUS_PER_GPU", "CPUS_PER_TASK", "CPU_BIND", "CPU_BIND_LIST",
    "CPU_BIND_TYPE", "CPU_BIND_VERBOSE", "CPU_FREQ_REQ", "DEBUG", "DEBUG_FLAGS", "DEPENDENCY", "DISTRIBUTION",
    "DIST_PLANESIZE", "ERROR_FILE", "EXACT", "EXCLUSIVE", "EXIT_ERROR", "EXPORT_ENV", "GET_USER_ENV", "GPUS_PER_NODE",
    "GPUS_PER_SOCKET", "GPUS_PER_TASK", "GPU_BIND", "GPU_FREQ", "GTIDS", "HET_SIZE", "HINT", "IMMEDIATE", "INPUT",
    "JOB_ACCOUNT", "JOB_COMMENT", "JOB_CONSTRAINTS", "JOB_CPUS_PER_NODE", "JOB_CPUS_PER_NODE_PACK_GROUP_0",
    "JOB_DEPENDENCY", "JOB_DERIVED_EC", "JOB_END_TIME", "JOB_EXIT_CODE", "JOB_EXTRA", "JOB_GID", "JOB_GPUS",
    "JOB_GROUP", "JOB_LICENSES", "JOB_MAIL_TYPE", "JOB_NUM_NODES", "JOB_QOS", "JOB_RESERVATION", "JOB_RESTART_COUNT",
    "JOB_START_TIME", "JOB_STDERR", "JOB_STDIN", "JOB_STDOUT", "JOB_UID", "JOB_USER", "JOB_WORK_DIR", "KILL_BAD_EXIT",
    "LABELIO", "LAUNCH_NODE_IPADDR", "MEM_BIND", "MEM_BIND_LIST", "MEM_BIND_PREFER", "MEM_BIND_TYPE", "MEM_PER_CPU",
    "MEM_PER_GPU", "MEM_PER_NODE", "MPI_TYPE", "NCORES_PER_SOCKET", "NETWORK", "NNODES", "NODEID", "NODE_ALIASES",
    "NO_KILL", "NPROCS", "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_SOCKET", "NTASKS_PER_TRES", "OPEN_MODE",
    "OUTPUT", "OVERCOMMIT", "OVERLAP", "PARTITION", "PMIX_MAPPING_SERV", "PMI_FD", "PRIO_PROCESS", "PROFILE",
    "PTY_PORT", "QOS", "RESERVATION", "RESV_PORTS", "RLIMIT_NPROC", "ROLE", "SCRIPT_CONTEXT", "SETUID",
    "SHARDS_ON_NODE", "SLURMD_DEBUG", "SPANK", "SPREAD_JOB", "SRUN_COMM_HOST", "SRUN_COMM_PORT",
    "SRUN_REDUCE_TASK_EXIT", "STEPID", "STEP_GPUS", "STEP_ID", "STEP_LAUNCHER_PORT", "STEP_NODELIST",
    "STEP_NUM_NODES", "STEP_NUM_TASKS", "STEP_RESV_PORTS", "STEP_TASKS_PER_NODE", "SUBMIT_DIR", "TASK_EPILOG",
    "TASK_PID", "TASK_PROLOG", "THREADS", "THREADS_PER_CORE", "THREAD_SPEC", "TIMELIMIT", "TOPOLOGY_ADDR",
    "TOPOLOGY_ADDR_PATTERN", "TRES_BIND", "TRES_FREQ", "TRES_PER_TASK", "UMASK", "UNBUFFEREDIO", "USE_MIN_NODES",
    "WAIT", "WAIT4SWITCH", "WCKEY", "WHOLE", "WORKING_CLUSTER", "WORKING_DIR",
))  # fmt: skip
"""Other variables that sbatch and srun set or read, without the prefix SLURM_."""

SLURM_VARIABLES = {
    "SLURM_JOB_ID": "the job id",
    "SLURM_JOBID": "the job id (old name)",
    "SLURM_JOB_NAME": "the job's name",
    "SLURM_JOB_NODELIST": "the hosts of the allocation, compressed like node[1-2]",
    "SLURM_NODELIST": "the hosts of the allocation, compressed like node[1-2] (old name)",
    "SLURM_JOB_NUM_NODES": "number of nodes",
    "SLURM_NNODES": "number of nodes",
    "SLURM_NTASKS": "number of tasks on all nodes",
    "SLURM_NPROCS": "number of tasks (old name)",
    "SLURM_NTASKS_PER_NODE": "tasks per node",
    "SLURM_TASKS_PER_NODE": "tasks per node, compressed like 1(x2)",
    "SLURM_CPUS_PER_TASK": "CPUs per task",
    "SLURM_CPUS_ON_NODE": "the job's CPUs on this node",
    "SLURM_GPUS_ON_NODE": "the job's GPUs on this node",
    "SLURM_GPUS_PER_NODE": "GPUs per node, as requested",
    "SLURM_GPUS": "GPUs of the whole job, as requested",
    "SLURM_NODEID": "this node's number in the job, from 0: its NODE_RANK",
    "SLURM_PROCID": "this task's number in the job, from 0",
    "SLURM_LOCALID": "this task's number on its node, from 0",
    "SLURMD_NODENAME": "this node's name",
    "SLURM_SUBMIT_DIR": "the folder where sbatch was called",
    "SLURM_SUBMIT_HOST": "the machine where sbatch was called",
    "SLURM_RESTART_COUNT": "how often the job was requeued; unset on the first start",
    "SLURM_ARRAY_JOB_ID": "the job id of the whole array",
    "SLURM_ARRAY_TASK_ID": "this job's index in the array",
    "SLURM_JOB_ACCOUNT": "the account to charge",
    "SLURM_JOB_PARTITION": "the partition",
    "SLURM_LAUNCH_NODE_IPADDR": "the address of the machine that called srun",
    "SLURM_TMPDIR": "a temporary folder on this node",
    "CUDA_VISIBLE_DEVICES": "the GPUs that this process may use",
}

TORCHRUN_OPTIONS = {
    "num-processes": "number of ranks on all nodes",
    "hostfile": "the hosts, with the number of ranks on each",
    "nnodes": "number of nodes that join the rendezvous",
    "nproc-per-node": "number of ranks to start on this node: LOCAL_RANK 0, 1, ...",
    "node-rank": "this node's number; node 0 has rank 0",
    "master-addr": "address of rank 0: becomes MASTER_ADDR of every rank",
    "master-port": "port of rank 0: becomes MASTER_PORT of every rank",
    "rdzv-backend": "the method by which nodes find each other",
    "rdzv-endpoint": "the address where nodes find each other",
    "rdzv-id": "the id of this rendezvous: nodes with another id do not join",
    "rdzv-conf": "settings of the rendezvous",
    "standalone": "a single node with a rendezvous of its own",
    "max-restarts": "number of restarts after a rank fails",
    "monitor-interval": "seconds between checks of the ranks",
    "log-dir": "folder for the output of the ranks",
    "redirects": "write the output of the ranks to files",
    "tee": "write the output of the ranks to files and to this output",
    "local-addr": "the address of this node",
    "shutdown-timeout": "seconds between SIGTERM and SIGKILL to its ranks (default 30)",
    "role": "a name for these ranks",
    "start-method": "method to start processes",
    "module": "the program is a Python module",
    "no-python": "the program is not a Python script",
}

LAUNCHERS = {
    "torchrun": "starts this node's ranks and sets RANK, LOCAL_RANK and WORLD_SIZE for each",
    "accelerate": "starts this node's ranks; its number of processes counts all nodes",
    "deepspeed": "starts the ranks, on other nodes too if a hostfile names them",
}

COMMANDS = {
    "set": "options of the shell",
    "module": "makes installed software available",
    "ml": "makes installed software available",
    "source": "runs a file in this shell, such as an environment's activate",
    ".": "runs a file in this shell, such as an environment's activate",
    "conda": "activates or manages a conda environment",
    "export": "sets a variable for this script and the programs it starts",
    "cd": "changes the current folder",
    "mkdir": "makes a folder",
    "echo": "prints to the job's output",
    "printf": "prints to the job's output",
    "wait": "waits until the background processes end or a signal arrives",
    "scancel": "sends a signal to the job's steps, or ends them",
    "scontrol": "queries or changes the state of jobs in Slurm",
    "exit": "sets the job's exit code",
    "sleep": "waits",
    "kill": "sends a signal to a process of this node",
    "trap": "sets the action for a signal",
    "unset": "removes variables",
    "nvidia-smi": "shows the GPUs of the first node",
    "rsync": "copies files",
    "cp": "copies files",
}

SHELL_OPTIONS = {
    "e": "end at the first command that fails",
    "u": "an unset variable is an error",
    "o pipefail": "a pipeline fails if any of its commands fails",
    "x": "print every command before it runs",
    "a": "export every variable",
}

PATTERNS = {
    "j": "the job id",
    "J": "the job id and the step number",
    "A": "the job id of the array",
    "a": "the index in the array",
    "x": "the job's name",
    "u": "your name",
    "N": "the node's name",
    "n": "the node's number in the job",
    "t": "the task's number",
    "s": "the step's number",
}


_SIGNAL = re.compile(r"(?:([BR]+):)?(\w+)(?:@(\d+))?")


def explain_lines(job: JobFile) -> dict[int, list[str]]:
    """Return the explanations of each line, by line number."""
    meanings: dict[int, list[str]] = defaultdict(list)
    if job.lines and job.lines[0].startswith("#!"):
        meanings[1].append("the shell that runs this file: once, on the first node of the allocation")
    for directive in job.directives:
        for asked in directive.asked:
            if directive.read and asked.option:
                meanings[directive.line].append(_directive(asked, job))
    for name, line in job.shell.function_lines.items():
        meanings[line].append(f"{name}(): defines a function")
    for command in job.shell.all_commands:
        _command(command, job, meanings)
    for step in job.steps:
        _step(step, job, meanings)
    for run in job.launches:
        _launch(run, job, meanings)
    return {number: list(dict.fromkeys(words)) for number, words in meanings.items()}


def _directive(asked: GivenOption, job: JobFile) -> str:
    meaning = asked.option.meaning if asked.option else ""
    value = asked.value or ""
    written = f"--{asked.name}={value}" if value else f"--{asked.name}"
    detail = ""
    if asked.name == "time":
        detail = _limit(value)
    elif asked.name == "signal" and (match := _SIGNAL.fullmatch(value)):
        to = "this script" if "B" in (match[1] or "") else "every task, and not this script"
        detail = f": {match[2]} to {to}, {match[3] or 60} s before, or up to 60 s earlier"
    elif asked.name in ("output", "error", "input"):
        patterns = [f"%{key} is {PATTERNS[key]}" for key in re.findall(r"%\d*([a-zA-Z])", value) if key in PATTERNS]
        detail = "; " + ", ".join(patterns) if patterns else ""
    elif asked.name == "gres" and asked is job.gpu_directive:
        detail = f": {job.gpus_per_node} GPUs"
    return f"{written}: {meaning}{detail}"


def _limit(value: str) -> str:
    try:
        limit_s = time_limit_s(value)
    except ValueError:
        return ""
    return f": {format_seconds(limit_s)}" if limit_s is not None else ": none"


def _command(command: Command, job: JobFile, meanings: dict[int, list[str]], step: SrunStep | None = None) -> None:
    """Describe a command. `step` is the srun whose tasks run it, or None if the batch script runs it."""
    for assignment in command.assignments:
        in_task = step is not None and step.in_task(Word(assignment.raw, assignment.line))
        meanings[assignment.line].append(_assignment(assignment, job, in_task))
    if text := _command_text(command, job):
        meanings[command.line].append(text)


def _command_text(command: Command, job: JobFile) -> str | None:
    """Return the explanation of a command; None if another part explains it (assignments, srun)."""
    name, words = command.name, [word.text for word in command.words[1:]]
    functions = job.shell.function_lines
    if not name or any(word.text == "srun" for word in command.words):
        return None
    if name in functions:
        return f"{name}: the function defined in line {functions[name]}"
    if name == "set":
        return _options(words)
    if name == "trap" and len(words) > 1:
        does = f"this script runs: {_short(words[0])}" if words[0] else "nothing happens"
        return f"trap: on {' or '.join(words[1:])}, {does}"
    if (name, *words[:1]) == ("scontrol", "requeue"):
        return "requeues this job: it will start again with the same job id"
    if (name, *words[:1]) == ("kill", "-0"):
        return "kill -0: sends no signal; tests whether the process exists"
    if name == "export":
        return None if command.assignments else f"export: programs that srun starts also see {', '.join(words)}"
    if command.assignments:
        return None
    return f"{name}: {COMMANDS[name]}" if name in COMMANDS else "shell"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _options(words: list[str]) -> str:
    text = " ".join(words)
    letters = {letter for word in words for letter in word[1:] if re.fullmatch(r"-[a-z]+", word)}
    meanings = [say for key, say in SHELL_OPTIONS.items() if key in letters or (" " in key and key[2:] in text)]
    return f"set: {'; '.join(meanings)}" if meanings else "shell"


def _assignment(assignment: Assignment, job: JobFile, in_task: bool) -> str:
    value = job.resolve(assignment.raw)
    tasks = assignment.name in job.exported
    text = f"{assignment.name} = {value}" if value is not None and value != assignment.raw else assignment.name
    sources = _sources(Word(assignment.raw, assignment.line), job, in_task)
    if "scontrol show hostname" in assignment.raw:
        sources = [
            "scontrol expands the list of hosts" + (", head takes the first" if "head" in assignment.raw else "")
        ]
    words = [*sources, *(["for the tasks too"] if tasks else [])]
    return f"{text}: {'; '.join(words)}" if words else f"{text}: a variable of this script"


def _sources(word: Word, job: JobFile, in_task: bool) -> list[str]:
    """Return the origin of each variable in a word, read by a task's shell or by the batch shell on the first node."""
    names = set(word.expansions()) | (set(re.findall(r"\bSLURM_\w+", word.raw)) if "$((" in word.raw else set())
    known = job.slurm_variables()
    sources = []
    for name in sorted(names):
        assignment = job.assigned(name)
        if assignment and assignment.raw != word.raw:
            sources.append(f"{name} from line {assignment.line}")
        elif name in known:
            sources.append(f"{name} is {known[name][0]}, by {known[name][1]}")
        elif name in SLURM_VARIABLES:
            own = ", each task's own" if in_task else ", here the first node's for all"
            sources.append(f"{name} is {SLURM_VARIABLES[name]}{own if name in PER_TASK else ''}")
        elif name.startswith("SLURM"):
            sources.append(f"{name} is set by Slurm")
    return sources


def _step(step: SrunStep, job: JobFile, meanings: dict[int, list[str]]) -> None:
    nodes, tasks = job.step_nodes(step), job.step_tasks_per_node(step)
    count = (
        f"{nodes * tasks} tasks, {tasks} on each of {nodes} nodes"
        if nodes and tasks
        else "one task for each requested one"
    )
    behind = " in the background, so that this script receives signals" if step.command.context.background else ""
    meanings[step.line].append(f"srun starts the following in {count}{behind}")
    for asked in step.options:
        if asked.option:
            meanings[asked.line].append(_directive(asked, job))
    if step.script_word is not None:
        how = "in single quotes: each task reads its own variables"
        if step.script_word.raw.startswith('"'):
            how = "in double quotes: the first node expands $NAME here, and each task expands \\$NAME"
        meanings[step.script_word.line].append(f"bash -c: a shell in each task, {how}")
    for command in step.script_commands:
        _command(command, job, meanings, step)


def _launch(run: Launch, job: JobFile, meanings: dict[int, list[str]]) -> None:
    meanings[run.line] = [words for words in meanings[run.line] if words != "shell"]
    meanings[run.line].append(f"{run.kind}: {LAUNCHERS[run.kind]}")
    for name, word in run.options.items():
        meaning = TORCHRUN_OPTIONS.get(name, f"an option of {run.kind}")
        value = job.resolve(word.raw)
        plain = value is not None and value != word.text
        sources = _sources(word, job, run.in_task(word))
        tail = f" = {value}" if plain else ""
        meanings[word.line].append(f"--{name}{tail}: {meaning}" + (f" ({'; '.join(sources)})" if sources else ""))
    if run.program:
        meanings[run.program[0].line].append(
            f"{_short(' '.join(word.text for word in run.program))}: every rank runs this"
        )


def summary(job: JobFile) -> list[str]:
    """Return the summary of the resources that the file asks for and the ranks that it starts."""
    if not job.is_job:
        return ["submits other jobs; it is not a job file itself"]
    nodes, gpus, cpus = job.nodes, job.gpus_per_node, job.number("cpus-per-task")
    tasks = job.tasks_per_node
    asks = [f"{nodes or '?'} node{'' if nodes == 1 else 's'}"]
    if gpus:
        asks.append(f"{gpus} GPUs per node" + (f", {gpus * nodes} in total" if nodes and nodes > 1 else ""))
    if cpus and tasks:
        asks.append(f"{cpus * tasks} CPUs per node")
    if job.time_s:
        asks.append(f"for {format_seconds(job.time_s)}")
    lines = [f"asks for: {'; '.join(asks)}"]
    for run in job.launches:
        word = run.option("nproc-per-node")
        if run.kind != "torchrun":
            continue
        ranks = job.resolve_int(word.raw) if word else 1
        if ranks and nodes and run.step is not None and (each := job.step_tasks_per_node(run.step)):
            lines.append(f"starts: {nodes * each * ranks} ranks = {nodes} nodes x {each * ranks}")
    for step in job.steps:
        plain = not any(run.step is step for run in job.launches) and step.works
        each = job.step_tasks_per_node(step)
        if plain and each and (count := job.step_nodes(step)):
            lines.append(f"starts: {count * each} tasks = {count} nodes x {each}, in line {step.line}")
    return lines
