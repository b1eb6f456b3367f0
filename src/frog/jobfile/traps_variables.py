"""Traps of variables: never set, or set by Slurm only where an option asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.jobfile.directives import one_letter_apart
from frog.jobfile.findings import Finding, make_finding
from frog.jobfile.glossary import OTHER_SLURM_VARIABLES, SLURM_VARIABLES
from frog.jobfile.job import JobFile
from frog.shell.words import Word, live_text

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


def variable_findings(job: JobFile) -> Iterator[Finding]:
    """Everything about what is read and never set."""
    read = {name: word for name, word in _read(job).items() if name not in _tested(job)}
    known = {item.name for item in (*job.assignments, *job.task_assignments)} | job.exported
    known |= {item.name for command in job.shell.everything for item in command.assignments}
    given = job.inside  # by the script that calls it
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
            yield make_finding("slurm-sets-none", word.line_of(name), what, option=f"--{_ONLY_WITH[name][0]}")
        elif _is_none_of_slurm(name) or (_OF_OTHERS.fullmatch(name) and _only_slurm(job)):
            yield make_finding("never-set", word.line_of(name), f"{name}: Slurm sets no such variable", near="")
        elif near := _meant(name, known, is_list=f"{{{name}[" in word.raw):
            what = f"{name} is never set"
            yield make_finding("never-set", word.line_of(name), what, near=f"; {near} is")
        elif (_NEEDED.fullmatch(name) or name in counts) and not (given or job.sourced) and name not in _of_ranks(job):
            yield make_finding("never-set", word.line_of(name), f"{name} is never set in this file", near="")
    yield from _nothing_exported(job)
    yield from _beyond_lists(job)
    yield from _no_array(job, read)


_OF_OTHERS = re.compile(
    r"PBS_(O_WORKDIR|JOBID|JOBNAME|NODEFILE|ARRAYID|ARRAY_INDEX)|SGE_TASK_ID|LSB_JOB(ID|INDEX)|NSLOTS"
)
"""What other schedulers set."""
_OF_SITES = re.compile(
    r"TMP|SCRATCH|SLURM_\w*(DIR|PATH|HOME|HOST|CONF|ENV|ROOT)$|(HET|PACK)_GROUP|SLURM_(HET|PACK|SPANK|PMI|ACCOUNT$|USER$)"
)


def _is_none_of_slurm(name: str) -> bool:
    """`SLURM_ARRAY_ID`: a name that looks like one of Slurm's."""
    known = name in SLURM_VARIABLES or name in _ONLY_WITH or name.removeprefix("SLURM_") in OTHER_SLURM_VARIABLES
    slip = any(one_letter_apart(name, other) for other in SLURM_VARIABLES)  # told with the right name
    return name.startswith("SLURM_") and name.isupper() and not (known or slip or _OF_SITES.search(name))


def _only_slurm(job: JobFile) -> bool:
    """Whether the file is for no other scheduler too."""
    return bool(job.directives) and not any(re.match(r"#(PBS|BSUB|\$) ", line) for line in job.lines)


_OF_JOB = re.compile(
    r"SLURM_(JOB_?ID|(JOB_)?NODELIST|(JOB_NUM_|N)NODES|NTASKS|(PROC|LOCAL|NODE)ID|ARRAY_\w+|[GC]PUS_ON_NODE|CPUS_PER_TASK)"
    r"|SLURMD_NODENAME"
)


def hand_in_findings(job: JobFile) -> Iterator[Finding]:
    """What goes wrong where jobs are handed in: with their numbers, and with those in here-documents."""
    yield from _answers(job)
    yield from _begins_empty(job)
    yield from _put_in(job)


def _answers(job: JobFile) -> Iterator[Finding]:
    """`ID=$(sbatch a.sh)`, and then `--dependency=afterok:$ID`."""
    text = "\n".join(line for line in job.lines if not line.lstrip().startswith("#"))
    for item in job.assignments:
        once = len(re.findall(rf"\b{item.name}\+?=", text)) == 1 and not re.search(rf"\bread\b.*\b{item.name}\b", text)
        whole = re.fullmatch(r"\"?(\$\(|`)\s*sbatch\s[^|`()]*[)`]\"?", item.raw)
        used = re.search(rf"(--dependency[= ]|\s-d\s?)\S*:\$({item.name}\b|\{{{item.name}\}})", text)
        if once and whole and used and "--parsable" not in text and "sbatch" not in job.shell.functions:
            what = f"{item.name} holds all that sbatch answers, not the number alone"
            yield make_finding("answer-for-number", item.line, what, name=item.name)


