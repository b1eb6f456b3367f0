"""Traps in what the shell does with the script: words, quotes, and the variables that it reads and never sets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile

from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job_file import JobFile, language
from frog.cluster.jobfile.launchers import SHELLS
from frog.cluster.jobfile.line_meanings import OTHER_SLURM_VARIABLES, SLURM_VARIABLES
from frog.cluster.jobfile.shell_words import Word, live_text
from frog.cluster.jobfile.traps_request import NO_SHEBANG
from frog.cluster.slurm_options import one_letter_apart
from frog.core.units import some_of

_NO_WORDS = {"else:": "else", "elif:": "elif", "elseif": "elif", "elsif": "elif", "then:": "then", "do:": "do",
             "fi:": "fi", "done:": "done", "endif": "fi", "endfor": "done"}  # fmt: skip
"""Keywords of other languages, with the shell's equivalents."""
_ESCAPED_DOLLAR = re.compile(r"(?<!\\)\\\$\{?([A-Za-z_]\w*)")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_PARSED_AGAIN = ("echo", "printf", "eval", "ssh", "sed", "awk", "gawk", "grep", "perl", "trap", "alias", "find",
                 "xargs", "parallel", "clush", "pdsh", "tmux", "screen", "su", "sudo", "sbatch", "[[", "[",
                 "test")  # fmt: skip
"""Commands whose words another program parses again, or which only print them."""
_TEST = re.compile(r"(\[\[?)(?![\s\[])|\[\[?\s.*[^\s\]](\]\]?)\Z", re.DOTALL)
"""A condition without the space after its opening or before its closing bracket."""
_ASSIGNS = re.compile(r"\s*(\w+=(\"[^\"]*\"|'[^']*'|[^\s\"'])*\s+)+\\")
_BASH_ONLY = ("[[", "declare", "mapfile", "pushd", "shopt", "source")
_TYPOGRAPHIC_TEXT = re.compile(r"[\u201c\u201d\u201e\u2018\u2019]|^[-\u2010-\u2015]*[\u2010-\u2015]+-*[A-Za-z]")
"""Typographic quotes and dashes, as a word processor inserts them."""


def shell_findings(job: JobFile) -> Iterator[Finding]:
    """Find traps in the shell language, and variables that are read and never set."""
    yield from _broken_lines(job)
    yield from _spaces_in_assignments(job)
    yield from _keywords(job)
    yield from _escaped_dollars(job)
    yield from _single_quotes(job)
    yield from _no_braces(job)
    yield from _typographic(job)
    yield from _plain_sh(job)
    yield from _variable_findings(job)


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
    was_part_of_command = between[-1].endswith("\\") and (alone or _indent(rest) > _indent(job.lines[begins]))
    if was_part_of_command or re.match(r"\s*-{1,2}[a-zA-Z]", rest):
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


def _spaces_in_assignments(job: JobFile) -> Iterator[Finding]:
    """Find misplaced spaces and dollars in assignments.

    `NAME= "value"` runs a program named like the value, with an empty NAME; `NAME = value` runs a program NAME;
    `$NAME=value` runs a program whose name starts with NAME's value.
    """
    read = {name for command in job.shell.all_commands for word in command.words for name in word.expansions()}
    for command in job.shell.all_commands:
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


def _escaped_dollars(job: JobFile) -> Iterator[Finding]:
    """Find `conda activate \\$WORK/env`: a backslash outside of quotes."""
    for command in job.shell.commands:
        if any(word.base in (*SHELLS, *_PARSED_AGAIN) for word in command.words):
            continue
        for word in command.words:
            if match := _ESCAPED_DOLLAR.search(_QUOTED.sub("", word.raw)):
                what = f"\\${match[1]} outside of quotes"
                yield DOLLAR_KEPT.at(word.line, what, name=match[1])


_IN_QUOTES = re.compile(r"'\$\{?([A-Za-z_]\w*)\}?(?::\$?\{?\w+\}?)?'")


