"""What sbatch and srun take: their options, what each asks for, and how the `#SBATCH` lines of a job file are read.

As in the manual pages of Slurm 22.05, with the options that later releases and the common plugins added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_BOTH = """
account A = the project that pays
acctg-freq . = how often Slurm measures the job
bb . = burst buffer
bbf . = file that describes a burst buffer
begin b = not before this time
chdir D = the folder in which the job runs; else the one where sbatch was called
cluster-constraint . = which clusters may run it
clusters M = which cluster
comment . = a remark
constraint C = only nodes with this feature
container . = an OCI bundle to run in
container-id . = name of the OCI container
container-image . = image to run in (the Pyxis plugin)
container-mounts . = folders shown inside the container (the Pyxis plugin)
container-name . = name of the container (the Pyxis plugin)
container-workdir . = where it runs inside the container (the Pyxis plugin)
contiguous . - only nodes that lie side by side
core-spec S = cores kept for the system
cores-per-socket . = only nodes with that many cores a socket
cpu-freq . = clock of the CPUs
cpus-per-gpu . = CPUs for each GPU
cpus-per-task c = CPUs for each task
deadline . = drop the job if it cannot end by then
delay-boot . = wait so long before nodes are rebooted
dependency d = start only after other jobs
distribution m = how tasks are dealt out over nodes and sockets
environment . = an environment file (sites with the CSCS container engine)
error e = file for error messages; else they go to --output
exclude x = not on these nodes
exclusive . ? no other job on its nodes
export . = which variables of the submitting shell the job sees
extra . = a remark for the site's own scheduling
extra-node-info B = only nodes with so many sockets, cores, threads
gid . = run as this group (root only)
gpu-bind . = which task sees which GPU
gpu-freq . = clock of the GPUs
gpus G = GPUs for the whole job, however they fall on its nodes
gpus-per-node . = GPUs on each node
gpus-per-socket . = GPUs on each socket
gpus-per-task . = GPUs for each task
gres . = devices on each node
gres-flags . = how devices are chosen
help h - print the options
hint . = how tasks are bound to CPUs
hold H - wait until released
input i = file for standard input
job-name J = the name that squeue shows
licenses L = licences it needs
mail-type . = when to send mail
mail-user . = whom to send mail
mcs-label . = security label
mem . = memory on each node
mem-bind . = binding of memory
mem-per-cpu . = memory for each CPU
mem-per-gpu . = memory for each GPU
mincpus . = only nodes with that many CPUs
network . = options of the network or switch
nice . ? a lower priority
no-kill k ? go on when a node fails
nodefile F = file of node names to use
nodelist w = on these nodes
nodes N = how many machines
ntasks n = how many tasks, over all nodes
ntasks-per-core . = tasks for each core, at most
ntasks-per-gpu . = tasks for each GPU
ntasks-per-node . = tasks on each node
ntasks-per-socket . = tasks for each socket
open-mode . = append to its output files, or truncate them
output o = file for what the job prints
overcommit O - more tasks than CPUs
oversubscribe s - may share its nodes with other jobs
partition p = the queue, a set of nodes
power . = power management
prefer . = rather on nodes with this feature
priority . = priority
profile . = what to measure
propagate . ? which limits of the submitting shell hold in the job
qos q = quality of service: its limits and priority
quiet Q - print less
reboot . - reboot the nodes first
reservation . = nodes that were reserved
segment . = nodes in blocks of so many that lie close together
signal . = a signal some time before the time limit
sockets-per-node . = only nodes with that many sockets
spread-job . - over as many nodes as possible
switches . = over so few network switches
test-only . - say when it could start; start nothing
thread-spec . = threads kept for the system
threads-per-core . = threads used of each core
time t = time limit: then the job is killed
time-min . = the least time limit to accept
tmp . = temporary disk on each node
tres-bind . = binding of devices
tres-per-task . = devices for each task
uid . = run as this user (root only)
usage . - print a short help
use-min-nodes . - the smaller number of nodes where a range was given
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
kill-on-invalid-dep . = drop it if its dependency cannot be met
no-requeue . - never put it back into the queue
parsable . - print the job's number alone
requeue . - may go back into the queue: after a node failed, or by scontrol requeue
stepmgr . - steps are managed on the first node
wait W - return when the job has ended
wait-all-nodes . = start when all nodes are ready
wrap . = a command instead of a script
"""
_SRUN_ONLY = """
accel-bind . = binding of devices
bcast . ? copy the program to the nodes first
bcast-exclude . = whose libraries not to copy
compress . ? compress what is copied
cpu-bind . = binding of tasks to CPUs
disable-status X - Ctrl-C ends it at once
epilog . = program to run afterwards
exact . - no more CPUs than asked for
external-launcher . - start the step only, for another launcher
het-group . = which part of a heterogeneous job
immediate I ? fail if it cannot start now
jobid . = inside this job
kill-on-bad-exit K ? when one task fails, end all the others too
label l - put the task's number before each line
mpi . = how MPI is started
msg-timeout . = patience with messages
multi-prog . - tasks run different programs
no-allocate Z - without an allocation
no-container-mount-home . - keep the home folder out of the container (the Pyxis plugin)
overlap . - may share CPUs with other steps
preserve-env E - keep the variables of the allocation
prolog . = program to run first
pty . ? in a terminal
quit-on-interrupt . - end at the first Ctrl-C
relative r = begin at this node of the allocation
resv-ports . ? reserve ports
send-libs . ? send libraries too
slurmd-debug . = what slurmd logs
task-epilog . = program to run after each task
task-prolog . = program to run before each task
threads T = threads that srun uses to start tasks
unbuffered u - print at once
wait W = seconds after the first task ended until the others are killed
x11 . ? forward X11
"""
_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cpu_bind": "cpu-bind", "mem_bind": "mem-bind",
            "cluster": "clusters", "share": "oversubscribe", "pack-group": "het-group"}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of sbatch or srun."""

    name: str
    short: str | None
    takes: str
    """`=` a value, `?` perhaps one, `-` none."""
    meaning: str


