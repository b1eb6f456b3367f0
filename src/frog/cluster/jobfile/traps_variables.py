"""Traps with variables that are never set, or that Slurm sets only for certain options."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.directives import one_letter_apart
from frog.cluster.jobfile.findings import FAILS, WASTES, Finding, Trap
from frog.cluster.jobfile.glossary import OTHER_SLURM_VARIABLES, SLURM_VARIABLES
from frog.cluster.jobfile.job import JobFile
from frog.cluster.jobfile.shell.words import Word, live_text
from frog.cluster.jobfile.traps_header import NO_SHEBANG

_ONLY_WITH = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_GPUS": ("gpus",),
    "SLURM_CPUS_PER_GPU": ("cpus-per-gpu",),
    "SLURM_MEM_PER_NODE": ("mem",),
    "SLURM_MEM_PER_CPU": ("mem-per-cpu",),
}
_LETS_BE = ("echo", "printf", "trap", "[[", "[", "test", "unset")
_NEEDED = re.compile(
    r"MASTER_(ADDR|PORT)|N_?NODES|NUM_NODES|NODE_RANK|(GPUS|NPROC)_PER_NODE|WORLD_SIZE|LAUNCHER|CMD|ARGS|\w*PYTHON_?FILE"
)


SLURM_SETS_NONE = Trap(
    "slurm-sets-none", WASTES, "Slurm sets it only with {option}; otherwise it is empty", needs_all_lines=True
)
NEVER_SET = Trap("never-set", WASTES, "it is empty there{near}", needs_all_lines=True)


def variable_findings(job: JobFile) -> Iterator[Finding]:
    """Find variables that are read and never set."""
    read = {name: word for name, word in _read(job).items() if name not in _tested(job)}
    known = {item.name for item in (*job.assignments, *job.task_assignments)} | job.exported
    known |= {item.name for command in job.shell.everything for item in command.assignments}
    given = job.inside  # set by the script that calls it
    options = ("nproc-per-node", "nnodes", "num-processes")
    counts = {name for run in job.launches if (word := run.option(*options)) for name in word.expansions()
              if not name.startswith("SLURM")}  # fmt: skip
    for name, word in read.items():
        if name in known:
            continue
        if name in _ONLY_WITH and not given and not any(job.asks(option) for option in _ONLY_WITH[name]):
            if name == "SLURM_GPUS_PER_NODE" and job.gpus_per_node == 0:
                continue
            what = f"{name} without --{_ONLY_WITH[name][0]}"
            yield SLURM_SETS_NONE.at(word.line_of(name), what, option=f"--{_ONLY_WITH[name][0]}")
        elif _is_none_of_slurm(name) or (_OF_OTHERS.fullmatch(name) and _only_slurm(job)):
            yield NEVER_SET.at(word.line_of(name), f"{name}: Slurm does not set this variable", near="")
        elif near := _meant(name, known, is_list=f"{{{name}[" in word.raw):
            what = f"{name} is never set"
            yield NEVER_SET.at(word.line_of(name), what, near=f"; {near} is")
        elif (_NEEDED.fullmatch(name) or name in counts) and not (given or job.sourced) and name not in _of_ranks(job):
            yield NEVER_SET.at(word.line_of(name), f"{name} is never set in this file", near="")
    yield from _nothing_exported(job)
    yield from _beyond_lists(job)
    yield from _no_array(job, read)


_OF_OTHERS = re.compile(
    r"PBS_(O_WORKDIR|JOBID|JOBNAME|NODEFILE|ARRAYID|ARRAY_INDEX)|SGE_TASK_ID|LSB_JOB(ID|INDEX)|NSLOTS"
)
"""Variables of other schedulers."""
_OF_SITES = re.compile(
    r"TMP|SCRATCH|SLURM_\w*(DIR|PATH|HOME|HOST|CONF|ENV|ROOT)$|(HET|PACK)_GROUP|SLURM_(HET|PACK|SPANK|PMI|ACCOUNT$|USER$)"
)


def _is_none_of_slurm(name: str) -> bool:
    """Find names that look like Slurm's, such as `SLURM_ARRAY_ID`."""
    known = name in SLURM_VARIABLES or name in _ONLY_WITH or name.removeprefix("SLURM_") in OTHER_SLURM_VARIABLES
    slip = any(one_letter_apart(name, other) for other in SLURM_VARIABLES)  # reported with the right name
    return name.startswith("SLURM_") and name.isupper() and not (known or slip or _OF_SITES.search(name))


def _only_slurm(job: JobFile) -> bool:
    """True if the file serves no other scheduler."""
    return bool(job.directives) and not any(re.match(r"#(PBS|BSUB|\$) ", line) for line in job.lines)


_OF_JOB = re.compile(
    r"SLURM_(JOB_?ID|(JOB_)?NODELIST|(JOB_NUM_|N)NODES|NTASKS|(PROC|LOCAL|NODE)ID|ARRAY_\w+|[GC]PUS_ON_NODE|CPUS_PER_TASK)"
    r"|SLURMD_NODENAME"
)


def hand_in_findings(job: JobFile) -> Iterator[Finding]:
    """Find mistakes of scripts that submit jobs: job ids, and variables in here-documents."""
    yield from _answers(job)
    yield from _begins_empty(job)
    yield from _put_in(job)


ANSWER_FOR_NUMBER = Trap(
    "answer-for-number",
    FAILS,
    "sbatch prints 'Submitted batch job 1', and refuses the next job with this text as a job id",
    "{name}=$(sbatch --parsable ...)",
)


