"""What a job file would do: what it asks for, which steps it starts, which variables reach them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frog.jobfile.directives import SRUN, DirectiveLine, GivenOption, read_directives, read_options, time_limit_s
from frog.jobfile.shell import Assignment, Command, Shell, Word, parse

_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch", "frog.comm.torchrun")
_TORCHRUN_FLAGS = {"standalone", "no-python", "module", "m", "help", "run-path", "use-env"}
_TORCHRUN_SHORT = {"r": "redirects", "t": "tee", "m": "module"}
_SHELLS = ("bash", "sh", "dash", "zsh")
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

_GPU_GRES = re.compile(r"\bgpu(?::[^:,=]+)??(?:[:=](\d+))?(?:,|$)")

_HOLDS_WORDS = re.compile(r"\b(torchrun|srun|torch\.distributed\.(run|launch))\b|^\s*-")

PER_TASK = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURMD_NODENAME"}
"""What differs from task to task: read in the batch script itself it is the first node's."""


@dataclass(frozen=True)
class Torchrun:
    """A torchrun line: its options by name (hyphens for underscores), and what it starts."""

    command: Command
    options: Mapping[str, Word]
    program: tuple[Word, ...]
    line: int
    step: SrunStep | None
    """The srun that starts it; None if it stands in the batch script itself."""

    def option(self, *names: str) -> Word | None:
        return next((self.options[name] for name in names if name in self.options), None)

    def in_task(self, word: Word) -> bool:
        """Whether each task's own shell reads that word, and not the batch script's."""
        script = self.step.script_word if self.step else None
        return script is not None and not (word.expansions() & script.expansions())


@dataclass(frozen=True, eq=False)
class SrunStep:
    """An srun line."""

    command: Command
    asked: tuple[GivenOption, ...]
    program: tuple[Word, ...]
    inner: tuple[Command, ...]
    """The commands of `bash -c '...'`, if that is what it starts."""
    script_word: Word | None
    """That quoted text as a word."""

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def commands(self) -> tuple[Command, ...]:
        """What each task runs."""
        if self.inner:
            return self.inner
        return (Command(self.program, (), self.command.end, self.line, self.command.last_line),)

    @property
    def works(self) -> bool:
        """Whether this is the long step, with a program to train, and not one command like hostname."""
        words = [word.text for command in self.commands for word in command.words]
        return any(re.search(r"torchrun|python|\.sh\b|\.py\b|-m$|accelerate|deepspeed|\$\{?\w", word) for word in words)

    def asks(self, name: str) -> GivenOption | None:
        return next((item for item in self.asked if item.name == name), None)