def _single_quotes(job: JobFile) -> Iterator[Finding]:
    """Find `--rdzv_endpoint '$MASTER_ADDR:29500'`: single quotes that no second shell reads."""
    for run in job.launches:
        for word in run.options.values():
            match = _IN_QUOTES.fullmatch(word.raw)
            if match and not run.in_task(word) and (job.assigned(match[1]) or match[1].startswith("SLURM_")):
                what = f"${match[1]} in single quotes"
                yield DOLLAR_KEPT.at(word.line, what, name=match[1])


NO_BRACES = Trap("no-braces", WASTES, "bash expands it to the first item and keeps the brackets as text", "${{text}}")


def _no_braces(job: JobFile) -> Iterator[Finding]:
    """Find `$LIST[$i]`, which expands to the first item followed by `[0]` as text."""
    lists = {item.name for item in job.assignments if item.items is not None}
    if not lists or "zsh" in job.lines[0]:
        return
    for command in job.shell.all_commands:
        if command.name in ("echo", "printf"):
            continue
        for word in (*command.words, *(item.word for item in command.assignments if item.items is None)):
            match = re.search(r"\$([A-Za-z_]\w*)\[(\$\{?\w+\}?|\d+|[@*])\]", live_text(word.raw))
            if match and match[1] in lists:
                yield NO_BRACES.at(word.line, f"{match[0]} without braces", text=match[0][1:])


_CURLY = "\u201c\u201d\u201e\u2018\u2019"

TYPOGRAPHIC = Trap(
    "typographic",
    WASTES,
    "the shell does not recognize typographic quotes or dashes and passes them to the program as text",
    "plain ASCII quotes and hyphens",
)


def _typographic(job: JobFile) -> Iterator[Finding]:
    """Find `--name \u201cmy run\u201d` and `\u2013-lr`, as a word processor writes them."""
    for command in job.shell.all_commands:
        if command.name in ("echo", "printf"):
            continue
        for raw in (*(word.raw for word in command.words), *(item.raw for item in command.assignments)):
            if match := _TYPOGRAPHIC_TEXT.search(_QUOTED.sub("", raw)):
                what = f"{match[0]} is a typographic {'quote' if match[0] in _CURLY else 'dash'}"
                yield TYPOGRAPHIC.at(command.line, what)
                break


NO_SUCH_WORD = Trap(
    "no-such-word", WASTES, "the shell finds no program of that name, or no end of the condition", "{instead}"
)


def _keywords(job: JobFile) -> Iterator[Finding]:
    """Find `else:`, `elseif` and `[$x = 1]`, which the shell treats as program names."""
    for command in job.shell.all_commands:
        word = command.words[0].raw if command.words else ""
        if word in _NO_WORDS and word not in job.shell.functions:
            kind: Kind | None = "will fail" if word in ("elif:", "elseif", "elsif") else None
            yield NO_SUCH_WORD.at(command.line, f"{word} is not a shell keyword", kind,
                               instead=_NO_WORDS[word])  # fmt: skip
        elif match := re.match(r"\$([A-Za-z_]\w*)=", word):
            what = f"{match[0]} does not assign: write the name without the dollar"
            yield NO_SUCH_WORD.at(command.line, what, instead=f"{match[1]}=")
        elif near := _misspelled_function(job, word):
            what = f"{word} is not a function of this file; {near} is"
            yield NO_SUCH_WORD.at(command.line, what, instead=near)
        elif word == "trap" and len(command.words) > 2 and (near := _misspelled_function(job, command.words[1].text)):
            what = f"{command.words[1].text} is not a function of this file; {near} is"
            yield NO_SUCH_WORD.at(command.line, what, instead=f"trap {near} ...")
        elif word == "[[" and len(command.words) == 2 and (match := _TEST.match(command.words[1].raw)):
            what = f"no space after {match[1]}" if match[1] else f"no space before {match[2]}"
            yield NO_SUCH_WORD.at(command.line, what, instead="[ ... ]")


