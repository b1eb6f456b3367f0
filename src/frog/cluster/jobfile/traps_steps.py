"""Traps with the steps and programs that the script runs: what they need first, what waits for them, what they hide."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.cluster_profile import ClusterProfile
from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind, Trap
from frog.cluster.jobfile.job_file import JobFile, sources_users_file
from frog.cluster.jobfile.launchers import CONTAINERS, SrunStep, program_at
from frog.cluster.jobfile.shell_script import Command
from frog.cluster.jobfile.traps_request import NOT_AN_OPTION, SITE_OPTION
from frog.cluster.jobfile.traps_signals import ends_on_errors

_TRAINS = re.compile(
    r"^((time|nohup|exec|(uv|poetry) run) )*(\S*/)?(python[\d.]*|torchrun|accelerate launch|deepspeed) (?!-c\b)"
    r"(\S+ )*?(-m \S|\S+\.py\b)"
)
"""The training program of a script without srun."""
_NO_WORK = ("echo", "printf", "date", "exit", "true", ":", "wait", "scontrol", "trap", "set")
"""Commands after a step that do no work themselves."""


def step_findings(job: JobFile, profile: ClusterProfile | None, version: tuple[int, int] | None) -> Iterator[Finding]:
    """Find traps with the script's steps and programs."""
    for step in job.steps:
        yield from _step(job, step)
        yield from _cpus(job, step, version)
    yield from _background(job)
    yield from _steps_queue(job)
    yield from _prepared_too_late(job)
    yield from _network(job, profile)
    yield from _errors(job)
    yield from _tee(job)
    yield from _own_folder(job)
    yield from _servers(job)
    yield from _conda(job)
    yield from _activation_order(job)
    yield from _modules(job)
    yield from _containers(job)


GOES_ON_WITHOUT_ONE = Trap(
    "goes-on-without-one",
    ADVICE,
    "if one task fails, the others may wait for it until the time limit, and you pay for that time",
    "srun --kill-on-bad-exit=1 ..., or --wait=60",
    needs_all_lines=True,
)


def _step(job: JobFile, step: SrunStep) -> Iterator[Finding]:
    for asked in step.options:
        if asked.problem == "no such option" and asked.instead is None and asked.written.startswith("--"):
            yield SITE_OPTION.at(asked.line, f"{asked.written} is not an srun option")
        elif asked.problem:
            what = f"srun {asked.written}: {asked.problem}"
            yield NOT_AN_OPTION.at(asked.line, what, instead=asked.instead)
    tasks = (job.step_nodes(step) or 1) * (job.step_tasks_per_node(step) or 1)
    if tasks == 1 or not job.is_rank(step) or not (job.gpu_directive or job.distributed) or step.option("wait"):
        return
    kills = step.option("kill-on-bad-exit")
    set_here = {item.name for item in step.command.assignments} | job.exported
    if (kills is None or kills.value == "0") and not set_here & {"SLURM_KILL_BAD_EXIT", "SLURM_WAIT"}:
        yield GOES_ON_WITHOUT_ONE.at(step.line, "srun without --kill-on-bad-exit")


_DOES_NOT_INHERIT = ((22, 5), (23, 2))
"""Releases between which srun does not inherit --cpus-per-task from sbatch."""

CPUS_NOT_PASSED_ON = Trap(
    "cpus-not-passed-on",
    ADVICE,
    "srun of Slurm 22.05 to 23.02 does not inherit it, so each task gets one CPU; other versions inherit it",
    'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ...',
    needs_all_lines=True,
)


def _cpus(job: JobFile, step: SrunStep, version: tuple[int, int] | None) -> Iterator[Finding]:
    """Find srun without --cpus-per-task, for releases that do not inherit it."""
    if version is not None and not _DOES_NOT_INHERIT[0] <= version <= _DOES_NOT_INHERIT[1]:
        return
    cpus = job.option("cpus-per-task")
    own = step.option("cpus-per-task") or step.option("exclusive") or step.option("cpus-per-gpu")
    names = {"SRUN_CPUS_PER_TASK"} & ({item.name for item in step.command.assignments} | job.exported)
    works = step.works and (job.step_nodes(step), job.step_tasks_per_node(step)) != (1, 1)
    if works and cpus and cpus.value not in (None, "", "1") and not own and not names:
        what = f"srun without --cpus-per-task: the value from line {cpus.line} may not reach it"
        yield CPUS_NOT_PASSED_ON.at(step.line, what, "may hang or waste" if version else None)


