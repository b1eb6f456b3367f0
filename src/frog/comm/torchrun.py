"""torchrun, with its outcome as data: `python -m frog.comm.torchrun OUTCOME.json <what torchrun takes>`.

The launcher starts this in place of the `torchrun` script. It is the same agent; only the end differs: which ranks
failed, how and when is written to a file, not logged and thrown.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from frog.core.files import write_json


def main(arguments: list[str]) -> int:
    """Run the agent; write {"failures": [...], "signal": n or null}; return the exit code."""
    outcome_path = Path(arguments[0])
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    outcome: dict[str, Any] = {"failures": [], "signal": None, "state": WorkerState.SUCCEEDED.value}
    code = 0
    try:
        run(parse_args(arguments[1:]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        outcome["failures"] = [_describe(rank, failure) for rank, failure in error.failures.items()]
        outcome["state"] = WorkerState.FAILED.value
        code = 1
    except SignalException as error:
        outcome["signal"] = int(error.sigval)
        outcome["state"] = WorkerState.STOPPED.value
        code = 128 + int(error.sigval)
    write_json(outcome_path, outcome)
    return code


def _describe(rank: int, failure: ProcessFailure) -> dict[str, Any]:
    """One failed rank: its exit code (negative: the signal that killed it), when, and its own error if it left one."""
    message: Any = None
    with contextlib.suppress(OSError, ValueError, KeyError):  # killed before it could speak: the exit code tells
        message = json.loads(Path(failure.error_file).read_text())["message"]
    details = message if isinstance(message, dict) else {"message": message}
    return {
        "rank": rank,
        "pid": failure.pid,
        "exit_code": failure.exitcode,
        "time_s": int(failure.timestamp),
        "error": details.get("message"),
        "traceback": (details.get("extraInfo") or {}).get("py_callstack"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