def _misspelled_function(job: JobFile, name: str) -> str | None:
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
    for command in job.shell.all_commands:
        lists = any(item.items is not None for item in command.assignments)
        if lists or (command.words and command.words[0].raw in _BASH_ONLY):
            what = "a list" if lists else command.words[0].raw
            yield BASH_IN_SH.at(
                command.line,
                f"{what} needs bash, but the file begins with {job.lines[0].strip()}",
                kind,
            )
            return


_SET_ONLY_WITH = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_GPUS": ("gpus",),
    "SLURM_CPUS_PER_GPU": ("cpus-per-gpu",),
    "SLURM_MEM_PER_NODE": ("mem",),
    "SLURM_MEM_PER_CPU": ("mem-per-cpu",),
}
_READ_HARMLESSLY = ("echo", "printf", "trap", "[[", "[", "test", "unset")
_NEEDED = re.compile(
    r"MASTER_(ADDR|PORT)|N_?NODES|NUM_NODES|NODE_RANK|(GPUS|NPROC)_PER_NODE|WORLD_SIZE|LAUNCHER|CMD|ARGS|\w*PYTHON_?FILE"
)


_OF_OTHER_SCHEDULERS = re.compile(
    r"PBS_(O_WORKDIR|JOBID|JOBNAME|NODEFILE|ARRAYID|ARRAY_INDEX)|SGE_TASK_ID|LSB_JOB(ID|INDEX)|NSLOTS"
)
"""Variables of other schedulers."""
_OF_SITES = re.compile(
    r"TMP|SCRATCH|SLURM_\w*(DIR|PATH|HOME|HOST|CONF|ENV|ROOT)$|(HET|PACK)_GROUP|SLURM_(HET|PACK|SPANK|PMI|ACCOUNT$|USER$)"
)

SLURM_SETS_NONE = Trap(
    "slurm-sets-none", WASTES, "Slurm sets it only with {option}; otherwise it is empty", needs_all_lines=True
)
NEVER_SET = Trap("never-set", WASTES, "it is empty there{near}", needs_all_lines=True)
FROM_CALLER = Trap(
    "from-caller",
    ADVICE,
    "its value cannot be known: sbatch passes on the variables of its caller, who must set {names}",
    needs_all_lines=True,
)
_OF_ENVIRONMENTS = re.compile(
    r"HOME|USER|LOGNAME|PATH|PWD|OLDPWD|SHELL|HOSTNAME|LANG|TERM|EDITOR|DISPLAY|RANDOM|SECONDS|UID|PPID|TMP|TMPDIR|TEMP"
    r"|LD_\w+|PYTHON\w*|CONDA\w*|VIRTUAL_ENV|CUDA_\w+|HF_\w+|WANDB_\w+|\w*SCRATCH\w*|WORK|PROJECT|BASH\w*|(SLURM|SBATCH)D?_\w+"
)
"""Variables that shells, environments and sites set."""
_FEWEST_FROM_CALLER, _MOST_NAMES = 2, 6
"""A file that reads this many variables and sets none of them is meant to get them from what submits it."""


