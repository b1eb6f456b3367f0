"""Explanations line by line: the effect of each part of a job file, and the origin of its values."""

from __future__ import annotations

import re
from collections import defaultdict

from frog.cluster.jobfile.directives import GivenOption, time_limit_s
from frog.cluster.jobfile.glossary import (
    COMMANDS,
    LAUNCHERS,
    PATTERNS,
    SHELL_OPTIONS,
    SLURM_VARIABLES,
    TORCHRUN_OPTIONS,
)
from frog.cluster.jobfile.job import PER_TASK, JobFile
from frog.cluster.jobfile.launchers import Launch, SrunStep
from frog.cluster.jobfile.shell_script import Command
from frog.cluster.jobfile.shell_words import Assignment, Word
from frog.core.units import format_seconds

_SIGNAL = re.compile(r"(?:([BR]+):)?(\w+)(?:@(\d+))?")


def say_lines(job: JobFile) -> dict[int, list[str]]:
    """Return the explanations of each line, by line number."""
    said: dict[int, list[str]] = defaultdict(list)
    if job.lines and job.lines[0].startswith("#!"):
        said[1].append("the shell that runs this file: once, on the first node of the allocation")
    for directive in job.directives:
        for asked in directive.asked:
            if directive.read and asked.option:
                said[directive.line].append(_directive(asked, job))
    for name, line in job.shell.lines_of_functions.items():
        said[line].append(f"{name}(): defines a function")
    for command in job.shell.everything:
        _command(command, job, said)
    for step in job.steps:
        _step(step, job, said)
    for run in job.launches:
        _launch(run, job, said)
    return {number: list(dict.fromkeys(words)) for number, words in said.items()}


def _directive(asked: GivenOption, job: JobFile) -> str:
    meaning = asked.option.meaning if asked.option else ""
    value = asked.value or ""
    written = f"--{asked.name}={value}" if value else f"--{asked.name}"
    detail = ""
    if asked.name == "time":
        detail = _limit(value)
    elif asked.name == "signal" and (match := _SIGNAL.fullmatch(value)):
        to = "this script" if "B" in (match[1] or "") else "every task, and not this script"
        detail = f": {match[2]} to {to}, {match[3] or 60} s before, or up to 60 s earlier"
    elif asked.name in ("output", "error", "input"):
        found = [f"%{key} is {PATTERNS[key]}" for key in re.findall(r"%\d*([a-zA-Z])", value) if key in PATTERNS]
        detail = "; " + ", ".join(found) if found else ""
    elif asked.name == "gres" and asked is job.gpu_directive:
        detail = f": {job.gpus_per_node} GPUs"
    return f"{written}: {meaning}{detail}"


def _limit(value: str) -> str:
    try:
        limit_s = time_limit_s(value)
    except ValueError:
        return ""
    return f": {format_seconds(limit_s)}" if limit_s is not None else ": none"


def _command(command: Command, job: JobFile, said: dict[int, list[str]], step: SrunStep | None = None) -> None:
    """Describe a command. `step` is the srun whose tasks run it, or None if the batch script runs it."""
    for assignment in command.assignments:
        in_task = step is not None and step.in_task(Word(assignment.raw, assignment.line))
        said[assignment.line].append(_assignment(assignment, job, in_task))
    if text := _command_text(command, job):
        said[command.line].append(text)


def _command_text(command: Command, job: JobFile) -> str | None:
    """Return the explanation of a command; None if another part explains it (assignments, srun)."""
    name, words = command.name, [word.text for word in command.words[1:]]
    functions = job.shell.lines_of_functions
    if not name or any(word.text == "srun" for word in command.words):
        return None
    if name in functions:
        return f"{name}: the function defined in line {functions[name]}"
    if name == "set":
        return _options(words)
    if name == "trap" and len(words) > 1:
        does = f"this script runs: {_short(words[0])}" if words[0] else "nothing happens"
        return f"trap: on {' or '.join(words[1:])}, {does}"
    if (name, *words[:1]) == ("scontrol", "requeue"):
        return "requeues this job: it will start again with the same job id"
    if (name, *words[:1]) == ("kill", "-0"):
        return "kill -0: sends no signal; tests whether the process exists"
    if name == "export":
        return None if command.assignments else f"export: programs that srun starts also see {', '.join(words)}"
    if command.assignments:
        return None
    return f"{name}: {COMMANDS[name]}" if name in COMMANDS else "shell"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _options(words: list[str]) -> str:
    text = " ".join(words)
    letters = {letter for word in words for letter in word[1:] if re.fullmatch(r"-[a-z]+", word)}
    found = [say for key, say in SHELL_OPTIONS.items() if key in letters or (" " in key and key[2:] in text)]
    return f"set: {'; '.join(found)}" if found else "shell"


