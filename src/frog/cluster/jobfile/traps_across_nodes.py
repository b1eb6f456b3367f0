"""Traps with what every node must see: one rendezvous address and port, the script's variables, and its files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job_file import PER_TASK, JobFile
from frog.cluster.jobfile.launchers import Launch, SrunStep, program_at
from frog.cluster.jobfile.shell_words import Assignment, Word

_RANDOM = re.compile(r"\bS?RANDOM\b|\bshuf\b|\$\$|/dev/u?random|random\.randint|bind\(\s*\(|free_?port")
_LOCAL = re.compile(r"localhost|127(\.\d+){3}|0\.0\.0\.0|::1|\[::1\]")
_OWN_NAME = re.compile(r"\bhostname\b|\$\{?HOSTNAME\b|\buname -n")
_ADDRESSES = re.compile(r"\bhostname\s+(-I|--all-ip-addresses)\s*[)`]")
_OWN_IN_TASK = re.compile(rf"{_OWN_NAME.pattern}|SLURMD_NODENAME|SLURM_LAUNCH_NODE")
_NOT_FIRST = re.compile(r"\btail\b|\bsort\b|\bshuf\b|\bsed -n .?[2-9]|NR\s*==\s*[2-9]|\[(-1|[1-9])\]")
_UNBOUNDED = re.compile(r"\$\(\([\d\s+]*\$?\{?SLURM_JOB_?ID\}?[\d\s+]*\)\)|\"?\d*\$\{?SLURM_JOB_?ID\}?\"?")
_WHOLE_LIST = re.compile(r"\"?\$\{?SLURM_(JOB_)?NODELIST\}?\"?")
_ALL_HOSTS = re.compile(r"\"?\$\(\s*scontrol show hostnames? ?\"?(\$\{?SLURM_(JOB_)?NODELIST\}?)?\"?\s*\)\"?")
_CUT_LIST = re.compile(
    r"\$\{SLURM_(JOB_)?NODELIST%%?,|\$\{?SLURM_(JOB_)?NODELIST\}?\"?\s*(\||<<<)\s*(cut -d|awk -F|tr) ?['\"]?,"
)
_COMPRESSED_LIST = re.compile(
    r"\"?\$\{?SLURM_(JOB_)?NODELIST(%%?[^}]*)?\}?\"?(:.*)?$|\$SLURM_(JOB_)?NODELIST\s*\|\s*(cut|awk|sed|head)"
)


def node_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps with the rendezvous, the variables and the files of a job that starts one world."""
    yield from _rendezvous_findings(job)
    yield from _early_in_steps(job)
    yield from _early_in_script(job)
    yield from _written_too_early(job)
    yield from _not_exported(job)
    for step in job.steps:
        yield from _export_without_all(step)
    yield from _files_of_first_node(job)


PORT_FIXED = Trap(
    "port-fixed",
    ADVICE,
    "two jobs on one node collide: address already in use",
    "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun",
)