def _variable_findings(job: JobFile) -> Iterator[Finding]:
    """Find variables that are read and never set."""
    read = {name: word for name, word in _variables_read(job).items() if name not in _tested(job)}
    known = {item.name for item in (*job.assignments, *job.task_assignments)} | job.exported
    known |= {item.name for command in job.shell.all_commands for item in command.assignments}
    given = job.in_allocation  # set by the script that calls it
    options = ("nproc-per-node", "nnodes", "num-processes")
    counts = {name for run in job.launches if (word := run.option(*options)) for name in word.expansions()
              if not name.startswith("SLURM")}  # fmt: skip
    for name, word in read.items():
        if name in known:
            continue
        if name in _SET_ONLY_WITH and not given and not any(job.option(option) for option in _SET_ONLY_WITH[name]):
            if name == "SLURM_GPUS_PER_NODE" and job.gpus_per_node == 0:
                continue
            what = f"{name} without --{_SET_ONLY_WITH[name][0]}"
            yield SLURM_SETS_NONE.at(word.line_of(name), what, option=f"--{_SET_ONLY_WITH[name][0]}")
        elif _is_not_of_slurm(name) or (_OF_OTHER_SCHEDULERS.fullmatch(name) and _only_slurm(job)):
            yield NEVER_SET.at(word.line_of(name), f"{name}: Slurm does not set this variable", near="")
        elif near := _similar_variable(name, known, is_list=f"{{{name}[" in word.raw):
            what = f"{name} is never set"
            yield NEVER_SET.at(word.line_of(name), what, near=f"; {near} is")
        elif (
            (_NEEDED.fullmatch(name) or name in counts)
            and not (given or job.sources_users_files)
            and name not in _set_by_torchrun(job)
        ):
            names = _from_caller(read, known)
            if name in names and len(names) >= _FEWEST_FROM_CALLER:
                what = f"{name} is not set in this file"
                yield FROM_CALLER.at(word.line_of(name), what, names=", ".join(names[:_MOST_NAMES]))
                break
            yield NEVER_SET.at(word.line_of(name), f"{name} is never set in this file", near="")
    yield from _nothing_exported(job)
    yield from _beyond_lists(job)
    yield from _no_array(job, read)


