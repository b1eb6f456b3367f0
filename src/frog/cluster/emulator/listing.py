"""squeue and sinfo: the daemon's state in Slurm's columns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from frog.cluster.emulator.commandline import CommandLine, parse_command_line
from frog.cluster.emulator.emulated_job import CANCELLED, COMPLETED, FAILED, SHORT_STATES, TIMEOUT, is_called
from frog.cluster.emulator.notation import compress_hosts, compress_numbers, write_elapsed, write_moment
from frog.cluster.emulator.refusal import SlurmRefusal, unknown
from frog.cluster.emulator.wire import Client
from frog.core.terminal import printable

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], object]]

_ENDED = (COMPLETED, FAILED, CANCELLED, TIMEOUT)
_STATE_HELP = "Valid job states include: " + ",".join(SHORT_STATES)
_SQUEUE = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"


def _limit(job: Row) -> str:
    minutes = job["limit_min"]
    return "UNLIMITED" if minutes is None else write_elapsed(60 * minutes)


def _start(job: Row) -> str:
    return "N/A" if job["started_s"] is None else write_moment(job["started_s"])


_JOB_COLUMNS: dict[str, Column] = {
    "A": ("JOBID", lambda job: job["id"]),
    "i": ("JOBID", lambda job: job["label"]),
    "F": ("ARRAY_JOB_ID", lambda job: job["array_job"] or job["id"]),
    "K": ("ARRAY_TASK_ID", lambda job: "N/A" if job["array_task"] is None else job["array_task"]),
    "P": ("PARTITION", lambda job: job["partition"]),
    "j": ("NAME", lambda job: job["name"]),
    "u": ("USER", lambda job: job["user"]),
    "a": ("ACCOUNT", lambda job: job["account"] or "(null)"),
    "k": ("COMMENT", lambda job: job["comment"] or "(null)"),
    "t": ("ST", lambda job: SHORT_STATES[job["state"]]),
    "T": ("STATE", lambda job: job["state"]),
    "M": ("TIME", lambda job: write_elapsed(job["elapsed_s"])),
    "l": ("TIME_LIMIT", _limit),
    "D": ("NODES", lambda job: job["num_nodes"]),
    "C": ("CPUS", lambda job: job["num_cpus"]),
    "N": ("NODELIST", lambda job: job["hosts"]),
    "r": ("REASON", lambda job: job["reason"]),
    "R": (
        "NODELIST(REASON)",
        lambda job: f"({job['reason']})" if job["state"] in ("PENDING", *_ENDED) else job["hosts"],
    ),
    "E": ("DEPENDENCY", lambda job: job["dependency"]),
    "S": ("START_TIME", _start),
    "V": ("SUBMIT_TIME", lambda job: write_moment(job["submitted_s"])),
    "Z": ("WORK_DIR", lambda job: job["work_dir"]),
}


def squeue(client: Client, words: Sequence[str]) -> int:
    """List the jobs that have not ended; with --states also ended jobs."""
    given = parse_command_line(
        "squeue",
        words,
        {"noheader": "h-", "array": "r-", "all": "a-", "me": ".-", "jobs": "j=", "name": "n=", "states": "t=",
         "user": "u=", "format": "o="},
    )  # fmt: skip
    jobs = client.ask("look")["jobs"]
    if given.words:
        raise unknown(f"{given.words[0]!r} after squeue")
    _check_names(given, jobs)
    chosen = [job for job in jobs if _is_wanted(job, given)]
    rows = chosen if "array" in given.options else list(_with_arrays_together(chosen))
    rows.sort(
        key=lambda job: ("COMPLETING", "PENDING", "RUNNING").index(job["state"]) if job["state"] not in _ENDED else -1
    )
    _print(rows, given.options.get("format") or _SQUEUE, _JOB_COLUMNS, "squeue", head="noheader" not in given.options)
    return 0


def _check_names(given: CommandLine, jobs: Sequence[Row]) -> None:
    """Select jobs by number. A single unknown job is an error; among several jobs, unknown ones are skipped."""
    names = (given.options["jobs"] or "").split(",") if "jobs" in given.options else []
    for name in names:
        if not re.fullmatch(r"\d+(_\d+)?", name):
            raise SlurmRefusal(f"Invalid job id: {name}")
    if len(names) == 1 and not any(_is_called(job, names[0]) for job in jobs):
        raise SlurmRefusal("slurm_load_jobs error: Invalid job id specified", plain=True)


def _is_wanted(job: Row, given: CommandLine) -> bool:
    options = given.options
    if "jobs" in options and not any(_is_called(job, name) for name in (options["jobs"] or "").split(",")):
        return False
    states = _states(options["states"] or "") if "states" in options else None
    if states is None and job["state"] in _ENDED:
        return False
    if states is not None and job["state"] not in states:
        return False
    if "name" in options and job["name"] not in (options["name"] or "").split(","):
        return False
    return "user" not in options or job["user"] in (options["user"] or "").split(",")


def _is_called(job: Row, text: str) -> bool:
    return is_called(text, job["label"], job["id"], job["array_job"])


def _states(text: str) -> set[str]:
    long = {short: name for name, short in SHORT_STATES.items()}
    found = set()
    for part in text.upper().split(","):
        if part == "ALL":
            return set(SHORT_STATES)
        if part not in SHORT_STATES and part not in long:
            raise SlurmRefusal(f"Invalid job state specified: {part}\n{_STATE_HELP}")
        found.add(long.get(part, part))
    return found


def _with_arrays_together(jobs: Iterable[Row]) -> Iterable[Row]:
    """Combine the pending tasks of an array into one line: 12_[2-3%2]."""
    together: dict[int, list[Row]] = {}
    for job in jobs:
        if job["array_job"] is not None and job["state"] == "PENDING" and job["own_id"] is None:
            together.setdefault(job["array_job"], []).append(job)
        else:
            yield job
    for number, tasks in together.items():
        most = "" if tasks[0]["at_once"] is None else f"%{tasks[0]['at_once']}"
        span = compress_numbers([job["array_task"] for job in tasks]) + most
        yield {**tasks[0], "label": f"{number}_[{span}]", "array_task": span}


def _print(rows: Sequence[Row], form: str, columns: Mapping[str, Column], program: str, *, head: bool) -> None:
    """Format rows by a format such as "%.8i %T": a width, with a point to align right."""
    letters = re.findall(r"%(?:\.?\d+)?(.)", form)
    for letter in letters:
        if letter not in columns:
            raise unknown(f"%{letter} in the format of {program}")

    def line(value: Callable[[str], object]) -> str:
        return re.sub(r"%(\.?)(\d*)(.)", lambda found: _fit(printable(str(value(found[3]))), found[1], found[2]), form)

    if head:
        print(line(lambda letter: columns[letter][0]))
    for row in rows:
        print(line(lambda letter, row=row: columns[letter][1](row)))  # type: ignore[misc]


def _fit(text: str, point: str, width: str) -> str:
    if not width:
        return text
    columns = int(width[:4])
    text = text[:columns]
    return text.rjust(columns) if point else text.ljust(columns)


_NODE_COLUMNS: dict[str, Column] = {
    "P": ("PARTITION", lambda group: group["partition"] + ("*" if group["partition"] == "main" else "")),
    "R": ("PARTITION", lambda group: group["partition"]),
    "a": ("AVAIL", lambda group: "up"),
    "l": ("TIMELIMIT", lambda group: "infinite"),
    "D": ("NODES", lambda group: len(group["names"])),
    "t": (
        "STATE",
        lambda group: {"allocated": "alloc", "mixed": "mix", "completing": "comp"}.get(group["state"], group["state"]),
    ),
    "T": ("STATE", lambda group: group["state"]),
    "N": ("NODELIST", lambda group: compress_hosts(group["names"])),
    "n": ("HOSTNAMES", lambda group: compress_hosts(group["names"])),
    "c": ("CPUS", lambda group: group["cpus"]),
    "G": ("GRES", lambda group: f"gpu:{group['gpus']}" if group["gpus"] else "(null)"),
}
_SINFO, _SINFO_NODES = "%9P %.5a %.10l %.6D %.6t %N", "%N %.6D %.9P %6t"


def sinfo(client: Client, words: Sequence[str]) -> int:
    """List the nodes, grouped by state, or one per line with --Node."""
    given = parse_command_line("sinfo", words, {"noheader": "h-", "Node": "N-", "format": "o="})
    if given.words:
        raise unknown(f"{given.words[0]!r} after sinfo")
    found = client.ask("look")
    form = given.options.get("format") or (_SINFO_NODES if "Node" in given.options else _SINFO)
    groups: dict[tuple[object, ...], Row] = {}
    for partition, node in itertools.product(found["partitions"], found["nodes"]):
        state = "" if "format" in given.options and not re.search(r"%[.\d]*[tT]", form) else node["state"]
        one_each = "Node" in given.options or re.search(r"%[.\d]*n", form)
        key = (partition, node["name"] if one_each else state)
        group = groups.setdefault(key, {**node, "partition": partition, "names": []})
        group["names"].append(node["name"])
    _print(list(groups.values()), form, _NODE_COLUMNS, "sinfo", head="noheader" not in given.options)
    return 0
