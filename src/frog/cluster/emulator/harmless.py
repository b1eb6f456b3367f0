"""Options of sbatch and srun that cannot change what a job computes here: accepted, with a note on stderr.

They choose among nodes, watch, or make faster. The nodes here are all alike and run nothing else. Slurm checks the
values of some, which the emulator does not: licenses, a reservation, a mail address.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

_BOTH = (
    "acctg-freq", "contiguous", "core-spec", "cpu-freq", "delay-boot", "extra", "gpu-freq", "gres-flags", "hint",
    "licenses", "mail-type", "mail-user", "mcs-label", "mem-bind", "network", "nice", "no-kill", "oversubscribe",
    "power", "prefer", "priority", "profile", "propagate", "reboot", "reservation", "segment", "spread-job", "switches",
    "thread-spec", "threads-per-core", "time-min", "tmp", "verbose", "wckey",
)  # fmt: skip
HARMLESS = {
    "sbatch": frozenset((*_BOTH, "get-user-env", "ignore-pbs", "stepmgr", "wait-all-nodes")),
    "srun": frozenset((*_BOTH, "accel-bind", "compress", "cpu-bind", "msg-timeout", "send-libs", "threads")),
}
OF_A_JOB = frozenset(("account", "comment", "mem", "mem-per-cpu", "mem-per-gpu", "partition", "qos", "constraint"))
"""Options of an allocation that Slurm ignores, or does not enforce here, for an srun inside a job."""


def note(program: str, options: Mapping[str, str | None], *, others: frozenset[str] = frozenset()) -> None:
    """Name the given options that have no effect here."""
    given = [f"--{name}" for name in options if name in HARMLESS[program] | others and name != "verbose"]
    if given and "quiet" not in options:
        print(f"{program}: no effect on the emulator: {', '.join(given)}", file=sys.stderr, flush=True)