def _from_caller(read: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the variables that a file reads and never sets, and that environments do not have anyway."""
    return [name for name in read if name not in known and name.isupper() and not _OF_ENVIRONMENTS.fullmatch(name)]


def _is_not_of_slurm(name: str) -> bool:
    """Find names that look like Slurm's, such as `SLURM_ARRAY_ID`."""
    known = name in SLURM_VARIABLES or name in _SET_ONLY_WITH or name.removeprefix("SLURM_") in OTHER_SLURM_VARIABLES
    slip = any(one_letter_apart(name, other) for other in SLURM_VARIABLES)  # reported with the right name
    return name.startswith("SLURM_") and name.isupper() and not (known or slip or _OF_SITES.search(name))


def _only_slurm(job: JobFile) -> bool:
    """True if the file serves no other scheduler."""
    return bool(job.directives) and not any(re.match(r"#(PBS|BSUB|\$) ", line) for line in job.lines)


_SET_IN_JOBS = re.compile(
    r"SLURM_(JOB_?ID|(JOB_)?NODELIST|(JOB_NUM_|N)NODES|NTASKS|(PROC|LOCAL|NODE)ID|ARRAY_\w+|[GC]PUS_ON_NODE|CPUS_PER_TASK)"
    r"|SLURMD_NODENAME"
)


def submission_findings(job: JobFile) -> Iterator[Finding]:
    """Find mistakes of scripts that submit jobs: job ids, and variables in here-documents."""
    yield from _job_ids(job)
    yield from _shebang_not_first(job)
    yield from _expanded_when_submitted(job)


ANSWER_FOR_NUMBER = Trap(
    "answer-for-number",
    FAILS,
    "sbatch prints 'Submitted batch job 1', and refuses the next job with this text as a job id",
    "{name}=$(sbatch --parsable ...)",
)


def _job_ids(job: JobFile) -> Iterator[Finding]:
    """Find `ID=$(sbatch a.sh)` followed by `--dependency=afterok:$ID`."""
    text = "\n".join(line for line in job.lines if not line.lstrip().startswith("#"))
    for item in job.assignments:
        once = len(re.findall(rf"\b{item.name}\+?=", text)) == 1 and not re.search(rf"\bread\b.*\b{item.name}\b", text)
        whole = re.fullmatch(r"\"?(\$\(|`)\s*sbatch\s[^|`()]*[)`]\"?", item.raw)
        used = re.search(rf"(--dependency[= ]|\s-d\s?)\S*:\$({item.name}\b|\{{{item.name}\}})", text)
        if once and whole and used and "--parsable" not in text and "sbatch" not in job.shell.functions:
            what = f"{item.name} holds the whole output of sbatch, not only the job id"
            yield ANSWER_FOR_NUMBER.at(item.line, what, name=item.name)


def _shebang_not_first(job: JobFile) -> Iterator[Finding]:
    """Find `sbatch <<EOF` with an empty line before the shebang."""
    for command in job.shell.all_commands:
        place = command.line - job.first_line
        if command.name != "sbatch" or command.heredoc is None or len(command.words) > 1 or place + 1 >= len(job.lines):
            continue
        if re.search(r"<<-?\s*\S+\s*$", job.lines[place]) and not job.lines[place + 1].strip():
            what = "the text that sbatch reads starts with an empty line"
            yield NO_SHEBANG.at(command.line + 1, what)


READ_AT_HAND_IN = Trap(
    "read-at-hand-in",
    WASTES,
    "it is not quoted: this shell expands it before it calls sbatch, and it is not set here",
    "\\${name}; or quote the delimiter after <<",
)


def _expanded_when_submitted(job: JobFile) -> Iterator[Finding]:
    """Find variables of a job in a here-document that the submitting shell expands."""
    if any(line.read for line in job.directives):
        return
    known = {item.name for item in job.assignments}
    for text, first_line, quoted in job.shell.heredocs:
        if quoted or "#SBATCH" not in text:
            continue
        own = set(re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=", text, re.MULTILINE))
        for number, line in enumerate(text.split("\n"), first_line):
            for match in re.finditer(r"(?<!\\)\$\{?([A-Za-z_]\w*)", "" if line.lstrip().startswith("#") else line):
                name = match[1]
                if name not in known and (_SET_IN_JOBS.fullmatch(name) or (name in own and name.isupper())):
                    known.add(name)
                    what = f"${name} is expanded when the job is submitted, not when it runs"
                    yield READ_AT_HAND_IN.at(number, what, name=name)


def _tested(job: JobFile) -> set[str]:
    """Return the names of variables that the script tests before it reads them."""
    asks = [
        word.raw for command in job.shell.all_commands if command.name in ("[[", "[", "test") for word in command.words
    ]
    return {name for raw in asks for name in re.findall(r"-[nzv]\s+\"?\$?\{?(\w+)", raw)}


def _variables_read(job: JobFile) -> dict[str, Word]:
    """Return every variable that is read without a default, with the word that reads it first."""
    reads: dict[str, Word] = {}
    words = [word for command in job.shell.commands if command.name not in _READ_HARMLESSLY for word in command.words]
    words += [item.word for command in job.shell.commands for item in command.assignments]
    words += [word for item in job.assignments for word in item.items or ()]
    for word in words:
        text = live_text(word.raw)
        for match in re.finditer(r"\$(?:\{([A-Za-z_]\w*)(?=\}|\[[^]]*\]\})|([A-Za-z_]\w*))", text):
            name = match[1] or match[2]
            if not re.search(rf"\$\{{{name}\s*(:?[-=?+])", text):
                reads.setdefault(name, word)
    for expression in re.findall(r"\$\(\([^()]*\)\)", " ".join(word.raw for word in words)):
        for name in re.findall(r"(?<![\w$])SLURM_\w+", expression):
            reads.setdefault(name, next(word for word in words if name in word.raw))
    return reads


def _similar_variable(name: str, known: set[str], is_list: bool) -> str | None:
    """Return a variable whose name differs from `name` by one letter and is long enough to be the intended one."""
    if re.search(r"\d$", name):
        return None
    if len(name) < 6:  # two letters swapped
        swaps = (other for other in sorted(known) if sorted(other) == sorted(name) and one_letter_apart(name, other))
        return next(swaps, None) if len(name) > 3 else None
    if name.startswith("SLURM_") and name not in SLURM_VARIABLES and name not in _SET_ONLY_WITH:
        return next((other for other in SLURM_VARIABLES if one_letter_apart(name, other)), None)
    if name in SLURM_VARIABLES or name in _SET_ONLY_WITH:
        return None
    return next((other for other in sorted(known) if one_letter_apart(name, other) and not re.search(r"\d$", other)
                 and (is_list or other.rstrip("sS") != name.rstrip("sS"))), None)  # fmt: skip


_ITEM = re.compile(r"\$\{(\w+)\[([^]\[]+)\]\}")
_MOST_TASKS = 500
_COMPARES = re.compile(r"(\bif\b|\[\[?\s|\btest\s|\(\().*(-(lt|le|gt|ge|eq|ne)\b|[<>=])|\bcase\b")


def _compared(job: JobFile, item: re.Match[str]) -> bool:
    """True if the file compares the task's number, so that perhaps not every task reaches this item."""
    names = {"SLURM_ARRAY_TASK_ID", *re.findall(r"[A-Za-z_]\w*", item[2])}
    asks = re.compile(rf"\b({'|'.join(names)})\b|\$\{{#{item[1]}\[")
    return any(_COMPARES.search(line) and asks.search(line) for line in job.lines if not line.lstrip().startswith("#"))


BEYOND_LIST = Trap("beyond-list", WASTES, "that item does not exist: the value is empty")


def _beyond_lists(job: JobFile) -> Iterator[Finding]:
    """Find `${LIST[$SLURM_ARRAY_TASK_ID]}` with --array=1-4 and a list of four."""
    asked = job.option("array")
    tasks = _array_tasks(asked.value or "") if asked else []
    words = [word for command in job.shell.commands for word in command.words]
    words += [item.word for item in job.assignments if item.items is None]
    for word in words if asked and tasks and "zsh" not in job.lines[0] else ():
        for match in _ITEM.finditer(live_text(word.raw)):
            count = _length(job, match[1])
            places = [_place(job, match[2], task) for task in tasks] if count else []
            known = [place for place in places if place is not None]
            if asked and count and len(known) == len(places) and max(known) >= count and not _compared(job, match):
                what = (
                    f"{match[1]} has {count} items, 0 to {count - 1}, but --array={asked.value} reads item {max(known)}"
                )
                yield BEYOND_LIST.at(word.line_of(match[1]), what)
                return


def _array_tasks(text: str) -> list[int]:
    """Return the numbers in `0-7:2%4` or `1,3,5`; empty if one cannot be read or there are too many."""
    tasks: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?(?::(\d{1,5}))?", part.strip())
        if match is None:
            return []
        tasks += range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))
        if len(tasks) > _MOST_TASKS:
            return []
    return tasks


