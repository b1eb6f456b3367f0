"""Traps of the shell itself: lines that end too early, servers in the foreground, functions that are not there yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from frog.jobfile.directives import one_letter_apart
from frog.jobfile.findings import Finding, Kind, make_finding
from frog.jobfile.job import JobFile, runs_own_file
from frog.jobfile.launchers import CONTAINERS, SHELLS, program_at
from frog.shell.script import Command
from frog.shell.words import live_text

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
_NO_WORDS = {"else:": "else", "elif:": "elif", "elseif": "elif", "elsif": "elif", "then:": "then", "do:": "do",
             "fi:": "fi", "done:": "done", "endif": "fi", "endfor": "done"}  # fmt: skip
"""What other languages write, and what the shell has for it."""
_KEPT = re.compile(r"(?<!\\)\\\$\{?([A-Za-z_]\w*)")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_READ_AGAIN = ("echo", "printf", "eval", "ssh", "sed", "awk", "gawk", "grep", "perl", "trap", "alias", "find", "xargs",
               "parallel", "clush", "pdsh", "tmux", "screen", "su", "sudo", "sbatch", "[[", "[", "test")  # fmt: skip
"""Commands whose words another reader takes up again, or which only say them."""
_AMD = re.compile(r"rocm|\b(MIOPEN|HIP|ROCR|HSA)_|\bmi\d{3}", re.IGNORECASE)
"""AMD's GPUs: a container sees their devices as it sees all of /dev, and often has the libraries itself."""
_TEST = re.compile(r"(\[\[?)(?![\s\[])|\[\[?\s.*[^\s\]](\]\]?)\Z", re.DOTALL)
"""A condition without the blank behind its first bracket, or before its last."""
_ASSIGNS = re.compile(r"\s*(\w+=(\"[^\"]*\"|'[^']*'|[^\s\"'])*\s+)+\\")
_BASH_ONLY = ("[[", "declare", "mapfile", "pushd", "shopt", "source")
_TYPED = re.compile(r"[\u201c\u201d\u201e\u2018\u2019]|^[-\u2010-\u2015]*[\u2010-\u2015]+-*[A-Za-z]")
"""Quotes and dashes of a word processor."""


def shell_findings(job: JobFile) -> Iterator[Finding]:
    """Everything about the shell."""
    yield from _broken_lines(job)
    yield from _blanks(job)
    yield from _words(job)
    yield from _kept_dollars(job)
    yield from _single_quotes(job)
    yield from _no_braces(job)
    yield from _typographic(job)
    yield from _servers(job)
    yield from _conda(job)
    yield from _modules(job)
    yield from _plain_sh(job)
    yield from _containers(job)


def _broken_lines(job: JobFile) -> Iterator[Finding]:
    """A backslash that does not join lines: a blank, a comment or an empty line comes behind it."""
    for place, line in enumerate(job.lines):
        if line.lstrip().startswith("#"):
            continue
        following = job.lines[place + 1].strip() if place + 1 < len(job.lines) else ""
        number = place + job.first_line
        if re.search(r"\S\s+\\[ \t]+(#.*)?$", line.rstrip("\r")) and re.match(r"-{1,2}\w|\S+\.py", following):
            what = "a comment" if "#" in line.rpartition("\\")[2] else "a blank"
            yield make_finding("broken-line", number + 1, f"{what} behind the backslash of line {number}")
        elif re.search(r"(^|\s)\\$", line) and (not following or following.startswith("#")):
            yield from _cut_off(job, place)


def _cut_off(job: JobFile, place: int) -> Iterator[Finding]:
    """What stands behind the comments, or the empty line, that follow a line with a backslash."""
    between = list(takewhile(_is_comment, job.lines[place + 1 :])) or job.lines[place + 1 : place + 2]
    behind = place + 1 + len(between)
    rest = job.lines[behind] if behind < len(job.lines) else ""
    if not rest.strip():
        return
    begins = place
    while begins and job.lines[begins - 1].endswith("\\"):
        begins -= 1
    alone = all(_ASSIGNS.fullmatch(line) for line in job.lines[begins : place + 1])
    meant = between[-1].endswith("\\") and (alone or _indent(rest) > _indent(job.lines[begins]))
    if meant or re.match(r"\s*-{1,2}[a-zA-Z]", rest):  # the comment was a line of this command once, or it is an option
        what = f"{'a comment' if between[0].strip() else 'an empty line'} behind the backslash"
        kind: Kind | None = "may hang or waste" if alone else None
        yield make_finding("broken-line", behind + job.first_line, f"{what} of line {place + job.first_line}", kind)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _blanks(job: JobFile) -> Iterator[Finding]:
    """`NAME= "value"`: a program that is called like the value, with an empty NAME. `NAME = value`: a program NAME.

    `$NAME=value`: a program whose name is NAME's value, and the rest.
    """
    read = {name for command in job.shell.everything for word in command.words for name in word.expansions()}
    for command in job.shell.everything:
        empty = [item for item in command.assignments if not item.raw and item.items is None]
        if len(empty) == 1 and len(command.words) == 1 and command.words[0].raw[:1] in "\"'" and empty[0].name in read:
            name, value = empty[0].name, command.words[0].raw
            what = f"a blank between {name}= and its value"
            yield make_finding("blank-behind-equals", command.line, what, name=name, value=value)
        raw = [word.raw for word in command.words if word.raw != "export"]
        if len(raw) == 3 and raw[1] == "=" and raw[0].isidentifier():
            what = f"blanks around the = behind {raw[0]}"
            yield make_finding("blank-behind-equals", command.line, what, name=raw[0], value=raw[2])
        if raw and (match := re.match(r"\$([A-Za-z_]\w*)=(.*)", raw[0])):
            yield make_finding("dollar-before-name", command.line, f"a $ before {match[1]}=", name=match[1])


