"""Options of sbatch and srun: their meanings, how Slurm parses them, and the `#SBATCH` lines of a job file.

Source: the manual pages of Slurm 22.05, with options added by later releases and common plugins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_BOTH = """
account A = the account to charge
acctg-freq . = how often Slurm measures the job
bb . = burst buffer
bbf . = file that describes a burst buffer
begin b = earliest start time
chdir D = working folder of the job (default: where sbatch was called)
cluster-constraint . = features of clusters that may run it
clusters M = clusters that may run it
comment . = a comment
constraint C = only nodes with this feature
container . = an OCI bundle to run in
container-id . = name of the OCI container
container-image . = image to run in (the Pyxis plugin)
container-mounts . = folders mounted in the container (the Pyxis plugin)
container-name . = name of the container (the Pyxis plugin)
container-workdir . = working folder inside the container (the Pyxis plugin)
contiguous . - only adjacent nodes
core-spec S = cores reserved for the system
cores-per-socket . = only nodes with that many cores per socket
cpu-freq . = clock frequency of the CPUs
cpus-per-gpu . = CPUs per GPU
cpus-per-task c = CPUs per task
deadline . = remove the job if it cannot end by then
delay-boot . = delay before nodes are rebooted
dependency d = start only after other jobs
distribution m = how tasks are distributed over nodes and sockets
environment . = an environment file (sites with the CSCS container engine)
error e = file for standard error (default: the file of --output)
exclude x = exclude these nodes
exclusive . ? share its nodes with no other job
export . = variables of the submitting shell that the job gets
extra . = data for the site's own scheduling
extra-node-info B = only nodes with that many sockets, cores, threads
gid . = run as this group (root only)
gpu-bind . = which task sees which GPU
gpu-freq . = clock frequency of the GPUs
gpus G = GPUs of the whole job, in any distribution over its nodes
gpus-per-node . = GPUs per node
gpus-per-socket . = GPUs per socket
gpus-per-task . = GPUs per task
gres . = devices per node
gres-flags . = how devices are chosen
help h - print the options
hint . = how tasks are bound to CPUs
hold H - wait until released
input i = file for standard input
job-name J = the name that squeue shows
licenses L = licenses it needs
mail-type . = when to send mail
mail-user . = recipient of mail
mcs-label . = security label
mem . = memory per node
mem-bind . = binding of memory
mem-per-cpu . = memory per CPU
mem-per-gpu . = memory per GPU
mincpus . = only nodes with that many CPUs
network . = options of the network or switch
nice . ? a lower priority
no-kill k ? continue when a node fails
nodefile F = file of node names to use
nodelist w = use these nodes
nodes N = number of nodes
ntasks n = number of tasks on all nodes
ntasks-per-core . = largest number of tasks per core
ntasks-per-gpu . = tasks per GPU
ntasks-per-node . = tasks per node
ntasks-per-socket . = tasks per socket
open-mode . = append to its output files, or truncate them
output o = file for standard output
overcommit O - more tasks than CPUs
oversubscribe s - may share its nodes with other jobs
partition p = the queue, a set of nodes
power . = power management
prefer . = prefer nodes with this feature
priority . = priority
profile . = what to measure
propagate . ? limits of the submitting shell that apply to the job
qos q = quality of service: its limits and priority
quiet Q - print less
reboot . - reboot the nodes first
reservation . = use these reserved nodes
segment . = number of nodes per block of close nodes
signal . = a signal some time before the time limit
sockets-per-node . = only nodes with that many sockets
spread-job . - spread over as many nodes as possible
switches . = largest number of network switches
test-only . - print when it could start, and start nothing
thread-spec . = threads reserved for the system
threads-per-core . = threads to use per core
time t = time limit, after which Slurm kills the job
time-min . = smallest acceptable time limit
tmp . = temporary disk space per node
tres-bind . = binding of devices
tres-per-task . = devices per task
uid . = run as this user (root only)
usage . - print a short help
use-min-nodes . - use the smaller number of a range of nodes
verbose v - print more
version V - print Slurm's version
wckey . = key for accounting
"""
_SBATCH_ONLY = """
array a = several jobs from one file
batch . = where the script itself runs
export-file . = file of variables to set
get-user-env . ? as after a login
ignore-pbs . - ignore #PBS lines
kill-on-invalid-dep . = remove the job if its dependency can never be satisfied
no-requeue . - never requeue the job
parsable . - print only the job id
requeue . - allow a requeue after a node failure or by scontrol requeue
stepmgr . - steps are managed on the first node
wait W - return after the job ends
wait-all-nodes . = start when all nodes are ready
wrap . = a command instead of a script
"""
_SRUN_ONLY = """
accel-bind . = binding of devices
bcast . ? copy the program to the nodes first
bcast-exclude . = whose libraries not to copy
compress . ? compress what is copied
cpu-bind . = binding of tasks to CPUs
disable-status X - Ctrl-C ends it immediately
epilog . = program to run afterwards
exact . - use only the requested CPUs
external-launcher . - only create the step, for another launcher
het-group . = component of a heterogeneous job
immediate I ? fail if it cannot start now
jobid . = inside this job
kill-on-bad-exit K ? when one task fails, end the others too
label l - prefix each line with the task's number
mpi . = how to start MPI
msg-timeout . = timeout of messages in seconds
multi-prog . - tasks run different programs
no-allocate Z - without an allocation
container-entrypoint . - run the image's entry point (the Pyxis plugin)
container-env . = variables of this shell that the container keeps (the Pyxis plugin)
container-mount-home . - mount the home folder (the Pyxis plugin)
container-readonly . - make the container's files read-only (the Pyxis plugin)
container-remap-root . - become root inside the container (the Pyxis plugin)
container-save . = image file to save the container to (the Pyxis plugin)
container-writable . - make the container's files writable (the Pyxis plugin)
no-container-entrypoint . - do not run the image's entry point (the Pyxis plugin)
no-container-remap-root . - keep your user id inside the container (the Pyxis plugin)
no-container-mount-home . - do not mount the home folder (the Pyxis plugin)
overlap . - may share CPUs with other steps
preserve-env E - keep the variables of the allocation
prolog . = program to run first
pty . ? in a terminal
quit-on-interrupt . - end at the first Ctrl-C
relative r = start at this node of the allocation
resv-ports . ? reserve ports
send-libs . ? send libraries too
slurmd-debug . = log level of slurmd
task-epilog . = program to run after each task
task-prolog . = program to run before each task
threads T = number of threads that srun uses to start tasks
unbuffered u - do not buffer output
wait W = seconds after the end of the first task until srun kills the others
x11 . ? forward X11
"""


@dataclass(frozen=True)
class Option:
    """One option of sbatch or srun."""

    name: str
    short: str | None
    takes: str
    """`=` for a value, `?` for an optional value, `-` for none."""
    meaning: str


def _table(*texts: str) -> dict[str, Option]:
    rows = [line.split(" ", 3) for text in texts for line in text.strip().splitlines()]
    return {name: Option(name, None if short == "." else short, takes, say) for name, short, takes, say in rows}


SBATCH = _table(_BOTH, _SBATCH_ONLY)
SRUN = _table(_BOTH, _SRUN_ONLY)


_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cpu_bind": "cpu-bind", "mem_bind": "mem-bind",
            "cluster": "clusters", "share": "oversubscribe", "pack-group": "het-group"}  # fmt: skip

_TAKES_ANY_TEXT = "Jeio"
"""Short options that take any text: sbatch accepts a long option written with one dash as their value."""
_ANOTHER_COMPONENT = re.compile(r"#SBATCH\s+(het|pack)job\s*(#|$)")


@dataclass(frozen=True)
class GivenOption:
    """One option as written. `option` is None if no such option exists."""

    line: int
    written: str
    option: Option | None
    value: str | None
    problem: str | None = None
    """The mistake in words."""
    instead: str | None = None

    @property
    def name(self) -> str:
        return self.option.name if self.option else self.written


def read_options(words: Sequence[tuple[str, int]], table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    """Read the options at the start of `words` (text and line of each), as getopt does; return the words used.

    Reading ends at the first word that is not an option, such as srun's program.
    """
    options: list[GivenOption] = []
    place = 0
    while place < len(words):
        text, line = words[place]
        following = words[place + 1][0] if place + 1 < len(words) else None
        if text == "--":
            return options, place + 1
        if not text.startswith("-") or text == "-":
            break
        read, used = _long(text, line, following, table) if text[:2] == "--" else _short(text, line, following, table)
        options += read
        place += used
    return options, place


def _long(text: str, line: int, following: str | None, table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    name, equals, value = text[2:].partition("=")
    option = find_option(name, table)
    written = f"--{name}"
    if option is None:
        near = next((key for key in table if key == f"{name}-per-task" or one_letter_apart(name, key)), None)
        return [GivenOption(line, written, None, value, "no such option", f"--{near}" if near else None)], 1
    if option.takes == "-" and equals:
        return [GivenOption(line, written, option, value, "takes no value", written)], 1
    if option.takes != "=" or equals:
        problem = "has no value" if option.takes == "=" and not value else None
        return [GivenOption(line, written, option, value if equals else None, problem)], 1
    asked, used = _separate(line, written, option, following)
    return [asked], used


def _short(text: str, line: int, following: str | None, table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    """Return the options of one word: those without a value may be combined, as in -ln2."""
    name, equals, _ = text[1:].partition("=")
    if equals and name and name[0] not in _TAKES_ANY_TEXT and _ALIASES.get(name, name) in table:
        what = "with one dash only the first letter is the option"
        return [GivenOption(line, text, None, None, what, f"-{text}")], 1
    options: list[GivenOption] = []
    for place, letter in enumerate(text[1:], 1):
        option = next((item for item in table.values() if item.short == letter), None)
        if option is None or option.takes != "-" or text[place + 1 :].startswith("="):
            asked, used = _last_short(f"-{letter}", text[place + 1 :], option, line, following)
            return [*options, asked], used
        options.append(GivenOption(line, f"-{letter}", option, None))
    return options, 1


def _last_short(
    written: str, rest: str, option: Option | None, line: int, following: str | None
) -> tuple[GivenOption, int]:
    """Return the last option of a word of short options: the rest of the word is its value."""
    if option is None:
        return GivenOption(line, written, None, rest or None, "no such option"), 1
    if option.takes == "-":
        return GivenOption(line, written, option, rest[1:], "takes no value", written), 1
    if rest.startswith("="):
        return GivenOption(
            line, written, option, rest[1:], "a short option takes no '=': it becomes part of the value",
            f"{written} {rest[1:]} or --{option.name}{rest}",
        ), 1  # fmt: skip
    if option.takes != "=" or rest:
        return GivenOption(line, written, option, rest or None), 1
    return _separate(line, written, option, following)


def _separate(line: int, written: str, option: Option, following: str | None) -> tuple[GivenOption, int]:
    if following is None:
        return GivenOption(line, written, option, None, "has no value"), 1
    if following == "=":
        return GivenOption(line, written, option, None, "has spaces around '='", f"--{option.name}=VALUE"), 2
    return GivenOption(line, written, option, following), 2


def find_option(name: str, table: Mapping[str, Option]) -> Option | None:
    """Return the option of that long name, or with that unambiguous prefix, as for getopt."""
    name = _ALIASES.get(name, name)
    if name in table:
        return table[name]
    names = {**{key: key for key in table}, **_ALIASES} if name else {}
    begun = {full for key, full in names.items() if key.startswith(name)}
    return table.get(begun.pop()) if len(begun) == 1 else None


def one_letter_apart(first: str, second: str) -> bool:
    """True if inserting, deleting, changing or swapping one letter turns one word into the other."""
    if first == second or abs(len(first) - len(second)) > 1:
        return False
    start = next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if start is None:
        return True
    rests = [
        (first[start + 1 :], second[start + 1 :]),
        (first[start + 1 :], second[start:]),
        (first[start:], second[start + 1 :]),
    ]
    swapped = first[start : start + 2] == second[start : start + 2][::-1] and first[start + 2 :] == second[start + 2 :]
    return swapped or any(a == b for a, b in rests)


@dataclass(frozen=True)
class DirectiveLine:
    """A line that begins with `#SBATCH`, and its options."""

    line: int
    asked: tuple[GivenOption, ...]
    read: bool
    """False if the line comes after the first command, where Slurm has stopped reading."""
    problem: str | None = None
    component: int = 0
    """Component of a heterogeneous job; the script and its plain steps run in the first."""


def read_directives(lines: Iterable[str], first_line: int = 1) -> list[DirectiveLine]:
    """Return the `#SBATCH` lines of a job file, in order. Slurm reads them up to the first line that is not a comment.

    Slurm needs no space after the word: it reads `#SBATCH--nodes=2`, and reports a mistake in `#SBATCHES`.
    """
    directives: list[DirectiveLine] = []
    reading, component = True, 0
    for number, line in enumerate(lines, first_line):
        if _ANOTHER_COMPONENT.match(line):
            component += 1
        elif line.startswith("#SBATCH"):
            directives.append(replace(_directive(number, line, reading), component=component))
        elif line.strip() and not line.lstrip().startswith("#"):
            reading = False
    return directives


def _directive(number: int, line: str, read: bool) -> DirectiveLine:
    try:
        words = _words(line.removeprefix("#SBATCH"))
    except ValueError:
        return DirectiveLine(number, (), read, "a quote is never closed")
    asked, used = read_options([(word, number) for word in words], SBATCH)
    stray = f"{words[used]!r} is not an option" if used < len(words) else None
    if stray and words[used][:1] in "–—":  # noqa: RUF001
        stray = f"{words[used]!r} begins with a typographic dash; an option begins with two hyphens"
    return DirectiveLine(number, tuple(asked), read, stray)


def _words(text: str) -> list[str]:
    """Return the words as sbatch reads them, up to a `#` outside quotes. Raises ValueError if a quote is not closed.

    Inside quotes, the other kind of quote is an ordinary character; a backslash makes any next character except a blank
    ordinary.
    """
    words, word, quote = [], "", ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            letter = next(letters, "")
            if quote or not letter.isspace():
                word += letter
                continue
        if quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in ("'", '"'):
            quote = letter
        elif letter == "#":
            break
        elif not letter.isspace():
            word += letter
        elif word:
            words.append(word)
            word = ""
    if quote:
        raise ValueError(text)
    return [*words, word] if word else words


def time_limit_s(text: str) -> int | None:
    """Return the seconds of a time limit as Slurm writes it: `90` (minutes), `90:30`, `2:30:00`, `1-12`, `1-12:30:00`.

    None if it means no limit. Raises ValueError if it is not one of these.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", text)
    if match is None:
        raise ValueError(text)
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


def write_time(seconds: int) -> str:
    """Format seconds: 5400 -> '01:30:00', 100000 -> '1-03:46:40'."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}" if days else f"{hour:02}:{minute:02}:{second:02}"
