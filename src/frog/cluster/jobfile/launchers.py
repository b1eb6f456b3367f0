"""Programs that start ranks: torchrun and its older names, accelerate, deepspeed, srun; and their prefixes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from frog.cluster.jobfile.shell_script import Command
from frog.cluster.jobfile.shell_words import Word, live_text
from frog.cluster.slurm_options import GivenOption

_SUBSTITUTION = re.compile(r"\$\([^()]*\)|`[^`]*`")
SHELLS = ("bash", "sh", "dash", "zsh")
CONTAINERS = (
    "apptainer",
    "singularity",
    "enroot",
    "docker",
    "podman",
    "podman-hpc",
    "shifter",
    "charliecloud",
    "ch-run",
)
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "frog.launch.torchrun.agent": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_FLAGS = {
    "torchrun": {"standalone", "no-python", "module", "m", "help", "run-path", "use-env"},
    "accelerate": {"multi-gpu", "use-deepspeed", "use-fsdp", "cpu", "tpu", "use-xpu", "quiet", "debug", "module", "m",
                   "no-python", "use-megatron-lm", "same-network", "use-parallelism-config"},
    "deepspeed": {"no-python", "module", "no-local-rank", "force-multi", "no-ssh", "no-ssh-check", "save-pid",
                  "enable-each-rank-log"},
}  # fmt: skip
_SAME = {
    "accelerate": {"num-machines": "nnodes", "machine-rank": "node-rank", "main-process-ip": "master-addr",
                   "main-process-port": "master-port"},
    "deepspeed": {"num-nodes": "nnodes", "num-gpus": "nproc-per-node", "node-rank": "node-rank", "H": "hostfile"},
    "torchrun": {"r": "redirects", "t": "tee", "m": "module"},
}  # fmt: skip
_TORCHRUN = (
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "module", "no-python", "run-path", "log-dir",
    "redirects", "tee", "local-ranks-filter", "node-rank", "master-addr", "master-port", "local-addr", "logs-specs",
    "numa-binding", "signals-to-handle", "shutdown-timeout", "virtual-local-rank", "use-env",
)  # fmt: skip
"""torchrun's long options. Its parser, argparse, also takes a beginning that only one of them has: --nnode."""
_STARTERS = ("ssh", "pdsh", "mpirun", "mpiexec", "horovodrun", "parallel", "xargs", "clush", "orterun", "jsrun")
_WRAPPERS = {"exec", "time", "nohup", "command", "env", "nice", "ionice", "stdbuf", "unbuffer", "eval", "timeout",
             "numactl", "sudo", "nsys", "catchsegv", "strace", "!", "-"}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A launcher's command line: its options by name (with hyphens, in torchrun's spelling) and its program."""

    kind: str
    """torchrun, accelerate or deepspeed."""
    command: Command
    options: Mapping[str, Word]
    program: tuple[Word, ...]
    line: int
    step: SrunStep | None
    """The srun that starts it; None if the batch script starts it."""
    direct: bool = True
    """True if no other launcher, such as ssh or mpirun, starts it."""

    def option(self, *names: str) -> Word | None:
        return next((self.options[name] for name in names if name in self.options), None)

    @property
    def reads_node_rank(self) -> bool:
        """True if the launcher reads --node-rank; with a c10d rendezvous the nodes number themselves."""
        backend = self.option("rdzv-backend")
        return backend is None or backend.text == "static"

    def in_task(self, word: Word) -> bool:
        """True if each task's own shell reads that word, and not the batch script's."""
        return self.step is not None and self.step.in_task(word)


@dataclass(frozen=True, eq=False)
class SrunStep:
    """An srun line."""

    command: Command
    options: tuple[GivenOption, ...]
    program: tuple[Word, ...]
    script_commands: tuple[Command, ...]
    """Commands of `bash -c '...'`, if the step runs one."""
    script_word: Word | None
    """The quoted text as a word."""
    expanded: str = ""
    """Variables in that text that the batch script's shell expands."""

    def in_task(self, word: Word) -> bool:
        """True if each task's own shell reads that word, and not the batch script's."""
        if self.script_word is None or word.expansions() & self.script_word.expansions():
            return False
        commands = _SUBSTITUTION.findall(word.raw)
        if commands and all(command in live_text(self.script_word.raw) for command in commands):
            return False
        return "$" not in word.raw or word.raw not in self.expanded

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def commands(self) -> tuple[Command, ...]:
        """Commands that each task runs."""
        if self.script_commands:
            return self.script_commands
        return (Command(self.program, (), self.line, self.command.last_line, self.command.context),)

    @property
    def works(self) -> bool:
        """True if the step runs a training program, not a single command such as hostname."""
        words = [word.text for command in self.commands for word in command.words]
        return any(re.search(r"torchrun|python|\.sh\b|\.py\b|-m$|accelerate|deepspeed", word) for word in words)

    @property
    def python(self) -> bool:
        """True if each task is a Python program."""
        words = [word.base for command in self.commands for word in command.words]
        return any(re.fullmatch(r"python[\d.]*", word) for word in words)

    @property
    def requests_gpus(self) -> bool:
        """True if this srun asks for GPUs itself."""
        return any(self.option(name) for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres", "tres-per-task"))

    def option(self, name: str) -> GivenOption | None:
        return next((item for item in reversed(self.options) if item.name == name), None)


def program_at(words: tuple[Word, ...]) -> int:
    """Return the index of the program after words such as `exec`, `time` and `env NAME=value`."""
    place = 0
    while place < len(words):
        text = words[place].base
        wrapped = place > 0 and (text.startswith("-") or "=" in text or re.fullmatch(r"\d+[smh]?", text))
        if text not in _WRAPPERS and not wrapped and not re.fullmatch(r"[A-Za-z_]\w*=.*", text, re.DOTALL):
            return place
        place += 1
    return place


def read_launch(command: Command, step: SrunStep | None) -> Launch | None:
    """Return the launcher that a command starts, also after `exec`, in a container, or as `python -m`."""
    words, begins = command.words, program_at(command.words)
    for place, word in enumerate(words[:200]):
        kind = _MODULES.get(word.text) if place and words[place - 1].text == "-m" else None
        kind = kind or (word.base if word.base in _FLAGS and "=" not in word.text else None)
        if kind and words[0].text not in ("which", "command", "echo", "printf", "type", "pip", "conda", "pkill"):
            break
    else:
        return None
    rest = list(words[place + 1 :])
    if kind == "accelerate" and word.base == "accelerate":
        if not rest or rest[0].text != "launch":
            return None
        rest = rest[1:]
    options = _options(kind, rest)
    before = words[begins].base if begins < len(words) else ""
    alone = before not in _STARTERS and not before.endswith(".sh")
    return Launch(kind, command, options, tuple(rest), word.line, step, alone)


def _options(kind: str, rest: list[Word]) -> dict[str, Word]:
    """Return the launcher's options, which are removed from `rest`."""
    options: dict[str, Word] = {}
    while rest and rest[0].text.startswith("-"):
        written = rest.pop(0)
        raw_name, equals, raw_value = written.raw.partition("=")
        name = raw_name.strip("'\"").lstrip("-").replace("_", "-")
        name = _SAME[kind].get(name, name)
        if kind == "torchrun":
            name = _unabbreviated(name)
        if equals:
            options[name] = Word(raw_value, written.line)
        elif name in _FLAGS[kind] or not rest or (rest[0].text.startswith("-") and rest[0].text != "-1"):
            options[name] = Word("", written.line)
        else:
            options[name] = rest.pop(0)
    return options


def _unabbreviated(name: str) -> str:
    """Return the option of torchrun that begins with `name`, or `name` itself if several do."""
    options = [option for option in _TORCHRUN if option.startswith(name)]
    return options[0] if len(options) == 1 and len(name) > 1 else name


def inner_script(program: tuple[Word, ...]) -> Word | None:
    """Return the text after `bash -c`, also if a container starts the shell."""
    for place, word in enumerate(program[:-1]):
        if word.base in SHELLS:
            for behind, option in enumerate(program[place + 1 : place + 5], place + 1):
                if re.fullmatch(r"-\w*c", option.text):
                    return program[behind + 1] if behind + 1 < len(program) else None
                if not option.text.startswith(("-", "+")) and option.text not in ("pipefail", "errexit"):
                    break
    return None