_WAITS = re.compile(r"(wait|fg|tail|kill)\b|sleep (inf|\d{3,}|\d+[mhd])")

NO_WAIT = Trap(
    "no-wait",
    WASTES,
    "the script ends immediately, and Slurm then ends its running steps",
    "wait",
    needs_all_lines=True,
)


def _background(job: JobFile) -> Iterator[Finding]:
    """Find a script that ends while its last step runs."""
    behind = [step.command for step in job.steps if step.command.context.background]
    working = [item for item in job.shell.commands if item.words and item.name not in (*_NO_WORK, "sleep")]
    behind += [command for command in working[-1:] if command.context.background and not command.context.conditional]
    if not behind or job.shell.ends is not None or job.shell.endless or job.run_by_hand:
        return
    last = max(behind, key=lambda command: command.line)
    after = [command for command in job.shell.all_commands if command.line > last.last_line]
    waits = [command for command in job.shell.all_commands if _WAITS.match(command.text)]
    busy = [command for command in after if command.words and command.name not in (*_NO_WORK, "sleep")]
    if not any(command.line >= last.line for command in waits) and not busy:
        yield NO_WAIT.at(last.line, f"{last.name} in the background, with no wait after it")


STEPS_QUEUE = Trap(
    "steps-queue",
    WASTES,
    "the first step takes all of the job's resources, so the others wait until it ends",
    "srun --exact --ntasks=1 ..., each with its own share of GPUs and memory",
)


def _steps_queue(job: JobFile) -> Iterator[Finding]:
    """Find simultaneous steps that each take all of the job's resources."""
    greedy = [step for step in job.steps if step.command.context.background and not _shares(job, step)]
    several = len(greedy) > 1 or any(step.command.context.loop for step in greedy)
    used, has = [job.step_nodes(step) or 0 for step in greedy], job.nodes or 1
    if (
        all(used)
        and max(used, default=has) < has
        and (sum(used) <= has or any(step.command.context.loop for step in greedy))
    ):
        return  # each step uses free nodes
    if several:
        yield STEPS_QUEUE.at(greedy[-1].line, "several srun in the background without --exact or --overlap")
    else:
        yield from _gpus_queue(job)


def _gpus_queue(job: JobFile) -> Iterator[Finding]:
    """Find simultaneous steps of one node that need more GPUs together than the job has.

    Source:  srun(1), --gres: a step gets all of the job's GPUs unless it asks for some, or shares them by --overlap.
    """
    has = job.gpus_per_node
    if not has or job.several_nodes or {"SLURM_OVERLAP", "SLURM_STEP_GRES"} & job.exported:
        return
    elsewhere = ("overlap", "oversubscribe", "nodelist", "relative", "jobid", "het-group")
    steps = [step for step in job.steps if step.command.context.background and not any(map(step.option, elsewhere))
             and not step.command.context.conditional and step.works]  # fmt: skip
    needs = [_gpus_of_step(job, step) for step in steps]
    known = [count for count in needs if count is not None]
    repeated = any(step.command.context.loop for step in steps)
    if len(known) < len(needs) or not known:
        return
    if (len(steps) > 1 and sum(known) > has) or (repeated and max(known) >= has):
        what = f"the steps in the background ask for {sum(known)} GPUs, but the job has {has}"
        if not any(step.requests_gpus for step in steps):
            what = f"each srun in the background takes all {has} GPUs of the job"
        kind: Kind | None = None if job.nodes == 1 else "advice"
        yield STEPS_QUEUE.at(steps[-1].line, what, kind)


def _gpus_of_step(job: JobFile, step: SrunStep) -> int | None:
    """Return the GPUs of a step on one node; None if they are unknown."""
    if not step.requests_gpus:
        return job.gpus_per_node
    tasks = job.step_tasks_per_node(step)
    for name, times in (("gpus-per-task", tasks), ("gpus-per-node", 1), ("gpus", 1), ("gres", 1)):
        asked = step.option(name)
        if asked and asked.value:
            match = re.fullmatch(r"(?:(?:gres/)?gpu:)?(?:[A-Za-z]\w*:)?(\d{1,4})", asked.value)
            return int(match[1]) * times if match and times else None
    return None


