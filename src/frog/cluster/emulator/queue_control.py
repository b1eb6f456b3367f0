"""squeue and sinfo show the queue and the nodes; scancel and scontrol change the queue."""

from __future__ import annotations

import getopt
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frog.cluster.emulator import RELEASE, SlurmRefusal, unknown
from frog.cluster.emulator.emulated_job import CANCELLED, COMPLETED, FAILED, SHORT_STATES, TIMEOUT, is_called
from frog.cluster.emulator.notation import (
    compress_hosts,
    compress_numbers,
    expand_hosts,
    signal_number,
    write_elapsed,
    write_moment,
)
from frog.cluster.emulator.wire import Client
from frog.cluster.simulated_cluster import MEMORY_MB
from frog.core.env import variable
from frog.core.terminal import printable

# ---- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line."""

    options: dict[str, str | None]
    words: list[str]


def parse_command_line(program: str, words: Sequence[str], known: Mapping[str, str]) -> CommandLine:
    """Read a command line. `known` maps an option to its letter (or a point) and `=` if it takes a value, else `-`.

    Raises:  SlurmRefusal that names an unknown option.
    """
    short = "".join(code[0] + (":" if code[1] == "=" else "") for code in known.values() if code[0] != ".")
    long = [name + ("=" if code[1] == "=" else "") for name, code in known.items()]
    try:
        given, rest = getopt.gnu_getopt(list(words), short, long)
    except getopt.GetoptError as error:
        dashes = "--" if len(error.opt) > 1 else "-"
        raise SlurmRefusal(
            f"the Slurm emulator does not support {dashes}{error.opt} of {program} ({error.msg})",
            hint=f"supported options: {', '.join('--' + name for name in known)}",
        ) from None
    by_letter = {f"-{code[0]}": name for name, code in known.items()}
    options: dict[str, str | None] = {}
    for word, value in given:
        name = by_letter[word] if word in by_letter else word[2:]
        options[name] = value if known[name][1] == "=" else None
    return CommandLine(options, rest)


# ---- squeue and sinfo ------------------------------------------------------------------------------------------------

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
    states = set()
    for part in text.upper().split(","):
        if part == "ALL":
            return set(SHORT_STATES)
        if part not in SHORT_STATES and part not in long:
            raise SlurmRefusal(f"Invalid job state specified: {part}\n{_STATE_HELP}")
        states.add(long.get(part, part))
    return states


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
    cluster = client.ask("look")
    form = given.options.get("format") or (_SINFO_NODES if "Node" in given.options else _SINFO)
    groups: dict[tuple[object, ...], Row] = {}
    for partition, node in itertools.product(cluster["partitions"], cluster["nodes"]):
        state = "" if "format" in given.options and not re.search(r"%[.\d]*[tT]", form) else node["state"]
        one_each = "Node" in given.options or re.search(r"%[.\d]*n", form)
        key = (partition, node["name"] if one_each else state)
        group = groups.setdefault(key, {**node, "partition": partition, "names": []})
        group["names"].append(node["name"])
    _print(list(groups.values()), form, _NODE_COLUMNS, "sinfo", head="noheader" not in given.options)
    return 0


# ---- scancel ---------------------------------------------------------------------------------------------------------


def scancel(client: Client, words: Sequence[str]) -> int:
    """Cancel jobs, or send them a signal."""
    given = parse_command_line(
        "scancel",
        words,
        {
            "batch": "b-",
            "full": "f-",
            "signal": "s=",
            "name": "n=",
            "user": "u=",
            "state": "t=",
            "me": ".-",
            "quiet": "Q-",
        },
    )
    options = given.options
    chosen = [name for name in ("name", "user", "state", "me") if name in options]
    if not given.words and not chosen:
        raise SlurmRefusal("No job identification provided")
    names = [name for word in given.words for name in word.split(",")]
    for name in names:
        if not name.replace("_", "", 1).isdigit():
            raise SlurmRefusal(f"Invalid job id {name}")
    number = None
    if "signal" in options:
        number = signal_number(options["signal"] or "")
        if number is None:
            raise SlurmRefusal(f"Unknown job signal: {options['signal']}", plain=True)
    jobs = [job for job in client.ask("look")["jobs"] if _is_chosen(job, options, names)]
    for job in jobs:
        if number is None or (number == 9 and not {"batch", "full"} & set(options)):
            client.ask("cancel", job=job["label"])
        else:
            client.ask("signal", job=job["label"], number=number, batch="batch" in options, full="full" in options)
    return 0


