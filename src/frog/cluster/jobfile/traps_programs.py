"""Traps with the programs that a script starts or loads: servers, conda, modules, containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job import JobFile, runs_own_file
from frog.cluster.jobfile.launchers import CONTAINERS, program_at
from frog.cluster.jobfile.shell.script import Command

_SERVES = re.compile(
    r"ray start\b(?=.*--(head|address)).*--block|python\S* -m http\.server|vllm serve|vllm\.entrypoints"
    r"|sglang\.launch_server|text-generation-launcher"
    r"|^redis-server(?!.*(daemonize|\.conf))"
    r"|^(tensorboard|ollama serve|mlflow (server|ui)|jupyter[- ](lab|notebook))\b"
    r"|^sleep inf|^tail -[fF]|^nvidia-smi (dmon|pmon)|^nvidia-smi .*(-l\b|--loop)|^watch\b|^(gpustat|nvitop) -i"
)
_CONDA_READY = re.compile(
    r"conda\.sh|mamba\.sh|bashrc|bash_profile|\.profile|hook|bin/activate|/activate\b|zshrc|modules?/|conda_init"
)
_UNLOADS = {"purge", "unload", "list", "use", "reset"}
_NO_CONDA = re.compile(
    r"load$|add$|(cuda|cudnn|gcc|nccl|nvhpc|rocm|openmpi|intel|cmake|git|hdf5|fftw)\b", re.IGNORECASE
)
_AMD = re.compile(r"rocm|\b(MIOPEN|HIP|ROCR|HSA)_|\bmi\d{3}", re.IGNORECASE)
"""AMD GPUs: a container sees their devices because it sees /dev, and often has the libraries itself."""
_WORK = re.compile(r"\b(python[\d.]*|torchrun|accelerate|deepspeed)\b(?! -c).*(\.py\b| -m )")
_WATCHED = ("echo", "date", "exit", "wait")


def program_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps with servers, conda, modules and containers."""
    yield from _servers(job)
    yield from _conda(job)
    yield from _modules(job)
    yield from _containers(job)


NEVER_RETURNS = Trap(
    "never-returns",
    WASTES,
    "it stays in the foreground, so the script never reaches the next command",
    "{command} &",
    needs_all_lines=True,
)


def _servers(job: JobFile) -> Iterator[Finding]:
    """Find a foreground program that ends only when the job ends."""
    commands = [command for command in job.shell.commands if command.words]
    for place, command in enumerate(commands):
        words = command.words[program_at(command.words) :]
        text = " ".join(word.text for word in words)
        if words and words[0].base == "srun":
            step = next((step for step in job.steps if step.command.line == command.line), None)
            text = " ".join(word.text for word in step.program) if step else ""
        serves = command.way.certain and _SERVES.search(text) and words[0].base not in ("echo", "trap", "pkill")
        if serves and any(item.name not in ("echo", "date", "exit", "wait", "sleep") for item in commands[place + 1 :]):
            name = next((word.base for word in words if word.base not in ("srun", "-m")), command.name)
            yield NEVER_RETURNS.at(command.line, f"{_short(text)}: a server in the foreground", command=name)
    yield from _waits_for_server(job, commands)
    yield from _waits_for_all(job, commands)
    for line in job.shell.endless:
        if any(
            command.line > line and command.way.certain and command.name not in _WATCHED
            for command in _behind(job, line)
        ):
            yield NEVER_RETURNS.at(line, "an endless loop in the foreground", command="( ... )")


def _waits_for_server(job: JobFile, commands: list[Command]) -> Iterator[Finding]:
    """Find `wait` for a server that only a later command would end."""
    served = [command for command in commands if command.way.behind and _SERVES.search(command.text)]
    names = {item.name for command in served for item in job.assignments
             if item.raw == "$!" and command.last_line <= item.line <= command.last_line + 1}  # fmt: skip
    waits = [command for command in commands if command.way.certain and command.name == "wait"]
    for wait in (wait for wait in waits if any(word.expansions() & names for word in wait.words[1:])):
        behind = [item for item in commands if item.line > wait.line and item.name not in _WATCHED]
        ended = any(item.line < wait.line and item.name in ("kill", "pkill", "scancel") for item in commands)
        if behind and not ended:
            what = f"wait for {_short(served[0].text)}, which does not end on its own"
            yield NEVER_RETURNS.at(wait.line, what, command=behind[0].name)


WAITS_FOR_SERVER = Trap(
    "waits-for-server",
    WASTES,
    "it does not end on its own, so the job keeps its nodes until the time limit",
    "kill it first, using the $! saved after its start",
    needs_all_lines=True,
)