def _rendezvous_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps with the address and the port."""
    for raw, line, in_task in _definitions(job, "MASTER_ADDR", "master-addr"):
        if job.several_nodes:
            yield from _address(job, raw, line, in_task)
        yield from _fixed_address(job, raw, line)
    ports = list(_definitions(job, "MASTER_PORT", "master-port"))
    for raw, line, in_task in ports:
        yield from _port(job, raw, line, in_task)
    for run in job.launches:
        plain = run.kind == "torchrun" and run.step is not None and run.direct and not run.option("standalone")
        if plain and not ports and job.several_nodes and job.shares_nodes:
            yield PORT_FIXED.at(run.line, "torchrun without a port: every job uses the default port")
    yield from _cut_lists(job)
    yield from _rendezvous_ids(job)
    yield from _loopback(job)


NODELIST_FOLDED = Trap(
    "nodelist-folded",
    FAILS,
    "splitting it at commas gives names that no host has",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
)


def _cut_lists(job: JobFile) -> Iterator[Finding]:
    """Find a host name cut from a compressed node list, whatever its use."""
    for item in job.assignments if job.several_nodes else ():
        if _CUT_LIST.search(item.raw) and "scontrol" not in item.raw:
            yield NODELIST_FOLDED.at(item.line, "SLURM_JOB_NODELIST is compressed, like node[01-04]")
        elif item.items and len(item.items) == 1 and _WHOLE_LIST.fullmatch(_followed(job, item.items[0].raw)):
            what = f"{item.name} has one item: SLURM_JOB_NODELIST is compressed, like node[01-04]"
            yield NODELIST_FOLDED.at(item.line, what)


RENDEZVOUS_PER_TASK = Trap(
    "meeting-per-task",
    FAILS,
    "each node waits for others under an id that no other node uses",
    '--rdzv-id="$SLURM_JOB_ID"',
)


def _rendezvous_ids(job: JobFile) -> Iterator[Finding]:
    for run in job.launches:
        word = run.option("rdzv-id")
        if (
            word is not None
            and job.several_nodes
            and run.in_task(word)
            and _RANDOM.search(job.with_definitions(word.raw))
        ):
            yield RENDEZVOUS_PER_TASK.at(word.line, "every node uses its own rendezvous id")


LOOPBACK = Trap(
    "loopback",
    FAILS,
    "lo does not reach other nodes: their ranks wait until they time out",
    "remove it, or name the interface that connects the nodes, such as ib0 or eth0",
)


def _loopback(job: JobFile) -> Iterator[Finding]:
    for item in (*job.assignments, *job.task_assignments):
        if (
            item.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
            and item.word.text in ("lo", "=lo")
            and job.several_nodes
        ):
            yield LOOPBACK.at(item.line, f"{item.name}={item.word.text} on {job.nodes} nodes")


def _definitions(job: JobFile, name: str, option: str) -> Iterator[tuple[str, int, bool]]:
    """Yield each value of an address or a port: its text, its line, and whether each task computes it."""
    named = all(run.option("standalone") or _option_or_endpoint(run, option) for run in job.launches)
    given = set() if named and job.launches else {name}
    for run in job.launches:
        if run.option("standalone"):
            continue
        word = _option_or_endpoint(run, option)
        if word is None:
            continue
        inner = word.expansions() - PER_TASK - {"RANDOM"}
        given |= {each for each in inner if job.assigned(each)}
        if not inner:
            yield word.raw, word.line, run.in_task(word)
    for assignments, in_task in ((job.assignments, False), (job.task_assignments, True)):
        for item in assignments:
            if item.name in given:
                yield item.raw, item.line, in_task


def _option_or_endpoint(run: Launch, option: str) -> Word | None:
    """Return torchrun's address or port: that of the option, else the part of its endpoint."""
    if word := run.option(option):
        return word
    endpoint = run.option("rdzv-endpoint")
    if endpoint is None:
        return None
    host, colon, port = endpoint.raw.strip("\"'").rpartition(":")
    if option == "master-port":
        return Word(port, endpoint.line) if colon else None
    return Word(host if colon else port, endpoint.line)


HEAD_LOCALHOST = Trap(
    "head-localhost",
    FAILS,
    "every node looks for rank 0 on itself and waits",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
)
HEAD_OF_ITS_OWN = Trap(
    "head-of-its-own",
    WASTES,
    "srun runs this on each node, so each node becomes its own rendezvous host",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
)
HEAD_NOT_NODE_0 = Trap(
    "head-not-node-0",
    WASTES,
    "SLURM_NODEID 0, and therefore rank 0, is on the first node and must listen where the others connect",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
)
MANY_HOSTS = Trap(
    "many-hosts",
    FAILS,
    "scontrol prints all of them, one per line, which is not an address",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
)
MANY_ADDRESSES = Trap(
    "many-addresses",
    WASTES,
    "hostname -I prints one address per network, separated by spaces, which is not one address",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
)


