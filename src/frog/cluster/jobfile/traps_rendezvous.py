"""Traps with the rendezvous: the address and the port where ranks connect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Trap
from frog.cluster.jobfile.job import PER_TASK, JobFile
from frog.cluster.jobfile.launchers import Launch
from frog.cluster.jobfile.shell.words import Word

_RANDOM = re.compile(r"\bS?RANDOM\b|\bshuf\b|\$\$|/dev/u?random|random\.randint|bind\(\s*\(|free_?port")
_LOCAL = re.compile(r"localhost|127(\.\d+){3}|0\.0\.0\.0|::1|\[::1\]")
_OWN_NAME = re.compile(r"\bhostname\b|\$\{?HOSTNAME\b|\buname -n")
_ADDRESSES = re.compile(r"\bhostname\s+(-I|--all-ip-addresses)\s*[)`]")
_OWN_IN_TASK = re.compile(rf"{_OWN_NAME.pattern}|SLURMD_NODENAME|SLURM_LAUNCH_NODE")
_NOT_FIRST = re.compile(r"\btail\b|\bsort\b|\bshuf\b|\bsed -n .?[2-9]|NR\s*==\s*[2-9]|\[(-1|[1-9])\]")
_GROWS = re.compile(r"\$\(\([\d\s+]*\$?\{?SLURM_JOB_?ID\}?[\d\s+]*\)\)|\"?\d*\$\{?SLURM_JOB_?ID\}?\"?")
_WHOLE_LIST = re.compile(r"\"?\$\{?SLURM_(JOB_)?NODELIST\}?\"?")
_ALL_HOSTS = re.compile(r"\"?\$\(\s*scontrol show hostnames? ?\"?(\$\{?SLURM_(JOB_)?NODELIST\}?)?\"?\s*\)\"?")
_CUT = re.compile(
    r"\$\{SLURM_(JOB_)?NODELIST%%?,|\$\{?SLURM_(JOB_)?NODELIST\}?\"?\s*(\||<<<)\s*(cut -d|awk -F|tr) ?['\"]?,"
)
_FOLDED = re.compile(
    r"\"?\$\{?SLURM_(JOB_)?NODELIST(%%?[^}]*)?\}?\"?(:.*)?$|\$SLURM_(JOB_)?NODELIST\s*\|\s*(cut|awk|sed|head)"
)


PORT_FIXED = Trap(
    "port-fixed",
    ADVICE,
    "two jobs on one node collide: address already in use",
    "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun",
)


def rendezvous_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps with the address and the port."""
    if job.several_nodes:
        for raw, line, in_task in _definitions(job, "MASTER_ADDR", "master-addr"):
            yield from _address(job, raw, line, in_task)
    ports = list(_definitions(job, "MASTER_PORT", "master-port"))
    for raw, line, in_task in ports:
        yield from _port(job, raw, line, in_task)
    for run in job.launches:
        plain = run.kind == "torchrun" and run.step is not None and run.alone and not run.option("standalone")
        if plain and not ports and job.several_nodes and job.shares_nodes:
            yield PORT_FIXED.at(run.line, "torchrun without a port: every job uses the default port")
    yield from _cut_lists(job)
    yield from _names_of_meetings(job)
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
        if _CUT.search(item.raw) and "scontrol" not in item.raw:
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


def _names_of_meetings(job: JobFile) -> Iterator[Finding]:
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
    named = all(run.option("standalone") or _given(run, option) for run in job.launches)
    given = set() if named and job.launches else {name}
    for run in job.launches:
        if run.option("standalone"):
            continue
        word = _given(run, option)
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


def _given(run: Launch, option: str) -> Word | None:
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
    elif "scontrol" not in text and _FOLDED.search(text):
        yield NODELIST_FOLDED.at(line, "SLURM_JOB_NODELIST is compressed, like node[01-04]")


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
    if in_task and (_RANDOM.search(text) or Word(text, line).expansions() & PER_TASK or PER_TASK & _words(text)):
        yield PORT_PER_TASK.at(line, "every task chooses its own port")
    elif _RANDOM.search(text):
        return
    elif value is not None and value.isdigit():
        if not 1024 <= int(value[:9]) <= 65535 and value != "0":
            yield PORT_BEYOND.at(line, f"port {value}")
        elif job.shares_nodes and value != "0":
            yield PORT_FIXED.at(line, f"every job uses port {value}")
    elif _GROWS.fullmatch(raw):
        yield PORT_BEYOND.at(line, "the port is computed from the job's number without a limit")


def _words(text: str) -> set[str]:
    """Return the names in an arithmetic expression, where no dollar is needed."""
    return set(re.findall(r"[A-Za-z_]\w*", text))
