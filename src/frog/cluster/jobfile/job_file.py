"""A job file, parsed: its requested resources, its steps, the variables that reach them, and its nested job files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from frog.cluster.jobfile.launchers import SHELLS, Launch, SrunStep, inner_script, program_at, read_launch
from frog.cluster.jobfile.shell_script import Command, Shell, parse
from frog.cluster.jobfile.shell_words import Assignment, Word, live_text
from frog.cluster.jobfile.variable_values import PLACEHOLDER, Values
from frog.cluster.slurm_options import (
    SRUN,
    DirectiveLine,
    GivenOption,
    read_directives,
    read_options,
    time_limit_s,
)

_GPU_GRES = re.compile(r"\bgpu(?::[^:,=]+)??(?:[:=](\d{1,9}))?(?:,|$)")
_GPU_TYPE = re.compile(r"(?=.*\d)[A-Za-z][\w-]*")
_LIBRARY = re.compile(
    r"activate|bashrc|profile|conda\.sh|mamba\.sh|modules?\.sh|lmod|/init/|setvars|miniconda|\bvenv\b"
)
_NO_SH = re.compile(r"(t?csh|fish|python|perl|Rscript|julia|ruby|lua|node|expect)[\d.]*")
_LAUNCHES = re.compile(r"\btorchrun\b|torch\.distributed|accelerate|deepspeed|LAUNCHER|^[\"']?python[\d.]*\s")

_MANY_GPUS, _MANY_CPUS = 4, 64
"""A job with this many GPUs per node probably has the whole node."""
RENDEZVOUS = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"}
PER_TASK = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURMD_NODENAME"}
"""Variables that differ between tasks; the batch script itself sees the values of the first node."""


@dataclass
class JobFile:
    """A parsed job file."""

    path: Path
    lines: list[str]
    directives: list[DirectiveLine]
    shell: Shell
    given: tuple[GivenOption, ...] = ()
    """Command-line options, which override those of the file."""
    placeholders: dict[int, str] = field(default_factory=dict)
    """Placeholders of a template, by line."""
    first_line: int = 1
    """First line number: that of a nested job is its line in the outer file."""
    nested: bool = False
    """True if another file submits this one and may add options."""
    values: Values = field(default_factory=Values)
    steps: list[SrunStep] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)

    @property
    def assignments(self) -> list[Assignment]:
        """Assignments of the batch script."""
        return self.values.assignments

    @property
    def task_assignments(self) -> list[Assignment]:
        """Assignments inside srun's bash -c."""
        return self.values.task_assignments

    @property
    def partial(self) -> bool:
        """True if Frog did not understand some lines; a missing setting may then be in them."""
        return bool(self.placeholders or self.shell.not_understood)

    @property
    def is_job(self) -> bool:
        """True for a job file, False for a script that submits jobs."""
        submits = any(re.match(r"[^#]*(?<![\w/.-])sbatch\s", line) for line in self.lines)
        return any(line.read for line in self.directives) or not submits

    @property
    def run_by_hand(self) -> bool:
        """True if no line is for sbatch: the file is called from a terminal or by another script."""
        for_sbatch = any("SBATCH" in line.upper() or "SBTACH" in line for line in self.lines)
        return bool(self.shell.all_commands) and not self.given and not for_sbatch

    @property
    def in_allocation(self) -> bool:
        """True if it runs inside an existing allocation: none of its srun commands asks for nodes."""
        asks = ("partition", "account", "qos", "time", "constraint", "gpus", "gres", "gpus-per-node", "gpus-per-task")
        return self.run_by_hand and not any(any(map(step.option, asks)) for step in self.steps)

    @property
    def sources_users_files(self) -> bool:
        """True if it sources the user's files, which may set any variable."""
        return any(map(sources_users_file, self.shell.all_commands))

    @property
    def uses_gpus(self) -> bool:
        """True if its commands mention GPUs."""
        text = "\n".join(line for line in self.lines if not line.lstrip().startswith("#"))
        return bool(re.search(r"CUDA_VISIBLE|nvidia-smi|NCCL_|nccl|--nv\b|\bcuda|[gG][pP][uU]", text))

    @cached_property
    def options(self) -> list[GivenOption]:
        """Options that Slurm reads, in order."""
        read = (line for line in self.directives if line.read and line.component == 0)
        return [*(item for line in read for item in line.asked), *self.given]

    @property
    def heterogeneous(self) -> bool:
        """True for a heterogeneous job, where the component of a rank is unknown."""
        return any(line.component for line in self.directives)

    @cached_property
    def _last_options(self) -> dict[str, GivenOption]:
        return {item.name: item for item in self.options}

    def option(self, name: str) -> GivenOption | None:
        """Return the last occurrence of an option, which is the one that applies."""
        return self._last_options.get(name)

    def text(self, name: str) -> str | None:
        asked = self.option(name)
        return asked.value if asked else None

    def number(self, name: str) -> int | None:
        match = re.match(r"(\d{1,9})(?!\d)", self.text(name) or "")
        return int(match[1]) if match and PLACEHOLDER not in match.string else None

    @property
    def nodes(self) -> int | None:
        """Number of nodes; None if the file leaves it to Slurm."""
        ntasks, per_node = self.number("ntasks"), self.number("ntasks-per-node")
        if self.option("nodes") is not None:
            asked = self.number("nodes")
            return min(asked, ntasks) if asked and ntasks else asked
        if ntasks and per_node:
            return -(-ntasks // per_node)
        return 1 if ntasks in (None, 1) else None

    @property
    def several_nodes(self) -> bool:
        """True if the job certainly has more than one node."""
        return self.nodes is not None and self.nodes > 1

    @property
    def shares_nodes(self) -> bool:
        """True if it asks for part of a node's GPUs, so that another such job may share the node."""
        whole = self.option("exclusive") is not None or self.text("mem") == "0"
        cpus = (self.number("cpus-per-task") or 1) * (self.tasks_per_node or 1)
        return (
            not whole
            and self.gpu_directive is not None
            and (self.gpus_per_node or 0) < _MANY_GPUS
            and cpus < _MANY_CPUS
        )

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks per node that a plain srun starts."""
        ntasks, nodes = self.number("ntasks"), self.nodes
        if (per_node := self.number("ntasks-per-node")) is not None:
            return min(per_node, ntasks or per_node)
        if ntasks is not None:
            return -(-ntasks // nodes) if nodes else None
        return 1

    @property
    def gpu_directive(self) -> GivenOption | None:
        """The directive that asks for GPUs."""
        gres = self.option("gres")
        if gres is not None and not _GPU_GRES.search(gres.value or ""):
            gres = None
        return self.option("gpus-per-node") or gres or self.option("gpus-per-task") or self.option("gpus")

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs per node; 0 if the file asks for none, None if it does not say."""
        asked = self.gpu_directive
        if asked is None:
            return 0
        if asked.name == "gres":
            match = _GPU_GRES.search(asked.value or "")
            return int(match[1] or 1) if match else 0
        count = self._count(asked.name)
        if count is None or asked.name == "gpus-per-node":
            return count
        if asked.name == "gpus-per-task":
            return count * self.tasks_per_node if self.tasks_per_node else None
        return count // self.nodes if self.nodes and count % self.nodes == 0 else None

    def _count(self, name: str) -> int | None:
        text = self.text(name) or ""
        if _GPU_TYPE.fullmatch(text):  # a type without a number means one
            return 1
        match = re.search(r"(?<!\d)(\d{1,9})$", text)
        return int(match[1]) if match else None

    @property
    def time_s(self) -> int | None:
        """Time limit in seconds; None if there is none or it cannot be read."""
        asked = self.option("time")
        try:
            return time_limit_s(asked.value) if asked and asked.value else None
        except ValueError:
            return None

    def step_tasks_per_node(self, step: SrunStep) -> int | None:
        """Return the tasks per node that this srun starts, by its own options or the job's."""
        total = step.option("ntasks")
        if (own := step.option("ntasks-per-node")) and own.value:
            return 1 if total and total.value == "1" else self.resolve_int(own.value)
        if total and total.value:
            count, nodes = self.resolve_int(total.value), self.step_nodes(step)
            return -(-count // nodes) if count is not None and nodes else None
        return self.tasks_per_node

    def step_nodes(self, step: SrunStep) -> int | None:
        """Return the number of nodes that this srun uses."""
        own = step.option("nodes")
        return self.resolve_int(own.value) if own and own.value else self.nodes

    def slurm_variables(self) -> dict[str, tuple[str, str]]:
        """Return the variables that Slurm sets with a value known from the file: the value, and its origin."""
        variables: dict[str, tuple[str, str]] = {}
        for names, value, option in (
            (("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), self.nodes, "nodes"),
            (("SLURM_NTASKS_PER_NODE",), self.number("ntasks-per-node"), "ntasks-per-node"),
            (("SLURM_CPUS_PER_TASK",), self.number("cpus-per-task"), "cpus-per-task"),
            (("SLURM_GPUS_ON_NODE",), self.gpus_per_node or None, "gpus-per-node"),
            (("SLURM_GPUS_PER_NODE",), self._count("gpus-per-node"), "gpus-per-node"),
            (("SLURM_JOB_ACCOUNT",), self.text("account"), "account"),
            (("SLURM_JOB_NAME",), self.text("job-name"), "job-name"),
            (("SLURM_JOB_PARTITION",), self.text("partition"), "partition"),
        ):
            asked = self.gpu_directive if "gpus" in option else self.option(option)
            if value is not None and asked is not None:
                variables |= dict.fromkeys(names, (str(value), f"{asked.written} in line {asked.line}"))
        if self.nodes and self.tasks_per_node:
            variables["SLURM_NTASKS"] = (str(self.nodes * self.tasks_per_node), "nodes x tasks on each")
        return variables

    def assigned(self, name: str) -> Assignment | None:
        return self.values.assigned(name)

    def resolve(self, raw: str) -> str | None:
        return self.values.resolve(raw)

    def resolve_int(self, raw: str) -> int | None:
        return self.values.resolve_int(raw)

    def with_definitions(self, raw: str) -> str:
        return self.values.with_definitions(raw)

    def is_rank(self, step: SrunStep) -> bool:
        """True if each task is a rank: Python without a launcher that starts ranks."""
        return step.python and not any(run.step is step for run in self.launches)

    @cached_property
    def distributed(self) -> bool:
        """True if the tasks form one world, as far as the file shows."""
        names = {item.name for item in (*self.assignments, *self.task_assignments)}
        words = [re.sub(r"\$\w+|\$\{\w+\}", "", word.text)
                 for step in self.steps for command in step.commands for word in command.words]  # fmt: skip
        return bool(names & RENDEZVOUS or any(name.startswith("NCCL_") for name in names)
                    or re.search(r"ddp|distributed|nccl|fsdp|train", " ".join(words), re.IGNORECASE))  # fmt: skip

    @cached_property
    def distinguishes_tasks(self) -> bool:
        """True if its text mentions MPI or a task's number."""
        return bool(re.search(r"mpi|PROCID|LOCALID|NODEID", "\n".join(self.lines), re.IGNORECASE))

    @property
    def requeues(self) -> bool:
        """True if the script requeues its own job."""
        return any("scontrol requeue" in command.text for command in self.shell.all_commands)


def sources_users_file(command: Command) -> bool:
    """True if it sources a file that does not belong to a library."""
    return command.name in ("source", ".", "eval") and not _LIBRARY.search(command.text.lower())


def read_job_file(text: str, path: Path, given: Sequence[GivenOption] = (), first_line: int = 1) -> JobFile:
    """Parse a job file. `given` are options of sbatch's command line."""
    whole, placeholders = mark_placeholders(text.removesuffix("\n"), first_line)
    lines = whole.split("\n")
    shell = _of_other_language(lines, first_line) if language(lines) else parse(whole, first_line)
    job = JobFile(path, lines, read_directives(lines, first_line), shell, tuple(given), placeholders, first_line)
    job.shell.heredocs += echoed_texts(job.shell.commands)
    for command in job.shell.all_commands:
        if command.name == "export":
            job.exported |= {word.text.partition("=")[0].partition("+")[0] for word in command.words[1:]}
        if command.name in ("export", "declare", "local", "readonly", "typeset") or not command.words:
            job.values.assignments += command.assignments
        job.values.assignments += _read_in(command)
    job.exported |= {item.name for item in job.assignments if item.exported}
    if any(command.name == "set" and _all_exported(command) for command in job.shell.commands):
        job.exported |= {item.name for item in job.assignments}
    job.values.known = job.slurm_variables()
    for command in job.shell.commands:
        _read_command(command, job)
    return job


def language(lines: Sequence[str]) -> str | None:
    """Return the interpreter in the first line if it is not a POSIX shell."""
    words = [word for word in lines[0].removeprefix("#!").split() if word[:1] != "-"] if lines[0][:2] == "#!" else []
    names = [word.rpartition("/")[2] for word in words if not word.endswith("/env")]
    return names[0] if names and _NO_SH.fullmatch(names[0]) else None


def _of_other_language(lines: Sequence[str], first_line: int) -> Shell:
    """Return a script whose first command ends the directives and whose text Frog did not understand."""
    begins = next((place for place, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"), len(lines))
    shell = parse("\n" * begins + ":", first_line)
    shell.not_understood = list(range(first_line + begins, first_line + len(lines)))
    return shell


def _read_in(command: Command) -> list[Assignment]:
    """Return the variables that `read`, `mapfile` and `: ${NAME:=value}` set."""
    if command.name in ("read", "mapfile", "readarray", "getopts", "printf"):
        names = [word.text for word in command.words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word.text)]
        return [Assignment(name, "$(read)", command.line, conditional=True) for name in names]
    defaults = [match for word in command.words for match in re.finditer(r"\$\{(\w+):?=([^}]*)\}", word.raw)]
    return [Assignment(match[1], match[2], command.line) for match in defaults]


def _read_command(command: Command, job: JobFile) -> None:
    """Add the steps and launchers of a command to the job."""
    words = job.values.split(command.words)
    whole = Command(words, command.assignments, command.line, command.last_line, command.context)
    place = program_at(words)
    if place < len(words) and words[place].base == "srun":
        step = Command(words[place:], command.assignments, command.line, command.last_line, command.context)
        job.steps.append(_step(step, job))
    elif place < len(words) and words[place].base in SHELLS and (script := inner_script(words)):
        for inner in parse(_with_launchers(script, job)[0], script.line).commands:
            again = Command(
                job.values.split(inner.words), inner.assignments, inner.line, inner.last_line, command.context
            )
            if launch := read_launch(again, None):
                job.launches.append(launch)
    elif launch := read_launch(whole, None):
        job.launches.append(launch)


def _all_exported(command: Command) -> bool:
    words = [word.text for word in command.words[1:]]
    return "allexport" in words or any(re.fullmatch(r"-[a-z]*a[a-z]*", word) for word in words if word != "-o")


def _step(command: Command, job: JobFile) -> SrunStep:
    words = command.words[1:]
    asked, used = read_options([(word.text, word.line) for word in words], SRUN)
    program = words[used:]
    script = inner_script(program)
    inner: list[Command] = []
    expanded = ""
    if script is not None:
        text, expanded = _with_launchers(script, job)
        inner = parse(text, script.line).commands
        inner = [Command(job.values.split(item.words), item.assignments, item.line, item.last_line, item.context)
                 for item in inner]  # fmt: skip
    step = SrunStep(command, tuple(asked), program, tuple(inner), script, expanded)
    for inside in step.commands:
        job.task_assignments.extend(inside.assignments)
        if launch := read_launch(inside, step):
            job.launches.append(launch)
    return step


def _with_launchers(script: Word, job: JobFile) -> tuple[str, str]:
    """Return the text of a task's script, with variables replaced that hold a command of the batch script.

    Also returns the variables in them that the batch script's shell has already expanded.
    """
    text, expanded = script.text, ""
    for _ in range(4):
        for name in Word(text, 0).expansions():
            assignment = job.assigned(name)
            whole = text.strip() in (f"${name}", f"${{{name}}}")
            if assignment and (whole or _LAUNCHES.search(assignment.raw)):
                pieces = re.split(rf"\$\{{?{name}\b\}}?", text)
                text = assignment.word.text.join(pieces)[:20_000]
                expanded = (expanded + live_text(assignment.raw))[:20_000]
    return text, expanded


_MOST_NESTED = 10
_ANYWHERE = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|%\(\w+\)[sd]|(?<![\w.])@[A-Z]\w*@(?!\w)|(?<=[=-])@[a-z]\w*@(?!\w)|\b(?:CHANGE_?ME|REPLACE_?(?:ME|THIS)|PLACEHOLDER)\b"
    r"|\[\[[A-Z_]+\]\]|\b__[A-Z][A-Z_]+__\b|(?<!\$)@\{(?!(?:u|upstream|push)\})[A-Za-z_]\w*\}"
)
_NAMED = re.compile(r"(?<![<>&\w$(])<(?!EOF|<)[A-Za-z][\w .:/|+-]*(?<![ ])>(?![>&])")
_SAYS = re.compile(r"\s*(echo|printf)\b|.*(:\?|\b[Uu]sage:|\bUSAGE:)")
"""A line that shows how to call the file: `sbatch job.sh <config>`."""
_BRACED = re.compile(r"(?<![$\w\\{])\{[A-Za-z_][\w .]*\}")
_SQUARE = re.compile(r"(?<![$\w])\[[A-Z][A-Z_ ]*\]|(?<==)\[[a-z][a-z_ -]*\](?=\s|$)")
_CAPITALS = re.compile(r"(?<!export)[= ](?:[A-Z]+_)*(?:NAME|NUM|YOUR|PATH|DIR)(?:_[A-Z]+)*(?=\s|$)")
_YOUR = re.compile(r"[=/ ]your[-_]\w+")
_CROSSES = re.compile(
    r"(?:(?<=account)|(?<=partition)|(?<=qos)|(?<= -[Apq]))[= ][Xx]+(?=\s|$)|[= ](?:X{3,}|x{3,})(?=\s|$)"
)
_VARIABLE = re.compile(r"\$\{\w+\}")


def mark_placeholders(text: str, first_line: int) -> tuple[str, dict[int, str]]:
    """Replace every placeholder in `text` by a mark; return the text and the placeholders by line."""
    placeholders: dict[int, str] = {}
    lines = text.split("\n")
    last = max((place for place, line in enumerate(lines) if line.startswith("#SBATCH")), default=-1)
    inserted = any(_inserts(line, text) for line in lines[: last + 1])
    for place, line in enumerate(lines):
        head = line.startswith("#SBATCH")
        if line.lstrip().startswith("#") and not head:
            continue
        patterns = [_ANYWHERE] if _SAYS.match(line) else [_ANYWHERE, _NAMED]
        if head:
            patterns += [_BRACED, _SQUARE, _CAPITALS, _YOUR, _CROSSES]
        if head and inserted:
            patterns.append(_VARIABLE)
        for pattern in patterns:
            for match in pattern.finditer(line):
                placeholders.setdefault(place + first_line, match[0].strip("=/ "))
            line = pattern.sub(lambda match: match[0][: match[0].startswith(("=", " ", "/"))] + PLACEHOLDER, line)
        if not head and (
            re.fullmatch(rf"[\s{PLACEHOLDER}]*{PLACEHOLDER}[\s{PLACEHOLDER}]*", line)
            or (inserted and _inserts(line, text))
        ):
            placeholders.setdefault(place + first_line, line.strip())
            line = f"# {PLACEHOLDER}"  # the placeholder may become directives as well as commands
        lines[place] = line
    return ("\n".join(lines), placeholders) if placeholders else (text, {})


def _inserts(line: str, text: str) -> bool:
    """True if the line is a single variable that the file never sets: a program fills it in."""
    match = re.fullmatch(r"\s*\$\{(\w+)\}\s*", line)
    return match is not None and not re.search(rf"\b{match[1]}=", text)


@dataclass(frozen=True)
class NestedJob:
    """A job file that another file writes and submits."""

    text: str
    first_line: int


def nested_jobs(heredocs: list[tuple[str, int, bool]]) -> list[NestedJob]:
    """Return the job files in here-documents: text, line, and True if the outer shell does not expand it."""
    jobs = []
    for text, line, quoted in heredocs:
        if re.search(r"^#SBATCH\b", text, re.MULTILINE):
            jobs.append(NestedJob(text if quoted else _as_submitted(text), line))
    return jobs[:_MOST_NESTED]


def _as_submitted(text: str) -> str:
    """Return the text that sbatch gets, with the outer shell's variables replaced by unknown values."""
    text = re.sub(
        r"(?<!\\)\$\((?:[^()]|\([^()]*\))*\)|(?<!\\)\$\{[^}]*\}|(?<!\\)\$[A-Za-z_]\w*|(?<!\\)\$[\d@*#?!]",
        PLACEHOLDER,
        text,
    )
    text = re.sub(r"(?<!\\)`[^`\n]*`", PLACEHOLDER, text)
    return re.sub(r"\\([$`\\])", r"\1", text)


def echoed_texts(commands: Iterable[Command]) -> list[tuple[str, int, bool]]:
    """Return the text that `echo` commands write to each file, as if it came from an unquoted here-document."""
    files: dict[str, list[list[Command]]] = {}
    for command in commands:
        if command.name == "echo" and command.writes is not None:
            texts = files.setdefault(command.writes.raw, [])
            if not texts or command.text.startswith("echo #!"):
                texts.append([])
            texts[-1].append(command)
    certain = [text for texts in files.values() for text in texts if not any(_is_uncertain(item) for item in text)]
    return [(_echoed(text), text[0].line, False) for text in certain]


def _is_uncertain(command: Command) -> bool:
    """True if the command might not run, or breaks lines itself."""
    return command.context.conditional or command.text.startswith(("echo -e", "echo -n"))


def _echoed(commands: list[Command]) -> str:
    """Join lines at their distances in the outer file, so that findings name the right line."""
    lines: list[str] = []
    for command in commands:
        lines += [""] * (command.line - commands[0].line - len(lines))
        lines += " ".join(map(_as_in_heredoc, command.words[1:])).split("\n")
    return "\n".join(lines)


def _as_in_heredoc(word: Word) -> str:
    quote = word.raw[:1]
    if quote == "'":
        return re.sub(r"([$`\\])", r"\\\1", word.text)
    return word.raw[1:-1].replace('\\"', '"') if quote == '"' else word.raw
