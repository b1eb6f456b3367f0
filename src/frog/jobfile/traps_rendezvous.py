"""Traps of the rendezvous: the address and the port at which ranks meet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.job import PER_TASK, JobFile
from frog.jobfile.launchers import Launch
from frog.shell.words import Word

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


def rendezvous_findings(job: JobFile) -> Iterator[Finding]:
    """Everything about address and port."""
    if job.several_nodes:
        for raw, line, in_task in _definitions(job, "MASTER_ADDR", "master-addr"):
            yield from _address(job, raw, line, in_task)
    ports = list(_definitions(job, "MASTER_PORT", "master-port"))
    for raw, line, in_task in ports:
        yield from _port(job, raw, line, in_task)
    for run in job.launches:
        plain = run.kind == "torchrun" and run.step is not None and run.alone and not run.option("standalone")
        if plain and not ports and job.several_nodes and job.shares_nodes:
            yield make_finding("port-fixed", run.line, "torchrun without a port: every job meets at its default")
    yield from _cut_lists(job)
    yield from _names_of_meetings(job)
    yield from _loopback(job)


def _cut_lists(job: JobFile) -> Iterator[Finding]:
    """A host's name cut off a folded list, whatever it is for."""
    for item in job.assignments if job.several_nodes else ():
        if _CUT.search(item.raw) and "scontrol" not in item.raw:
            yield make_finding("nodelist-folded", item.line, "SLURM_JOB_NODELIST is folded, like node[01-04]")
        elif item.items and len(item.items) == 1 and _WHOLE_LIST.fullmatch(_followed(job, item.items[0].raw)):
            what = f"{item.name} has one item: SLURM_JOB_NODELIST is folded, like node[01-04]"
            yield make_finding("nodelist-folded", item.line, what)


def _names_of_meetings(job: JobFile) -> Iterator[Finding]:
    for run in job.launches:
        word = run.option("rdzv-id")
        if (
            word is not None
            and job.several_nodes
            and run.in_task(word)
            and _RANDOM.search(job.with_definitions(word.raw))
        ):
            yield make_finding("meeting-per-task", word.line, "every node takes a rendezvous id of its own")


def _loopback(job: JobFile) -> Iterator[Finding]:
    for item in (*job.assignments, *job.task_assignments):
        if (
            item.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
            and item.word.text in ("lo", "=lo")
            and job.several_nodes
        ):
            yield make_finding("loopback", item.line, f"{item.name}={item.word.text} on {job.nodes} nodes")


def _definitions(job: JobFile, name: str, option: str) -> Iterator[tuple[str, int, bool]]:
    """Each value given for an address or a port: as written, its line, and whether each task works it out itself."""
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
    """What torchrun is given as address or port, be it a part of its endpoint."""
    if word := run.option(option):
        return word
    endpoint = run.option("rdzv-endpoint")
    if endpoint is None:
        return None
    host, colon, port = endpoint.raw.strip("\"'").rpartition(":")
    if option == "master-port":
        return Word(port, endpoint.line) if colon else None
    return Word(host if colon else port, endpoint.line)


def _address(job: JobFile, raw: str, line: int, in_task: bool) -> Iterator[Finding]:
    text, value = job.with_definitions(raw), job.resolve(raw)
    if value is not None and _LOCAL.fullmatch(value):
        yield make_finding("head-localhost", line, f"the ranks meet at {value}")
    elif in_task and _OWN_IN_TASK.search(text):
        yield make_finding("head-of-its-own", line, "every task takes its own host for the rendezvous")
    elif "scontrol" in text and _NOT_FIRST.search(text):
        yield make_finding("head-not-node-0", line, "the rendezvous is not at the first host of the allocation")
    elif _ALL_HOSTS.fullmatch(_followed(job, raw)):
        yield make_finding("many-hosts", line, "the ranks meet at the names of all hosts at once")
    elif _ADDRESSES.search(raw):
        yield make_finding("many-addresses", line, "the ranks meet at all addresses of a host at once")
    elif "scontrol" not in text and _FOLDED.search(text):
        yield make_finding("nodelist-folded", line, "SLURM_JOB_NODELIST is folded, like node[01-04]")


def _followed(job: JobFile, raw: str) -> str:
    """The text that a variable alone stands for."""
    for _ in range(3):
        match = re.fullmatch(r"\"?\$\{?(\w+)\}?\"?", raw)
        item = job.assigned(match[1]) if match else None
        if item is None or item.items is not None:
            return raw
        raw = item.raw
    return raw


def _port(job: JobFile, raw: str, line: int, in_task: bool) -> Iterator[Finding]:
    text, value = job.with_definitions(raw), job.resolve(raw)
    if in_task and (_RANDOM.search(text) or Word(text, line).expansions() & PER_TASK or PER_TASK & _words(text)):
        yield make_finding("port-per-task", line, "every task chooses its own port")
    elif _RANDOM.search(text):
        return
    elif value is not None and value.isdigit():
        if not 1024 <= int(value[:9]) <= 65535 and value != "0":
            yield make_finding("port-beyond", line, f"port {value}")
        elif job.shares_nodes and value != "0":
            yield make_finding("port-fixed", line, f"every job meets at port {value}")
    elif _GROWS.fullmatch(raw):
        yield make_finding("port-beyond", line, "the port grows with the job's number")


def _words(text: str) -> set[str]:
    """Names as arithmetic takes them, without a dollar."""
    return set(re.findall(r"[A-Za-z_]\w*", text))
