"""One of Slurm's commands, called by its shim: `python -m frog.cluster.emulator.command FOLDER sbatch ...`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from frog.cluster.emulator import RELEASE, SlurmRefusal
from frog.cluster.emulator.wire import Client, read_client
from frog.core.errors import signal_code
from frog.core.schema import shortened
from frog.core.terminal import printable_output

Command = Callable[[Client, Sequence[str]], int]
NAMES = ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol")


def _command(name: str) -> Command:
    """Import only the modules of one command, because a job file calls many commands."""
    if name == "sbatch":
        from frog.cluster.emulator.sbatch import sbatch as command
    elif name == "srun":
        from frog.cluster.emulator.srun import srun as command
    else:
        from frog.cluster.emulator import queue_control

        return {
            "squeue": queue_control.squeue,
            "sinfo": queue_control.sinfo,
            "scancel": queue_control.scancel,
            "scontrol": queue_control.scontrol,
        }[name]
    return command


def main(arguments: Sequence[str]) -> int:
    """Run a command; return Slurm's exit code."""
    folder, name, words = Path(arguments[0]), arguments[1], list(arguments[2:])
    if words[:1] in (["--version"], ["-V"]):
        print(f"slurm-wlm {RELEASE} (an emulator: `frog slurm up --emulator`)")
        return 0
    # Buffer output even with PYTHONUNBUFFERED: in `scontrol show hostnames | head -n 1`, head reads only one block.
    sys.stdout = open(1, "w", buffering=1 << 16, closefd=False)  # noqa: SIM115
    with printable_output():
        return _run(folder, name, words)


def _run(folder: Path, name: str, words: Sequence[str]) -> int:
    try:
        code = _command(name)(read_client(folder), words)
        sys.stdout.flush()
        return code
    except SlurmRefusal as error:
        before = "" if error.plain else f"{name}: error: "
        for line in shortened(error.what, 2000).splitlines():
            print(f"{before}{line}", file=sys.stderr)
        if error.hint is not None:
            print(f"  try: {error.hint}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return signal_code(signal.SIGPIPE)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
