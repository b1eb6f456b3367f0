"""Traps in a job whose time limit is near: signals, shell traps, requeue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Trap
from frog.cluster.jobfile.job_file import JobFile
from frog.cluster.jobfile.shell_script import Command

_TORCHRUN_HANDLES = {"TERM", "INT", "HUP", "QUIT", "15", "2", "1", "3"}
_SIGNAL = re.compile(r"(?:([BR]+):)?(?:SIG)?([A-Z]\w*|\d+)(?:@(\d{1,6}))?")
_LONG = re.compile(
    r"((uv|poetry|pixi) run |time |nohup )*(\S*/)?(python[\d.]*|torchrun|accelerate|deepspeed|mpirun)\b(?! -c)"
)
_SENT = re.compile(r"(?:(?<!\w)kill\s+(?:-s\s*)?-?|scancel.*--signal[= ])(?:SIG)?([A-Z]+\d?|\d{1,2})\b")
_NO_WORK = ("echo", "printf", "date", "exit", "trap", "set", "[[", "true", ":")
_GRACE_S = 30
"""Seconds that torchrun waits for its ranks to end, by default."""


def signal_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps with signals and requeue."""
    yield from _requeue(job)
    asked = job.option("signal")
    if asked is None or asked.value is None:
        return
    match = _SIGNAL.fullmatch(asked.value)
    if match is None:
        yield NOT_A_SIGNAL.at(asked.line, f"--signal={asked.value}")
        return
    line, to_shell, name, before_s = asked.line, "B" in (match[1] or ""), match[2], int(match[3] or 60)
    refused = job.option("no-requeue")
    continues = job.requeues or job.option("requeue") or any(item.name == "sbatch" for item in job.shell.all_commands)
    continues = continues or "sbatch" in _handler_text(job)
    handlers = [command for command in job.shell.all_commands if handles(command, name)]
    if refused or (handlers and not continues):
        yield NO_REQUEUE.at(refused.line if refused else line, "--signal without requeue")
    if job.time_s is not None and before_s >= job.time_s:
        instead = f"{match[1] or 'B'}:{name}@{max(10, job.time_s // 5)}"
        yield SIGNAL_AT_ONCE.at(line, f"{before_s} s before a limit of {job.time_s} s", instead=instead)
    if to_shell:
        yield from _to_shell(job, handlers, name, line)
    else:
        yield from _to_tasks(job, handlers, name, line, before_s)
    sent = {name}
    if to_shell:
        sent = set(_SENT.findall(_handler_text(job))) if handlers else set()
    not_handled = sent - _TORCHRUN_HANDLES - {"0"}
    for run in job.launches:
        if run.kind != "torchrun":
            continue
        if sent & _TORCHRUN_HANDLES and before_s > 2 * _GRACE_S and not run.option("shutdown-timeout"):
            what = "torchrun without --shutdown-timeout"
            yield SHORT_GRACE.at(run.line, what, seconds=before_s - _GRACE_S)
        if to_shell and run.step is None and run.command.context.background and not_handled:
            what = f"the trap sends {min(not_handled)} to torchrun"
            yield SIGNAL_KILLS_TORCHRUN.at(run.line, what, instead="kill -TERM, in the trap")


NOT_A_SIGNAL = Trap("not-a-signal", FAILS, "write [B:]NAME[@SECONDS]", "--signal=B:USR1@120")
NO_REQUEUE = Trap(
    "no-requeue",
    ADVICE,
    "the signal announces the time limit, but no job continues after it, saved or not",
    '#SBATCH --requeue, and at the end: scontrol requeue "$SLURM_JOB_ID"',
    needs_all_lines=True,
)
SIGNAL_AT_ONCE = Trap("signal-at-once", WASTES, "the signal arrives as soon as the job starts", "--signal={instead}")
SHORT_GRACE = Trap(
    "short-grace",
    ADVICE,
    "torchrun kills its ranks 30 s after it receives SIGTERM; a large checkpoint may take longer",
    "torchrun --shutdown-timeout={seconds}",
    needs_all_lines=True,
)
SIGNAL_KILLS_TORCHRUN = Trap(
    "signal-kills-torchrun",
    WASTES,
    "torchrun does not handle it: it dies, and its ranks die without saving",
    "{instead}",
)

SIGNAL_AFTER_EXEC = Trap(
    "signal-after-exec",
    WASTES,
    "exec replaces the shell, so its trap no longer exists",
    "start the program in the background and wait for it",
)
SIGNAL_NOT_TRAPPED = Trap(
    "signal-not-trapped",
    WASTES,
    "the signal ends the shell, and the job with it",
    "trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' {name}",
    needs_all_lines=True,
)


