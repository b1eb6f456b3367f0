"""Traps in the shell language: lines that end too early, misplaced spaces and quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from frog.cluster.jobfile.directives import one_letter_apart
from frog.cluster.jobfile.findings import FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job import JobFile
from frog.cluster.jobfile.launchers import SHELLS
from frog.cluster.jobfile.shell.words import live_text

_NO_WORDS = {"else:": "else", "elif:": "elif", "elseif": "elif", "elsif": "elif", "then:": "then", "do:": "do",
             "fi:": "fi", "done:": "done", "endif": "fi", "endfor": "done"}  # fmt: skip
"""Keywords of other languages, with the shell's equivalents."""
_KEPT = re.compile(r"(?<!\\)\\\$\{?([A-Za-z_]\w*)")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_READ_AGAIN = ("echo", "printf", "eval", "ssh", "sed", "awk", "gawk", "grep", "perl", "trap", "alias", "find", "xargs",
               "parallel", "clush", "pdsh", "tmux", "screen", "su", "sudo", "sbatch", "[[", "[", "test")  # fmt: skip
"""Commands whose words another program parses again, or which only print them."""
_TEST = re.compile(r"(\[\[?)(?![\s\[])|\[\[?\s.*[^\s\]](\]\]?)\Z", re.DOTALL)
"""A condition without the space after its opening or before its closing bracket."""
_ASSIGNS = re.compile(r"\s*(\w+=(\"[^\"]*\"|'[^']*'|[^\s\"'])*\s+)+\\")
_BASH_ONLY = ("[[", "declare", "mapfile", "pushd", "shopt", "source")
_TYPED = re.compile(r"[\u201c\u201d\u201e\u2018\u2019]|^[-\u2010-\u2015]*[\u2010-\u2015]+-*[A-Za-z]")
"""Typographic quotes and dashes, as a word processor inserts them."""


