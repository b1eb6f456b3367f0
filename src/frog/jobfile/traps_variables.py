"""Traps of variables: never set, or set by Slurm only where an option asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.directives import one_letter_apart
from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.glossary import SLURM_VARIABLES
from frog.jobfile.job import JobFile
from frog.jobfile.words import Word, live_text

_ONLY_WITH = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_GPUS": ("gpus",),
    "SLURM_CPUS_PER_GPU": ("cpus-per-gpu",),
    "SLURM_MEM_PER_NODE": ("mem",),
    "SLURM_MEM_PER_CPU": ("mem-per-cpu",),
}
_LETS_BE = ("echo", "printf", "trap", "[[", "[", "test", "unset")
_NEEDED = re.compile(
    r"MASTER_(ADDR|PORT)|N_?NODES|NUM_NODES|NODE_RANK|(GPUS|NPROC)_PER_NODE|WORLD_SIZE|LAUNCHER|CMD|ARGS|\w*PYTHON_?FILE"
)


def variable_findings(job: JobFile) -> Iterator[Finding]:
    """Everything about what is read and never set."""
    read = {name: word for name, word in _read(job).items() if name not in _tested(job)}
    known = {item.name for item in (*job.assignments, *job.task_assignments)} | job.exported
    known |= {item.name for command in job.shell.everything for item in command.assignments}
    given = job.by_hand and not job.steps  # by the script that calls it
    options = ("nproc-per-node", "nnodes", "num-processes")
    counts = {name for run in job.launches if (word := run.option(*options)) for name in word.expansions()
              if not name.startswith("SLURM")}  # fmt: skip
    for name, word in read.items():
        if name in known:
            continue
        if name in _ONLY_WITH and not any(job.asks(option) for option in _ONLY_WITH[name]):
            if name == "SLURM_GPUS_PER_NODE" and job.gpus_per_node == 0:
                continue
            what = f"{name} without --{_ONLY_WITH[name][0]}"
            yield make_finding("slurm-sets-none", word.line_of(name), what, option=f"--{_ONLY_WITH[name][0]}")
        elif near := _meant(name, known, is_list=f"{{{name}[" in word.raw):
            what = f"{name} is never set"
            yield make_finding("never-set", word.line_of(name), what, near=f"; {near} is")
        elif (_NEEDED.fullmatch(name) or name in counts) and not (given or job.sourced) and name not in _of_ranks(job):
            yield make_finding("never-set", word.line_of(name), f"{name} is never set in this file", near="")
    yield from _nothing_exported(job)


_OF_JOB = re.compile(
    r"SLURM_(JOB_?ID|(JOB_)?NODELIST|(JOB_NUM_|N)NODES|NTASKS|(PROC|LOCAL|NODE)ID|ARRAY_\w+|[GC]PUS_ON_NODE|CPUS_PER_TASK)"
    r"|SLURMD_NODENAME"
)


def hand_in_findings(job: JobFile) -> Iterator[Finding]:
    """Variables of a job that is written in a here-document, put in by the shell that writes it."""
    if any(line.read for line in job.directives):
        return
    known = {item.name for item in job.assignments}
    for text, first_line, quoted in job.shell.heredocs:
        if quoted or "#SBATCH" not in text:
            continue
        own = set(re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=", text, re.MULTILINE))
        for number, line in enumerate(text.split("\n"), first_line):
            for match in re.finditer(r"(?<!\\)\$\{?([A-Za-z_]\w*)", "" if line.lstrip().startswith("#") else line):
                name = match[1]
                if name not in known and (_OF_JOB.fullmatch(name) or (name in own and name.isupper())):
                    known.add(name)
                    what = f"${name} is put in where the job is handed in, not where it runs"
                    yield make_finding("read-at-hand-in", number, what, name=name)


def _tested(job: JobFile) -> set[str]:
    """Variables that the script asks about before it reads them."""
    asks = [
        word.raw for command in job.shell.everything if command.name in ("[[", "[", "test") for word in command.words
    ]
    return {name for raw in asks for name in re.findall(r"-[nzv]\s+\"?\$?\{?(\w+)", raw)}


def _read(job: JobFile) -> dict[str, Word]:
    """Every variable that is certainly read, where it has no default, with the word that reads it first."""
    found: dict[str, Word] = {}
    words = [word for command in job.shell.commands if command.name not in _LETS_BE for word in command.words]
    words += [item.word for command in job.shell.commands for item in command.assignments]
    words += [word for item in job.assignments for word in item.items or ()]
    for word in words:
        text = live_text(word.raw)
        for match in re.finditer(r"\$(?:\{([A-Za-z_]\w*)(?:\[[^]]*\])?\}|([A-Za-z_]\w*))", text):
            name = match[1] or match[2]
            if not re.search(rf"\$\{{{name}\s*(:?[-=?+])", text):
                found.setdefault(name, word)
    for name in re.findall(r"\$\(\([^()]*\)\)", " ".join(word.raw for word in words)):
        for inner in re.findall(r"(?<![\w$])SLURM_\w+", name):
            found.setdefault(inner, next(word for word in words if inner in word.raw))
    return found


def _meant(name: str, known: set[str], is_list: bool) -> str | None:
    """The variable of which `name` is a slip: one letter apart, and long enough that this is no chance."""
    if len(name) < 6 or re.search(r"\d$", name):
        return None
    if name.startswith("SLURM_") and name not in SLURM_VARIABLES and name not in _ONLY_WITH:
        return next((other for other in SLURM_VARIABLES if one_letter_apart(name, other)), None)
    if name in SLURM_VARIABLES or name in _ONLY_WITH:
        return None
    return next((other for other in sorted(known) if one_letter_apart(name, other) and not re.search(r"\d$", other)
                 and (is_list or other.rstrip("sS") != name.rstrip("sS"))), None)  # fmt: skip


def _of_ranks(job: JobFile) -> set[str]:
    """What torchrun gives its ranks: read in the text of a task behind it."""
    return {"WORLD_SIZE", "NODE_RANK"} if job.launches else set()


def _nothing_exported(job: JobFile) -> Iterator[Finding]:
    """`--export=NONE`, which srun obeys too."""
    asked = job.asks("export")
    if asked is None or (asked.value or "").upper() not in ("NONE", "NIL"):
        return
    freed = "SLURM_EXPORT_ENV" in job.exported or any(
        command.name == "unset" and "SLURM_EXPORT_ENV" in command.text for command in job.shell.everything
    )
    steps = [step for step in job.steps if step.works and not step.asks("export")]
    if steps and job.exported and not freed:
        yield make_finding("nothing-exported", asked.line, f"--export={asked.value}, and srun in line {steps[0].line}")
