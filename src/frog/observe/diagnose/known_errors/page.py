"""The page docs/known-errors.md, generated from the table.

python -m frog.observe.diagnose.known_errors.page > docs/known-errors.md
"""

from __future__ import annotations

import textwrap

from frog.observe.diagnose.known_errors.table import (
    TABLE,
    checkpoints,
    exits,
    files,
    gpu,
    libraries,
    memory,
    model,
    nccl,
    rendezvous,
    schedulers,
)
from frog.observe.diagnose.known_errors.table.known import KnownError, Level

GROUPS = {
    "Slurm, Kubernetes, containers": schedulers.ERRORS,
    "NCCL: its start and networks": nccl.NETWORK,
    "Memory": memory.ERRORS,
    "GPUs and their libraries": gpu.ERRORS,
    "NCCL and gloo: collectives": nccl.ERRORS,
    "Downloads": files.HUB,
    "The rendezvous": rendezvous.ERRORS,
    "Libraries": libraries.ERRORS,
    "Checkpoints": checkpoints.ERRORS,
    "Model, batch, precision": model.ERRORS,
    "Files and Python": files.ERRORS,
    "Ends of processes": exits.ERRORS,
}

_INTRODUCTION = f"""\
# Errors that `frog diagnose --explain-log` knows

`frog diagnose --explain-log FILE` searches a job's log for these {len(TABLE)} errors and reports the first cause
([your-program.md](your-program.md#explain-a-log)). `…` replaces numbers and names in a message; upper and lower case do
not matter. Entries with a number are explained in [troubleshooting.md](troubleshooting.md). This page is generated from
the table in `src/frog/observe/diagnose/known_errors/table/`.
"""

_LEVELS = {
    Level.CAUSE: "",
    Level.SYMPTOM: "A symptom: reported if the log does not contain a cause.",
    Level.HINT: "A warning: reported if the log contains neither a cause nor a symptom.",
    Level.CONSEQUENCE: "A consequence: counted, never reported as the cause.",
    Level.ASIDE: "Shown with an answer, never as one.",
}


def page() -> str:
    """Return the page's text."""
    parts = [_INTRODUCTION]
    for title, errors in GROUPS.items():
        parts += [f"## {title}\n", *map(_entry, errors)]
    return "\n".join(parts)


def _entry(error: KnownError) -> str:
    section = f" (troubleshooting, {error.section})" if error.section else ""
    remark = " ".join(filter(None, [_LEVELS[error.level], "" if error.sure else "The message has several causes."]))
    text = " ".join(filter(None, [error.cause, remark, f"**Do:** {error.advice}."]))
    messages = "\n".join(f"- `` {message.strip()} ``" for message in error.looks_like)
    return f"### {error.id}{section}\n\n{_filled(text)}\n\n{messages}\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(page(), end="")
