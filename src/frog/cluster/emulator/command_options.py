"""Options of sbatch and srun that the emulator supports, as arguments and as #SBATCH lines, with their values.

An option that Slurm does not have causes Slurm's own message; for one that only the emulator lacks, the error names it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from frog.cluster.emulator import SlurmRefusal, unknown
from frog.cluster.emulator.notation import expand_hosts, fill_pattern, pattern_values
from frog.cluster.slurm_options import GivenOption, Option, read_directives, read_options
from frog.core.units import parse_whole

_BOTH = (
    "account", "chdir", "comment", "constraint", "cpus-per-task", "distribution", "error", "exclusive", "export",
    "gpu-bind", "gpus", "gpus-per-node", "gpus-per-task", "gres", "help", "input", "job-name", "mem", "mem-per-cpu",
    "mem-per-gpu", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "partition", "qos", "quiet",
    "time", "version",
)  # fmt: skip
KNOWN = {
    "sbatch": frozenset(
        (*_BOTH, "array", "dependency", "hold", "kill-on-invalid-dep", "no-requeue", "parsable", "requeue", "signal",
         "wait", "wrap")
    ),
    "srun": frozenset((*_BOTH, "exact", "jobid", "kill-on-bad-exit", "label", "mpi", "overlap", "unbuffered", "wait")),
}  # fmt: skip

_HARMLESS_FOR_BOTH = (
    "acctg-freq", "contiguous", "core-spec", "cpu-freq", "delay-boot", "extra", "gpu-freq", "gres-flags", "hint",
    "licenses", "mail-type", "mail-user", "mcs-label", "mem-bind", "network", "nice", "no-kill", "oversubscribe",
    "power", "prefer", "priority", "profile", "propagate", "reboot", "reservation", "segment", "spread-job", "switches",
    "thread-spec", "threads-per-core", "time-min", "tmp", "verbose", "wckey",
)  # fmt: skip
HARMLESS = {
    "sbatch": frozenset((*_HARMLESS_FOR_BOTH, "get-user-env", "ignore-pbs", "stepmgr", "wait-all-nodes")),
    "srun": frozenset(
        (*_HARMLESS_FOR_BOTH, "accel-bind", "compress", "cpu-bind", "msg-timeout", "send-libs", "threads")
    ),
}
"""Options that cannot change what a job computes here: accepted, with a note on stderr. They choose among nodes, watch,
or make faster; the nodes here are all alike and run nothing else. Slurm checks the values of some, which the emulator
does not: licenses, a reservation, a mail address."""

OF_A_JOB = frozenset(("account", "comment", "mem", "mem-per-cpu", "mem-per-gpu", "partition", "qos", "constraint"))
"""Options of an allocation that Slurm ignores, or does not enforce here, for an srun inside a job."""

_ONLY = {
    "distribution": re.compile(r"(block|\*)([:,].*)?"),
    "gpu-bind": re.compile(r"none"),
    "mpi": re.compile(r"none"),
}
"""Values that mean what the emulator does anyway; others change the result."""

OPPOSITES = {"requeue": "no-requeue", "no-requeue": "requeue"}
"""Options of which the last one counts."""


def read_words(
    program: str, words: Sequence[str], table: Mapping[str, Option]
) -> tuple[dict[str, str | None], list[str]]:
    """Return the options at the start of a command line, the last of each name, and the words after them."""
    asked, used = read_options([(word, 0) for word in words], table)
    return _values(program, asked), list(words[used:])


def note(program: str, options: Mapping[str, str | None], *, others: frozenset[str] = frozenset()) -> None:
    """Name the given options that have no effect here."""
    given = [f"--{name}" for name in options if name in HARMLESS[program] | others and name != "verbose"]
    if given and "quiet" not in options:
        print(f"{program}: no effect on the emulator: {', '.join(given)}", file=sys.stderr, flush=True)


def read_script(script: str) -> dict[str, str | None]:
    """Return the options of a job file's #SBATCH lines."""
    options: dict[str, str | None] = {}
    for directive in read_directives(script.splitlines()):
        if not directive.read:
            continue
        if directive.problem:
            raise SlurmRefusal(f"Invalid directive found in batch script: line {directive.line}: {directive.problem}")
        options |= _values("sbatch", directive.asked)
    return options