def _shares(job: JobFile, step: SrunStep) -> bool:
    """True if the step leaves resources to others, or uses separate nodes."""
    names = ("exact", "overlap", "exclusive", "cpus-per-task", "nodelist", "relative", "mem", "mem-per-cpu", "jobid",
             "oversubscribe", "cores-per-socket", "het-group")  # fmt: skip
    set_here = {item.name for item in step.command.assignments} | job.exported
    return any(step.option(name) for name in names) or bool(
        set_here & {"SLURM_OVERLAP", "SLURM_EXACT", "SRUN_CPUS_PER_TASK"}
    )


_PREPARES = ("module", "ml", "conda", "mamba", "source", ".")

PREPARED_TOO_LATE = Trap(
    "prepared-too-late", WASTES, "the step in line {last} already ran without it", "move it above line {last}"
)


def _prepared_too_late(job: JobFile) -> Iterator[Finding]:
    """Find commands that prepare the environment after the steps that need it."""
    works = [step.command for step in job.steps if step.works]
    works += [command for command in job.shell.commands if _TRAINS.search(command.text)]
    last = max((command.line for command in works if not command.context.conditional), default=None)
    for command in job.shell.commands:
        if last is None or command.line <= last or command.name not in _PREPARES or len(command.words) < 2:
            continue
        after = [
            item for item in job.shell.commands if item.line > command.line and item.words and item.name not in _NO_WORK
        ]
        if command.words[1].text not in ("purge", "unload", "list", "deactivate", "swap") and not after:
            yield PREPARED_TOO_LATE.at(command.line, f"{command.name} after the program", last=last)


PYTHON_REPLACED = Trap(
    "python-replaced",
    WASTES,
    "the module puts its own Python before the environment's in PATH, so the program does not find its packages",
    "module load first, then {activates}",
)
_BRINGS_PYTHON = re.compile(
    r"(\S*/)?(cray-|intel-?)?(python|anaconda|miniconda|miniforge|mamba|conda|pytorch|tensorflow)[\w.-]*(/|$)",
    re.IGNORECASE,
)


def _activation_order(job: JobFile) -> Iterator[Finding]:
    """Find `module load python` after the environment was activated."""
    active: Command | None = None
    for command in job.shell.commands:
        texts = [word.text for word in command.words]
        if command.context.conditional or not texts:
            continue
        sources = command.name in ("source", ".") and texts[1:] and texts[1].endswith("/bin/activate")
        if sources or (command.name in ("conda", "mamba", "micromamba") and texts[1:2] == ["activate"]):
            active = command
        elif "deactivate" in texts:
            active = None
        loads = texts[2:] if texts[:2] in (["module", "load"], ["module", "add"], ["ml", "load"]) else texts[1:]
        named = [name for name in loads if _BRINGS_PYTHON.match(name)] if command.name in ("module", "ml") else []
        if active and named and texts[1] not in (*_UNLOADS, "avail", "spider", "show"):
            what = f"module load {named[0]} after {active.text[:60]} in line {active.line}"
            yield PYTHON_REPLACED.at(command.line, what, activates=active.text[:60])
            return


_DOWNLOADS = (
    (re.compile(r"\b(pip3?|uv pip)\s+(install|download)\b"), "pip install"),
    (re.compile(r"\b(conda|mamba|micromamba)\s+(install|create|env create)\b"), "conda install"),
    (re.compile(r"^(wget|curl)\b"), "a download"),
    (re.compile(r"\bgit\s+(clone|pull|fetch)\b"), "git over the network"),
    (re.compile(r"\b(huggingface-cli|hf)\s+download\b"), "a download from a hub"),
    (re.compile(r"\b(apptainer|singularity)\s+(pull|build)\b|docker://"), "pulling an image"),
    (re.compile(r"\bapt(-get)?\s+install\b"), "apt install"),
)

NO_NETWORK = Trap(
    "no-network",
    FAILS,
    "{cluster} has no internet access on compute nodes: the command hangs, then fails",
    "prepare it on a login node, or use a bundle: frog bundle",
)
NETWORK = Trap(
    "network",
    ADVICE,
    "the GPUs idle meanwhile, and many clusters have no internet access on compute nodes",
    "prepare it before the job",
)


def _network(job: JobFile, profile: ClusterProfile | None) -> Iterator[Finding]:
    for command in [*job.shell.commands, *(inner for step in job.steps for inner in step.commands)]:
        text = command.text
        if (
            command.name in ("echo", "printf", "trap", "srun")
            or "--no-index" in text
            or re.search(r"pip3? install (-\S+ )*\S*(/\*|\.whl)$", text)
            or re.search(r"localhost|127\.0", text)
        ):
            continue
        what = next((what for pattern, what in _DOWNLOADS if pattern.search(text)), None)
        if what and profile is not None and not profile.network:
            yield NO_NETWORK.at(command.line, f"{what} on a compute node", cluster=profile.name)
        elif what and job.gpus_per_node and not command.context.conditional:
            yield NETWORK.at(command.line, f"{what} in the job")