def _kept_dollars(job: JobFile) -> Iterator[Finding]:
    """`conda activate \\$WORK/env`: no quotes, and a backslash."""
    for command in job.shell.commands:
        if any(word.base in (*SHELLS, *_READ_AGAIN) for word in command.words):
            continue
        for word in command.words:
            if match := _KEPT.search(_QUOTED.sub("", word.raw)):
                what = f"\\${match[1]} outside of quotes"
                yield make_finding("dollar-kept", word.line, what, name=match[1])


def _single_quotes(job: JobFile) -> Iterator[Finding]:
    """`--rdzv_endpoint '$MASTER_ADDR:29500'`: in single quotes, where no other shell reads it."""
    for run in job.launches:
        for word in run.options.values():
            match = _IN_QUOTES.fullmatch(word.raw)
            if match and not run.in_task(word) and (job.assigned(match[1]) or match[1].startswith("SLURM_")):
                what = f"${match[1]} in single quotes"
                yield make_finding("dollar-kept", word.line, what, name=match[1])


_IN_QUOTES = re.compile(r"'\$\{?([A-Za-z_]\w*)\}?(?::\$?\{?\w+\}?)?'")


def _no_braces(job: JobFile) -> Iterator[Finding]:
    """`$LIST[$i]`, which is the first item, and `[0]` as text."""
    lists = {item.name for item in job.assignments if item.items is not None}
    if not lists or "zsh" in job.lines[0]:
        return
    for command in job.shell.everything:
        if command.name in ("echo", "printf"):
            continue
        for word in (*command.words, *(item.word for item in command.assignments if item.items is None)):
            match = re.search(r"\$([A-Za-z_]\w*)\[(\$\{?\w+\}?|\d+|[@*])\]", live_text(word.raw))
            if match and match[1] in lists:
                yield make_finding("no-braces", word.line, f"{match[0]} without braces", text=match[0][1:])


def _typographic(job: JobFile) -> Iterator[Finding]:
    """`--name \u201cmy run\u201d` and `\u2013-lr`, as a word processor writes them."""
    for command in job.shell.everything:
        if command.name in ("echo", "printf"):
            continue
        for raw in (*(word.raw for word in command.words), *(item.raw for item in command.assignments)):
            if match := _TYPED.search(_QUOTED.sub("", raw)):
                what = f"{match[0]} is {'a quote' if match[0] in _CURLY else 'a dash'} of a word processor"
                yield make_finding("typographic", command.line, what)
                break


_CURLY = "\u201c\u201d\u201e\u2018\u2019"


def _words(job: JobFile) -> Iterator[Finding]:
    """`else:`, `elseif` and `[$x = 1]`: names of programs that there are not."""
    for command in job.shell.everything:
        word = command.words[0].raw if command.words else ""
        if word in _NO_WORDS and word not in job.shell.functions:
            kind: Kind | None = "will fail" if word in ("elif:", "elseif", "elsif") else None
            yield make_finding("no-such-word", command.line, f"{word} is no word of the shell", kind,
                               instead=_NO_WORDS[word])  # fmt: skip
        elif match := re.match(r"\$([A-Za-z_]\w*)=", word):
            what = f"{match[0]} sets nothing: a name is set without its dollar"
            yield make_finding("no-such-word", command.line, what, instead=f"{match[1]}=")
        elif near := _slip(job, word):
            what = f"{word} is no function of this file; {near} is"
            yield make_finding("no-such-word", command.line, what, instead=near)
        elif word == "trap" and len(command.words) > 2 and (near := _slip(job, command.words[1].text)):
            what = f"{command.words[1].text} is no function of this file; {near} is"
            yield make_finding("no-such-word", command.line, what, instead=f"trap {near} ...")
        elif word == "[[" and len(command.words) == 2 and (match := _TEST.match(command.words[1].raw)):
            what = f"no blank behind {match[1]}" if match[1] else f"no blank before {match[2]}"
            yield make_finding("no-such-word", command.line, what, instead="[ ... ]")