def _values(program: str, asked: Sequence[GivenOption]) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for item in asked:
        _check(program, item)
        values[item.name] = item.value
        values.pop(OPPOSITES.get(item.name, ""), None)
    return values


def _check(program: str, item: GivenOption) -> None:
    help_line = f'Try "{program} --help" for more information'
    if item.option is None:
        says = f"unrecognized option '{item.written}{'=' + item.value if item.value else ''}'"
        if not item.written.startswith("--"):
            says = f"invalid option -- '{item.written[1:]}'"
        raise SlurmRefusal(f"{program}: {says}\n{help_line}", exit_code=255, plain=True)
    if item.problem is not None:
        says = f"option '{item.written}' {item.problem}"
        says = says.replace("takes no value", "doesn't allow an argument").replace(
            "has no value", "requires an argument"
        )
        raise SlurmRefusal(f"{program}: {says}\n{help_line}", exit_code=255, plain=True)
    if item.name not in KNOWN[program] | HARMLESS[program]:
        raise unknown(f"{item.written} of {program}")
    if (expected := _ONLY.get(item.name)) is not None and not expected.fullmatch(item.value or ""):
        raise unknown(f"{item.written}={item.value} of {program}")


def unsupported(program: str, asked: Sequence[GivenOption]) -> list[str]:
    """Return what the emulator does not support of valid options, as written."""
    limits = []
    for item in asked:
        expected = _ONLY.get(item.name)
        if item.option is None or item.problem is not None:
            continue
        if item.name not in KNOWN[program] | HARMLESS[program]:
            limits.append(item.written)
        elif expected is not None and not expected.fullmatch(item.value or ""):
            limits.append(f"{item.written}={item.value}")
    return limits


def refused_variables(names: Iterable[str]) -> list[str]:
    """Return the variables from which the emulator's srun would not read its options."""
    refused = {name for name in names if name in _REFUSED_VARIABLES or name.startswith("SRUN_")}
    return sorted(refused - {*_FROM_VARIABLES, "SRUN_DEBUG"})


def count(options: Mapping[str, str | None], name: str, least: int = 1) -> int | None:
    """Return an option's value as an integer, or None if the option is missing."""
    text = options.get(name)
    if name not in options:
        return None
    number = parse_whole(text or "")
    if number is None or number < least:
        if name == "nodes":
            if re.fullmatch(r"\d+-\d+", text or ""):
                raise unknown(f"--nodes={text}: a range of nodes")
            raise SlurmRefusal(f'"{text}" is not a valid node count', exit_code=255)
        raise SlurmRefusal(f'Invalid numeric value "{text}" for --{name}.')
    return number


