"""scancel, scontrol."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frog.cluster.emulator import RELEASE
from frog.cluster.emulator.commandline import parse_command_line
from frog.cluster.emulator.emulated_job import is_called
from frog.cluster.emulator.layout import MEMORY_MB
from frog.cluster.emulator.notation import compress_hosts, expand_hosts, signal_number, write_elapsed, write_moment
from frog.cluster.emulator.refusal import SlurmRefusal, unknown
from frog.cluster.emulator.wire import Client
from frog.core.env import variable
from frog.core.terminal import printable


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
        found = _jobs(client, rest)
        _print_tables([_job_table(job) for job in found], one_line=one_line)
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
    found = whole or [job for job in jobs if is_called(rest[0], job["label"], job["own_id"])]
    if not found:
        raise SlurmRefusal("slurm_load_jobs error: Invalid job id specified", plain=True)
    return found


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