_QUOTED_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")


def _length(job: JobFile, name: str) -> int | None:
    """Return the number of items that a list certainly has, or None."""
    assignments = [item for item in job.assignments if item.name == name]
    if len(assignments) != 1:
        return None
    only = assignments[0]
    if only.items is None or only.conditional or only.adds:
        return None
    plain = not any(re.search(r"[$`*?{\[]", _QUOTED_TEXT.sub("", word.raw)) or "[@]" in word.raw for word in only.items)
    return len(only.items) if plain else None


def _place(job: JobFile, index: str, task: int) -> int | None:
    """Return the index of the item that one task of the array reads."""
    known = job.values.known
    job.values.known = known | {"SLURM_ARRAY_TASK_ID": (str(task), "")}
    place = job.values.calculate(index)
    job.values.known = known
    return place


def _no_array(job: JobFile, read: dict[str, Word]) -> Iterator[Finding]:
    """Find SLURM_ARRAY_TASK_ID in a file that never mentions --array, not even in a comment."""
    word = read.get("SLURM_ARRAY_TASK_ID")
    mentions_array = re.search(r"--array|sbatch.* -a\b|SLURM_ARRAY_TASK_ID=", "\n".join(job.lines))
    if any("%a" in (asked.value or "") for asked in job.options):
        return
    if word and not mentions_array and not job.nested and not job.run_by_hand and not job.given and job.directives:
        what = "SLURM_ARRAY_TASK_ID without --array"
        yield SLURM_SETS_NONE.at(word.line_of("SLURM_ARRAY_TASK_ID"), what, "advice",
                           option="--array, here or to sbatch,")  # fmt: skip