def gpus(options: Mapping[str, str | None]) -> tuple[int, int | None]:
    """Return the GPUs per node and the value of --gpus-per-node; --gres overrides it, whatever their order."""
    said = {name: _gpu_count(options, name) for name in ("gpus-per-node", "gres") if name in options}
    per_node = said.get("gpus-per-node")
    per_node_gpus = said.get("gres", per_node or 0)
    if "gpus" not in options:
        return per_node_gpus, per_node
    total, nodes = _gpu_count(options, "gpus"), count(options, "nodes") or 1
    if total != (per_node_gpus or total // nodes) * nodes:
        raise unknown(f"--gpus={options['gpus']} on {nodes} nodes: unequal numbers of GPUs")
    return total // nodes, per_node


def gpus_per_task(options: Mapping[str, str | None]) -> int | None:
    """Return the value of --gpus-per-task."""
    return _gpu_count(options, "gpus-per-task") if "gpus-per-task" in options else None


def _gpu_count(options: Mapping[str, str | None], name: str) -> int:
    text = options[name] or ""
    first, *rest = text.split(":")
    words = rest if first == "gpu" else [first, *rest]
    number = parse_whole(words[-1]) if words else 1
    kind = words if number is None else words[:-1]
    known = len(kind) <= 1 and all(re.fullmatch(r"[A-Za-z][\w.-]*", word) for word in kind)
    if not known or (name == "gres" and first != "gpu"):
        raise unknown(f"--{name}={text}")
    return 1 if number is None else number


def hosts(options: Mapping[str, str | None]) -> list[str]:
    """Return the nodes of --nodelist."""
    text = options.get("nodelist") or ""
    try:
        return expand_hosts(text)
    except ValueError:
        raise SlurmRefusal(f"Invalid hostlist: {text}") from None


def check_patterns(options: Mapping[str, str | None]) -> None:
    """Refuse file names with patterns that the emulator cannot expand at the job's start."""
    for name in ("output", "error", "input"):
        try:
            fill_pattern(options.get(name) or "", pattern_values(0, "", "", ""))
        except SlurmRefusal as error:
            raise type(error)(f"--{name}: {error.what}", exit_code=error.exit_code, hint=error.hint) from None


def total_gpus(options: Mapping[str, str | None]) -> int | None:
    """Return the value of --gpus."""
    return _gpu_count(options, "gpus") if "gpus" in options else None


def memory_mb(options: Mapping[str, str | None], name: str) -> int | None:
    """Return megabytes for 100M, 4G, 2000 (megabytes) or 0 (all memory of the node); None without the option."""
    if name not in options:
        return None
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)B?", options[name] or "", re.IGNORECASE)
    if match is None:
        raise SlurmRefusal(f"Invalid --{name} specification", exit_code=255)
    number, unit = int(match[1]), match[2].upper() or "M"
    return -(-number // 1024) if unit == "K" else number * {"M": 1, "G": 1024, "T": 1024 * 1024}[unit]


_FROM_VARIABLES = {
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
    "SRUN_CPUS_PER_TASK": "cpus-per-task",
}
_REFUSED_VARIABLES = frozenset(
    f"SLURM_{name}"
    for name in (
        "BCAST", "BCAST_EXCLUDE", "BURST_BUFFER", "CLUSTERS", "CLUSTER_CONSTRAINT", "CPUS_PER_GPU", "DEPENDENCY",
        "DISABLE_STATUS", "DIST_PLANESIZE", "EPILOG", "EXACT", "EXCLUSIVE", "EXIT_ERROR", "EXIT_IMMEDIATE", "GPU_BIND",
        "GRES", "IMMEDIATE", "MPI_TYPE", "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_SOCKET",
        "OPEN_MODE", "OVERCOMMIT", "OVERLAP", "PROLOG", "REMOTE_CWD",
        "RESV_PORTS", "SIGNAL", "SRUN_REDUCE_TASK_EXIT_MSG",
        "STDERRMODE", "STDINMODE", "STDOUTMODE", "STEP_KILLED_MSG_NODE_ID", "TASK_EPILOG", "TASK_PROLOG", "TEST_EXEC",
        "TIMELIMIT", "USE_MIN_NODES", "WAIT", "WORKING_DIR",
    )
)  # fmt: skip
"""Variables that srun reads as options, and that would change what a step does. It ignores those of options that are
harmless here, such as SLURM_CPU_BIND, and those of options that only an allocation has, such as SLURM_PARTITION. The
others a job sets for its tasks, or they only add output."""


def srun_variables(env: Mapping[str, str]) -> dict[str, str | None]:
    """Return the options that srun reads from variables; options on its command line override them."""
    if refused := refused_variables(env):
        raise unknown(f"the variable {refused[0]} of srun")
    options: dict[str, str | None] = {name: env[key] or None for key, name in _FROM_VARIABLES.items() if key in env}
    labels = options.get("label")
    if labels is not None and labels != "yes" and not parse_whole(labels):
        del options["label"]
    return options


def export_changes(text: str | None) -> dict[str, str]:
    """Return the variables that --export=ALL,NAME=value adds to the shell's environment."""
    if text is None:
        return {}
    first, *rest = text.split(",")
    if first != "ALL" or any("=" not in part for part in rest):
        raise unknown(f"--export={text}: only ALL, and ALL,NAME=value")
    return dict(part.split("=", 1) for part in rest)


def appends(options: Mapping[str, str | None]) -> bool:
    mode = options.get("open-mode")
    if "open-mode" in options and mode not in ("append", "truncate", "a", "t"):
        raise SlurmRefusal("Invalid --open-mode specification", exit_code=255)
    return (mode or "").startswith("a")
