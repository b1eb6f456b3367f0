"""Traps in what the job asks Slurm for: the `#SBATCH` lines, the resources and the output files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from frog.cluster.jobfile.cluster_profile import ClusterProfile
from frog.cluster.jobfile.emulator_limits import refusals
from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job_file import JobFile
from frog.cluster.jobfile.launchers import Launch
from frog.cluster.jobfile.variable_values import PLACEHOLDER
from frog.cluster.slurm_options import SBATCH, GivenOption, read_options, time_limit_s, write_time

_NUMBERS = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "gpus", "gpus-per-task")
_ARRAY = re.compile(r"\[?\d+(-\d+(:\d+)?)?(,\s?\d+(-\d+(:\d+)?)?)*\]?(%\d+)?|.*\u2370.*")
_AT_LEAST_ONE = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task")
_NUMBER = re.compile(r"(?:[^:=\s]+:)*\d(?:.*\d)?[kKmM]?$")
_NO_VALUE = "has no value"
_ACCUMULATE = ("mail-type",)
"""Options that accumulate when they are given several times."""
_HARMLESS = ("job-name", "comment", "mail-type", "mail-user", "output", "error", "verbose", "quiet")
"""Options that change only a job's name, its files or its mails, not what it does."""
_FILES = ("output", "error", "input", "chdir")


def request_findings(
    job: JobFile, profile: ClusterProfile | None, places: Sequence[Path], version: tuple[int, int] | None
) -> Iterator[Finding]:
    """Find traps in what the job asks for; `places` are folders where sbatch may be called."""
    yield from _header_findings(job)
    yield from _resource_findings(job, profile)
    yield from _output_findings(job, places, version)


def _header_findings(job: JobFile) -> Iterator[Finding]:
    """Find a wrong first line, and `#SBATCH` lines that Slurm ignores or refuses."""
    yield from _first_line(job)
    yield from _comments_that_look_like_directives(job)
    yield from _bare_option(job)
    yield from _after_a_command(job)
    yield from _options(job)


NO_SHEBANG = Trap("no-shebang", FAILS, "sbatch refuses the file, or the shell refuses its option", "#!/bin/bash")
DOS_LINES = Trap("dos-lines", FAILS, "sbatch refuses the file", "sed -i 's/\\r$//' FILE")


def _first_line(job: JobFile) -> Iterator[Finding]:
    """Find a first line that does not name a shell, and line ends of Windows."""
    first = min((line.line for line in job.directives), default=2)
    begins = job.lines[0] if job.lines else ""
    empty = not any(line.strip() for line in job.lines)
    if not begins.startswith("#!") and (job.directives or job.given or empty):
        yield NO_SHEBANG.at(1 if first < 1 or not job.nested else first, "the first line does not name a shell")
    elif not begins.isascii():
        yield NO_SHEBANG.at(job.first_line, "the first line contains a typographic dash or another non-ASCII character")
    number = next((number for number, line in enumerate(job.lines, 1) if line.endswith("\r")), None)
    if number is not None and not job.nested:
        yield DOS_LINES.at(number, "lines end with CR LF, as on Windows")


NOT_A_DIRECTIVE = Trap("not-a-directive", WASTES, "Slurm ignores it and uses the default", "#SBATCH {rest}")


def _comments_that_look_like_directives(job: JobFile) -> Iterator[Finding]:
    """Find `# SBATCH --nodes=2` and `#SBTACH --nodes=2`, which Slurm ignores."""
    if job.nested:
        return
    given = {asked.name for asked in job.options}
    first = min((command.line for command in job.shell.all_commands), default=len(job.lines) + 1)
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
            yield NOT_A_DIRECTIVE.at(number, what, _severity(asked, job), rest=rest.strip())