def _set_by_torchrun(job: JobFile) -> set[str]:
    """Return the variables that torchrun sets for its ranks, if the job uses torchrun."""
    return {"WORLD_SIZE", "NODE_RANK"} if job.launches else set()


NOTHING_EXPORTED = Trap(
    "nothing-exported",
    WASTES,
    "with --export=NONE srun passes none of this script's variables to its tasks",
    "srun --export=ALL ..., or unset SLURM_EXPORT_ENV",
)


def _nothing_exported(job: JobFile) -> Iterator[Finding]:
    """Find `--export=NONE`, which srun obeys too."""
    asked = job.option("export")
    if asked is None or (asked.value or "").upper() not in ("NONE", "NIL"):
        return
    freed = "SLURM_EXPORT_ENV" in job.exported or any(
        command.name == "unset" and "SLURM_EXPORT_ENV" in command.text for command in job.shell.all_commands
    )
    steps = [step for step in job.steps if step.works and not step.option("export")]
    if steps and job.exported and not freed:
        yield NOTHING_EXPORTED.at(asked.line, f"--export={asked.value} with srun in line {steps[0].line}")


_LIST_AFTER_SPACES = re.compile(r"\s*(?:export )?([A-Za-z_]\w*)(?: +=\s*|= +)\(")
"""A list after spaces, which no shell parser accepts."""


BYTE_ORDER_MARK = Trap(
    "byte-order-mark",
    FAILS,
    "the kernel and sbatch do not recognize the #! after it and refuse the file",
    "sed -i '1s/^\\xef\\xbb\\xbf//' FILE; or save it as UTF-8 without a BOM",
)


def encoding_findings(mark: str | None) -> Iterator[Finding]:
    """Find an encoding mark (BOM) before the first line."""
    if mark:
        yield BYTE_ORDER_MARK.at(1, f"the file begins with the encoding mark {mark}")


TEMPLATE = Trap(
    "template",
    ADVICE,
    "Frog does not know these values and draws no conclusion from them: fill them in and check again",
)


def placeholder_findings(job: JobFile) -> Iterator[Finding]:
    """Report all placeholders in one message, including those of nested job files."""
    if job.placeholders:
        lines, first = list(job.placeholders), next(iter(job.placeholders))
        some = ", ".join(list(dict.fromkeys(job.placeholders.values()))[:4])
        yield TEMPLATE.at(first, f"a template: fill in {some} in {_lines(lines)}")


QUOTE_NOT_CLOSED = Trap(
    "quote-not-closed", FAILS, "the shell reaches the end of the file first and runs nothing from here on"
)
NOT_UNDERSTOOD = Trap("not-understood", ADVICE, "Frog skipped these lines; a missing setting may be in them")


def not_understood_findings(job: JobFile) -> Iterator[Finding]:
    """Report what Frog did not understand, one message each."""
    unread = [line for line in job.shell.not_understood if line not in job.placeholders]
    for line in unread:
        text = job.lines[line - job.first_line] if line - job.first_line < len(job.lines) else ""
        if match := _LIST_AFTER_SPACES.match(text):
            what = f"spaces around the = after {match[1]}"
            yield BLANK_BEHIND_EQUALS.at(line, what, name=match[1], value="(...)")
    if job.shell.unclosed is not None:
        what = "a quote, an if or a loop that starts here is never closed"
        yield QUOTE_NOT_CLOSED.at(job.shell.unclosed, what)
    elif unread and (other := language(job.lines)):
        yield NOT_UNDERSTOOD.at(unread[0], f"written for {other}: Frog reads only its header")
    elif unread:
        yield NOT_UNDERSTOOD.at(unread[0], f"{_lines(unread)} not understood as shell")


def _lines(numbers: list[int]) -> str:
    return f"line{'' if len(numbers) == 1 else 's'} {some_of(numbers, 8)}"