def _slip(job: JobFile, name: str) -> str | None:
    """The function of which a name is a slip."""
    if len(name) < 6 or not name.isidentifier() or name in job.shell.functions:
        return None
    return next((other for other in job.shell.functions if len(other) > 5 and one_letter_apart(name, other)), None)


def _servers(job: JobFile) -> Iterator[Finding]:
    """A program in the foreground that ends only when the job does."""
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
            yield make_finding(
                "never-returns", command.line, f"{_short(text)}: a server in the foreground", command=name
            )
    yield from _waits_for_server(job, commands)
    yield from _waits_for_all(job, commands)
    for line in job.shell.endless:
        if any(
            command.line > line and command.way.certain and command.name not in _WATCHED
            for command in _behind(job, line)
        ):
            yield make_finding("never-returns", line, "a loop without an end, in the foreground", command="( ... )")


def _waits_for_server(job: JobFile, commands: list[Command]) -> Iterator[Finding]:
    """`wait` for a server that only what stands behind it would end."""
    served = [command for command in commands if command.way.behind and _SERVES.search(command.text)]
    names = {item.name for command in served for item in job.assignments
             if item.raw == "$!" and command.last_line <= item.line <= command.last_line + 1}  # fmt: skip
    waits = [command for command in commands if command.way.certain and command.name == "wait"]
    for wait in (wait for wait in waits if any(word.expansions() & names for word in wait.words[1:])):
        behind = [item for item in commands if item.line > wait.line and item.name not in _WATCHED]
        ended = any(item.line < wait.line and item.name in ("kill", "pkill", "scancel") for item in commands)
        if behind and not ended:
            what = f"wait for {_short(served[0].text)}, which does not end by itself"
            yield make_finding("never-returns", wait.line, what, command=behind[0].name)


def _waits_for_all(job: JobFile, commands: list[Command]) -> Iterator[Finding]:
    """`wait` alone, behind work that a server in the background was for."""
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
            what = f"wait for all, and {_short(before[-1].text)} does not end"
            yield make_finding("waits-for-server", wait.line, what)
            return


_WORK = re.compile(r"\b(python[\d.]*|torchrun|accelerate|deepspeed)\b(?! -c).*(\.py\b| -m )")
_WATCHED = ("echo", "date", "exit", "wait")


def _behind(job: JobFile, line: int) -> list[Command]:
    """The commands behind the loop that begins there: those of the loop itself may run, or not."""
    return [
        command
        for command in job.shell.commands
        if command.line > line and not command.way.loop and not command.way.maybe
    ]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:37] + "..."


def _conda(job: JobFile) -> Iterator[Finding]:
    """`conda activate` in a shell that has not read conda's functions."""
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
                yield make_finding("conda-not-ready", command.line, f"{command.words[0].text} activate", kind)
            return


def _initialises(before: list[Command]) -> bool:
    """Whether `conda init` stands before it: that writes ~/.bashrc, and nothing here reads it."""
    return any(command.text.startswith(("conda init", "mamba init")) for command in before)


def _modules(job: JobFile) -> Iterator[Finding]:
    """`module load` before the file that brings the function."""
    loads = [item for item in job.shell.commands if item.name in ("module", "ml") and len(item.words) > 1]
    brings = [item for item in job.shell.commands if item.name in ("source", ".")
              and re.search(r"modules?\.sh|lmod|init/(ba)?sh", item.text)]  # fmt: skip
    if loads and brings and loads[0].line < brings[0].line:
        what = f"module before {brings[0].words[1].base}"
        yield make_finding("modules-not-ready", loads[0].line, what, behind=brings[0].line)


def _plain_sh(job: JobFile) -> Iterator[Finding]:
    shell = re.match(r"#!\s*(?:/usr)?/bin/(?:env )?(sh|dash)\b", job.lines[0]) if job.lines else None
    if shell is None:
        return
    kind: Kind | None = "advice" if shell[1] == "sh" else None
    for command in job.shell.everything:
        lists = any(item.items is not None for item in command.assignments)
        if lists or (command.words and command.words[0].raw in _BASH_ONLY):
            what = "a list" if lists else command.words[0].raw
            yield make_finding(
                "bash-in-sh",
                command.line,
                f"{what} is bash's, and the file begins with {job.lines[0].strip()}",
                kind,
            )
            return


def _containers(job: JobFile) -> Iterator[Finding]:
    """A container that does not get the job's GPUs."""
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
            yield make_finding("container-without-gpus", command.line, f"{name} without --nv or --rocm", container=name)