def _answers(job: JobFile) -> Iterator[Finding]:
    """Find `ID=$(sbatch a.sh)` followed by `--dependency=afterok:$ID`."""
    text = "\n".join(line for line in job.lines if not line.lstrip().startswith("#"))
    for item in job.assignments:
        once = len(re.findall(rf"\b{item.name}\+?=", text)) == 1 and not re.search(rf"\bread\b.*\b{item.name}\b", text)
        whole = re.fullmatch(r"\"?(\$\(|`)\s*sbatch\s[^|`()]*[)`]\"?", item.raw)
        used = re.search(rf"(--dependency[= ]|\s-d\s?)\S*:\$({item.name}\b|\{{{item.name}\}})", text)
        if once and whole and used and "--parsable" not in text and "sbatch" not in job.shell.functions:
            what = f"{item.name} holds the whole output of sbatch, not only the job id"
            yield ANSWER_FOR_NUMBER.at(item.line, what, name=item.name)


def _begins_empty(job: JobFile) -> Iterator[Finding]:
    """Find `sbatch <<EOF` with an empty line before the shebang."""
    for command in job.shell.everything:
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


def _put_in(job: JobFile) -> Iterator[Finding]:
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
                if name not in known and (_OF_JOB.fullmatch(name) or (name in own and name.isupper())):
                    known.add(name)
                    what = f"${name} is expanded when the job is submitted, not when it runs"
                    yield READ_AT_HAND_IN.at(number, what, name=name)


def _tested(job: JobFile) -> set[str]:
    """Return the names of variables that the script tests before it reads them."""
    asks = [
        word.raw for command in job.shell.everything if command.name in ("[[", "[", "test") for word in command.words
    ]
    return {name for raw in asks for name in re.findall(r"-[nzv]\s+\"?\$?\{?(\w+)", raw)}


def _read(job: JobFile) -> dict[str, Word]:
    """Return every variable that is read without a default, with the word that reads it first."""
    found: dict[str, Word] = {}
    words = [word for command in job.shell.commands if command.name not in _LETS_BE for word in command.words]
    words += [item.word for command in job.shell.commands for item in command.assignments]
    words += [word for item in job.assignments for word in item.items or ()]
    for word in words:
        text = live_text(word.raw)
        for match in re.finditer(r"\$(?:\{([A-Za-z_]\w*)(?=\}|\[[^]]*\]\})|([A-Za-z_]\w*))", text):
            name = match[1] or match[2]
            if not re.search(rf"\$\{{{name}\s*(:?[-=?+])", text):
                found.setdefault(name, word)
    for name in re.findall(r"\$\(\([^()]*\)\)", " ".join(word.raw for word in words)):
        for inner in re.findall(r"(?<![\w$])SLURM_\w+", name):
            found.setdefault(inner, next(word for word in words if inner in word.raw))
    return found


def _meant(name: str, known: set[str], is_list: bool) -> str | None:
    """Return a variable whose name differs from `name` by one letter and is long enough to be the intended one."""
    if re.search(r"\d$", name):
        return None
    if len(name) < 6:  # two letters swapped
        swaps = (other for other in sorted(known) if sorted(other) == sorted(name) and one_letter_apart(name, other))
        return next(swaps, None) if len(name) > 3 else None
    if name.startswith("SLURM_") and name not in SLURM_VARIABLES and name not in _ONLY_WITH:
        return next((other for other in SLURM_VARIABLES if one_letter_apart(name, other)), None)
    if name in SLURM_VARIABLES or name in _ONLY_WITH:
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
    asked = job.asks("array")
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
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?(?::(\d{1,5}))?", part.strip())
        if match is None:
            return []
        found += range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))
        if len(found) > _MOST_TASKS:
            return []
    return found


def _length(job: JobFile, name: str) -> int | None:
    """Return the number of items that a list certainly has, or None."""
    found = [item for item in job.assignments if item.name == name]
    if len(found) != 1 or found[0].items is None or found[0].maybe or found[0].adds:
        return None
    plain = not any(re.search(r"[$`*?{\[]", _QUOTES.sub("", word.raw)) or "[@]" in word.raw for word in found[0].items)
    return len(found[0].items) if plain else None


_QUOTES = re.compile(r"'[^']*'|\"[^\"]*\"")


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
    said = re.search(r"--array|sbatch.* -a\b|SLURM_ARRAY_TASK_ID=", "\n".join(job.lines))
    if any("%a" in (asked.value or "") for asked in job.asked):
        return
    if word and not said and not job.inner and not job.by_hand and not job.given and job.directives:
        what = "SLURM_ARRAY_TASK_ID without --array"
        yield SLURM_SETS_NONE.at(word.line_of("SLURM_ARRAY_TASK_ID"), what, "advice",
                           option="--array, here or to sbatch,")  # fmt: skip


def _of_ranks(job: JobFile) -> set[str]:
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
    asked = job.asks("export")
    if asked is None or (asked.value or "").upper() not in ("NONE", "NIL"):
        return
    freed = "SLURM_EXPORT_ENV" in job.exported or any(
        command.name == "unset" and "SLURM_EXPORT_ENV" in command.text for command in job.shell.everything
    )
    steps = [step for step in job.steps if step.works and not step.asks("export")]
    if steps and job.exported and not freed:
        yield NOTHING_EXPORTED.at(asked.line, f"--export={asked.value} with srun in line {steps[0].line}")
