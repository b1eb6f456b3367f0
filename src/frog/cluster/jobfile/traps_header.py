"""Traps in a job file's header: its first line, and `#SBATCH` lines that Slurm ignores or refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from frog.cluster.jobfile.directives import GivenOption, read_options
from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job import JobFile
from frog.cluster.jobfile.options import SBATCH

_NUMBERS = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "gpus", "gpus-per-task")
_ARRAY = re.compile(r"\[?\d+(-\d+(:\d+)?)?(,\s?\d+(-\d+(:\d+)?)?)*\]?(%\d+)?|.*\u2370.*")
_AT_LEAST_ONE = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task")
_NUMBER = re.compile(r"(?:[^:=\s]+:)*\d(?:.*\d)?[kKmM]?$")
_NO_VALUE = "has no value"
_ADD_UP = ("mail-type",)
"""Options that accumulate when they are given several times."""
_NAMES = ("job-name", "comment", "mail-type", "mail-user", "output", "error", "verbose", "quiet")
"""Options that change only a job's name, its files or its mails, not what it does."""
_FILES = ("output", "error", "input", "chdir")


def header_findings(job: JobFile) -> Iterator[Finding]:
    """Find every trap in the lines of the header."""
    yield from _first_line(job)
    yield from _comments_that_look_like_directives(job)
    yield from _bare_option(job)
    yield from _unread(job)
    yield from _options(job)


NO_SHEBANG = Trap("no-shebang", FAILS, "sbatch refuses the file, or the shell refuses its option", "#!/bin/bash")
DOS_LINES = Trap("dos-lines", FAILS, "sbatch refuses the file", "sed -i 's/\\r$//' FILE")


def _first_line(job: JobFile) -> Iterator[Finding]:
    first = min((line.line for line in job.directives), default=2)
    begins = job.lines[0] if job.lines else ""
    empty = not any(line.strip() for line in job.lines)
    if not begins.startswith("#!") and (job.directives or job.given or empty):
        yield NO_SHEBANG.at(1 if first < 1 or not job.inner else first, "the first line does not name a shell")
    elif not begins.isascii():
        yield NO_SHEBANG.at(job.first_line, "the first line contains a typographic dash or another non-ASCII character")
    number = next((number for number, line in enumerate(job.lines, 1) if line.endswith("\r")), None)
    if number is not None and not job.inner:
        yield DOS_LINES.at(number, "lines end with CR LF, as on Windows")


NOT_A_DIRECTIVE = Trap("not-a-directive", WASTES, "Slurm ignores it and uses the default", "#SBATCH {rest}")


def _comments_that_look_like_directives(job: JobFile) -> Iterator[Finding]:
    if job.inner:
        return
    given = {asked.name for asked in job.asked}
    first = min((command.line for command in job.shell.everything), default=len(job.lines) + 1)
    for number, line in enumerate(job.lines[: first - 1], 1):
        match = re.match(
            r"(\s*)#(\s*)((?i:SBATCH)|SBTACH|SABTCH|SBACTH|SBATH|SBACH|BATCH|SLURM)\s+(-{1,2}[a-zA-Z].*)", line
        )
        if match is None:
            continue
        indent, space, name, rest = match.groups()
        words = rest.partition(" #")[0].split()
        asked, used = read_options([(word, number) for word in words], SBATCH)
        is_typed = name == "sbatch" and (space or used < len(words))  # shows how to submit the file
        if is_typed or not asked or asked[0].option is None or asked[0].name in given:
            continue
        what = f"#{name} is a comment: Slurm reads only #SBATCH"
        if name == "SBATCH":
            what = f"{'a space after' if space else 'spaces before'} '#' turns this line into a comment"
        if name != "SBATCH" or space or indent:
            yield NOT_A_DIRECTIVE.at(number, what, _weight(asked, job), rest=rest.strip())


