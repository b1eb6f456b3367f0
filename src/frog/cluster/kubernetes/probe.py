"""The probe of a pod: `python -m frog.cluster.kubernetes.probe RUN --ranks 4`. Exit code 0 if the ranks are healthy.

It reads the heartbeats that the ranks of this pod write to the run folder: with 4 ranks per pod, pod 1 has ranks 4 to
7. It imports little, because it runs often.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from frog.core.env import host_name, variable
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import read_heartbeat


def problem(
    folder: RunFolder, host: str, ranks: range, within_s: float, *, fresh: bool = False, training: bool = False
) -> str | None:
    """Return the problem with `ranks` of `host`, or None. The folder may have other heartbeats, from a larger world.

    A heartbeat must not be older than `within_s`, except that of a rank that recorded its end: the rank waits for
    others, or an earlier pod of this name left it. With `fresh` only running ranks count; with `training` only ranks
    that have begun a step.
    """
    now_ns = time.time_ns()
    beats = [beat for rank in ranks if (beat := read_heartbeat(folder.heartbeat(rank)))]
    here = [beat for beat in beats if beat.host == host]
    if fresh or training:
        here = [beat for beat in here if beat.status == "running" and (now_ns - beat.unix_ns) / 1e9 <= within_s]
    if len(here) < len(ranks):
        return f"{len(here)} of {len(ranks)} ranks of {host} have a heartbeat in {folder.heartbeats}"
    for beat in here:
        age_s = (now_ns - beat.unix_ns) / 1e9
        if beat.status == "running" and age_s > within_s:
            where = f"step {beat.step}, {beat.phase or 'no phase'}"
            return f"rank {beat.rank} has sent no heartbeat for {age_s:.0f} s ({where})"
        if training and beat.step < 1:
            return f"rank {beat.rank} has not begun its first step"
    return None


def main(arguments: Sequence[str]) -> int:
    """Check once; print the problem; return 0 or 1."""
    parser = argparse.ArgumentParser(
        prog="python -m frog.cluster.kubernetes.probe", description="Check the ranks in this pod."
    )
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="number of ranks in this pod")
    parser.add_argument("--within", type=float, default=60.0, metavar="S", help="maximum heartbeat age in seconds")
    parser.add_argument("--fresh", action="store_true", help="ignore heartbeats from an earlier pod")
    parser.add_argument("--training", action="store_true", help="require each rank to have started training")
    args = parser.parse_args(arguments)
    index = int(variable("JOB_COMPLETION_INDEX") or 0)
    ranks = range(index * args.ranks, (index + 1) * args.ranks)
    reason = problem(RunFolder(args.run), host_name(), ranks, args.within, fresh=args.fresh, training=args.training)
    if reason is not None:
        print(reason)
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
