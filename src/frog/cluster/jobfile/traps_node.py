"""Traps with images and files that the batch script creates on the first node only, but every node needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import WASTES, Finding, Trap
from frog.cluster.jobfile.job import JobFile
from frog.cluster.jobfile.launchers import program_at
from frog.cluster.jobfile.shell.words import Word

_ENGINES = ("docker", "podman", "nerdctl")
"""Container programs that store images on the node's local disk."""
_LOCAL = re.compile(r"(?:/tmp|/dev/shm)/[\w$.-][^\s\"':,;)]*|\$(?:SLURM_TMPDIR|TMPDIR)\b[^\s\"':,;)]*")
_TO_LAST = ("cp", "rsync", "mv", "virtualenv")
_TO_OPTION = {"tar": "-C", "unzip": "-d", "wget": "-[OP]", "curl": "-o", "enroot": "-o|--output"}


ON_FIRST_NODE_ONLY = Trap(
    "on-first-node-only",
    WASTES,
    "the batch script runs on the first node only: the other nodes do not have it, and the first waits for them",
    "srun --ntasks-per-node=1 {command}",
)


def node_findings(job: JobFile) -> Iterator[Finding]:
    """Find everything that only the first node gets."""
    steps = [step for step in job.steps if (job.step_nodes(step) or 1) > 1]
    if not steps:
        return
    starts = [command for step in steps for command in step.commands]
    runs = {
        command.words[place].base for command in starts if (place := program_at(command.words)) < len(command.words)
    }
    read = [word.raw for command in starts for word in command.words]
    if any(step.works for step in steps):  # it finds Python through this shell's PATH
        read += [word.raw for item in job.shell.commands if item.name in ("source", ".") for word in item.words]
    used = _text(job, " ".join(read))
    for command in job.shell.commands:
        words = command.words[program_at(command.words) :]
        if not words or words[0].base == "srun" or command.way.calls:
            continue
        name = words[0].base
        if name in _ENGINES and name in runs and _builds(words):
            what = f"{name} {words[1].text}: only the first node gets the image"
            yield ON_FIRST_NODE_ONLY.at(command.line, what, command=f"{name} {words[1].text} ...")
        elif (path := _local_target(job, words)) and path in used:
            what = f"{path} is on the first node's local disk"
            yield ON_FIRST_NODE_ONLY.at(command.line, what, command=f"{name} ...")


def _builds(words: tuple[Word, ...]) -> bool:
    """True if the command creates an image that no registry has."""
    named = {word.text for word in words[1:3]}
    return bool(named & {"build", "load", "import"}) and not any(word.text == "--push" for word in words)


def _local_target(job: JobFile, words: tuple[Word, ...]) -> str | None:
    """Return the path in a node-local folder that a command writes to, or None."""
    name, target = words[0].base, None
    if name in _TO_LAST:
        target = words[-1]
    elif name in _TO_OPTION:
        places = (place for place, word in enumerate(words[:-1]) if re.fullmatch(_TO_OPTION[name], word.text))
        target = next((words[place + 1] for place in places), None)
    elif name in ("apptainer", "singularity") and len(words) > 2 and words[1].text in ("pull", "build"):
        target = next((word for word in words[2:] if word.text[:1] != "-"), None)
    elif re.fullmatch(r"python[\d.]*", name) and [word.text for word in words[1:3]] == ["-m", "venv"]:
        target = words[-1]
    match = _LOCAL.search(_text(job, target.raw)) if target else None
    return match[0].rstrip("/") if match else None


def _text(job: JobFile, raw: str) -> str:
    """Return the words with their variables resolved, and `${NAME}` written as `$NAME`."""
    return re.sub(r"\$\{(\w+)\}", r"$\1", job.with_definitions(raw))
