"""Options of sbatch and srun, as words and as #SBATCH lines: those that the emulator knows, with their values.

An option that Slurm does not have gets Slurm's own words; one that only the emulator lacks is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from frog.launch.emulator.refusal import SlurmRefusal, unknown
from frog.launch.slurm.directives import Asked, Option, read_directives, read_options

_BOTH = (
    "account", "chdir", "comment", "cpus-per-task", "error", "exclusive", "export", "gpus-per-node", "gres", "help",
    "input", "job-name", "mem", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "partition",
    "qos", "quiet", "time", "version",
)  # fmt: skip
KNOWN = {
    "sbatch": frozenset(
        (*_BOTH, "array", "dependency", "hold", "kill-on-invalid-dep", "no-requeue", "parsable", "requeue", "signal",
         "wait", "wrap")
    ),
    "srun": frozenset((*_BOTH, "exact", "kill-on-bad-exit", "label", "overlap", "unbuffered")),
}  # fmt: skip


def read_words(
    program: str, words: Sequence[str], table: Mapping[str, Option]
) -> tuple[dict[str, str | None], list[str]]:
    """The options that a command line begins with, the last of each name, and the words after them."""
    asked, used = read_options([(word, 0) for word in words], table)
    return _values(program, asked), list(words[used:])


def read_script(script: str) -> dict[str, str | None]:
    """The options of the #SBATCH lines of a job file."""
    found: dict[str, str | None] = {}
    for directive in read_directives(script.splitlines()):
        if not directive.read:
            continue
        if directive.problem:
            raise SlurmRefusal(f"Invalid directive found in batch script: line {directive.line}: {directive.problem}")
        found |= _values("sbatch", directive.asked)
    return found


def _values(program: str, asked: Sequence[Asked]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for item in asked:
        _check(program, item)
        found[item.name] = item.value
        for one, other in (("requeue", "no-requeue"), ("no-requeue", "requeue"), ("gres", "gpus-per-node")):
            if item.name == one:
                found.pop(other, None)
    return found


def _check(program: str, item: Asked) -> None:
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
    if item.name not in KNOWN[program]:
        raise unknown(f"{item.written} of {program}")


def count(options: Mapping[str, str | None], name: str, least: int = 1) -> int | None:
    """A whole number, or None if the option is not there."""
    text = options.get(name)
    if name not in options:
        return None
    if text is None or not text.isdigit() or int(text) < least:
        if name == "nodes":
            if re.fullmatch(r"\d+-\d+", text or ""):
                raise unknown(f"--nodes={text}: a range of nodes")
            raise SlurmRefusal(f'"{text}" is not a valid node count', exit_code=255)
        raise SlurmRefusal(f'Invalid numeric value "{text}" for --{name}.')
    return int(text)


def gpus(options: Mapping[str, str | None]) -> tuple[int, bool]:
    """GPUs of each node, and whether --gres asked for them."""
    for name in ("gpus-per-node", "gres"):
        if name not in options:
            continue
        text = options[name] or ""
        number = text.removeprefix("gpu:") if name == "gres" and text != "gpu" else text.replace("gpu", "1")
        if not number.isdigit():
            raise unknown(f"--{name}={text}")
        return int(number), name == "gres"
    return 0, False


def memory_mb(text: str) -> int:
    """100M, 4G, 2000 (megabytes), 0 (all of the node)."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE)
    if match is None:
        raise SlurmRefusal("Invalid --mem specification", exit_code=255)
    number, unit = int(match[1]), match[2].upper() or "M"
    return -(-number // 1024) if unit == "K" else number * {"M": 1, "G": 1024, "T": 1024 * 1024}[unit]


def export_changes(text: str | None) -> dict[str, str]:
    """--export=ALL,NAME=value: what is set beside the whole environment of the shell."""
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