def _is_chosen(job: Mapping[str, Any], options: Mapping[str, str | None], names: Sequence[str]) -> bool:
    if job["state"] not in ("PENDING", "RUNNING", "COMPLETING"):
        return False
    if names and not any(is_called(name, job["label"], job["own_id"], job["array_job"]) for name in names):
        return False
    if "name" in options and job["name"] != options["name"]:
        return False
    if "user" in options and job["user"] != options["user"]:
        return False
    if "state" in options and job["state"] != (options["state"] or "").upper():
        if (options["state"] or "").upper() not in ("PENDING", "RUNNING"):
            raise unknown(f"--state={options['state']} of scancel")
        return False
    return True


# ---- scontrol --------------------------------------------------------------------------------------------------------


def scontrol(client: Client, words: Sequence[str]) -> int:
    """Run show, requeue, hold, release, ping, or update JobId=... with EndTime=... or TimeLimit=..."""
    given = parse_command_line("scontrol", words, {"oneliner": "o-"})
    acts: dict[str, Callable[[Client, list[str]], None]] = {
        "requeue": lambda client, rest: _each(client, rest, "requeue"),
        "hold": lambda client, rest: _each(client, rest, "hold", held=True),
        "release": lambda client, rest: _each(client, rest, "hold", held=False),
        "update": _update,
        "ping": _ping,
    }
    if not given.words:
        raise unknown("scontrol without a command")
    name, *rest = given.words
    if name == "show":
        _show(client, rest, one_line="oneliner" in given.options)
    elif name in acts:
        acts[name](client, rest)
    else:
        raise unknown(f"scontrol {name}")
    return 0


def _each(client: Client, rest: Sequence[str], act: str, **fields: Any) -> None:
    if not rest:
        raise SlurmRefusal("too few arguments for keyword", plain=True)
    for number in ",".join(rest).split(","):
        try:
            client.ask(act, job=number, **fields)
        except SlurmRefusal as error:
            raise SlurmRefusal(error.what, plain=True) from None


def _ping(client: Client, rest: Sequence[str]) -> None:
    client.ask("look")
    print("Slurmctld(primary) at the emulator is UP")


def _update(client: Client, rest: Sequence[str]) -> None:
    fields = {name.lower(): value for name, equals, value in (word.partition("=") for word in rest)}
    change = [name for name in fields if name in ("endtime", "timelimit")]
    if set(fields) != {"jobid", *change} or len(change) != 1:
        raise unknown(f"scontrol update {' '.join(rest)}: only JobId=... with EndTime=... or TimeLimit=...")
    client.ask("update", job=fields["jobid"], name=change[0], value=fields[change[0]])


def _show(client: Client, words: Sequence[str], *, one_line: bool) -> None:
    if not words:
        raise unknown("scontrol show without an argument")
    what, rest = words[0], list(words[1:])
    if len(rest) > 1:
        raise unknown(f"{rest[1]!r} after scontrol show {what}")
    if what in ("hostnames", "hostname"):
        print("\n".join(_hosts(rest)))
    elif what in ("hostlist", "hostlistsorted"):
        print(compress_hosts(rest[0].split(",") if rest else []))
    elif what in ("job", "jobs"):
        selected = _jobs(client, rest)
        _print_tables([_job_table(job) for job in selected], one_line=one_line)
    elif what in ("node", "nodes"):
        _print_tables(_node_tables(client, rest), one_line=one_line)
    else:
        raise unknown(f"scontrol show {what}")


def _hosts(rest: Sequence[str]) -> list[str]:
    text = rest[0] if rest else variable("SLURM_JOB_NODELIST") or variable("SLURM_NODELIST")
    if not text:
        raise SlurmRefusal("host list is empty", exit_code=0)
    try:
        return expand_hosts(text)
    except ValueError:
        raise SlurmRefusal(f"Invalid hostlist: {text}", plain=True, exit_code=0) from None