def _weight(lost: Sequence[GivenOption], job: JobFile) -> Kind | None:
    """Return the severity of options that Slurm ignores: only advice if they set a name or repeat a default."""
    gpus = job.gpu_directive is not None
    holds = [item.name in _NAMES or (item.name in _AT_LEAST_ONE and item.value == "1")
             or (gpus and item.name in ("gpus-per-task", "gpus-per-node", "gpus")) for item in lost]  # fmt: skip
    return "advice" if all(holds) else None


NO_DIRECTIVE = Trap(
    "no-directive",
    FAILS,
    "the shell runs it as a command, which does not exist, and runs any $(...) in it; Slurm ignores it",
    "#SBATCH {rest}",
)


def _bare_option(job: JobFile) -> Iterator[Finding]:
    """Find an option alone on a line, where the file's first command should be."""
    command = min(job.shell.everything, key=lambda command: command.line, default=None)
    line = "" if command is None else job.lines[command.line - job.first_line].strip()
    if command is not None and re.match(r"--[a-z]", line):
        yield NO_DIRECTIVE.at(command.line, "an sbatch option without #SBATCH", rest=line)
    elif command is not None and (match := re.match(r"([^\w\s#]{0,3}#?SBATCH)\s+(-{1,2}[a-zA-Z].*)", line)):
        what = f"the line starts with {match[1]} instead of #SBATCH"
        yield NO_DIRECTIVE.at(command.line, what, "may hang or waste", rest=match[2])


AFTER_A_COMMAND = Trap(
    "after-a-command",
    WASTES,
    "Slurm stops reading directives at line {first} and ignores this one",
    "move it above line {first}",
)


def _unread(job: JobFile) -> Iterator[Finding]:
    first = min((command.line for command in job.shell.everything), default=0)
    texts = [word for command in job.shell.everything for word in (*command.words, command.heredoc) if word]
    bodies = {number for text in texts if "\n" in text.raw for number in range(text.line, text.last_line + 1)}
    given = {asked.name: asked.value for asked in job.asked}
    for line in job.directives:
        said = [item for item in line.asked
                if item.option and not item.problem and given.get(item.name, "") != item.value]  # fmt: skip
        if not line.read and said and line.line not in bodies:
            what = "this directive comes after the first command"
            yield AFTER_A_COMMAND.at(line.line, what, _weight(said, job), first=first)


NOT_AN_OPTION = Trap("not-an-option", FAILS, "sbatch refuses it, or reads it differently than intended", "{instead}")
SAID_TWICE = Trap("said-twice", ADVICE, "Slurm uses the last value")
TWO_MEMORIES = Trap("two-memories", FAILS, "these options are mutually exclusive")


def _options(job: JobFile) -> Iterator[Finding]:
    seen: dict[str, GivenOption] = {}
    component = 0
    shifter = any(re.match(r"[^#]*\bshifter\b", line) for line in job.lines)  # the shifter plugin has --image
    for line in job.directives:
        if not line.read:
            continue
        if line.component != component:
            seen, component = {}, line.component
        refused = [finding for asked in line.asked for finding in _option(asked)
                   if not (asked.written == "--image" and shifter)]  # fmt: skip
        yield from refused
        if line.problem and not refused:
            yield NOT_AN_OPTION.at(line.line, line.problem, instead=None)
        for asked in line.asked:
            twice = asked.name in seen and asked.name not in _ADD_UP and seen[asked.name].value != asked.value
            if twice and not refused:
                what = f"line {seen[asked.name].line} also sets --{asked.name}"
                yield SAID_TWICE.at(asked.line, what)
            seen[asked.name] = asked
    yield from _empty(job)
    memories = [seen[name] for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in seen]
    if len(memories) > 1:
        what = " and ".join(f"--{item.name}" for item in memories)
        yield TWO_MEMORIES.at(max(item.line for item in memories), what)
    yield from _variables_in_directives(job)