@dataclass
class JobFile:
    """A job file, read."""

    path: Path
    lines: list[str]
    directives: list[DirectiveLine]
    shell: Shell
    steps: list[SrunStep] = field(default_factory=list)
    torchruns: list[Torchrun] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    """Those of the batch script; `task_assignments` are those inside of srun's bash -c."""
    task_assignments: list[Assignment] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)

    @property
    def asked(self) -> list[GivenOption]:
        """What Slurm reads, in order."""
        return [item for line in self.directives if line.read for item in line.asked]

    def asks(self, name: str) -> GivenOption | None:
        """The last word on an option: that is the one which counts."""
        return next((item for item in reversed(self.asked) if item.name == name), None)

    def text(self, name: str) -> str | None:
        asked = self.asks(name)
        return asked.value if asked else None

    def number(self, name: str) -> int | None:
        found = self.asks(name)
        match = re.match(r"(\d+)", found.value or "") if found else None
        return int(match[1]) if match else None

    @property
    def nodes(self) -> int | None:
        """How many nodes; None if the file leaves that to Slurm."""
        if (nodes := self.number("nodes")) is not None:
            return nodes
        ntasks, per_node = self.number("ntasks"), self.number("ntasks-per-node")
        if ntasks and per_node:
            return -(-ntasks // per_node)
        return 1 if ntasks in (None, 1) else None

    @property
    def several_nodes(self) -> bool:
        """Whether there are, or may be, more nodes than one."""
        return self.nodes is None or self.nodes > 1

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks that a plain srun starts on each node."""
        ntasks, nodes = self.number("ntasks"), self.nodes
        if (per_node := self.number("ntasks-per-node")) is not None:
            return per_node
        if ntasks is not None:
            return -(-ntasks // nodes) if nodes else None
        return 1

    @property
    def gpu_directive(self) -> GivenOption | None:
        """What asks for GPUs."""
        gres = self.asks("gres")
        if gres is not None and not _GPU_GRES.search(gres.value or ""):
            gres = None
        return self.asks("gpus-per-node") or gres or self.asks("gpus-per-task") or self.asks("gpus")

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node; 0 if the file asks for none, None if it does not tell."""
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
        found = self.asks(name)
        match = re.search(r"(\d+)$", found.value or "") if found else None
        return int(match[1]) if match else None

    @property
    def time_s(self) -> int | None:
        """Seconds of the time limit; None if there is none or it cannot be read."""
        asked = self.asks("time")
        try:
            return time_limit_s(asked.value) if asked and asked.value else None
        except ValueError:
            return None

    def step_tasks_per_node(self, step: SrunStep) -> int | None:
        """Tasks that this srun starts on each node, by its own options or the job's."""
        if (own := step.asks("ntasks-per-node")) and own.value:
            return self.resolve_int(own.value)
        if (total := step.asks("ntasks")) and total.value:
            count, nodes = self.resolve_int(total.value), self.step_nodes(step)
            return -(-count // nodes) if count is not None and nodes else None
        return self.tasks_per_node

    def step_nodes(self, step: SrunStep) -> int | None:
        """Nodes that this srun uses."""
        own = step.asks("nodes")
        return self.resolve_int(own.value) if own and own.value else self.nodes

    def slurm_variables(self) -> dict[str, tuple[str, str]]:
        """Variables that Slurm sets and whose value the file tells: value, and where it comes from."""
        found: dict[str, tuple[str, str]] = {}
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
            asked = self.gpu_directive if "gpus" in option else self.asks(option)
            if value is not None and asked is not None:
                found |= dict.fromkeys(names, (str(value), f"{asked.written} in line {asked.line}"))
        if self.nodes and self.tasks_per_node:
            found["SLURM_NTASKS"] = (str(self.nodes * self.tasks_per_node), "nodes x tasks on each")
        return found

    def assigned(self, name: str) -> Assignment | None:
        """Where a variable gets its value: in the task's own commands, else in the batch script."""
        both = [*self.assignments, *self.task_assignments]
        return next((item for item in reversed(both) if item.name == name), None)

    def resolve(self, raw: str, seen: frozenset[str] = frozenset()) -> str | None:
        """The text of a word, with the variables put in that the file tells; None if one is not known."""
        text = Word(raw, 0).text
        if re.search(r"\\\$|^'.*\$.*'$", raw, re.DOTALL):
            return None

        def put_in(match: re.Match[str]) -> str:
            name, default = match[1] or match[4], match[3] if match[2] == "-" else None
            value = self._value(name, seen)
            value = self.resolve(default, seen) if value is None and default is not None else value
            if value is None:
                raise LookupError(name)
            return value

        try:
            text = re.sub(r"\$\{(\w+)(?::?([-?])([^}]*))?\}|\$([A-Za-z_]\w*)", put_in, text)
            text = re.sub(r"\$\(\((.*?)\)\)", lambda match: str(self._arithmetic(match[1], seen)), text)
        except (LookupError, ValueError, SyntaxError, ZeroDivisionError):
            return None
        return None if "$" in text or "`" in text else text

    def resolve_int(self, raw: str) -> int | None:
        text = self.resolve(raw)
        return int(text) if text is not None and text.isdigit() else None

    def _value(self, name: str, seen: frozenset[str]) -> str | None:
        if name in seen:
            return None
        if assignment := self.assigned(name):
            return self.resolve(assignment.raw, seen | {name})
        known = self.slurm_variables().get(name)
        return known[0] if known else None

    def _arithmetic(self, text: str, seen: frozenset[str]) -> int:
        def value(node: ast.expr) -> int:
            if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
                return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
            if isinstance(node, ast.Constant) and isinstance(node.value, int):
                return node.value
            if isinstance(node, ast.Name) and (known := self._value(node.id, seen)) is not None:
                return int(known)
            raise LookupError(text)

        return value(ast.parse(text.strip().replace("$", "").replace("/", "//"), mode="eval").body)

    def with_definitions(self, raw: str) -> str:
        """A word as written, followed by the definitions of the variables in it, and of those in these."""
        text, seen = raw, set[str]()
        while names := Word(text, 0).expansions() - seen:
            seen |= names
            text += "".join(" " + item.raw for name in sorted(names) if (item := self.assigned(name)))
        return text

    @property
    def requeues(self) -> bool:
        """Whether the script puts its own job back into the queue."""
        texts = (" ".join(word.text for word in command.words) for command in self.shell.commands)
        return any("scontrol requeue" in text for text in texts)


def read_job_file(text: str, path: Path) -> JobFile:
    """A job file's content, read."""
    lines = text.removesuffix("\n").split("\n")
    job = JobFile(path, lines, read_directives(lines), parse(text))
    for command in job.shell.commands:
        if command.name == "export":
            job.exported |= {word.text.partition("=")[0] for word in command.words[1:]}
        if command.name in ("export", "declare", "local", "readonly", "typeset") or not command.words:
            job.assignments += command.assignments
    job.exported |= {item.name for item in job.assignments if item.exported}
    if any(command.name == "set" and _all_exported(command) for command in job.shell.commands):
        job.exported |= {item.name for item in job.assignments}
    for command in job.shell.commands:
        words = _put_in_commands(command.words, job)
        if (place := next((n for n, word in enumerate(words) if _basename(word) == "srun"), None)) is not None:
            job.steps.append(_step(Command(words[place:], (), command.end, command.line, command.last_line), job))
        elif torchrun := _torchrun(Command(words, (), command.end, command.line, command.last_line), None):
            job.torchruns.append(torchrun)
    return job


def _all_exported(command: Command) -> bool:
    words = [word.text for word in command.words[1:]]
    return "allexport" in words or any(re.fullmatch(r"-[a-z]*a[a-z]*", word) for word in words if word != "-o")


def _basename(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _put_in_commands(words: tuple[Word, ...], job: JobFile) -> tuple[Word, ...]:
    """`$LAUNCHER` and `$SRUN_ARGS` replaced by their words, where a variable of the file holds a command or options."""
    found: list[Word] = []
    for word in words:
        match = re.fullmatch(r'"?\$\{?(\w+)\}?"?', word.raw)
        assignment = job.assigned(match[1]) if match else None
        if assignment and _HOLDS_WORDS.search(Word(assignment.raw, 0).text):
            inner = parse(Word(assignment.raw, 0).text, assignment.line).commands
            found += [inner_word for command in inner for inner_word in command.words]
        else:
            found.append(word)
    return tuple(found)


def _step(command: Command, job: JobFile) -> SrunStep:
    words = command.words[1:]
    asked, used = read_options([(word.text, word.line) for word in words], SRUN)
    program = words[used:]
    script = _inner_script(program)
    inner: list[Command] = []
    if script is not None:
        text = script.text
        for name in script.expansions():
            assignment = job.assigned(name)
            if assignment and re.search(r"\btorchrun\b|torch\.distributed", assignment.raw):
                pieces = re.split(rf"\$\{{?{name}\b\}}?", text)
                text = Word(assignment.raw, 0).text.join(pieces)
        inner = parse(text, script.line).commands
    step = SrunStep(command, tuple(asked), program, tuple(inner), script)
    for inside in step.commands:
        job.task_assignments += inside.assignments
        if torchrun := _torchrun(inside, step):
            job.torchruns.append(torchrun)
    return step


def _inner_script(program: tuple[Word, ...]) -> Word | None:
    """The text behind `bash -c`, also where the shell is started by a container."""
    for place, word in enumerate(program[:-1]):
        if _basename(word) in _SHELLS and re.fullmatch(r"-\w*c", program[place + 1].text):
            return program[place + 2] if place + 2 < len(program) else None
    return None


def _torchrun(command: Command, step: SrunStep | None) -> Torchrun | None:
    """The torchrun that a command starts, be it behind `exec`, a container, or `python -m`."""
    words = command.words
    for place, word in enumerate(words):
        if word.text in _TORCHRUN_MODULES and place and words[place - 1].text == "-m":
            break
        if _basename(word) == "torchrun" and not (place and words[0].text in ("which", "command", "echo")):
            break
    else:
        return None
    line, rest = words[place].line, list(words[place + 1 :])
    options: dict[str, Word] = {}
    while rest and rest[0].text.startswith("-"):
        written = rest.pop(0)
        raw_name, equals, raw_value = written.raw.partition("=")
        name = raw_name.strip("'\"").lstrip("-").replace("_", "-")
        name = _TORCHRUN_SHORT.get(name, name)
        if equals:
            options[name] = Word(raw_value, written.line)
        elif name in _TORCHRUN_FLAGS or not rest:
            options[name] = Word("", written.line)
        else:
            options[name] = rest.pop(0)
    return Torchrun(command, options, tuple(rest), line, step)