def _assignment(assignment: Assignment, job: JobFile, in_task: bool) -> str:
    value = job.resolve(assignment.raw)
    tasks = assignment.name in job.exported
    said = f"{assignment.name} = {value}" if value is not None and value != assignment.raw else assignment.name
    sources = _sources(Word(assignment.raw, assignment.line), job, in_task)
    if "scontrol show hostname" in assignment.raw:
        sources = [
            "scontrol expands the list of hosts" + (", head takes the first" if "head" in assignment.raw else "")
        ]
    words = [*sources, *(["for the tasks too"] if tasks else [])]
    return f"{said}: {'; '.join(words)}" if words else f"{said}: a variable of this script"


def _sources(word: Word, job: JobFile, in_task: bool) -> list[str]:
    """Return the origin of each variable in a word, read by a task's shell or by the batch shell on the first node."""
    names = set(word.expansions()) | (set(re.findall(r"\bSLURM_\w+", word.raw)) if "$((" in word.raw else set())
    known = job.slurm_variables()
    found = []
    for name in sorted(names):
        assignment = job.assigned(name)
        if assignment and assignment.raw != word.raw:
            found.append(f"{name} from line {assignment.line}")
        elif name in known:
            found.append(f"{name} is {known[name][0]}, by {known[name][1]}")
        elif name in SLURM_VARIABLES:
            own = (", each task's own" if in_task else ", here the first node's for all") if name in PER_TASK else ""
            found.append(f"{name} is {SLURM_VARIABLES[name]}{own}")
        elif name.startswith("SLURM"):
            found.append(f"{name} is set by Slurm")
    return found


def _step(step: SrunStep, job: JobFile, said: dict[int, list[str]]) -> None:
    nodes, tasks = job.step_nodes(step), job.step_tasks_per_node(step)
    count = (
        f"{nodes * tasks} tasks, {tasks} on each of {nodes} nodes"
        if nodes and tasks
        else "one task for each requested one"
    )
    behind = " in the background, so that this script receives signals" if step.command.way.behind else ""
    said[step.line].append(f"srun starts the following in {count}{behind}")
    for asked in step.asked:
        if asked.option:
            said[asked.line].append(_directive(asked, job))
    if step.script_word is not None:
        how = "in single quotes: each task reads its own variables"
        if step.script_word.raw.startswith('"'):
            how = "in double quotes: the first node expands $NAME here, and each task expands \\$NAME"
        said[step.script_word.line].append(f"bash -c: a shell in each task, {how}")
    for command in step.inner:
        _command(command, job, said, step)


def _launch(run: Launch, job: JobFile, said: dict[int, list[str]]) -> None:
    said[run.line] = [words for words in said[run.line] if words != "shell"]
    said[run.line].append(f"{run.kind}: {LAUNCHERS[run.kind]}")
    for name, word in run.options.items():
        meaning = TORCHRUN_OPTIONS.get(name, f"an option of {run.kind}")
        value = job.resolve(word.raw)
        plain = value is not None and value != word.text
        sources = _sources(word, job, run.in_task(word))
        tail = f" = {value}" if plain else ""
        said[word.line].append(f"--{name}{tail}: {meaning}" + (f" ({'; '.join(sources)})" if sources else ""))
    if run.program:
        said[run.program[0].line].append(f"{_short(' '.join(word.text for word in run.program))}: every rank runs this")


def summary(job: JobFile) -> list[str]:
    """Return the summary of the resources that the file asks for and the ranks that it starts."""
    if not job.is_job:
        return ["submits other jobs; it is not a job file itself"]
    nodes, gpus, cpus = job.nodes, job.gpus_per_node, job.number("cpus-per-task")
    tasks = job.tasks_per_node
    asks = [f"{nodes or '?'} node{'' if nodes == 1 else 's'}"]
    if gpus:
        asks.append(f"{gpus} GPUs per node" + (f", {gpus * nodes} in total" if nodes and nodes > 1 else ""))
    if cpus and tasks:
        asks.append(f"{cpus * tasks} CPUs per node")
    if job.time_s:
        asks.append(f"for {format_seconds(job.time_s)}")
    lines = [f"asks for: {'; '.join(asks)}"]
    for run in job.launches:
        word = run.option("nproc-per-node")
        if run.kind != "torchrun":
            continue
        ranks = job.resolve_int(word.raw) if word else 1
        if ranks and nodes and run.step is not None and (each := job.step_tasks_per_node(run.step)):
            lines.append(f"starts: {nodes * each * ranks} ranks = {nodes} nodes x {each * ranks}")
    for step in job.steps:
        plain = not any(run.step is step for run in job.launches) and step.works
        each = job.step_tasks_per_node(step)
        if plain and each and (count := job.step_nodes(step)):
            lines.append(f"starts: {count * each} tasks = {count} nodes x {each}, in line {step.line}")
    return lines