def _address(job: JobFile, raw: str, line: int, in_task: bool) -> Iterator[Finding]:
    text, value = job.with_definitions(raw), job.resolve(raw)
    if value is not None and _LOCAL.fullmatch(value):
        yield HEAD_LOCALHOST.at(line, f"the ranks connect to {value}")
    elif in_task and _OWN_IN_TASK.search(text):
        yield HEAD_OF_ITS_OWN.at(line, "every task uses its own host for the rendezvous")
    elif "scontrol" in text and _NOT_FIRST.search(text):
        yield HEAD_NOT_NODE_0.at(line, "the rendezvous is not on the first host of the allocation")
    elif _ALL_HOSTS.fullmatch(_followed(job, raw)):
        yield MANY_HOSTS.at(line, "the rendezvous address is the list of all hosts")
    elif _ADDRESSES.search(raw):
        yield MANY_ADDRESSES.at(line, "the rendezvous address is the list of all addresses of a host")
    elif "scontrol" not in text and _COMPRESSED_LIST.search(text):
        yield NODELIST_FOLDED.at(line, "SLURM_JOB_NODELIST is compressed, like node[01-04]")


HEAD_FIXED = Trap(
    "head-fixed",
    WASTES,
    "Slurm chooses the nodes of each job: rank 0 runs on another host, and the ranks wait until they time out",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
)
_HOST = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9.-]*|\d{1,3}(\.\d{1,3}){3}")


def _fixed_address(job: JobFile, raw: str, line: int) -> Iterator[Finding]:
    """Find the name or the number of one host, in a job that does not ask for that host."""
    value = job.resolve(raw)
    if value is None or not _HOST.fullmatch(value) or _LOCAL.fullmatch(value) or job.in_allocation:
        return
    fixed = _followed(job, raw).strip("\"'")
    if fixed == value and job.option("nodelist") is None:
        yield HEAD_FIXED.at(line, f"the ranks connect to {value}, in every job")


def _followed(job: JobFile, raw: str) -> str:
    """Return the text of the variable that a word consists of."""
    for _ in range(3):
        match = re.fullmatch(r"\"?\$\{?(\w+)\}?\"?", raw)
        item = job.assigned(match[1]) if match else None
        if item is None or item.items is not None:
            return raw
        raw = item.raw
    return raw


PORT_PER_TASK = Trap(
    "port-per-task",
    FAILS,
    "srun runs this for each task, so each task waits on a different port",
    "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun",
)
PORT_BEYOND = Trap(
    "port-beyond",
    WASTES,
    "user ports range from 1024 to 65535",
    "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun",
)


def _port(job: JobFile, raw: str, line: int, in_task: bool) -> Iterator[Finding]:
    text, value = job.with_definitions(raw), job.resolve(raw)
    if in_task and (_RANDOM.search(text) or Word(text, line).expansions() & PER_TASK or PER_TASK & _names_in(text)):
        yield PORT_PER_TASK.at(line, "every task chooses its own port")
    elif _RANDOM.search(text):
        return
    elif value is not None and value.isdigit():
        if not 1024 <= int(value[:9]) <= 65535 and value != "0":
            yield PORT_BEYOND.at(line, f"port {value}")
        elif job.shares_nodes and value != "0":
            yield PORT_FIXED.at(line, f"every job uses port {value}")
    elif _UNBOUNDED.fullmatch(raw):
        yield PORT_BEYOND.at(line, "the port is computed from the job's number without a limit")


def _names_in(text: str) -> set[str]:
    """Return the names in an arithmetic expression, where no dollar is needed."""
    return set(re.findall(r"[A-Za-z_]\w*", text))


_TOO_EARLY = PER_TASK - {"SLURMD_NODENAME"}
"""Per-task variables except the node's name: the first node's name may be intended, because rank 0 runs there."""


def _early_in_steps(job: JobFile) -> Iterator[Finding]:
    """Find per-task variables on an srun line, which the batch script's shell expands."""
    for step in job.steps:
        single_task = (job.step_nodes(step) or 1, job.step_tasks_per_node(step) or 1) == (1, 1)
        if single_task and not _nodes_set_on_command_line(job, step):
            continue
        one_on_each = job.step_tasks_per_node(step) == 1
        for word in step.program:
            for name in sorted(word.expansions() & _TOO_EARLY):
                if name in _unread_node_ranks(job) and len(re.findall(rf"\$\{{?{name}\b", word.raw)) == 1:
                    continue
                if name == "SLURM_LOCALID" and one_on_each:
                    continue
                where = "in double quotes" if word is step.script_word else "on the srun line"
                yield _early(name, word.line_of(name), f"${name} {where}")