def _table(*texts: str) -> dict[str, Option]:
    rows = [line.split(" ", 3) for text in texts for line in text.strip().splitlines()]
    return {name: Option(name, None if short == "." else short, takes, say) for name, short, takes, say in rows}


SBATCH = _table(_BOTH, _SBATCH_ONLY)
SRUN = _table(_BOTH, _SRUN_ONLY)


@dataclass(frozen=True)
class GivenOption:
    """One option as somebody wrote it. `option` is None if there is no such option."""

    line: int
    written: str
    option: Option | None
    value: str | None
    problem: str | None = None
    """What is wrong with it, in words."""
    instead: str | None = None

    @property
    def name(self) -> str:
        return self.option.name if self.option else self.written


def read_options(words: Sequence[tuple[str, int]], table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    """The options that `words` (text and line of each) begin with, as getopt reads them, and how many words they took.

    It ends at the first word that is no option, as srun's program is.
    """
    found: list[GivenOption] = []
    place = 0
    while place < len(words):
        text, line = words[place]
        following = words[place + 1][0] if place + 1 < len(words) else None
        if text == "--":
            return found, place + 1
        if not text.startswith("-") or text == "-":
            break
        read, used = _long(text, line, following, table) if text[:2] == "--" else _short(text, line, following, table)
        found += read
        place += used
    return found, place


def _long(text: str, line: int, following: str | None, table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    name, equals, value = text[2:].partition("=")
    option = find_option(name, table)
    written = f"--{name}"
    if option is None:
        near = next((key for key in table if one_letter_apart(name, key)), None)
        return [GivenOption(line, written, None, value, "no such option", f"--{near}" if near else None)], 1
    if option.takes == "-" and equals:
        return [GivenOption(line, written, option, value, "takes no value", written)], 1
    if option.takes != "=" or equals:
        missing = option.takes == "=" and not value
        return [GivenOption(line, written, option, value if equals else None, "has no value" if missing else None)], 1
    asked, used = _separate(line, written, option, following)
    return [asked], used


def _short(text: str, line: int, following: str | None, table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    """The options of one word: those that take no value may stand together, as in -ln2."""
    found: list[GivenOption] = []
    for place, letter in enumerate(text[1:], 1):
        option = next((item for item in table.values() if item.short == letter), None)
        if option is None or option.takes != "-" or text[place + 1 :].startswith("="):
            asked, used = _last_short(f"-{letter}", text[place + 1 :], option, line, following)
            return [*found, asked], used
        found.append(GivenOption(line, f"-{letter}", option, None))
    return found, 1


def _last_short(
    written: str, rest: str, option: Option | None, line: int, following: str | None
) -> tuple[GivenOption, int]:
    """The option with which a word of short ones ends: the rest of the word is its value."""
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
    """The option of that long name; an unmistakable beginning of one will do, as for getopt."""
    name = _ALIASES.get(name, name)
    if name in table:
        return table[name]
    names = {**{key: key for key in table}, **_ALIASES} if name else {}
    begun = {full for key, full in names.items() if key.startswith(name)}
    return table.get(begun.pop()) if len(begun) == 1 else None


def one_letter_apart(one: str, other: str) -> bool:
    """Whether a letter more, less, changed, or swapped with the next makes one word of the other."""
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    start = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if start is None:
        return True
    rests = [
        (one[start + 1 :], other[start + 1 :]),
        (one[start + 1 :], other[start:]),
        (one[start:], other[start + 1 :]),
    ]
    swapped = one[start : start + 2] == other[start : start + 2][::-1] and one[start + 2 :] == other[start + 2 :]
    return swapped or any(a == b for a, b in rests)


@dataclass(frozen=True)
class DirectiveLine:
    """A line that begins with `#SBATCH`, and what it asks for."""

    line: int
    asked: tuple[GivenOption, ...]
    read: bool
    """False if it comes after the first command, where Slurm has stopped reading."""
    problem: str | None = None


def read_directives(lines: Iterable[str], first_line: int = 1) -> list[DirectiveLine]:
    """The `#SBATCH` lines of a job file, in order. Slurm reads them up to the first line that is no comment.

    It wants no blank behind the word: in `#SBATCH--nodes=2` it reads the option, in `#SBATCHES` a mistake.
    """
    found: list[DirectiveLine] = []
    reading = True
    for number, line in enumerate(lines, first_line):
        if line.startswith("#SBATCH"):
            found.append(_directive(number, line, reading))
        elif line.strip() and not line.lstrip().startswith("#"):
            reading = False
    return found


def _directive(number: int, line: str, read: bool) -> DirectiveLine:
    try:
        words = _words(line.removeprefix("#SBATCH"))
    except ValueError:
        return DirectiveLine(number, (), read, "a quote is not closed")
    asked, used = read_options([(word, number) for word in words], SBATCH)
    stray = f"{words[used]!r} is no option" if used < len(words) else None
    if stray and words[used][:1] in "–—":  # noqa: RUF001
        stray = f"{words[used]!r} begins with a typographic dash; an option begins with two hyphens"
    return DirectiveLine(number, tuple(asked), read, stray)


def _words(text: str) -> list[str]:
    """Words as sbatch reads them, up to a `#` that is not in quotes. Raises ValueError if a quote is not closed.

    Within quotes the other kind is a letter like any; a backslash makes one of whatever follows, but not of a blank.
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
    """Seconds of a time limit as Slurm writes it: `90` (minutes), `90:30`, `2:30:00`, `1-12`, `1-12:30:00`.

    None if it means no limit. Raises ValueError if it is not one of these.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
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
    """5400 -> '01:30:00', 100000 -> '1-03:46:40'."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}" if days else f"{hour:02}:{minute:02}:{second:02}"