def _empty(job: JobFile) -> Iterator[Finding]:
    """Report all options without a value in one finding: such a file is a template."""
    found = [asked for asked in job.asked if asked.problem == _NO_VALUE]
    if found:
        lines = list(dict.fromkeys(str(asked.line) for asked in found))
        also = f", as in line{'s' * (len(lines) > 2)} {', '.join(lines[1:8])}" if len(lines) > 1 else ""
        yield NOT_AN_OPTION.at(found[0].line, f"{found[0].written}: {_NO_VALUE}{also}", instead=None)


SITE_OPTION = Trap("site-option", ADVICE, "Slurm itself does not have this option; a plugin of your site may define it")
NOT_A_NUMBER = Trap("not-a-number", FAILS, "sbatch refuses it")


def _option(asked: GivenOption) -> Iterator[Finding]:
    if asked.problem == "no such option" and asked.instead is None and asked.written.startswith("--"):
        yield SITE_OPTION.at(asked.line, f"{asked.written} is not a Slurm option")
    elif asked.problem and asked.problem != _NO_VALUE:
        instead = asked.instead
        if instead and asked.value and "=" not in instead and " " not in instead:
            instead = f"{instead}={asked.value}"
        yield NOT_AN_OPTION.at(asked.line, f"{asked.written}: {asked.problem}", instead=instead)
    elif asked.name == "array" and asked.value and not _ARRAY.fullmatch(asked.value) and "$" not in asked.value:
        yield NOT_A_NUMBER.at(asked.line, f"{asked.written} {asked.value}: write 0-9, 1,3,5 or 0-90:10%4")
    elif asked.name.startswith("mem") and re.fullmatch(r"\d+(?![kKmMgGtT][bB]?$)[A-Za-z]+", asked.value or ""):
        yield NOT_A_NUMBER.at(asked.line, f"{asked.written} {asked.value}: the units are K, M, G and T")
    elif asked.name in _AT_LEAST_ONE and re.fullmatch("0+", asked.value or ""):
        yield NOT_A_NUMBER.at(asked.line, f"{asked.written} {asked.value}: must be at least 1")
    elif asked.name == "gres" and (match := re.fullmatch(r"gpus(:.*)?", asked.value or "")):
        what = f"{asked.written} {asked.value}: the resource is named gpu"
        yield NOT_AN_OPTION.at(asked.line, what, instead=f"--gres=gpu{match[1] or ''}")
    elif asked.name.startswith("gpus") and re.fullmatch(r"(?=.*\d)[A-Za-z][\w-]*", asked.value or ""):
        return  # a type without a number, such as a100, means one of it
    elif asked.name in _NUMBERS and asked.value and "$" not in asked.value and not _NUMBER.match(asked.value):
        yield NOT_A_NUMBER.at(asked.line, f"{asked.written} {asked.value}: not a number")


VARIABLE_IN_DIRECTIVE = Trap(
    "variable-in-directive",
    WASTES,
    "no shell reads these lines, so Slurm uses the text literally",
    "write the value, or one of Slurm's patterns: %j %x %u",
)


def _variables_in_directives(job: JobFile) -> Iterator[Finding]:
    """Report all variables in one finding: a file with many of them is a template that a program fills in."""
    found = [asked for asked in job.asked if asked.value and asked.line
             and ("$" in asked.value or (asked.value[0] == "~" and asked.name in _FILES))]  # fmt: skip
    if found:
        lines = list(dict.fromkeys(str(asked.line) for asked in found))
        also = f", as in line{'s' * (len(lines) > 2)} {', '.join(lines[1:8])}" if len(lines) > 1 else ""
        kind = "variable" if "$" in (found[0].value or "") else "tilde"
        what = f"{found[0].written} {found[0].value}: a {kind}{also}"
        harmless = all(asked.name in ("job-name", "comment", "mail-user") for asked in found)
        yield VARIABLE_IN_DIRECTIVE.at(found[0].line, what, "advice" if harmless else None)