def _shebang_ends_on_errors(job: JobFile) -> bool:
    return bool(job.lines and re.search(r"sh\s+-\w*e", job.lines[0]))


GOES_ON_AFTER_ERRORS = Trap(
    "goes-on-after-errors",
    ADVICE,
    "the script continues and its last command sets the exit code, so the job counts as COMPLETED",
    "set -euo pipefail",
    needs_all_lines=True,
)


def _errors(job: JobFile) -> Iterator[Finding]:
    """Find a step whose failure the script hides."""
    if any(ends_on_errors(command) for command in job.shell.commands) or _shebang_ends_on_errors(job):
        return
    certain = [command for command in job.shell.commands if command.context.certain and command.words]
    works = [step.command for step in job.steps if step.works]
    works += [command for command in job.shell.commands if _TRAINS.search(command.text)]
    lines = sorted(command.line for command in works if command.context.certain and not command.context.checked)
    if not lines or not certain or certain[-1].line <= lines[-1]:
        return
    behind = [command for command in job.shell.commands if command.line > lines[-1]]
    texts = [word.raw for command in behind for word in (*command.words, *(item.word for item in command.assignments))]
    reads_exit_code = any("$?" in raw or "PIPESTATUS" in raw for raw in texts)
    if (
        certain[-1].name in ("echo", "date", "printf", "scontrol") or certain[-1].text == "exit 0"
    ) and not reads_exit_code:
        what = "no set -e: if this fails, the job still ends successfully"
        yield GOES_ON_AFTER_ERRORS.at(lines[-1], what)


HIDDEN_BY_TEE = Trap(
    "hidden-by-tee",
    ADVICE,
    "a pipeline returns the exit code of its last command, which hides the failure of the first",
    "set -o pipefail",
    needs_all_lines=True,
)


def _tee(job: JobFile) -> Iterator[Finding]:
    """Find `python train.py | tee log`, where tee hides the failure."""
    text = "\n".join(line for line in job.lines if not line.lstrip().startswith("#") or line.startswith("#!"))
    if "pipefail" in text or "PIPESTATUS" in text:
        return
    stops = any(ends_on_errors(command) for command in job.shell.commands) or _shebang_ends_on_errors(job)
    works = {step.command.line for step in job.steps if step.works}
    commands = [command for command in job.shell.commands if command.words]
    for place, command in enumerate(commands[1:], 1):
        before = commands[place - 1]
        work = before.line in works or _TRAINS.search(before.text)
        if command.name != "tee" or not (
            work and before.context.subshell and before.context.checked and command.context.subshell
        ):
            continue
        behind = [item for item in commands[place + 1 :] if item.name not in _NO_WORK]
        if (
            not command.context.conditional
            and not command.context.background
            and (stops if behind else not commands[place + 1 :])
        ):
            yield HIDDEN_BY_TEE.at(before.line, f"{before.name} | tee without pipefail")
            return


_OWN_FOLDER = re.compile(
    r"\b(dirname|realpath|readlink)\b[^)]*(\$0\b|\$\{(0\b|BASH_SOURCE\b))|\$\{(0|BASH_SOURCE[^%}]*)%/"
)

NOT_ITS_FOLDER = Trap(
    "not-its-folder",
    WASTES,
    "Slurm runs a copy of the script from a folder on the first node",
    '"$SLURM_SUBMIT_DIR", the folder where sbatch was called',
)


def _own_folder(job: JobFile) -> Iterator[Finding]:
    """Find uses of the script's own folder: Slurm runs a copy from elsewhere."""
    text = "\n".join(job.lines)
    knows_submission_folder = "SLURM_SUBMIT_DIR" in text or "scontrol show job" in text
    if job.nested or not job.directives or knows_submission_folder:
        return
    for command in job.shell.commands:
        raw = [*(word.raw for word in command.words), *(item.raw for item in command.assignments)]
        if command.context.certain and any(_OWN_FOLDER.search(text) for text in raw):
            tests_for_file = command.name in ("[", "[[", "test")
            kind: Kind | None = "advice" if tests_for_file else None
            yield NOT_ITS_FOLDER.at(command.line, "the script computes its folder from its own name", kind)
            return