def _to_shell(job: JobFile, handlers: list[Command], name: str, line: int) -> Iterator[Finding]:
    ends = job.shell.ends
    if ends is not None and ends.name == "exec":
        what = f"B: sends {name} to this script, which exec replaced by {ends.words[1].base}"
        yield SIGNAL_AFTER_EXEC.at(ends.line, what)
    elif not handlers and (not job.sources_users_files or any(handles(item, other) for item in job.shell.all_commands
                                                  for other in ("USR1", "USR2"))):  # fmt: skip
        what = f"B: sends {name} to this script, which has no trap for it"
        yield SIGNAL_NOT_TRAPPED.at(line, what, name=name)
    elif handlers:
        yield from _foreground_work(job, handlers[0])
        yield from _wait_under_set_e(job, handlers[0])
        yield from _set_too_late(job, handlers[0])
        yield from _single_wait(job, handlers[0])


SIGNAL_NOT_FOR_SCRIPT = Trap(
    "signal-not-for-script", WASTES, "the trap in line {handler} never runs", "--signal={instead}"
)
SIGNAL_TO_NOBODY = Trap(
    "signal-to-nobody",
    WASTES,
    "programs that this script starts without srun do not receive it",
    "srun before the program; or --signal={instead} and a trap",
)


def _to_tasks(job: JobFile, handlers: list[Command], name: str, line: int, before_s: int) -> Iterator[Finding]:
    if handlers:
        what = f"without B: Slurm sends {name} to the tasks, not to this script"
        instead = f"B:{name}@{before_s}"
        yield SIGNAL_NOT_FOR_SCRIPT.at(line, what, handler=handlers[0].line, instead=instead)
    elif not (job.steps or job.partial or job.sources_users_files) and (
        job.launches or any(map(_runs_long, job.shell.commands))
    ):
        what = f"without B: Slurm sends {name} to the steps of srun, and this script has none"
        yield SIGNAL_TO_NOBODY.at(line, what, instead=f"B:{name}@{before_s}")
    elif any(run.kind == "torchrun" and run.step for run in job.launches) and name not in _TORCHRUN_HANDLES:
        instead = f"--signal=TERM@{before_s}, or B: and a trap that sends TERM"
        yield SIGNAL_KILLS_TORCHRUN.at(line, f"{name} goes to torchrun", instead=instead)


def handles(command: Command, name: str) -> bool:
    """True if the command sets a trap for that signal."""
    return command.name == "trap" and any(word.text.removeprefix("SIG") == name for word in command.words[2:])


def _handler_text(job: JobFile) -> str:
    """Return the commands that the file's traps run, including those of their functions."""
    handlers = [word.text for item in job.shell.all_commands if item.name == "trap" for word in item.words[1:2]]
    functions = [name for text in handlers for name in re.findall(r"\w+", text) if name in job.shell.functions]
    called = [item.text for name in functions for item in job.shell.functions[name]]
    return "\n".join([*handlers, *called])


TRAP_COMES_TOO_LATE = Trap(
    "trap-comes-too-late",
    WASTES,
    "bash runs a trap only after the current command ends",
    'srun ... & and then: wait "$!"',
)
SRUN_FORCES = Trap(
    "srun-forces",
    ADVICE,
    "srun then kills its tasks before they can save",
    'scancel --signal=TERM "$SLURM_JOB_ID"',
)


def _foreground_work(job: JobFile, handler: Command) -> Iterator[Finding]:
    long = [step for step in job.steps if step.works and not step.command.context.conditional]
    behind = any(command.context.background and _runs_long(command) for command in job.shell.commands)
    if long and not behind and not any(step.command.context.background for step in job.steps):
        yield TRAP_COMES_TOO_LATE.at(handler.line, f"srun in line {long[-1].line} is in the foreground")
    if not job.steps:
        last = [command for command in job.shell.commands if command.context.certain and _runs_long(command)]
        if last and not any(command.context.background for command in job.shell.commands):
            what = f"{last[-1].name} in line {last[-1].line} is in the foreground"
            yield TRAP_COMES_TOO_LATE.at(handler.line, what)
    body = [*_handler_text(job).splitlines(), *(command.text for command in job.shell.commands)]
    if job.steps and any(re.search(r"\bkill\s+(-s\s*)?-?(SIG)?(TERM|15)\b", text) for text in body):
        yield SRUN_FORCES.at(handler.line, "SIGTERM to srun")


WAIT_ONCE = Trap(
    "wait-once",
    WASTES,
    "the signal ends wait immediately: the script continues, and the job ends before its program has saved",
    'wait "$!" || wait "$!"',
    needs_all_lines=True,
)