def _jobs(client: Client, rest: Sequence[str]) -> list[dict[str, Any]]:
    jobs = client.ask("look")["jobs"]
    if not rest:
        return [job for job in jobs if job["own_id"] is not None]
    whole = [job for job in jobs if is_called(rest[0], job["label"], job["array_job"])]
    selected = whole or [job for job in jobs if is_called(rest[0], job["label"], job["own_id"])]
    if not selected:
        raise SlurmRefusal("slurm_load_jobs error: Invalid job id specified", plain=True)
    return selected


def _job_table(job: Mapping[str, Any]) -> list[list[str]]:
    limit = "UNLIMITED" if job["limit_min"] is None else _long_elapsed(60 * job["limit_min"])
    array = [] if job["array_job"] is None else [f"ArrayJobId={job['array_job']}", f"ArrayTaskId={job['array_task']}"]
    lines = [
        [f"JobId={job['id']}", *array, f"JobName={job['name']}"],
        [f"UserId={job['user']}", f"Account={job['account'] or '(null)'}"],
        [f"JobState={job['state']}", f"Reason={job['reason']}", f"Dependency={job['dependency']}"],
        [f"Requeue={int(job['requeue'])}", f"Restarts={job['restarts']}", f"BatchFlag={int(job['is_batch'])}",
         f"ExitCode={job['exit']}"],
        [f"RunTime={_long_elapsed(job['elapsed_s'])}", f"TimeLimit={limit}"],
        [f"SubmitTime={write_moment(job['submitted_s'])}"],
        [f"StartTime={write_moment(job['started_s'])}", f"EndTime={write_moment(job['ended_s'])}"],
        [f"Partition={job['partition']}"],
        [f"NodeList={job['hosts']}"],
        [f"BatchHost={job['first_host']}"] if job["first_host"] else [],
        [f"NumNodes={job['num_nodes']}", f"NumCPUs={job['num_cpus']}", f"NumTasks={job['num_tasks']}",
         f"CPUs/Task={job['cpus_per_task']}"],
        [f"Comment={job['comment']}"] if job["comment"] else [],
        [f"Command={job['command']}"],
        [f"WorkDir={job['work_dir']}"],
    ]  # fmt: skip
    names = (("stderr", "StdErr"), ("stdin", "StdIn"), ("stdout", "StdOut"))
    return [line for line in lines if line] + [[f"{name}={job[key]}"] for key, name in names if key in job]


def _node_tables(client: Client, rest: Sequence[str]) -> list[list[list[str]]]:
    nodes = client.ask("look")["nodes"]
    try:
        names = expand_hosts(rest[0]) if rest else [node["name"] for node in nodes]
    except ValueError:
        names = list(rest)  # not found if it is not the name of a node
    tables = []
    for name in names:
        node = next((node for node in nodes if node["name"] == name), None)
        if node is None:
            print(f"Node {name} not found")
            raise SlurmRefusal("", plain=True)
        gres = f"gpu:{node['gpus']}" if node["gpus"] else "(null)"
        lines = [
            [f"NodeName={name}"],
            [f"CPUAlloc={node['cpus_used']}", f"CPUEfctv={node['cpus']}", f"CPUTot={node['cpus']}"],
            [f"Gres={gres}"],
            ["NodeAddr=127.0.0.1", f"NodeHostName={name}", f"Version={RELEASE}"],
            [f"RealMemory={MEMORY_MB}"],
            [f"State={node['state'].upper()}"],
            ["Partitions=main"],
        ]
        tables.append(lines)
    return tables


def _print_tables(tables: Sequence[Sequence[Sequence[str]]], *, one_line: bool) -> None:
    for lines in tables:
        text = [printable(" ".join(line)) for line in lines]
        print(" ".join(text) + " " if one_line else "\n   ".join(text) + "\n")
    if not tables:
        print("No jobs in the system", file=sys.stdout)


def _long_elapsed(seconds: float) -> str:
    """Format a duration as 00:01:00 or 1-00:00:00."""
    text = write_elapsed(seconds)
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    full = ":".join(part.zfill(2) for part in ["00"] * (3 - len(parts)) + parts)
    return f"{days}{dash}{full}"
