"""Traps of a job file's head: the `#SBATCH` lines, what they ask for, where the output goes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from frog.jobfile.cluster import ClusterProfile
from frog.jobfile.directives import GivenOption, time_limit_s, write_time
from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.job import JobFile

_NUMBERS = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "gpus", "gpus-per-task")


def header_findings(job: JobFile, profile: ClusterProfile | None, places: Sequence[Path]) -> Iterator[Finding]:
    """Everything about the head; `places` are where sbatch may be called."""
    yield from _first_line(job)
    yield from _comments_that_look_like_directives(job)
    yield from _unread(job)
    yield from _options(job)
    yield from _total_gpus(job)
    yield from _gpus_per_node(job, profile)
    yield from _time(job, profile)
    yield from _output(job, places)
    if profile is not None:
        yield from _against_profile(job, profile)


def _first_line(job: JobFile) -> Iterator[Finding]:
    if not job.lines or not job.lines[0].startswith("#!"):
        yield make_finding("no-shebang", 1, "the first line does not name a shell")
    first = next((number for number, line in enumerate(job.lines, 1) if line.endswith("\r")), None)
    if first is not None:
        yield make_finding("dos-lines", first, "lines end as on Windows (CR LF)")


def _comments_that_look_like_directives(job: JobFile) -> Iterator[Finding]:
    for number, line in enumerate(job.lines, 1):
        match = re.match(r"(\s*)(#+)(\s*)SBATCH\s+(-.*)", line)
        if match is None:
            if small := re.match(r"#(sbatch|Sbatch)\s+(-.*)", line):
                yield make_finding(
                    "not-a-directive", number, f"#{small[1]} in small letters is a comment", rest=small[2].strip()
                )
            continue
        indent, hashes, space, rest = match.groups()
        if len(hashes) > 1:
            yield make_finding("switched-off", number, f"{hashes}SBATCH is a comment")
        elif space or indent:
            place = "a space after '#'" if space else "spaces before '#'"
            yield make_finding("not-a-directive", number, f"with {place} this is a comment", rest=rest.strip())


def _unread(job: JobFile) -> Iterator[Finding]:
    first = min((command.line for command in job.shell.commands), default=0)
    for line in job.directives:
        if not line.read:
            yield make_finding("after-a-command", line.line, "it comes after the first command", first=first)


def _options(job: JobFile) -> Iterator[Finding]:
    seen: dict[str, GivenOption] = {}
    for line in job.directives:
        if line.problem:
            yield make_finding("not-an-option", line.line, line.problem, instead=None)
        for asked in line.asked:
            yield from _option(asked)
            if not line.read:
                continue
            if asked.option and asked.name in seen:
                yield make_finding(
                    "said-twice", asked.line, f"--{asked.name} also stands in line {seen[asked.name].line}"
                )
            seen[asked.name] = asked
    if (mem := seen.get("mem")) and (other := seen.get("mem-per-cpu")):
        yield make_finding("two-memories", max(mem.line, other.line), "--mem and --mem-per-cpu")


def _option(asked: GivenOption) -> Iterator[Finding]:
    written = f"{asked.written}={asked.value}" if asked.value else asked.written
    if asked.problem:
        instead = asked.instead
        if instead and asked.value and "=" not in instead and " " not in instead:
            instead = f"{instead}={asked.value}"
        yield make_finding("not-an-option", asked.line, f"{asked.written}: {asked.problem}", instead=instead)
    elif asked.value and "$" in asked.value:
        yield make_finding("variable-in-directive", asked.line, f"{written}: a variable")
    elif asked.name in _NUMBERS and asked.value and not re.search(r"\d$", asked.value):
        yield make_finding("not-a-number", asked.line, f"{written}: not a number")


def _total_gpus(job: JobFile) -> Iterator[Finding]:
    total, nodes = job.asks("gpus"), job.nodes
    if total is None or not total.value or nodes == 1:
        return
    match = re.search(r"(\d+)$", total.value)
    even = match and nodes and int(match[1]) % nodes == 0
    yield make_finding(
        "total-gpus",
        total.line,
        f"{total.written} {total.value} is for the whole job of {nodes or 'several'} nodes",
        why="Slurm may deal them out unevenly, and torchrun starts as many ranks on every node",
        instead=f"--gpus-per-node={int(match[1]) // nodes if match and nodes and even else 'N'}",
    )


def _gpus_per_node(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    asked, gpus, nodes = job.gpu_directive, job.gpus_per_node, job.nodes
    if asked is None or asked.name == "gpus" or not gpus:
        return
    written = f"--{asked.name}={asked.value}"
    if profile and profile.gpus_per_node and gpus > profile.gpus_per_node:
        yield make_finding(
            "total-gpus",
            asked.line,
            f"{written} asks for {gpus} GPUs on each node; {profile.name} has {profile.gpus_per_node}",
            why="the number is for each node: the job would wait for ever or be refused",
            instead=_with_number(written, gpus, profile.gpus_per_node),
        )
        return
    ranks = [job.resolve_int(word.raw) for run in job.torchruns if (word := run.option("nproc-per-node"))]
    if nodes and nodes > 1 and any(number and number * nodes == gpus for number in ranks):
        yield make_finding(
            "total-gpus",
            asked.line,
            f"{written} asks for {gpus} GPUs on each of {nodes} nodes, but each starts {gpus // nodes} ranks",
            why=f"the number is for each node: you would hold {gpus * nodes} GPUs, and use {gpus}",
            instead=_with_number(written, gpus, gpus // nodes),
        )


def _with_number(written: str, old: int, new: int) -> str:
    return re.sub(rf"{old}\b(?!.*\d)", str(new), written)


def _time(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    asked = job.asks("time")
    if asked is None:
        yield make_finding("no-time-limit", 1, "no --time")
        return
    try:
        limit_s = time_limit_s(asked.value or "")
    except ValueError:
        yield make_finding("not-a-time", asked.line, f"{asked.written} {asked.value}: not a time")
        return
    if limit_s is not None and re.fullmatch(r"\d+:\d+", asked.value or ""):
        yield make_finding(
            "minutes-seconds", asked.line, f"{asked.value} is minutes and seconds: {write_time(limit_s)}"
        )
    longest_s = profile.max_time_s(job.text("qos")) if profile else None
    if profile and longest_s and (limit_s is None or limit_s > longest_s):
        what = f"{asked.value}: longer than {profile.name} lets a job run"
        yield make_finding("time-limit-too-long", asked.line, what, longest=write_time(longest_s))


def _output(job: JobFile, places: Sequence[Path]) -> Iterator[Finding]:
    for name in ("output", "error"):
        asked = job.asks(name)
        if asked is None or not asked.value or asked.value == "/dev/null" or "$" in asked.value:
            continue
        if not re.search(r"%\d*[jAJ]", asked.value):
            what = f"{asked.written} {asked.value}: every job writes this same file"
            yield make_finding("output-overwritten", asked.line, what, name=name, instead=_with_job(asked.value))
        folder = Path(asked.value).parent
        if "%" in str(folder) or any((place / (job.text("chdir") or "") / folder).is_dir() for place in places):
            continue
        code = "output-folder-elsewhere" if folder.is_absolute() or job.asks("chdir") else "no-output-folder"
        yield make_finding(code, asked.line, f"{folder}/ does not exist here", folder=folder)


def _with_job(value: str) -> str:
    stem, dot, ending = value.rpartition(".")
    return f"{stem}-%j.{ending}" if dot and "/" not in ending else f"{value}-%j"


def _against_profile(job: JobFile, profile: ClusterProfile) -> Iterator[Finding]:
    if profile.account_required and job.asks("account") is None:
        yield make_finding("no-account", 1, "no --account", cluster=profile.name)
    if profile.qos is not None and job.asks("qos") is None:
        yield make_finding("no-qos", 1, "no --qos", cluster=profile.name, qos=profile.qos)
    most, nodes = profile.max_nodes_of(job.text("qos")), job.asks("nodes")
    if most and nodes and (job.nodes or 0) > most:
        yield make_finding("too-many-nodes", nodes.line, f"{job.nodes} nodes; {profile.name} allows {most}", most=most)
    each, gpus, tasks = profile.cpus_per_gpu, job.gpus_per_node, job.tasks_per_node or 1
    cpus = (job.number("cpus-per-task") or 1) * tasks
    if each and gpus and cpus < gpus * each:
        asked = job.asks("cpus-per-task")
        line = asked.line if asked else 1
        what = f"{cpus} CPUs on each node for {gpus} GPUs"
        yield make_finding("few-cpus", line, what, cluster=profile.name, each=each, right=-(-gpus * each // tasks))
