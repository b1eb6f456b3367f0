"""The table of known errors; in each text, the first entry that matches counts."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table import (
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
from frog.observe.diagnose.known_errors.table.known import KnownError, KnownErrors

TABLE: tuple[KnownError, ...] = (
    *schedulers.ERRORS,
    *nccl.NETWORK,
    *memory.ERRORS,
    *gpu.ERRORS,
    *nccl.ERRORS,
    *files.HUB,
    *rendezvous.ERRORS,
    *libraries.ERRORS,
    *checkpoints.ERRORS,
    *model.ERRORS,
    *files.ERRORS,
    *exits.ERRORS,
)

KNOWN = KnownErrors(TABLE)