_SERVES = re.compile(
    r"ray start\b(?=.*--(head|address)).*--block|python\S* -m http\.server|vllm serve|vllm\.entrypoints"
    r"|sglang\.launch_server|text-generation-launcher"
    r"|^redis-server(?!.*(daemonize|\.conf))"
    r"|^(tensorboard|ollama serve|mlflow (server|ui)|jupyter[- ](lab|notebook))\b"
    r"|^sleep inf|^tail -[fF]|^nvidia-smi (dmon|pmon)|^nvidia-smi .*(-l\b|--loop)|^watch\b|^(gpustat|nvitop) -i"
)
_WORK = re.compile(r"\b(python[\d.]*|torchrun|accelerate|deepspeed)\b(?! -c).*(\.py\b| -m )")
_WATCHED = ("echo", "date", "exit", "wait")


NEVER_RETURNS = Trap(
    "never-returns",
    WASTES,
    "it stays in the foreground, so the script never reaches the next command",
    "{command} &",
    needs_all_lines=True,
)


def _servers(job: JobFile) -> Iterator[Finding]:
    """Find a foreground program that ends only when the job ends."""
    commands = [command for command in job.shell.commands if command.words]
    for place, command in enumerate(commands):
        words = command.words[program_at(command.words) :]
        text = " ".join(word.text for word in words)
        if words and words[0].base == "srun":
            step = next((step for step in job.steps if step.command.line == command.line), None)
            text = " ".join(word.text for word in step.program) if step else ""
        serves = command.context.certain and _SERVES.search(text) and words[0].base not in ("echo", "trap", "pkill")
        if serves and any(item.name not in ("echo", "date", "exit", "wait", "sleep") for item in commands[place + 1 :]):
            name = next((word.base for word in words if word.base not in ("srun", "-m")), command.name)
            yield NEVER_RETURNS.at(command.line, f"{_short(text)}: a server in the foreground", command=name)
    yield from _waits_for_server(job, commands)
    yield from _waits_for_all(job, commands)
    for line in job.shell.endless:
        if any(
            command.line > line and command.context.certain and command.name not in _WATCHED
            for command in _after_loop(job, line)
        ):
            yield NEVER_RETURNS.at(line, "an endless loop in the foreground", command="( ... )")


def _waits_for_server(job: JobFile, commands: list[Command]) -> Iterator[Finding]:
    """Find `wait` for a server that only a later command would end."""
    served = [command for command in commands if command.context.background and _SERVES.search(command.text)]
    names = _process_variables(job, served)
    waits = [command for command in commands if command.context.certain and command.name == "wait"]
    for wait in (wait for wait in waits if any(word.expansions() & names for word in wait.words[1:])):
        behind = [item for item in commands if item.line > wait.line and item.name not in _WATCHED]
        ended = any(item.line < wait.line and item.name in ("kill", "pkill", "scancel") for item in commands)
        if behind and not ended:
            what = f"wait for {_short(served[0].text)}, which does not end on its own"
            yield NEVER_RETURNS.at(wait.line, what, command=behind[0].name)


WAITS_FOR_SERVER = Trap(
    "waits-for-server",
    WASTES,
    "it does not end on its own, so the job keeps its nodes until the time limit",
    "kill it first, using the $! saved after its start",
    needs_all_lines=True,
)


def _waits_for_all(job: JobFile, commands: list[Command]) -> Iterator[Finding]:
    """Find `wait` without arguments after work that used a server in the background."""
    ends = [*commands, *(item for body in job.shell.functions.values() for item in body)]
    if any(re.search(r"\b(p?kill|killall|scancel|stop|shutdown)\b", item.text) for item in ends):
        return
    background = [item for item in commands if item.context.background and not item.context.conditional]
    served = [item for item in background if _SERVES.search(item.text) and item.name != "timeout"]
    names = _process_variables(job, served)
    for wait in (item for item in commands if item.name == "wait" and item.context.certain):
        if len(wait.words) > 1 and not any(word.expansions() & names for word in wait.words[1:]):
            continue
        before = [item for item in served if item.line < wait.line]
        begins = before[-1].line if before else wait.line
        between = [item for item in commands if begins < item.line < wait.line and item.context.certain]
        work = [item for item in between if _WORK.search(item.text) and not _SERVES.search(item.text)]
        if work:
            what = f"wait also waits for {_short(before[-1].text)}, which does not end"
            yield WAITS_FOR_SERVER.at(wait.line, what)
            return