def _waits_for_all(job: JobFile, commands: list[Command]) -> Iterator[Finding]:
    """Find `wait` without arguments after work that used a server in the background."""
    ends = [*commands, *(item for body in job.shell.functions.values() for item in body)]
    if any(re.search(r"\b(p?kill|killall|scancel|stop|shutdown)\b", item.text) for item in ends):
        return
    served = [item for item in commands if item.way.behind and not item.way.maybe and _SERVES.search(item.text)
              and item.name != "timeout"]  # fmt: skip
    names = {item.name for each in served for item in job.assignments
             if item.raw == "$!" and each.last_line <= item.line <= each.last_line + 1}  # fmt: skip
    for wait in (item for item in commands if item.name == "wait" and item.way.certain):
        if len(wait.words) > 1 and not any(word.expansions() & names for word in wait.words[1:]):
            continue
        before = [item for item in served if item.line < wait.line]
        begins = before[-1].line if before else wait.line
        between = [item for item in commands if begins < item.line < wait.line and item.way.certain]
        work = [item for item in between if _WORK.search(item.text) and not _SERVES.search(item.text)]
        if work:
            what = f"wait also waits for {_short(before[-1].text)}, which does not end"
            yield WAITS_FOR_SERVER.at(wait.line, what)
            return


def _behind(job: JobFile, line: int) -> list[Command]:
    """Return the commands after the loop that begins there; commands inside the loop might not run."""
    return [
        command
        for command in job.shell.commands
        if command.line > line and not command.way.loop and not command.way.maybe
    ]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:37] + "..."


CONDA_NOT_READY = Trap(
    "conda-not-ready",
    FAILS,
    "a batch shell does not read ~/.bashrc, so conda activate fails unless a module defines conda's function",
    'source "$(conda info --base)/etc/profile.d/conda.sh", before this line',
    needs_all_lines=True,
)


def _conda(job: JobFile) -> Iterator[Finding]:
    """Find `conda activate` in a shell that has not read conda's functions."""
    first = job.lines[0] if job.lines else ""
    if re.search(r"-\w*[li]", first) or "--login" in first or job.asks("get-user-env"):
        return
    for command in job.shell.commands:
        if command.text.startswith(("conda activate", "mamba activate")) and command.way.certain:
            before = [item for item in job.shell.everything if item.line < command.line or item.way.calls]
            ready = [
                item
                for item in before
                if _CONDA_READY.search(f"{item.text} {' '.join(a.raw for a in item.assignments)}")
            ]
            loaded = [item for item in before if item.name in ("module", "ml") and len(item.words) > 1
                      and next((w.text for w in item.words[1:] if not w.text.startswith("-")), "list") not in _UNLOADS
                      and not all(map(_NO_CONDA.match, (word.text for word in item.words[1:])))]  # fmt: skip
            if not ready and not loaded and not any(map(runs_own_file, before)):
                after = [
                    item
                    for item in job.shell.everything
                    if item.line > command.line and re.search(r"conda\.sh|(conda|mamba)\S* shell\b.*hook", item.text)
                ]
                kind: Kind | None = None if after or _initialises(before) else "advice"
                yield CONDA_NOT_READY.at(command.line, f"{command.words[0].text} activate", kind)
            return


def _initialises(before: list[Command]) -> bool:
    """True if `conda init` comes first: it writes ~/.bashrc, which a batch shell does not read."""
    return any(command.text.startswith(("conda init", "mamba init")) for command in before)


MODULES_NOT_READY = Trap(
    "modules-not-ready",
    WASTES,
    "the file sourced later defines the module function",
    "move it after line {behind}",
    needs_all_lines=True,
)


def _modules(job: JobFile) -> Iterator[Finding]:
    """Find `module load` before the file that defines the function."""
    loads = [item for item in job.shell.commands if item.name in ("module", "ml") and len(item.words) > 1]
    brings = [item for item in job.shell.commands if item.name in ("source", ".")
              and re.search(r"modules?\.sh|lmod|init/(ba)?sh", item.text)]  # fmt: skip
    if loads and brings and loads[0].line < brings[0].line:
        what = f"module before {brings[0].words[1].base}"
        yield MODULES_NOT_READY.at(loads[0].line, what, behind=brings[0].line)


CONTAINER_WITHOUT_GPUS = Trap("container-without-gpus", WASTES, "the container sees no GPU", "{container} exec --nv")


def _containers(job: JobFile) -> Iterator[Finding]:
    """Find a container that does not get the job's GPUs."""
    if not job.gpus_per_node or {"APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_ROCM", "SINGULARITY_ROCM"} & job.exported:
        return
    if any(_AMD.search(line) for line in job.lines):
        return
    for command in [*job.shell.commands, *(inner for step in job.steps for inner in step.commands)]:
        words = [word.text for word in job.values.split(command.words)]
        place = next((n for n, word in enumerate(words) if word.rpartition("/")[2] in CONTAINERS[:2]), None)
        if place is None or words[place + 1 : place + 2] not in (["exec"], ["run"]):
            continue
        gets = any(word in ("--nv", "--rocm", "--nvccli") for word in words)
        unknown = any("$" in word and not word.startswith("/") for word in words[place + 2 : place + 6])
        works = any(re.search(r"python|torchrun|accelerate|deepspeed", word) for word in words[place + 2 :])
        if works and not gets and not unknown:
            name = words[place].rpartition("/")[2]
            yield CONTAINER_WITHOUT_GPUS.at(command.line, f"{name} without --nv or --rocm", container=name)
