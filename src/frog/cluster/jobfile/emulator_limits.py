"""What sbatch refuses in a job file, and what only Frog's emulator of Slurm does not support, as the emulator says it.

The emulator was compared with a real Slurm: its parsers know which values sbatch refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from frog.cluster.emulator import SlurmRefusal, UnsupportedError
from frog.cluster.emulator import command_options as emulated
from frog.cluster.emulator.notation import parse_array, parse_signal
from frog.cluster.emulator.sbatch import parse_dependency
from frog.cluster.jobfile.job_file import JobFile
from frog.cluster.jobfile.variable_values import PLACEHOLDER
from frog.cluster.slurm_options import GivenOption

_Options = Mapping[str, str | None]
_CHECKS: Mapping[str, Callable[[_Options], object]] = {
    "array": lambda options: parse_array((options["array"] or "").strip("[]")),
    "dependency": lambda options: parse_dependency(options["dependency"] or ""),
    "error": emulated.check_patterns,
    "export": lambda options: emulated.export_changes(options["export"]),
    "gpus-per-node": emulated.gpus,
    "gres": emulated.gpus,
    "input": emulated.check_patterns,
    "mem": lambda options: emulated.memory_mb(options, "mem"),
    "mem-per-cpu": lambda options: emulated.memory_mb(options, "mem-per-cpu"),
    "mem-per-gpu": lambda options: emulated.memory_mb(options, "mem-per-gpu"),
    "nodelist": emulated.hosts,
    "nodes": lambda options: emulated.count(options, "nodes"),
    "open-mode": emulated.appends,
    "output": emulated.check_patterns,
    "signal": lambda options: parse_signal(options["signal"] or ""),
}
"""Each option whose value the emulator checks."""


def refusals(job: JobFile) -> Iterator[tuple[GivenOption, str]]:
    """Yield each option that sbatch refuses because of its value, with sbatch's message."""
    for asked, refusal in _checked(job):
        if not isinstance(refusal, UnsupportedError):
            yield asked, refusal.what.splitlines()[0]


def emulator_limits(job: JobFile) -> list[str]:
    """Return what the emulator does not support in a job file, with the line of each."""
    limits = [f"{asked.written}={asked.value} in line {asked.line}"
              for asked, refusal in _checked(job) if isinstance(refusal, UnsupportedError)]  # fmt: skip
    for asked in job.options:
        limits += [f"{text} in line {asked.line}" for text in emulated.unsupported("sbatch", (asked,))]
    for step in job.steps:
        for asked in step.options:
            limits += [f"srun {text} in line {asked.line}" for text in emulated.unsupported("srun", (asked,))]
    lines = {item.name: item.line for item in (*job.assignments, *job.task_assignments) if item.name in job.exported}
    limits += [f"{name} in line {lines[name]}" for name in emulated.refused_variables(lines)]
    return list(dict.fromkeys(limits))


def _checked(job: JobFile) -> Iterator[tuple[GivenOption, SlurmRefusal]]:
    for asked in job.options:
        check, value = _CHECKS.get(asked.name), asked.value
        if check is None or asked.problem or value is None or any(mark in value for mark in ("$", PLACEHOLDER, "<")):
            continue
        try:
            check({asked.name: value})
        except SlurmRefusal as refusal:
            yield asked, refusal
