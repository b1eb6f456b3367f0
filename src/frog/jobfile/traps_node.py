"""Traps of what only the first node gets: images and files that the batch script makes there, and every node needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.job import JobFile
from frog.jobfile.launchers import program_at
from frog.shell.words import Word

_ENGINES = ("docker", "podman", "nerdctl")
"""They keep images on the node's own disk."""
_LOCAL = re.compile(r"(?:/tmp|/dev/shm)/[\w$.-][^\s\"':,;)]*|\$(?:SLURM_TMPDIR|TMPDIR)\b[^\s\"':,;)]*")
_TO_LAST = ("cp", "rsync", "mv", "virtualenv")
_TO_OPTION = {"tar": "-C", "unzip": "-d", "wget": "-[OP]", "curl": "-o", "enroot": "-o|--output"}


def node_findings(job: JobFile) -> Iterator[Finding]:
    """Everything that is made on the first node alone."""
    steps = [step for step in job.steps if (job.step_nodes(step) or 1) > 1]
    if not steps:
        return
    starts = [command for step in steps for command in step.commands]
    runs = {
        command.words[place].base for command in starts if (place := program_at(command.words)) < len(command.words)
    }
    read = [word.raw for command in starts for word in command.words]
    if any(step.works for step in steps):  # it finds its Python where this shell has it
        read += [word.raw for item in job.shell.commands if item.name in ("source", ".") for word in item.words]
    used = _text(job, " ".join(read))
    for command in job.shell.commands:
        words = command.words[program_at(command.words) :]
        if not words or words[0].base == "srun" or command.way.calls:
            continue
        name = words[0].base
        if name in _ENGINES and name in runs and _builds(words):
            what = f"{name} {words[1].text}: the image is on the first node alone"
            yield make_finding("on-first-node-only", command.line, what, command=f"{name} {words[1].text} ...")
        elif (path := _local_target(job, words)) and path in used:
            what = f"{path} is on the first node's own disk"
            yield make_finding("on-first-node-only", command.line, what, command=f"{name} ...")


def _builds(words: tuple[Word, ...]) -> bool:
    """Whether it makes an image that no registry has."""
    named = {word.text for word in words[1:3]}
    return bool(named & {"build", "load", "import"}) and not any(word.text == "--push" for word in words)


def _local_target(job: JobFile, words: tuple[Word, ...]) -> str | None:
    """The path below a folder of the node's own that a command writes to."""
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
    """Words and what their variables hold, `${NAME}` as `$NAME`."""
    return re.sub(r"\$\{(\w+)\}", r"$\1", job.with_definitions(raw))
