"""Traps of a job file's commands: srun's options, signals and requeue, threads, what needs a network."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.cluster import ClusterProfile
from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.job import JobFile, SrunStep
from frog.jobfile.shell import Command

_DOWNLOADS = (
    (re.compile(r"\b(pip3?|uv pip)\s+(install|download)\b"), "pip install"),
    (re.compile(r"\b(conda|mamba|micromamba)\s+(install|create|env create)\b"), "conda install"),
    (re.compile(r"^(wget|curl)\b"), "a download"),
    (re.compile(r"\bgit\s+(clone|pull|fetch)\b"), "git from afar"),
    (re.compile(r"\b(huggingface-cli|hf)\s+download\b"), "a download from a hub"),
    (re.compile(r"\b(apptainer|singularity)\s+(pull|build)\b|docker://"), "pulling an image"),
    (re.compile(r"\bapt(-get)?\s+install\b"), "apt install"),
)
_PREPARES = ("module", "ml", "conda", "mamba", "source", ".")
_TORCHRUN_HEARS = {"TERM", "INT", "HUP", "QUIT", "15", "2", "1", "3"}
_GRACE_S = 30
"""How long torchrun waits for its ranks to end, by default."""


def script_findings(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    """Everything about the commands."""
    if job.shell.unclosed is not None:
        yield make_finding("quote-not-closed", job.shell.unclosed, "a quote or bracket is opened here and never closed")
    for step in job.steps:
        yield from _step(job, step)
    yield from _background(job)
    yield from _threads(job)
    yield from _late(job)
    yield from _requeue(job)
    yield from _signal(job)
    yield from _network(job, profile)
    if job.steps and not any(_ends_on_errors(command) for command in job.shell.commands):
        yield make_finding("goes-on-after-errors", 1, "no set -e")


def _ends_on_errors(command: Command) -> bool:
    words = [word.text for word in command.words[1:]]
    return command.name == "set" and (
        "errexit" in words or any(re.fullmatch(r"-[a-z]*e[a-z]*", word) for word in words)
    )


def _step(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    for asked in step.asked:
        if asked.problem:
            yield make_finding(
                "not-an-option", asked.line, f"srun {asked.written}: {asked.problem}", instead=asked.instead
            )
    if not step.works or (job.step_nodes(step), job.step_tasks_per_node(step)) == (1, 1):
        return
    kills = step.asks("kill-on-bad-exit")
    if (kills is None or kills.value == "0") and "SLURM_KILL_BAD_EXIT" not in job.exported:
        yield make_finding("goes-on-without-one", step.line, "srun without --kill-on-bad-exit")
    cpus = job.asks("cpus-per-task")
    if cpus and not step.asks("cpus-per-task") and "SRUN_CPUS_PER_TASK" not in job.exported:
        what = f"srun without --cpus-per-task: that of line {cpus.line} does not reach it"
        yield make_finding("cpus-not-passed-on", step.line, what)


def _background(job: JobFile) -> Iterator[Finding]:
    behind = [step for step in job.steps if step.command.end == "&"]
    waits = [command.line for command in job.shell.commands if command.name == "wait"]
    if behind and not any(line >= behind[-1].line for line in waits):
        yield make_finding("no-wait", behind[-1].line, "srun in the background, and no wait behind it")


def _threads(job: JobFile) -> Iterator[Finding]:
    named = {item.name for item in [*job.assignments, *job.task_assignments]} | job.exported
    if "OMP_NUM_THREADS" in named:
        return
    for step in job.steps:
        if any(run.step is step for run in job.torchruns):
            yield make_finding("one-thread", step.line, "OMP_NUM_THREADS is not set")
        elif (job.step_tasks_per_node(step) or 1) > 1 and step.works:
            yield make_finding("threads", step.line, "OMP_NUM_THREADS is not set, with several tasks on a node")


def _late(job: JobFile) -> Iterator[Finding]:
    """What prepares the environment must come before the steps that need it."""
    last = max((step.line for step in job.steps if step.works), default=None)
    for command in job.shell.commands:
        if last is None or command.line <= last or command.name not in _PREPARES or len(command.words) < 2:
            continue
        if command.words[1].text not in ("purge", "unload", "list", "deactivate"):
            yield make_finding("prepared-too-late", command.line, f"{command.name} after srun", last=last)


def _requeue(job: JobFile) -> Iterator[Finding]:
    asked = job.asks("requeue")
    line = asked.line if asked else 1
    if asked is None and not job.requeues:
        if job.asks("signal") is None and job.steps and (job.time_s is None or job.time_s > 3600):
            yield make_finding("nobody-goes-on", 1, "no --requeue")
        return
    programs = [" ".join(word.text for word in command.words) for step in job.steps for command in step.commands]
    ours = [text for text in programs if re.search(r"\btrain\.py\b|frog\.train\b|frog train\b", text)]
    if ours and not any(re.search(r"--continue|resume", text) for text in ours):
        yield make_finding("begins-again", line, "requeue, but the run is not continued")
    if job.text("open-mode") != "append":
        yield make_finding("log-truncated", line, "requeue without --open-mode=append")


def _signal(job: JobFile) -> Iterator[Finding]:
    asked = job.asks("signal")
    if asked is None or asked.value is None:
        return
    match = re.fullmatch(r"(?:([BR]+):)?(?:SIG)?([A-Z]\w*|\d+)(?:@(\d+))?", asked.value)
    if match is None:
        yield make_finding("not-a-signal", asked.line, f"--signal={asked.value}")
        return
    line, to_shell, name, before_s = asked.line, "B" in (match[1] or ""), match[2], int(match[3] or 60)
    refused = job.asks("no-requeue")
    if refused or not (job.requeues or job.asks("requeue")):
        yield make_finding("no-requeue", refused.line if refused else line, "--signal, but no requeue")
    if job.time_s is not None and before_s >= job.time_s:
        instead = f"{match[1] or 'B'}:{name}@{max(10, job.time_s // 5)}"
        yield make_finding("signal-at-once", line, f"{before_s} s before a limit of {job.time_s} s", instead=instead)
    handlers = [command for command in job.shell.commands if _handles(command, name)]
    if to_shell and not handlers:
        yield make_finding(
            "signal-not-trapped", line, f"B: sends {name} to this script, which has no trap for it", name=name
        )
    elif not to_shell and handlers:
        what = f"without B: {name} goes to the tasks, not to this script"
        yield make_finding(
            "signal-not-for-script", line, what, handler=handlers[0].line, instead=f"B:{name}@{before_s}"
        )
    elif not to_shell and job.torchruns and name not in _TORCHRUN_HEARS:
        yield make_finding("signal-kills-torchrun", line, f"{name} goes to torchrun", before_s=before_s)
    if to_shell and handlers:
        yield from _handler(job, handlers[0])
    for run in job.torchruns:
        if before_s > 2 * _GRACE_S and not run.option("shutdown-timeout"):
            yield make_finding(
                "short-grace", run.line, "torchrun without --shutdown-timeout", seconds=before_s - _GRACE_S
            )


def _handles(command: Command, name: str) -> bool:
    return command.name == "trap" and any(word.text.removeprefix("SIG") == name for word in command.words[2:])


def _handler(job: JobFile, handler: Command) -> Iterator[Finding]:
    long = [step for step in job.steps if step.works]
    if long and not any(step.command.end == "&" for step in long):
        yield make_finding("trap-comes-too-late", handler.line, f"srun in line {long[-1].line} is in the foreground")
    body = [
        *(word.raw for word in handler.words[1:2]),
        *("\n".join(w.raw for w in c.words) for c in job.shell.commands),
    ]
    if any(re.search(r"\bkill\s+(-s\s*)?-?(SIG)?(TERM|15)\b", text) for text in body):
        yield make_finding("srun-forces", handler.line, "SIGTERM to srun")


def _network(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    for command in [*job.shell.commands, *(inner for step in job.steps for inner in step.commands)]:
        text = " ".join(word.text for word in command.words)
        if command.name in ("echo", "printf", "trap", "srun") or "--no-index" in text:
            continue
        what = next((what for pattern, what in _DOWNLOADS if pattern.search(text)), None)
        if what and profile is not None and not profile.network:
            yield make_finding("no-network", command.line, f"{what} on a compute node", cluster=profile.name)
        elif what:
            yield make_finding("network", command.line, f"{what} in the job")