def shell_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps in the shell language."""
    yield from _broken_lines(job)
    yield from _blanks(job)
    yield from _words(job)
    yield from _kept_dollars(job)
    yield from _single_quotes(job)
    yield from _no_braces(job)
    yield from _typographic(job)
    yield from _plain_sh(job)


BROKEN_LINE = Trap(
    "broken-line",
    FAILS,
    "the shell ends the previous command and runs this line as a separate command",
    "put the comment on a line of its own, before the command",
)


def _broken_lines(job: JobFile) -> Iterator[Finding]:
    """Find a backslash that does not join lines because a space, a comment or an empty line follows."""
    for place, line in enumerate(job.lines):
        if line.lstrip().startswith("#"):
            continue
        following = job.lines[place + 1].strip() if place + 1 < len(job.lines) else ""
        number = place + job.first_line
        if re.search(r"\S\s+\\[ \t]+(#.*)?$", line.rstrip("\r")) and re.match(r"-{1,2}\w|\S+\.py", following):
            what = "a comment" if "#" in line.rpartition("\\")[2] else "a space"
            yield BROKEN_LINE.at(number + 1, f"{what} after the backslash of line {number}")
        elif re.search(r"(^|\s)\\$", line) and (not following or following.startswith("#")):
            yield from _cut_off(job, place)


def _cut_off(job: JobFile, place: int) -> Iterator[Finding]:
    """Find the line after the comments, or the empty line, that follow a line with a backslash."""
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
    if meant or re.match(
        r"\s*-{1,2}[a-zA-Z]", rest
    ):  # the comment used to be a line of this command, or the line is an option
        what = f"{'a comment' if between[0].strip() else 'an empty line'} after the backslash"
        kind: Kind | None = "may hang or waste" if alone else None
        yield BROKEN_LINE.at(behind + job.first_line, f"{what} of line {place + job.first_line}", kind)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


BLANK_BEHIND_EQUALS = Trap(
    "blank-behind-equals",
    FAILS,
    "the shell treats the parts as a program and its arguments, and {name} stays empty",
    "{name}={value}",
)
DOLLAR_BEFORE_NAME = Trap(
    "dollar-before-name",
    WASTES,
    "the shell expands the variable and looks for a program of that name; it assigns nothing",
    "{name}=...",
)


def _blanks(job: JobFile) -> Iterator[Finding]:
    """Find misplaced spaces and dollars in assignments.

    `NAME= "value"` runs a program named like the value, with an empty NAME; `NAME = value` runs a program NAME;
    `$NAME=value` runs a program whose name starts with NAME's value.
    """
    read = {name for command in job.shell.everything for word in command.words for name in word.expansions()}
    for command in job.shell.everything:
        empty = [item for item in command.assignments if not item.raw and item.items is None]
        if len(empty) == 1 and len(command.words) == 1 and command.words[0].raw[:1] in "\"'" and empty[0].name in read:
            name, value = empty[0].name, command.words[0].raw
            what = f"a space between {name}= and its value"
            yield BLANK_BEHIND_EQUALS.at(command.line, what, name=name, value=value)
        raw = [word.raw for word in command.words if word.raw != "export"]
        if len(raw) == 3 and raw[1] == "=" and raw[0].isidentifier():
            what = f"spaces around the = after {raw[0]}"
            yield BLANK_BEHIND_EQUALS.at(command.line, what, name=raw[0], value=raw[2])
        if raw and (match := re.match(r"\$([A-Za-z_]\w*)=(.*)", raw[0])):
            yield DOLLAR_BEFORE_NAME.at(command.line, f"a $ before {match[1]}=", name=match[1])


DOLLAR_KEPT = Trap(
    "dollar-kept",
    WASTES,
    "the backslash prevents the expansion: the program gets a literal dollar sign",
    "${name}",
)


def _kept_dollars(job: JobFile) -> Iterator[Finding]:
    """Find `conda activate \\$WORK/env`: a backslash outside of quotes."""
    for command in job.shell.commands:
        if any(word.base in (*SHELLS, *_READ_AGAIN) for word in command.words):
            continue
        for word in command.words:
            if match := _KEPT.search(_QUOTED.sub("", word.raw)):
                what = f"\\${match[1]} outside of quotes"
                yield DOLLAR_KEPT.at(word.line, what, name=match[1])


def _single_quotes(job: JobFile) -> Iterator[Finding]:
    """Find `--rdzv_endpoint '$MASTER_ADDR:29500'`: single quotes that no second shell reads."""
    for run in job.launches:
        for word in run.options.values():
            match = _IN_QUOTES.fullmatch(word.raw)
            if match and not run.in_task(word) and (job.assigned(match[1]) or match[1].startswith("SLURM_")):
                what = f"${match[1]} in single quotes"
                yield DOLLAR_KEPT.at(word.line, what, name=match[1])


_IN_QUOTES = re.compile(r"'\$\{?([A-Za-z_]\w*)\}?(?::\$?\{?\w+\}?)?'")
NO_BRACES = Trap("no-braces", WASTES, "bash expands it to the first item and keeps the brackets as text", "${{text}}")


def _no_braces(job: JobFile) -> Iterator[Finding]:
    """Find `$LIST[$i]`, which expands to the first item followed by `[0]` as text."""
    lists = {item.name for item in job.assignments if item.items is not None}
    if not lists or "zsh" in job.lines[0]:
        return
    for command in job.shell.everything:
        if command.name in ("echo", "printf"):
            continue
        for word in (*command.words, *(item.word for item in command.assignments if item.items is None)):
            match = re.search(r"\$([A-Za-z_]\w*)\[(\$\{?\w+\}?|\d+|[@*])\]", live_text(word.raw))
            if match and match[1] in lists:
                yield NO_BRACES.at(word.line, f"{match[0]} without braces", text=match[0][1:])


TYPOGRAPHIC = Trap(
    "typographic",
    WASTES,
    "the shell does not recognize typographic quotes or dashes and passes them to the program as text",
    "plain ASCII quotes and hyphens",
)


def _typographic(job: JobFile) -> Iterator[Finding]:
    """Find `--name \u201cmy run\u201d` and `\u2013-lr`, as a word processor writes them."""
    for command in job.shell.everything:
        if command.name in ("echo", "printf"):
            continue
        for raw in (*(word.raw for word in command.words), *(item.raw for item in command.assignments)):
            if match := _TYPED.search(_QUOTED.sub("", raw)):
                what = f"{match[0]} is a typographic {'quote' if match[0] in _CURLY else 'dash'}"
                yield TYPOGRAPHIC.at(command.line, what)
                break


_CURLY = "\u201c\u201d\u201e\u2018\u2019"
NO_SUCH_WORD = Trap(
    "no-such-word", WASTES, "the shell finds no program of that name, or no end of the condition", "{instead}"
)


def _words(job: JobFile) -> Iterator[Finding]:
    """Find `else:`, `elseif` and `[$x = 1]`, which the shell treats as program names."""
    for command in job.shell.everything:
        word = command.words[0].raw if command.words else ""
        if word in _NO_WORDS and word not in job.shell.functions:
            kind: Kind | None = "will fail" if word in ("elif:", "elseif", "elsif") else None
            yield NO_SUCH_WORD.at(command.line, f"{word} is not a shell keyword", kind,
                               instead=_NO_WORDS[word])  # fmt: skip
        elif match := re.match(r"\$([A-Za-z_]\w*)=", word):
            what = f"{match[0]} does not assign: write the name without the dollar"
            yield NO_SUCH_WORD.at(command.line, what, instead=f"{match[1]}=")
        elif near := _slip(job, word):
            what = f"{word} is not a function of this file; {near} is"
            yield NO_SUCH_WORD.at(command.line, what, instead=near)
        elif word == "trap" and len(command.words) > 2 and (near := _slip(job, command.words[1].text)):
            what = f"{command.words[1].text} is not a function of this file; {near} is"
            yield NO_SUCH_WORD.at(command.line, what, instead=f"trap {near} ...")
        elif word == "[[" and len(command.words) == 2 and (match := _TEST.match(command.words[1].raw)):
            what = f"no space after {match[1]}" if match[1] else f"no space before {match[2]}"
            yield NO_SUCH_WORD.at(command.line, what, instead="[ ... ]")


def _slip(job: JobFile, name: str) -> str | None:
    """Return a function whose name differs from `name` by one letter, or None."""
    if len(name) < 6 or not name.isidentifier() or name in job.shell.functions:
        return None
    return next((other for other in job.shell.functions if len(other) > 5 and one_letter_apart(name, other)), None)


BASH_IN_SH = Trap("bash-in-sh", FAILS, "a syntax error where sh is dash, as on Debian and Ubuntu", "#!/bin/bash")


def _plain_sh(job: JobFile) -> Iterator[Finding]:
    shell = re.match(r"#!\s*(?:/usr)?/bin/(?:env )?(sh|dash)\b", job.lines[0]) if job.lines else None
    if shell is None:
        return
    kind: Kind | None = "advice" if shell[1] == "sh" else None
    for command in job.shell.everything:
        lists = any(item.items is not None for item in command.assignments)
        if lists or (command.words and command.words[0].raw in _BASH_ONLY):
            what = "a list" if lists else command.words[0].raw
            yield BASH_IN_SH.at(
                command.line,
                f"{what} needs bash, but the file begins with {job.lines[0].strip()}",
                kind,
            )
            return
