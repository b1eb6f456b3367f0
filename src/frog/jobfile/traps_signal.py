"""Traps of a job whose time is up: signals, traps of the shell, requeue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.job import JobFile
from frog.shell.script import Command

_TORCHRUN_HEARS = {"TERM", "INT", "HUP", "QUIT", "15", "2", "1", "3"}
_SIGNAL = re.compile(r"(?:([BR]+):)?(?:SIG)?([A-Z]\w*|\d+)(?:@(\d{1,6}))?")
_LONG = re.compile(
    r"((uv|poetry|pixi) run |time |nohup )*(\S*/)?(python[\d.]*|torchrun|accelerate|deepspeed|mpirun)\b(?! -c)"
)
_SENT = re.compile(r"(?:(?<!\w)kill\s+(?:-s\s*)?-?|scancel.*--signal[= ])(?:SIG)?([A-Z]+\d?|\d{1,2})\b")
_LEAVES = ("echo", "printf", "date", "exit", "trap", "set", "[[", "true", ":")
_GRACE_S = 30
"""How long torchrun waits for its ranks to end, by default."""


def signal_findings(job: JobFile) -> Iterator[Finding]:
    """Everything about signals and requeue."""
    yield from _requeue(job)
    asked = job.asks("signal")
    if asked is None or asked.value is None:
        return
    match = _SIGNAL.fullmatch(asked.value)
    if match is None:
        yield make_finding("not-a-signal", asked.line, f"--signal={asked.value}")
        return
    line, to_shell, name, before_s = asked.line, "B" in (match[1] or ""), match[2], int(match[3] or 60)
    refused = job.asks("no-requeue")
    goes_on = job.requeues or job.asks("requeue") or any(item.name == "sbatch" for item in job.shell.everything)
    goes_on = goes_on or "sbatch" in _said_by_handlers(job)
    handlers = [command for command in job.shell.everything if handles(command, name)]
    if refused or (handlers and not goes_on):
        yield make_finding("no-requeue", refused.line if refused else line, "--signal, but no requeue")
    if job.time_s is not None and before_s >= job.time_s:
        instead = f"{match[1] or 'B'}:{name}@{max(10, job.time_s // 5)}"
        yield make_finding("signal-at-once", line, f"{before_s} s before a limit of {job.time_s} s", instead=instead)
    if to_shell:
        yield from _to_shell(job, handlers, name, line)
    else:
        yield from _to_tasks(job, handlers, name, line, before_s)
    sent = {name} if not to_shell else set(_SENT.findall(_said_by_handlers(job))) if handlers else set()
    for run in job.launches:
        if run.kind != "torchrun":
            continue
        if sent & _TORCHRUN_HEARS and before_s > 2 * _GRACE_S and not run.option("shutdown-timeout"):
            what = "torchrun without --shutdown-timeout"
            yield make_finding("short-grace", run.line, what, seconds=before_s - _GRACE_S)
        if to_shell and run.step is None and run.command.way.behind and (dies := sent - _TORCHRUN_HEARS - {"0"}):
            what = f"the trap sends {min(dies)} to torchrun"
            yield make_finding("signal-kills-torchrun", run.line, what, instead="kill -TERM, in the trap")


def _to_shell(job: JobFile, handlers: list[Command], name: str, line: int) -> Iterator[Finding]:
    ends = job.shell.ends
    if ends is not None and ends.name == "exec":
        what = f"B: sends {name} to this script, which has become {ends.words[1].base}"
        yield make_finding("signal-after-exec", ends.line, what)
    elif not handlers and (not job.sourced or any(handles(item, other) for item in job.shell.everything
                                                  for other in ("USR1", "USR2"))):  # fmt: skip
        what = f"B: sends {name} to this script, which has no trap for it"
        yield make_finding("signal-not-trapped", line, what, name=name)
    elif handlers:
        yield from _handler(job, handlers[0])
        yield from _wait(job, handlers[0])
        yield from _set_too_late(job, handlers[0])
        yield from _once(job, handlers[0])


def _to_tasks(job: JobFile, handlers: list[Command], name: str, line: int, before_s: int) -> Iterator[Finding]:
    if handlers:
        what = f"without B: {name} goes to the tasks, not to this script"
        instead = f"B:{name}@{before_s}"
        yield make_finding("signal-not-for-script", line, what, handler=handlers[0].line, instead=instead)
    elif not (job.steps or job.partial or job.sourced) and (job.launches or any(map(_is_long, job.shell.commands))):
        what = f"without B: {name} goes to the steps of srun, and there are none"
        yield make_finding("signal-to-nobody", line, what, instead=f"B:{name}@{before_s}")
    elif any(run.kind == "torchrun" and run.step for run in job.launches) and name not in _TORCHRUN_HEARS:
        instead = f"--signal=TERM@{before_s}, or B: and a trap that sends TERM"
        yield make_finding("signal-kills-torchrun", line, f"{name} goes to torchrun", instead=instead)


def handles(command: Command, name: str) -> bool:
    """Whether it is a trap for that signal."""
    return command.name == "trap" and any(word.text.removeprefix("SIG") == name for word in command.words[2:])


def _said_by_handlers(job: JobFile) -> str:
    """What the traps of the file run, their functions included."""
    said = [word.text for command in job.shell.everything if command.name == "trap" for word in command.words[1:2]]
    called = [
        item.text for text in said for name in re.findall(r"\w+", text) for item in job.shell.functions.get(name, [])
    ]
    return "\n".join([*said, *called])


def _handler(job: JobFile, handler: Command) -> Iterator[Finding]:
    long = [step for step in job.steps if step.works and not step.command.way.maybe]
    behind = any(command.way.behind and _is_long(command) for command in job.shell.commands)
    if long and not behind and not any(step.command.way.behind for step in job.steps):
        yield make_finding("trap-comes-too-late", handler.line, f"srun in line {long[-1].line} is in the foreground")
    if not job.steps:
        last = [command for command in job.shell.commands if command.way.certain and _is_long(command)]
        if last and not any(command.way.behind for command in job.shell.commands):
            what = f"{last[-1].name} in line {last[-1].line} is in the foreground"
            yield make_finding("trap-comes-too-late", handler.line, what)
    body = [*_said_by_handlers(job).splitlines(), *(command.text for command in job.shell.commands)]
    if job.steps and any(re.search(r"\bkill\s+(-s\s*)?-?(SIG)?(TERM|15)\b", text) for text in body):
        yield make_finding("srun-forces", handler.line, "SIGTERM to srun")


def _once(job: JobFile, handler: Command) -> Iterator[Finding]:
    """A trap that hands the signal on, and one `wait`, which it ends."""
    said = _said_by_handlers(job)
    if not _SENT.search(said) or re.search(r"\bwait\b|\bexit\b|\bsleep\b|scontrol requeue|sbatch|kill -0", said):
        return
    commands = [command for command in job.shell.commands if command.words and command.name != "trap"]
    works = [item for item in commands if item.way.behind and (item.name == "srun" or _is_long(item))]
    behind = [item for item in commands if works and item.line > works[-1].last_line]
    waits = [item for item in behind if item.name == "wait"]
    goes_on = any(item.name in ("sleep", "tail") or "kill -0" in item.text or item.way.loop for item in behind)
    if len(works) == len(waits) == 1 and not goes_on and handler.line < waits[0].line and not waits[0].way.maybe:
        yield make_finding("wait-once", waits[0].line, "one wait, and a trap that sends the signal on")


def _set_too_late(job: JobFile, handler: Command) -> Iterator[Finding]:
    """A trap that is set when the work has been waited for."""
    works = [step.command for step in job.steps if step.works] + list(filter(_is_long, job.shell.commands))
    waited = [command for command in job.shell.commands if command.name == "wait" or command in works]
    if not handler.way.certain or not works or any(command.line > handler.line for command in works):
        return
    if any(command.way.certain and command.line < handler.line for command in waited):
        first = min(command.line for command in works)
        yield make_finding("trap-set-too-late", handler.line, "the trap is set behind the work", first=first)


def _is_long(command: Command) -> bool:
    return bool(_LONG.match(command.text))


def _wait(job: JobFile, handler: Command) -> Iterator[Finding]:
    """`set -e` and a bare `wait`, with the requeue behind it."""
    said = _said_by_handlers(job)
    leaves = re.search(r"scontrol requeue|sbatch|\bexit\b", said)
    if leaves or not any(ends_on_errors(command) for command in job.shell.commands):
        return
    waits = [command for command in job.shell.commands if command.name == "wait"]
    behind = [command for command in job.shell.commands if command.words and command.name not in _LEAVES]
    for wait in waits:
        after = [command for command in behind if command.line > wait.line and not command.heredoc]
        off = [
            item for item in job.shell.commands if item.text in ("set +e", "set +o errexit") and item.line < wait.line
        ]
        if after and not off and not wait.way.checked and wait.way.certain and wait.line > handler.line:
            yield make_finding("wait-ends-script", wait.line, "wait under set -e, and a trap", behind=after[0].line)


def ends_on_errors(command: Command) -> bool:
    """Whether it is `set -e`."""
    words = [word.text for word in command.words[1:]]
    return command.name == "set" and (
        "errexit" in words or any(re.fullmatch(r"-[a-z]*e[a-z]*", word) for word in words)
    )


def _requeue(job: JobFile) -> Iterator[Finding]:
    asked = job.asks("requeue")
    if asked is None and not job.requeues:
        return
    line = asked.line if asked else 1
    programs = [" ".join(word.text for word in command.words) for step in job.steps for command in step.commands]
    ours = [text for text in programs if re.search(r"\btrain\.py \S+\.toml|frog\.train\b|frog train\b", text)]
    if ours and not any(re.search(r"--continue|resume", text) for text in ours):
        yield make_finding("begins-again", line, "requeue, but the run is not continued")
    if job.text("open-mode") != "append" and job.asks("output"):
        yield make_finding("log-truncated", line, "requeue without --open-mode=append")