def _begins_empty(job: JobFile) -> Iterator[Finding]:
    """`sbatch <<EOF` and an empty line, before the one that names the shell."""
    for command in job.shell.everything:
        place = command.line - job.first_line
        if command.name != "sbatch" or command.heredoc is None or len(command.words) > 1 or place + 1 >= len(job.lines):
            continue
        if re.search(r"<<-?\s*\S+\s*$", job.lines[place]) and not job.lines[place + 1].strip():
            what = "an empty line is the first of what sbatch gets"
            yield make_finding("no-shebang", command.line + 1, what)


def _put_in(job: JobFile) -> Iterator[Finding]:
    """Variables of a job that is written in a here-document, put in by the shell that writes it."""
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
                    what = f"${name} is put in where the job is handed in, not where it runs"
                    yield make_finding("read-at-hand-in", number, what, name=name)


def _tested(job: JobFile) -> set[str]:
    """Variables that the script asks about before it reads them."""
    asks = [
        word.raw for command in job.shell.everything if command.name in ("[[", "[", "test") for word in command.words
    ]
    return {name for raw in asks for name in re.findall(r"-[nzv]\s+\"?\$?\{?(\w+)", raw)}


def _read(job: JobFile) -> dict[str, Word]:
    """Every variable that is certainly read, where it has no default, with the word that reads it first."""
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
    """The variable of which `name` is a slip: one letter apart, and long enough that this is no chance."""
    if re.search(r"\d$", name):
        return None
    if len(name) < 6:  # two letters that changed places
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
    """Whether the file compares the number of the task: then perhaps not every task comes to this item."""
    names = {"SLURM_ARRAY_TASK_ID", *re.findall(r"[A-Za-z_]\w*", item[2])}
    asks = re.compile(rf"\b({'|'.join(names)})\b|\$\{{#{item[1]}\[")
    return any(_COMPARES.search(line) and asks.search(line) for line in job.lines if not line.lstrip().startswith("#"))


def _beyond_lists(job: JobFile) -> Iterator[Finding]:
    """`${LIST[$SLURM_ARRAY_TASK_ID]}` with --array=1-4, of a list of four."""
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
                yield make_finding("beyond-list", word.line_of(match[1]), what)
                return


def _array_tasks(text: str) -> list[int]:
    """The numbers of `0-7:2%4`, `1,3,5`; none where one cannot be read or there are too many."""
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
    """How many items a list certainly has."""
    found = [item for item in job.assignments if item.name == name]
    if len(found) != 1 or found[0].items is None or found[0].maybe or found[0].adds:
        return None
    plain = not any(re.search(r"[$`*?{\[]", _QUOTES.sub("", word.raw)) or "[@]" in word.raw for word in found[0].items)
    return len(found[0].items) if plain else None


_QUOTES = re.compile(r"'[^']*'|\"[^\"]*\"")


def _place(job: JobFile, index: str, task: int) -> int | None:
    """The item that one task of the array reads."""
    known = job.values.known
    job.values.known = known | {"SLURM_ARRAY_TASK_ID": (str(task), "")}
    place = job.values.calculate(index)
    job.values.known = known
    return place


def _no_array(job: JobFile, read: dict[str, Word]) -> Iterator[Finding]:
    """SLURM_ARRAY_TASK_ID in a file that does not say --array, be it in a comment."""
    word = read.get("SLURM_ARRAY_TASK_ID")
    said = re.search(r"--array|sbatch.* -a\b|SLURM_ARRAY_TASK_ID=", "\n".join(job.lines))
    if any("%a" in (asked.value or "") for asked in job.asked):
        return
    if word and not said and not job.inner and not job.by_hand and not job.given and job.directives:
        what = "SLURM_ARRAY_TASK_ID without --array"
        yield make_finding("slurm-sets-none", word.line_of("SLURM_ARRAY_TASK_ID"), what, "advice",
                           option="--array, here or to sbatch,")  # fmt: skip


def _of_ranks(job: JobFile) -> set[str]:
    """What torchrun gives its ranks: read in the text of a task behind it."""
    return {"WORLD_SIZE", "NODE_RANK"} if job.launches else set()


def _nothing_exported(job: JobFile) -> Iterator[Finding]:
    """`--export=NONE`, which srun obeys too."""
    asked = job.asks("export")
    if asked is None or (asked.value or "").upper() not in ("NONE", "NIL"):
        return
    freed = "SLURM_EXPORT_ENV" in job.exported or any(
        command.name == "unset" and "SLURM_EXPORT_ENV" in command.text for command in job.shell.everything
    )
    steps = [step for step in job.steps if step.works and not step.asks("export")]
    if steps and job.exported and not freed:
        yield make_finding("nothing-exported", asked.line, f"--export={asked.value}, and srun in line {steps[0].line}")