def _process_variables(job: JobFile, commands: list[Command]) -> set[str]:
    """Return the variables that hold the process ids of background commands."""
    ends = {line for command in commands for line in (command.last_line, command.last_line + 1)}
    return {item.name for item in job.assignments if item.raw == "$!" and item.line in ends}


def _after_loop(job: JobFile, line: int) -> list[Command]:
    """Return the commands after the loop that begins there; commands inside the loop might not run."""
    return [
        command
        for command in job.shell.commands
        if command.line > line and not command.context.loop and not command.context.conditional
    ]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:37] + "..."


_CONDA_READY = re.compile(
    r"conda\.sh|mamba\.sh|bashrc|bash_profile|\.profile|hook|bin/activate|/activate\b|zshrc|modules?/|conda_init"
)
_UNLOADS = {"purge", "unload", "list", "use", "reset"}
_NO_CONDA = re.compile(
    r"load$|add$|(cuda|cudnn|gcc|nccl|nvhpc|rocm|openmpi|intel|cmake|git|hdf5|fftw)\b", re.IGNORECASE
)

CONDA_NOT_READY = Trap(
    "conda-not-ready",
    FAILS,
    "a batch shell does not read ~/.bashrc, so conda activate fails unless a module defines conda's function",
    'source "$(conda info --base)/etc/profile.d/conda.sh", before this line',
    needs_all_lines=True,
)


def _conda(job: JobFile) -> Iterator[Finding]:
    """Find `conda activate` in a shell that has not read conda's functions."""
    first = job.lines[0] if job.lines else ""
    if re.search(r"-\w*[li]", first) or "--login" in first or job.option("get-user-env"):
        return
    for command in job.shell.commands:
        if command.text.startswith(("conda activate", "mamba activate")) and command.context.certain:
            before = [item for item in job.shell.all_commands if item.line < command.line or item.context.calls]
            ready = [
                item
                for item in before
                if _CONDA_READY.search(f"{item.text} {' '.join(a.raw for a in item.assignments)}")
            ]
            loaded = [item for item in before if item.name in ("module", "ml") and len(item.words) > 1
                      and next((w.text for w in item.words[1:] if not w.text.startswith("-")), "list") not in _UNLOADS
                      and not all(map(_NO_CONDA.match, (word.text for word in item.words[1:])))]  # fmt: skip
            if not ready and not loaded and not any(map(sources_users_file, before)):
                after = [
                    item
                    for item in job.shell.all_commands
                    if item.line > command.line and re.search(r"conda\.sh|(conda|mamba)\S* shell\b.*hook", item.text)
                ]
                kind: Kind | None = None if after or _initialises(before) else "advice"
                yield CONDA_NOT_READY.at(command.line, f"{command.words[0].text} activate", kind)
            return


def _initialises(before: list[Command]) -> bool:
    """True if `conda init` comes first: it writes ~/.bashrc, which a batch shell does not read."""
    return any(command.text.startswith(("conda init", "mamba init")) for command in before)


MODULES_NOT_READY = Trap(
    "modules-not-ready",
    WASTES,
    "the file sourced later defines the module function",
    "move it after line {behind}",
    needs_all_lines=True,
)


def _modules(job: JobFile) -> Iterator[Finding]:
    """Find `module load` before the file that defines the function."""
    loads = [item for item in job.shell.commands if item.name in ("module", "ml") and len(item.words) > 1]
    brings = [item for item in job.shell.commands if item.name in ("source", ".")
              and re.search(r"modules?\.sh|lmod|init/(ba)?sh", item.text)]  # fmt: skip
    if loads and brings and loads[0].line < brings[0].line:
        what = f"module before {brings[0].words[1].base}"
        yield MODULES_NOT_READY.at(loads[0].line, what, behind=brings[0].line)


_AMD = re.compile(r"rocm|\b(MIOPEN|HIP|ROCR|HSA)_|\bmi\d{3}", re.IGNORECASE)
"""AMD GPUs: a container sees their devices because it sees /dev, and often has the libraries itself."""

CONTAINER_WITHOUT_GPUS = Trap("container-without-gpus", WASTES, "the container sees no GPU", "{container} exec --nv")


def _containers(job: JobFile) -> Iterator[Finding]:
    """Find a container that does not get the job's GPUs."""
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
            yield CONTAINER_WITHOUT_GPUS.at(command.line, f"{name} without --nv or --rocm", container=name)
