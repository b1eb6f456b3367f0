"""What `frog slurm explain` can find in a job file, how grave it is, why, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["will fail", "may hang or waste", "advice"]

FAILS: dict[str, tuple[str, str | None]] = {
    "no-shebang": ("sbatch refuses the file, or the shell its option", "#!/bin/bash"),
    "byte-order-mark": (
        "the kernel and sbatch do not see the #! behind it: the file is refused",
        "sed -i '1s/^\\xef\\xbb\\xbf//' FILE; or save it as UTF-8 without a mark",
    ),
    "dos-lines": ("sbatch refuses the file", "sed -i 's/\\r$//' FILE"),
    "no-directive": (
        "the shell takes it for a command, runs what stands in $(...), finds no such program; Slurm never reads it",
        "#SBATCH {rest}",
    ),
    "not-an-option": ("it is refused, or taken otherwise than you meant", "{instead}"),
    "two-memories": ("they exclude each other", None),
    "tasks-beyond-nodes": ("sbatch refuses it, or the job waits for ever", "#SBATCH --ntasks={most}, or leave it out"),
    "not-a-number": ("sbatch refuses it", None),
    "not-a-time": ("sbatch refuses it", "--time=HH:MM:SS, or D-HH:MM:SS"),
    "time-limit-too-long": ("the job would wait for ever, or be refused", "#SBATCH --time={longest}"),
    "too-many-nodes": ("the job would wait for ever, or be refused", "#SBATCH --nodes={most}"),
    "no-account": ("{cluster} takes no job without", "#SBATCH --account=NAME"),
    "no-qos": ("{cluster} takes no job without", "#SBATCH --qos={qos}"),
    "ranks-beyond-gpus": ("ranks would share a GPU, which NCCL refuses", "--nproc-per-node={gpus}"),
    "head-localhost": (
        "every node looks for rank 0 on itself, and waits",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
    ),
    "nodelist-folded": (
        "cut at commas it gives names that no host has",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
    ),
    "port-per-task": (
        "srun runs this for each task: they wait for each other at different doors",
        "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun",
    ),
    "meeting-per-task": ("each node waits for others under a name that no other has", '--rdzv-id="$SLURM_JOB_ID"'),
    "many-hosts": (
        "scontrol prints all of them, a line each: that is no address",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    ),
    "no-shell": ("srun starts no shell: it looks for a program of that long name", "srun ... bash -c '{text}'"),
    "step-beyond-job": ("a step gets no more than its job has: srun refuses it", None),
    "lightning-tasks": (
        "Lightning compares the two when it starts, and refuses to go on",
        "#SBATCH --ntasks-per-node as trainer.devices, --nodes as trainer.num_nodes; and srun before the program",
    ),
    "local-rank": (
        "on the second node it names GPUs that the node does not have",
        "LOCAL_RANK=$SLURM_LOCALID",
    ),
    "loopback": (
        "lo reaches no other node: the ranks of other nodes wait until they give up",
        "leave it out, or name the network that joins the nodes, such as ib0 or eth0",
    ),
    "blank-behind-equals": (
        "the shell takes the parts for a program and its words, and {name} stays empty",
        "{name}={value}",
    ),
    "quote-not-closed": ("the shell finds the end of the file first, and runs nothing from here on", None),
    "broken-line": (
        "the shell ends the command before it, and takes this line for a command of its own",
        "put the comment on a line of its own, before the command",
    ),
    "conda-not-ready": (
        "a batch shell does not read ~/.bashrc: unless a module brings conda's function, activate ends with an error",
        'source "$(conda info --base)/etc/profile.d/conda.sh", before it',
    ),
    "answer-for-number": (
        "sbatch answers «Submitted batch job 1»: with these words for a number it refuses the next job",
        "{name}=$(sbatch --parsable ...)",
    ),
    "not-a-signal": ("it is [B:]NAME[@SECONDS]", "--signal=B:USR1@120"),
    "no-network": (
        "{cluster} lets none reach the internet: it hangs, then fails",
        "prepare it on a login node, or take a bundle: frog bundle",
    ),
    "no-hostfile": (
        "on several nodes deepspeed looks for its hosts in a hostfile: without one it starts here alone",
        "--hostfile, written from scontrol show hostnames; or srun torchrun",
    ),
    "bash-in-sh": ("where sh is dash, as on Debian and Ubuntu, this is a mistake", "#!/bin/bash"),
}
"""Code, why, and what to write. Slurm or the shell refuses it, or no rank gets to work."""

WASTES: dict[str, tuple[str, str | None]] = {
    "not-a-directive": ("Slurm never reads it: the default holds", "#SBATCH {rest}"),
    "after-a-command": ("Slurm stops reading at line {first}, and ignores this", "move it above line {first}"),
    "variable-in-directive": (
        "no shell reads these lines: Slurm takes it as it stands",
        "write the value, or one of Slurm's own patterns: %j %x %u",
    ),
    "tasks-below-nodes": ("Slurm gives no more nodes than there are tasks", "#SBATCH --ntasks-per-node=1 instead"),
    "total-gpus": ("{why}", "#SBATCH {instead}"),
    "few-cpus": (
        "{cluster} has {each} CPUs for each GPU, and some sites refuse fewer",
        "#SBATCH --cpus-per-task={right}",
    ),
    "time-in-minutes": ("a number alone is minutes: the job is killed after {limit}", "#SBATCH --time={instead}"),
    "memory-in-megabytes": ("a number alone is megabytes: what needs more is killed", "#SBATCH --{name}={value}G"),
    "no-gpus": (
        "Slurm gives a job none that it has not asked for, except where whole nodes are handed out",
        "#SBATCH --gpus-per-node={gpus}",
    ),
    "torchrun-without-srun": (
        "the script runs on the first node alone: the others stand idle, and torchrun waits for them",
        "srun ... torchrun ...",
    ),
    "nodes-apart": (
        "every node forms a world of its own: the same training, several times",
        '--nnodes="$SLURM_NNODES"',
    ),
    "nnodes-differ": ("torchrun waits for nodes that never come, or leaves some out", '--nnodes="$SLURM_NNODES"'),
    "ranks-doubled": ("a launcher starts a rank for each GPU itself: {count}", "#SBATCH --ntasks-per-node=1"),
    "one-rank": ("it starts one rank on each node", "--nproc-per-node={gpus}"),
    "node-rank": (
        "rank 0 must be on one node alone, the one at MASTER_ADDR",
        '--node-rank="$SLURM_NODEID", in single quotes behind srun bash -c',
    ),
    "tasks-beyond-gpus": ("ranks would share a GPU, which NCCL refuses", "#SBATCH --ntasks-per-node={gpus}"),
    "gpu-not-there": ("Slurm numbers a job's own GPUs from 0: there is none of that number", None),
    "gpus-idle": ("the others stand idle", None),
    "read-too-early": (
        "the shell puts it in on the first node, before srun starts: all tasks get {value}",
        "srun bash -c '... \"${name}\" ...', in single quotes",
    ),
    "read-at-hand-in": (
        "it is not quoted: this shell puts it in before sbatch is called, and here it is not set",
        "\\${name}; or quote the word behind <<",
    ),
    "written-too-early": (
        "the shell puts it in where the file is written, on the first node: all tasks get the same",
        "quote the word behind <<, as in <<'EOF'; or \\${name}",
    ),
    "world-size": (
        "with more the ranks wait for others that never come; with fewer the last are refused",
        "WORLD_SIZE=$SLURM_NTASKS",
    ),
    "rank-twice": ("several tasks take the same number", "$SLURM_{right}"),
    "slots": ("Open MPI refuses it: not enough slots; other MPIs put several ranks on a core", None),
    "export-without-all": (
        "the tasks get these variables and Slurm's own, and nothing else: no PATH, no MASTER_ADDR",
        "srun --export=ALL,{value}",
    ),
    "no-braces": ("bash puts in the first item, and leaves the brackets as they stand", "${{text}}"),
    "dollar-before-name": (
        "the shell puts its value in, and looks for a program of the name that comes out: nothing is set",
        "{name}=...",
    ),
    "wait-once": (
        "the signal ends wait at once: the script goes on, and the job ends before its program has saved",
        'wait "$!" || wait "$!"',
    ),
    "beyond-list": ("there is no such item: it is empty", None),
    "typographic": (
        "the shell knows no such quotes or dashes: they reach the program as letters",
        "plain quotes and hyphens",
    ),
    "not-exported": ("there it is empty", "export {name}"),
    "never-set": ("it is empty there{near}", None),
    "slurm-sets-none": ("Slurm sets it only where {option} is given; else it is empty", None),
    "nothing-exported": (
        "with --export=NONE srun hands its tasks none of this script's variables",
        "srun --export=ALL ..., or unset SLURM_EXPORT_ENV",
    ),
    "head-of-its-own": (
        "srun runs this on each node: there are as many heads as nodes",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
    ),
    "head-not-node-0": (
        "SLURM_NODEID 0, and so rank 0, is on the first: it must listen where the others look",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
    ),
    "many-addresses": (
        "hostname -I prints one for each network of the host, with blanks between: that is no address",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun',
    ),
    "not-its-folder": (
        "Slurm runs a copy that lies in a folder of its own, on the first node",
        '"$SLURM_SUBMIT_DIR", the folder that sbatch was called in',
    ),
    "port-beyond": (
        "ports that users may take go from 1024 to 65535",
        "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun",
    ),
    "dollar-kept": (
        "the backslash keeps the shell from putting it in: the program gets the dollar as it stands",
        "${name}",
    ),
    "no-such-word": ("the shell finds no program of that name, or no end of the condition", "{instead}"),
    "no-wait": ("the script ends at once, and Slurm ends with it what still runs", "wait"),
    "steps-queue": (
        "the first takes all that the job has, so the others wait until it has ended",
        "srun --exact --ntasks=1 ..., with its own share of GPUs and memory",
    ),
    "on-first-node-only": (
        "this shell runs on the first node alone: on the others it is missing, and the first waits for them",
        "srun --ntasks-per-node=1 {command}",
    ),
    "never-returns": ("it stays in the foreground: what follows is never reached", "{command} &"),
    "waits-for-server": (
        "it does not end by itself: the job holds all it has until its time limit",
        "kill it before, by the $! behind its start",
    ),
    "container-without-gpus": ("the container sees no GPU", "{container} exec --nv"),
    "modules-not-ready": (
        "the module function comes with the file that is sourced later",
        "move it behind line {behind}",
    ),
    "prepared-too-late": ("the step in line {last} ran without it", "move it above line {last}"),
    "signal-at-once": ("it comes as soon as the job has begun", "--signal={instead}"),
    "signal-not-trapped": (
        "the shell dies of it, and the job with it",
        "trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' {name}",
    ),
    "signal-not-for-script": ("the trap in line {handler} never runs", "--signal={instead}"),
    "signal-to-nobody": (
        "the programs that this script starts itself never hear it",
        "srun before the program; or --signal={instead} and a trap",
    ),
    "signal-after-exec": (
        "exec has replaced the shell by then: no trap is left to hear it",
        "start it in the background, and wait for it",
    ),
    "signal-kills-torchrun": (
        "torchrun does not know it and dies of it, and its ranks with it, unsaved",
        "{instead}",
    ),
    "trap-comes-too-late": (
        "bash runs a trap only when the command before it has ended",
        'srun ... & and then: wait "$!"',
    ),
    "trap-set-too-late": (
        "until then no trap is set: the shell dies of the signal, and the job with it",
        "move it above line {first}",
    ),
    "wait-ends-script": (
        "wait ends with the signal's number, and set -e takes that for a failure: the script ends before line {behind}",
        'wait "$!" || true',
    ),
    "begins-again": ("after a requeue it begins at step 1", "train.py RUN.toml --continue"),
}
"""It may hang, lose work, or hold what is not used."""

ADVICE: dict[str, tuple[str, str | None]] = {
    "template": ("what is to be filled in is not known, and nothing follows from it: fill it in, and ask again", None),
    "not-understood": ("nothing follows from these lines, nor from what is missing: it may stand there", None),
    "site-option": ("it is not one of Slurm's own: perhaps your site's plugin", None),
    "no-time-limit": (
        "the partition's default holds, from minutes to none at all; a job that says how long it needs starts earlier",
        "#SBATCH --time=01:00:00",
    ),
    "said-twice": ("the last counts", None),
    "no-output-folder": (
        "before 23.02 Slurm does not make it: where it is missing the job fails at once, without a word",
        "{instead}",
    ),
    "output-overwritten": ("the next job overwrites what this one said", "--{name}={instead}"),
    "uneven-gpus": (
        "nodes get unlike shares, and launchers start as many ranks on every node",
        "#SBATCH --gpus-per-node=N",
    ),
    "first-node-only": (
        "the script runs on the first node alone: the others stand idle, unless the program itself reaches them",
        "srun python ...",
    ),
    "port-fixed": (
        "two jobs that share a node collide: address already in use",
        "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun",
    ),
    "goes-on-without-one": (
        "when one task fails the others may wait for it, until the time limit, and you pay",
        "srun --kill-on-bad-exit=1 ..., or --wait=60",
    ),
    "cpus-not-passed-on": (
        "from Slurm 22.05 to 23.02 srun does not take it over: each task gets one CPU; older and newer ones do",
        'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ...',
    ),
    "goes-on-after-errors": (
        "the script goes on, and what follows decides its exit code: the job counts as COMPLETED",
        "set -euo pipefail",
    ),
    "hidden-by-tee": (
        "a pipe ends as its last command does: the failure of the first is not seen",
        "set -o pipefail",
    ),
    "same-work": (
        "srun starts it {tasks} times, and the file tells these apart by nothing",
        "#SBATCH --ntasks=1, and --cpus-per-task={tasks} if CPUs are meant",
    ),
    "network": ("the GPUs stand idle meanwhile; and many clusters have no internet there", "prepare it before"),
    "no-requeue": (
        "the signal says that time is up: saved or not, nobody goes on",
        '#SBATCH --requeue, and at the end: scontrol requeue "$SLURM_JOB_ID"',
    ),
    "srun-forces": ("srun then kills its tasks: they have no time to save", 'scancel --signal=TERM "$SLURM_JOB_ID"'),
    "log-truncated": ("the log of the first part is overwritten", "#SBATCH --open-mode=append"),
    "short-grace": (
        "torchrun kills its ranks 30 s after it was told to end: a large checkpoint may take longer",
        "torchrun --shutdown-timeout={seconds}",
    ),
}
"""Worth knowing, and perhaps meant."""

UNLESS_PARTIAL = {
    "no-time-limit", "no-gpus", "torchrun-without-srun", "nodes-apart", "one-rank", "node-rank", "not-exported",
    "never-set", "slurm-sets-none", "no-wait", "conda-not-ready", "goes-on-without-one", "cpus-not-passed-on",
    "goes-on-after-errors", "no-requeue", "signal-not-trapped", "log-truncated", "short-grace",
    "begins-again", "first-node-only", "no-hostfile", "never-returns", "no-account", "no-qos",
    "wait-ends-script", "modules-not-ready", "waits-for-server", "wait-once", "hidden-by-tee",
    "trap-set-too-late", "same-work",
}  # fmt: skip
"""What follows from something that is not there: not to be told where lines were not understood."""

_KINDS: dict[Kind, dict[str, tuple[str, str | None]]] = {
    "will fail": FAILS,
    "may hang or waste": WASTES,
    "advice": ADVICE,
}


@dataclass(frozen=True)
class Finding:
    """One line's trap or advice."""

    kind: Kind
    code: str
    line: int
    what: str
    why: str
    instead: str | None
    """What to write."""


def make_finding(code: str, line: int, what: str, kind: Kind | None = None, **values: object) -> Finding:
    """The finding of that code; `values` fill the gaps in its texts, `kind` outdoes that of its table."""
    usual = next(kind for kind, table in _KINDS.items() if code in table)
    why, instead = _KINDS[usual][code]
    if instead is not None and values.get("instead", "") is None:
        instead = None
    return Finding(kind or usual, code, line, what, _filled(why, values), instead and _filled(instead, values))


def _filled(text: str, values: dict[str, object]) -> str:
    """`text` with `{name}` replaced, leaving the shell's own braces alone."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