def _single_wait(job: JobFile, handler: Command) -> Iterator[Finding]:
    """Find a trap that forwards the signal, with a single `wait`, which the signal ends."""
    text = _handler_text(job)
    if not _SENT.search(text) or re.search(r"\bwait\b|\bexit\b|\bsleep\b|scontrol requeue|sbatch|kill -0", text):
        return
    commands = [command for command in job.shell.commands if command.words and command.name != "trap"]
    works = [item for item in commands if item.context.background and (item.name == "srun" or _runs_long(item))]
    behind = [item for item in commands if works and item.line > works[-1].last_line]
    waits = [item for item in behind if item.name == "wait"]
    continues = any(item.name in ("sleep", "tail") or "kill -0" in item.text or item.context.loop for item in behind)
    if (
        len(works) == len(waits) == 1
        and not continues
        and handler.line < waits[0].line
        and not waits[0].context.conditional
    ):
        yield WAIT_ONCE.at(waits[0].line, "a single wait, with a trap that forwards the signal")


TRAP_SET_TOO_LATE = Trap(
    "trap-set-too-late",
    WASTES,
    "no trap is set until then: the signal ends the shell, and the job with it",
    "move it above line {first}",
    needs_all_lines=True,
)


def _set_too_late(job: JobFile, handler: Command) -> Iterator[Finding]:
    """Find a trap that the script sets only after it waited for the work."""
    works = [step.command for step in job.steps if step.works] + list(filter(_runs_long, job.shell.commands))
    waited = [command for command in job.shell.commands if command.name == "wait" or command in works]
    if not handler.context.certain or not works or any(command.line > handler.line for command in works):
        return
    if any(command.context.certain and command.line < handler.line for command in waited):
        first = min(command.line for command in works)
        yield TRAP_SET_TOO_LATE.at(handler.line, "the script sets the trap after the work", first=first)


def _runs_long(command: Command) -> bool:
    return bool(_LONG.match(command.text))


WAIT_ENDS_SCRIPT = Trap(
    "wait-ends-script",
    WASTES,
    "wait returns the signal's number, which set -e treats as a failure: the script ends before line {behind}",
    'wait "$!" || true',
    needs_all_lines=True,
)


def _wait_under_set_e(job: JobFile, handler: Command) -> Iterator[Finding]:
    """Find a bare `wait` under `set -e`, with the requeue after it."""
    text = _handler_text(job)
    leaves = re.search(r"scontrol requeue|sbatch|\bexit\b", text)
    if leaves or not any(ends_on_errors(command) for command in job.shell.commands):
        return
    waits = [command for command in job.shell.commands if command.name == "wait"]
    behind = [command for command in job.shell.commands if command.words and command.name not in _NO_WORK]
    for wait in waits:
        after = [command for command in behind if command.line > wait.line and not command.heredoc]
        off = [
            item for item in job.shell.commands if item.text in ("set +e", "set +o errexit") and item.line < wait.line
        ]
        if after and not off and not wait.context.checked and wait.context.certain and wait.line > handler.line:
            yield WAIT_ENDS_SCRIPT.at(wait.line, "wait under set -e, with a trap", behind=after[0].line)


def ends_on_errors(command: Command) -> bool:
    """True for `set -e`."""
    words = [word.text for word in command.words[1:]]
    return command.name == "set" and (
        "errexit" in words or any(re.fullmatch(r"-[a-z]*e[a-z]*", word) for word in words)
    )


BEGINS_AGAIN = Trap(
    "begins-again",
    WASTES,
    "after a requeue training starts again at step 1",
    "train.py RUN.toml --continue",
    needs_all_lines=True,
)
LOG_TRUNCATED = Trap(
    "log-truncated",
    ADVICE,
    "the job overwrites the log of its first part",
    "#SBATCH --open-mode=append",
    needs_all_lines=True,
)


def _requeue(job: JobFile) -> Iterator[Finding]:
    asked = job.option("requeue")
    if asked is None and not job.requeues:
        return
    line = asked.line if asked else 1
    programs = [" ".join(word.text for word in command.words) for step in job.steps for command in step.commands]
    ours = [text for text in programs if re.search(r"\btrain\.py \S+\.toml|frog\.train\b|frog train\b", text)]
    if ours and not any(re.search(r"--continue|resume", text) for text in ours):
        yield BEGINS_AGAIN.at(line, "requeue, but the command does not resume the run")
    if job.text("open-mode") != "append" and job.option("output"):
        yield LOG_TRUNCATED.at(line, "requeue without --open-mode=append")