def _nodes_set_on_command_line(job: JobFile, step: SrunStep) -> bool:
    """True if the command line sets the number of nodes and the launcher reads it from Slurm."""
    counts = [run.option("nnodes") for run in job.launches if run.step is step]
    return job.option("nodes") is None and any(word and job.resolve_int(word.raw) is None for word in counts)


def _unread_node_ranks(job: JobFile) -> set[str]:
    """Return the names of variables in a --node-rank that no launcher reads."""
    return {name for run in job.launches if not run.reads_node_rank and (word := run.option("node-rank"))
            for name in word.expansions()}  # fmt: skip


def _early_in_script(job: JobFile) -> Iterator[Finding]:
    """Find the same mistake in a script variable that a task then uses."""
    spans = any(_nodes_set_on_command_line(job, step) for step in job.steps)
    if not job.several_nodes and job.tasks_per_node == 1 and not spans:
        return
    plain = any(job.is_rank(step) for step in job.steps)
    words = [word for step in job.steps for word in step.command.words]
    words += [word for step in job.steps for command in step.script_commands for word in command.words]
    used = {name for word in words for name in word.expansions()}
    used |= {name for item in job.assignments if item.name in used for name in item.word.expansions()}
    used -= {item.name for item in job.task_assignments} | _unread_node_ranks(job)
    one_on_each = all(job.step_tasks_per_node(step) == 1 for step in job.steps)
    early = _TOO_EARLY - {"SLURM_LOCALID"} if one_on_each else _TOO_EARLY  # SLURM_LOCALID is 0 on every node there
    if plain and job.launches == []:
        used |= job.exported & {"RANK", "LOCAL_RANK"}
    for assignment in job.assignments:
        if assignment.name in used and not assignment.conditional:
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


_OF_TASK = re.compile(r"(?<!\\)\$\{?(SLURM_NODEID|SLURM_PROCID|SLURM_LOCALID)\b")
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


NOT_EXPORTED = Trap("not-exported", WASTES, "the tasks see an empty value", "export {name}", needs_all_lines=True)


def _not_exported(job: JobFile) -> Iterator[Finding]:
    """Find script variables that a task reads but does not receive."""
    given = {item.name for item in job.task_assignments} | job.exported
    scripted = {item.name: item for item in job.assignments if not item.conditional}
    for step in job.steps:
        if step.script_word is None:
            continue
        expanded_here = Word(job.with_definitions(step.script_word.raw), 0).expansions()
        given_here = given | {item.name for item in step.command.assignments} | expanded_here
        given_here |= {
            name for asked in step.options if asked.name == "export" for name in re.findall(r"\w+", asked.value or "")
        }
        for word in (word for command in step.commands for word in command.words):
            for name in sorted(word.expansions() & scripted.keys() - given_here):
                what = f"{name} is not exported, but a task reads it in line {word.line_of(name)}"
                yield NOT_EXPORTED.at(scripted[name].line, what, name=name)
    yield from _rendezvous_not_exported(job, scripted)


def _rendezvous_not_exported(job: JobFile, scripted: dict[str, Assignment]) -> Iterator[Finding]:
    """Find MASTER_ADDR and MASTER_PORT set but not exported where each task is a rank and reads them itself."""
    plain = [step for step in job.steps if job.is_rank(step)]
    read = {name for command in job.shell.all_commands for word in command.words for name in word.expansions()
            if command.name not in ("echo", "printf")}  # fmt: skip
    read |= {name for item in job.assignments for name in item.word.expansions()}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        passed = name in job.exported or any(item.name == name for step in plain for item in step.command.assignments)
        if plain and name in scripted and not passed and name not in read:
            yield NOT_EXPORTED.at(scripted[name].line, f"{name} is set, but not exported", name=name)


EXPORT_WITHOUT_ALL = Trap(
    "export-without-all",
    WASTES,
    "the tasks get only these variables and Slurm's: no PATH, no MASTER_ADDR",
    "srun --export=ALL,{value}",
)