def _severity(lost: Sequence[GivenOption], job: JobFile) -> Kind | None:
    """Return the severity of options that Slurm ignores: only advice if they set a name or repeat a default."""
    gpus = job.gpu_directive is not None
    holds = [item.name in _HARMLESS or (item.name in _AT_LEAST_ONE and item.value == "1")
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
    command = min(job.shell.all_commands, key=lambda command: command.line, default=None)
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


def _after_a_command(job: JobFile) -> Iterator[Finding]:
    """Find directives after the first command, except those in texts of several lines."""
    first = min((command.line for command in job.shell.all_commands), default=0)
    texts = [word for command in job.shell.all_commands for word in (*command.words, command.heredoc) if word]
    bodies = {number for text in texts if "\n" in text.raw for number in range(text.line, text.last_line + 1)}
    given = {asked.name: asked.value for asked in job.options}
    for line in job.directives:
        valid = [item for item in line.asked if item.option and not item.problem]
        ignored = [item for item in valid if given.get(item.name, "") != item.value]
        if not line.read and ignored and line.line not in bodies:
            what = "this directive comes after the first command"
            yield AFTER_A_COMMAND.at(line.line, what, _severity(ignored, job), first=first)


NOT_AN_OPTION = Trap("not-an-option", FAILS, "sbatch refuses it, or reads it differently than intended", "{instead}")
SAID_TWICE = Trap("said-twice", ADVICE, "Slurm uses the last value")
TWO_MEMORIES = Trap("two-memories", FAILS, "these options are mutually exclusive")


def _options(job: JobFile) -> Iterator[Finding]:
    """Find options that sbatch refuses, that are given twice, or that exclude each other."""
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
            twice = asked.name in seen and asked.name not in _ACCUMULATE and seen[asked.name].value != asked.value
            if twice and not refused:
                what = f"line {seen[asked.name].line} also sets --{asked.name}"
                yield SAID_TWICE.at(asked.line, what)
            seen[asked.name] = asked
    yield from _options_without_value(job)
    yield from _refused_values(job)
    memories = [seen[name] for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in seen]
    if len(memories) > 1:
        what = " and ".join(f"--{item.name}" for item in memories)
        yield TWO_MEMORIES.at(max(item.line for item in memories), what)
    yield from _variables_in_directives(job)


REFUSED = Trap("refused", FAILS, "sbatch refuses the job: {message}")


def _refused_values(job: JobFile) -> Iterator[Finding]:
    """Report values that sbatch refuses and that no other trap describes."""
    for asked, message in refusals(job):
        if asked.line and not any(_option(asked)):
            yield REFUSED.at(asked.line, f"{asked.written} {asked.value}", message=message)
    alone = job.option("gpus-per-task")
    if alone and alone.line and not any(map(job.option, ("gpus", "ntasks", "ntasks-per-node", "nodes"))):
        message = "--gpus-per-task used without either --gpus or -n/--ntasks is not allowed"
        yield REFUSED.at(alone.line, f"{alone.written} {alone.value}, but no number of tasks", message=message)


def _options_without_value(job: JobFile) -> Iterator[Finding]:
    """Report all options without a value in one finding: such a file is a template."""
    empty = [asked for asked in job.options if asked.problem == _NO_VALUE]
    if empty:
        what = f"{empty[0].written}: {_NO_VALUE}{_other_lines(empty)}"
        yield NOT_AN_OPTION.at(empty[0].line, what, instead=None)


def _other_lines(options: Sequence[GivenOption]) -> str:
    """Return the lines of all options but the first, as the end of a message."""
    lines = list(dict.fromkeys(str(asked.line) for asked in options))[1:8]
    return f", as in line{'s' * (len(lines) > 1)} {', '.join(lines)}" if lines else ""


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
    expanded = [asked for asked in job.options if asked.value and asked.line
                and ("$" in asked.value or (asked.value[0] == "~" and asked.name in _FILES))]  # fmt: skip
    if expanded:
        first = expanded[0]
        kind = "variable" if "$" in (first.value or "") else "tilde"
        what = f"{first.written} {first.value}: a {kind}{_other_lines(expanded)}"
        harmless = all(asked.name in ("job-name", "comment", "mail-user") for asked in expanded)
        yield VARIABLE_IN_DIRECTIVE.at(first.line, what, "advice" if harmless else None)


_LEAST_MB = 512
"""Megabytes; no program that uses a GPU runs with less."""
_HOURS = (24, 36, 48, 72, 96, 168)


def _resource_findings(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    """Find traps in the resources that a job requests."""
    yield from _tasks_and_nodes(job)
    yield from _total_gpus(job)
    yield from _gpus_per_node(job, profile)
    yield from _time(job, profile)
    yield from _memory(job)
    if profile is not None:
        yield from _against_profile(job, profile)


TASKS_BEYOND_NODES = Trap(
    "tasks-beyond-nodes",
    FAILS,
    "sbatch refuses it, or the job waits forever",
    "#SBATCH --ntasks={most}, or remove it",
)
TASKS_BELOW_NODES = Trap(
    "tasks-below-nodes", WASTES, "Slurm allocates at most one node per task", "#SBATCH --ntasks-per-node=1 instead"
)


def _tasks_and_nodes(job: JobFile) -> Iterator[Finding]:
    """Find tasks that do not fit the nodes, as sbatch of Slurm 22.05 handles them."""
    asked, nodes, per_node = job.option("ntasks"), job.number("nodes"), job.number("ntasks-per-node")
    ntasks = job.number("ntasks")
    if not (asked and ntasks and nodes):
        return
    if per_node and ntasks > nodes * per_node:
        what = f"{ntasks} tasks, but at most {per_node} on each of {nodes} nodes"
        yield TASKS_BEYOND_NODES.at(asked.line, what, most=nodes * per_node)
    elif ntasks < nodes:
        what = f"{ntasks} task{'s' * (ntasks > 1)} for {nodes} nodes"
        yield TASKS_BELOW_NODES.at(asked.line, what, nodes=nodes)


UNEVEN_GPUS = Trap(
    "uneven-gpus",
    ADVICE,
    "the nodes get different numbers of GPUs, but launchers start the same number of ranks on every node",
    "#SBATCH --gpus-per-node=N",
)


def _total_gpus(job: JobFile) -> Iterator[Finding]:
    total, nodes = job.option("gpus"), job.nodes
    if total is None or not total.value or not nodes or nodes == 1:
        return
    if job.option("gpus-per-node") or job.option("exclusive"):
        return
    match = re.search(r"(?<!\d)(\d{1,9})$", total.value)
    if not match or int(match[1]) % nodes == 0:
        return
    what = f"{total.written} {total.value} counts for the whole job of {nodes} nodes"
    ranks = next(filter(None, (_ranks_per_node(job, run) for run in job.launches)), 0)
    kind: Kind | None = None
    if ranks * nodes > int(match[1]):
        what += f", but {nodes} x {ranks} = {nodes * ranks} ranks start"
        kind = "will fail"
    yield UNEVEN_GPUS.at(total.line, what, kind)


def _ranks_per_node(job: JobFile, run: Launch) -> int | None:
    word = run.option("nproc-per-node") if run.kind == "torchrun" else None
    return job.resolve_int(word.raw) if word else None


TOTAL_GPUS = Trap("total-gpus", WASTES, "{why}", "#SBATCH {instead}")


def _gpus_per_node(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    asked, gpus, nodes = job.gpu_directive, job.gpus_per_node, job.nodes
    if asked is None or asked.name == "gpus" or not gpus:
        return
    written = f"--{asked.name}={asked.value}"
    if profile and profile.gpus_per_node and gpus > profile.gpus_per_node:
        yield TOTAL_GPUS.at(
            asked.line,
            f"{written} asks for {gpus} GPUs on each node; {profile.name} has {profile.gpus_per_node}",
            why="the number is per node: the job would wait forever or be refused",
            instead=_with_number(written, gpus, profile.gpus_per_node),
        )
        return
    ranks = [_ranks_per_node(job, run) for run in job.launches]
    if not job.launches and job.distributed:
        ranks = [job.step_tasks_per_node(step) for step in job.steps if job.is_rank(step) and not step.requests_gpus]
    if nodes and nodes > 1 and any(number and number > 1 and number * nodes == gpus for number in ranks):
        yield TOTAL_GPUS.at(
            asked.line,
            f"{written} asks for {gpus} GPUs on each of {nodes} nodes, but each starts {gpus // nodes} ranks",
            why=f"the number is per node: the job holds {gpus * nodes} GPUs and uses {gpus}",
            instead=_with_number(written, gpus, gpus // nodes),
        )


def _with_number(written: str, old: int, new: int) -> str:
    return re.sub(rf"{old}\b(?!.*\d)", str(new), written)


NO_TIME_LIMIT = Trap(
    "no-time-limit",
    ADVICE,
    "the partition's default applies, which may be minutes or unlimited; jobs with a limit start earlier",
    "#SBATCH --time=01:00:00",
    needs_all_lines=True,
)
NOT_A_TIME = Trap("not-a-time", FAILS, "sbatch refuses it", "--time=HH:MM:SS, or D-HH:MM:SS")
TIME_LIMIT_TOO_LONG = Trap(
    "time-limit-too-long", FAILS, "the job would wait forever, or be refused", "#SBATCH --time={longest}"
)


def _time(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    asked = job.option("time")
    if asked is None:
        asks = any(map(job.option, ("partition", "account", "qos", "mem", "cpus-per-task", "constraint")))
        if not job.nested and (asks or job.gpu_directive or job.several_nodes):
            yield NO_TIME_LIMIT.at(1, "no --time")
        return
    if not asked.value or "$" in asked.value or PLACEHOLDER in asked.value:
        return
    try:
        limit_s = time_limit_s(asked.value or "")
    except ValueError:
        yield NOT_A_TIME.at(asked.line, f"{asked.written} {asked.value}: not a time")
        return
    yield from _minutes(job, asked, limit_s)
    longest_s = profile.max_time_s(job.text("qos")) if profile else None
    if profile and longest_s and (limit_s is None or limit_s > longest_s):
        what = f"{asked.value} exceeds the longest time of {profile.name}"
        yield TIME_LIMIT_TOO_LONG.at(asked.line, what, longest=write_time(longest_s))


TIME_IN_MINUTES = Trap(
    "time-in-minutes",
    WASTES,
    "a plain number means minutes: Slurm kills the job after {limit}",
    "#SBATCH --time={instead}",
)


def _minutes(job: JobFile, asked: GivenOption, limit_s: int | None) -> Iterator[Finding]:
    """Find `--time=24` and `--time=24:00` where hours were intended."""
    match = re.fullmatch(r"0*(\d+)(:00)?", asked.value or "")
    if match is None or limit_s is None or len(match[1]) > 3:
        return
    place = asked.line - job.first_line
    line = job.lines[place] if 0 <= place < len(job.lines) else ""
    comment = line.partition(" #")[2]
    says_hours = re.search(rf"\b{match[1]}\s*(h|hr|hrs)\b|\bhours?\b(?!.*\bmin)", comment)
    if says_hours or (int(match[1]) in _HOURS and not re.search(r"min|mm:ss|MM:SS", re.sub("HH:MM:SS", "", comment))):
        what = f"{asked.written} {asked.value} is {match[1]} minutes"
        yield TIME_IN_MINUTES.at(asked.line, what, limit=f"{match[1]} minutes", instead=f"{match[1]}:00:00")


MEMORY_IN_MEGABYTES = Trap(
    "memory-in-megabytes",
    WASTES,
    "a plain number means megabytes: Slurm kills a job that uses more",
    "#SBATCH --{name}={value}G",
)


def _memory(job: JobFile) -> Iterator[Finding]:
    """Find `--mem=80` where gigabytes were intended."""
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        asked = job.option(name)
        alone = re.fullmatch(r"[1-9]\d{0,2}", asked.value or "") if asked else None
        if asked and alone and job.gpu_directive and int(alone[0]) <= (_LEAST_MB if name == "mem" else _LEAST_MB // 2):
            what = f"{asked.written} {asked.value} is {asked.value} megabytes, in a job with GPUs"
            yield MEMORY_IN_MEGABYTES.at(asked.line, what, name=name, value=asked.value)


NO_ACCOUNT = Trap("no-account", FAILS, "{cluster} requires an account", "#SBATCH --account=NAME", needs_all_lines=True)
NO_QOS = Trap("no-qos", FAILS, "{cluster} requires a QOS", "#SBATCH --qos={qos}", needs_all_lines=True)
TOO_MANY_NODES = Trap("too-many-nodes", FAILS, "the job would wait forever, or be refused", "#SBATCH --nodes={most}")
FEW_CPUS = Trap(
    "few-cpus",
    WASTES,
    "{cluster} has {each} CPUs per GPU, and some sites refuse jobs with fewer",
    "#SBATCH --cpus-per-task={right}",
)


def _against_profile(job: JobFile, profile: ClusterProfile) -> Iterator[Finding]:
    if profile.account_required and job.option("account") is None:
        yield NO_ACCOUNT.at(1, "no --account", cluster=profile.name)
    if profile.qos is not None and job.option("qos") is None:
        yield NO_QOS.at(1, "no --qos", cluster=profile.name, qos=profile.qos)
    most, nodes = profile.max_nodes_of(job.text("qos")), job.option("nodes")
    if most and nodes and (job.nodes or 0) > most:
        yield TOO_MANY_NODES.at(nodes.line, f"{job.nodes} nodes; {profile.name} allows {most}", most=most)
    each, gpus, tasks = profile.cpus_per_gpu, job.gpus_per_node, job.tasks_per_node or 1
    cpus = (job.number("cpus-per-task") or 1) * tasks
    if each and gpus and cpus < gpus * each:
        asked = job.option("cpus-per-task")
        line = asked.line if asked else 1
        what = f"{cpus} CPUs per node for {gpus} GPUs"
        yield FEW_CPUS.at(line, what, cluster=profile.name, each=each, right=-(-gpus * each // tasks))


_SEVERAL = re.compile(r"(?!(\d+)-\1\b).*[-,]")
"""An array of more than one task; 1-1 does not match."""
_MAKES_FOLDERS = (23, 2)
"""First release in which Slurm creates the folders of --output and --error, with or without %j in them."""


def _output_findings(job: JobFile, places: Sequence[Path], version: tuple[int, int] | None) -> Iterator[Finding]:
    """Find output files that jobs overwrite, and output folders that do not exist."""
    yield from _overwritten(job)
    if version is None or version < _MAKES_FOLDERS:
        yield from _output_folders(job, places, None if version is None else "may hang or waste")


def _outputs(job: JobFile) -> Iterator[tuple[GivenOption, str]]:
    """Yield each option that names an output file, with the file."""
    for asked in map(job.option, ("output", "error")):
        value = asked.value if asked else None
        if asked and value and not value.startswith("/dev/") and not re.search(rf"[${{<{PLACEHOLDER}]", value):
            yield asked, value


OUTPUT_OVERWRITTEN = Trap(
    "output-overwritten", ADVICE, "the next job overwrites the output of this one", "--{name}={instead}"
)


def _overwritten(job: JobFile) -> Iterator[Finding]:
    for asked, value in _outputs(job):
        if not re.search(r"%\d*[jAJ]", value) and job.text("open-mode") != "append":
            what = f"{asked.written} {value}: every job writes to the same file"
            yield OUTPUT_OVERWRITTEN.at(asked.line, what, name=asked.name, instead=_with_job(value))
            return
        array = job.option("array")
        if array and _SEVERAL.match(array.value or "") and not re.search(r"%\d*[ajJNns]", value):
            what = f"{asked.written} {value}: every task of the array writes to the same file"
            instead = _with_job(value).replace("%j", "%a")
            yield OUTPUT_OVERWRITTEN.at(asked.line, what, name=asked.name, instead=instead)
            return


NO_OUTPUT_FOLDER = Trap(
    "no-output-folder",
    ADVICE,
    "Slurm before 23.02 does not create it, and a job without its output folder fails immediately and prints nothing",
    "{instead}",
)


def _output_folders(job: JobFile, places: Sequence[Path], severity: Kind | None) -> Iterator[Finding]:
    """Find missing output folders; `severity` is that of folders that cannot exist yet."""
    reported: set[Path] = set()
    starts = [place / (job.text("chdir") or "") for place in places]
    for asked, value in _outputs(job):
        folder = Path(value).parent
        of_job = re.search(r"%\d*[jAJ]", str(folder)) is not None
        made = any(command.name == "mkdir" and folder.name in command.text for command in job.shell.all_commands)
        if folder in reported or not (of_job or _absent(folder, starts)):
            continue
        reported.add(folder)
        what = f"{folder}/ does not exist here" + (", and mkdir in the script runs too late" if made else "")
        instead = f"mkdir -p {folder}, before sbatch"
        if of_job:
            what = f"{folder}/ contains the job's number, so it cannot be created before sbatch"
            instead = f"--{asked.name}={_flat(value)}"
        yield NO_OUTPUT_FOLDER.at(asked.line, what, severity if made or of_job else None, instead=instead)


def _flat(value: str) -> str:
    """Rewrite `logs/%j/out` as `logs/%j-out`."""
    return re.sub(r"(%\d*[jAJ][^/]*)/", r"\1-", value)


def _absent(folder: Path, places: Sequence[Path]) -> bool:
    """True if the folder certainly does not exist: its parent exists and it does not, or no start folder has it."""
    if "%" in str(folder) or "~" in str(folder):
        return False
    try:
        if folder.is_absolute():
            return len(folder.parts) > 3 and folder.parent.is_dir() and not folder.is_dir()
        return bool(places) and not any((place / folder).is_dir() for place in places)
    except (OSError, ValueError):
        return False


def _with_job(value: str) -> str:
    stem, dot, ending = value.rpartition(".")
    return f"{stem}-%j.{ending}" if dot and "/" not in ending else f"{value}-%j"
