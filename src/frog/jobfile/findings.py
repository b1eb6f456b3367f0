"""What `frog slurm explain` can find in a job file: traps and notes, why each matters, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FIRST_HOST = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun'
JOB_PORT = "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), before srun"

TRAPS: dict[str, tuple[str, str | None]] = {
    # The head.
    "no-shebang": ("sbatch refuses the file", "#!/bin/bash"),
    "dos-lines": ("sbatch refuses the file", "sed -i 's/\\r$//' FILE"),
    "not-a-directive": ("Slurm never reads it: the default holds", "#SBATCH {rest}"),
    "after-a-command": ("Slurm stops reading at line {first}, and ignores this", "move it above line {first}"),
    "not-an-option": ("it is refused, or taken otherwise than you meant", "{instead}"),
    "two-memories": ("they exclude each other", None),
    "variable-in-directive": (
        "no shell reads these lines: Slurm takes the dollar as it stands",
        "write the value, or one of Slurm's own patterns: %j %x %u",
    ),
    "not-a-number": ("sbatch refuses it", None),
    "total-gpus": ("{why}", "#SBATCH {instead}"),
    "no-time-limit": (
        "the partition's default holds, from minutes to none at all; a job that says how long it needs starts earlier",
        "#SBATCH --time=01:00:00",
    ),
    "not-a-time": ("sbatch refuses it", "--time=HH:MM:SS, or D-HH:MM:SS"),
    "output-overwritten": ("the next job overwrites what this one said", "--{name}={instead}"),
    "no-output-folder": (
        "Slurm does not make it: the job fails at once, without a word. A mkdir in the script comes too late",
        "mkdir -p {folder}, before sbatch",
    ),
    # The head, against a cluster's profile.
    "time-limit-too-long": ("the job would wait for ever, or be refused", "#SBATCH --time={longest}"),
    "too-many-nodes": ("the job would wait for ever, or be refused", "#SBATCH --nodes={most}"),
    "no-account": ("{cluster} takes no job without", "#SBATCH --account=NAME"),
    "no-qos": ("{cluster} takes no job without", "#SBATCH --qos={qos}"),
    "few-cpus": (
        "{cluster} has {each} CPUs for each GPU, and some sites refuse fewer",
        "#SBATCH --cpus-per-task={right}",
    ),
    # Ranks and nodes.
    "torchrun-without-srun": (
        "the script runs on the first node alone: the others stand idle, and torchrun waits for them",
        "srun ... torchrun ...",
    ),
    "nodes-apart": (
        "every node forms a world of its own: the same training, several times",
        '--nnodes="$SLURM_NNODES"',
    ),
    "nnodes-differ": ("torchrun waits for nodes that never come, or leaves some out", '--nnodes="$SLURM_NNODES"'),
    "ranks-doubled": ("torchrun starts a rank for each GPU itself: {count}", "#SBATCH --ntasks-per-node=1"),
    "ranks-beyond-gpus": ("ranks would share a GPU, which NCCL refuses", "--nproc-per-node={gpus}"),
    "one-rank": ("it starts one rank on each node", "--nproc-per-node={gpus}"),
    "node-rank": (
        "rank 0 must be on one node alone, the one at MASTER_ADDR",
        '--node-rank="$SLURM_NODEID", in single quotes behind srun bash -c',
    ),
    "read-too-early": (
        "the shell puts it in on the first node, before srun starts: all tasks get {value}",
        "srun bash -c '... \"${name}\" ...', in single quotes",
    ),
    "not-exported": ("there it is empty", "export {name}"),
    # Where they meet.
    "head-localhost": ("{why}", FIRST_HOST),
    "head-of-its-own": ("srun runs this on each node: there are as many heads as nodes", FIRST_HOST),
    "head-not-node-0": (
        "SLURM_NODEID 0, and so rank 0, is on the first: it must listen where the others look",
        FIRST_HOST,
    ),
    "nodelist-folded": ("cut at commas it gives names that no host has", FIRST_HOST),
    "port-per-task": ("srun runs this for each task: they wait for each other at different doors", JOB_PORT),
    "port-beyond": ("ports that users may take go from 1024 to 65535", JOB_PORT),
    "port-fixed": ("two jobs that share a node collide: address already in use", JOB_PORT),
    # Commands.
    "quote-not-closed": ("the shell finds the end of the file first, and runs nothing", None),
    "goes-on-without-one": (
        "when one task fails the others wait for it, until the time limit, and you pay",
        "srun --kill-on-bad-exit=1 ...",
    ),
    "cpus-not-passed-on": (
        "since Slurm 22.05 srun does not take it over: each task gets one CPU",
        'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ...',
    ),
    "no-wait": ("the script ends at once, and Slurm ends the step with it", "wait"),
    "threads": (
        "each starts as many threads as it sees CPUs, and they get in each other's way",
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK",
    ),
    "prepared-too-late": ("the step in line {last} ran without it", "move it above line {last}"),
    "no-network": (
        "{cluster} lets none reach the internet: it hangs, then fails",
        "prepare it on a login node, or take a bundle: frog bundle",
    ),
    # Time is up.
    "no-requeue": (
        "the signal says that time is up: saved or not, nobody goes on",
        '#SBATCH --requeue, and at the end: scontrol requeue "$SLURM_JOB_ID"',
    ),
    "not-a-signal": ("it is [B:]NAME[@SECONDS]", "--signal=B:USR1@120"),
    "signal-at-once": ("it comes as soon as the job has begun", "--signal={instead}"),
    "signal-not-trapped": (
        "the shell dies of it, and the job with it",
        "trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' {name}",
    ),
    "signal-not-for-script": ("the trap in line {handler} never runs", "--signal={instead}"),
    "signal-kills-torchrun": (
        "torchrun does not know it and dies of it, and its ranks with it, unsaved",
        "--signal=TERM@{before_s}, or B: and a trap",
    ),
    "trap-comes-too-late": (
        "bash runs a trap only when the command before it has ended",
        'srun ... & and then: wait "$!"',
    ),
    "begins-again": ("after a requeue it begins at step 1", "train.py RUN.toml --continue"),
}
"""Code, why it goes wrong or wastes what was asked for, and what to write."""

NOTES: dict[str, tuple[str, str | None]] = {
    "switched-off": ("Slurm does not read this line", None),
    "said-twice": ("the last counts", None),
    "minutes-seconds": ("two numbers are not hours and minutes", None),
    "output-folder-elsewhere": ("Slurm does not make it: see that it is there where you call sbatch", None),
    "gpus-idle": ("the others stand idle", None),
    "ranks-by-arrival": ("rank 0 may be on any node; torchrun itself tells all where it is", None),
    "port-random": ("the nodes agree, since it is chosen once; but it may be taken", JOB_PORT),
    "one-thread": (
        "torchrun then gives each rank one thread",
        "export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK > RANKS_PER_NODE ? SLURM_CPUS_PER_TASK / RANKS_PER_NODE : 1))",
    ),
    "network": ("the GPUs stand idle meanwhile; and many clusters have no internet there", "prepare it before"),
    "goes-on-after-errors": ("after a command that failed the script goes on", "set -euo pipefail"),
    "srun-forces": ("srun then kills its tasks: they have no time to save", 'scancel --signal=TERM "$SLURM_JOB_ID"'),
    "log-truncated": ("the log of the first part is overwritten", "#SBATCH --open-mode=append"),
    "nobody-goes-on": ("when a node fails, or time is up, nobody goes on", "#SBATCH --requeue and --signal=B:USR1@120"),
    "short-grace": (
        "torchrun kills its ranks 30 s after it was told to end: a large checkpoint may take longer",
        "torchrun --shutdown-timeout={seconds}",
    ),
}
"""The same of what is worth knowing and may be meant."""


@dataclass(frozen=True)
class Finding:
    """One line's trap or note."""

    kind: Literal["trap", "note"]
    code: str
    line: int
    what: str
    why: str
    instead: str | None
    """What to write."""


def make_finding(code: str, line: int, what: str, **values: object) -> Finding:
    """The finding of that code; `values` fill the gaps in its texts."""
    kind: Literal["trap", "note"] = "trap" if code in TRAPS else "note"
    why, instead = (TRAPS if kind == "trap" else NOTES)[code]
    if instead is not None and values.get("instead", "") is None:
        instead = None
    return Finding(kind, code, line, what, why.format(**values), instead and _filled(instead, values))


def _filled(text: str, values: dict[str, object]) -> str:
    """`text` with `{name}` replaced, leaving the shell's own braces alone."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