def _export_without_all(step: SrunStep) -> Iterator[Finding]:
    """Find `srun --export=NAME=value` without ALL."""
    asked = step.option("export")
    names = [part.partition("=")[0] for part in (asked.value or "").split(",")] if asked else []
    plain = names and all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names)
    if asked and plain and step.works and not {"ALL", "NONE", "NIL", "PATH"} & {name.upper() for name in names}:
        own_path = step.option("container-image") or (step.program and step.program[0].text.startswith("/"))
        kind: Kind | None = "advice" if own_path else None
        yield EXPORT_WITHOUT_ALL.at(step.line, f"srun --export={asked.value}", kind, value=asked.value)


_CONTAINER_ENGINES = ("docker", "podman", "nerdctl")
"""Container programs that store images on the node's local disk."""
_LOCAL_PATH = re.compile(r"(?:/tmp|/dev/shm)/[\w$.-][^\s\"':,;)]*|\$(?:SLURM_TMPDIR|TMPDIR)\b[^\s\"':,;)]*")
_WRITES_TO_LAST_WORD = ("cp", "rsync", "mv", "virtualenv")
_WRITES_TO_OPTION = {"tar": "-C", "unzip": "-d", "wget": "-[OP]", "curl": "-o", "enroot": "-o|--output"}

ON_FIRST_NODE_ONLY = Trap(
    "on-first-node-only",
    WASTES,
    "the batch script runs on the first node only: the other nodes do not have it, and the first waits for them",
    "srun --ntasks-per-node=1 {command}",
)


def _files_of_first_node(job: JobFile) -> Iterator[Finding]:
    """Find files and images that only the first node gets."""
    steps = [step for step in job.steps if (job.step_nodes(step) or 1) > 1]
    if not steps:
        return
    starts = [command for step in steps for command in step.commands]
    runs = {
        command.words[place].base for command in starts if (place := program_at(command.words)) < len(command.words)
    }
    read = [word.raw for command in starts for word in command.words]
    if any(step.works for step in steps):  # it finds Python through this shell's PATH
        read += [word.raw for item in job.shell.commands if item.name in ("source", ".") for word in item.words]
    used = _resolved_text(job, " ".join(read))
    for command in job.shell.commands:
        words = command.words[program_at(command.words) :]
        if not words or words[0].base == "srun" or command.context.calls:
            continue
        name = words[0].base
        if name in _CONTAINER_ENGINES and name in runs and _builds(words):
            what = f"{name} {words[1].text}: only the first node gets the image"
            yield ON_FIRST_NODE_ONLY.at(command.line, what, command=f"{name} {words[1].text} ...")
        elif (path := _local_target(job, words)) and path in used:
            what = f"{path} is on the first node's local disk"
            yield ON_FIRST_NODE_ONLY.at(command.line, what, command=f"{name} ...")


def _builds(words: tuple[Word, ...]) -> bool:
    """True if the command creates an image that no registry has."""
    named = {word.text for word in words[1:3]}
    return bool(named & {"build", "load", "import"}) and not any(word.text == "--push" for word in words)


def _local_target(job: JobFile, words: tuple[Word, ...]) -> str | None:
    """Return the path in a node-local folder that a command writes to, or None."""
    name, target = words[0].base, None
    if name in _WRITES_TO_LAST_WORD:
        target = words[-1]
    elif name in _WRITES_TO_OPTION:
        places = (place for place, word in enumerate(words[:-1]) if re.fullmatch(_WRITES_TO_OPTION[name], word.text))
        target = next((words[place + 1] for place in places), None)
    elif name in ("apptainer", "singularity") and len(words) > 2 and words[1].text in ("pull", "build"):
        target = next((word for word in words[2:] if word.text[:1] != "-"), None)
    elif re.fullmatch(r"python[\d.]*", name) and [word.text for word in words[1:3]] == ["-m", "venv"]:
        target = words[-1]
    match = _LOCAL_PATH.search(_resolved_text(job, target.raw)) if target else None
    return match[0].rstrip("/") if match else None


def _resolved_text(job: JobFile, raw: str) -> str:
    """Return the words with their variables resolved, and `${NAME}` written as `$NAME`."""
    return re.sub(r"\$\{(\w+)\}", r"$\1", job.with_definitions(raw))
