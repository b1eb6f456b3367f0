"""What a kubelet asks of a pod: `python -m frog.cluster.kubernetes.probe RUN --ranks 4`. Exit code 0 if all is well.

It reads the heartbeats that the ranks of this pod keep in the run folder: with 4 in each, those of pod 1 are 4 to 7. It
is light, since it runs often.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from frog.core.env import host_name, variable
from frog.runs.folder import RunFolder
from frog.runs.heartbeat import read_heartbeat


def problem(
    folder: RunFolder, host: str, ranks: range, within_s: float, *, fresh: bool = False, training: bool = False
) -> str | None:
    """What is wrong with `ranks`, which are those of `host`, or None. A larger world may have left others there.

    A heartbeat must not be older than `within_s`. That of a rank which has ended and said so may: it waits for others,
    or it is what an earlier pod of this name left. With `fresh` only ranks that run now count, with `training`
    only those that have begun a step.
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
            return f"rank {beat.rank} has not beaten for {age_s:.0f} s ({where})"
        if training and beat.step < 1:
            return f"rank {beat.rank} has not begun its first step"
    return None


def main(arguments: Sequence[str]) -> int:
    """Look once; say what is wrong; return 0 or 1."""
    parser = argparse.ArgumentParser(prog="python -m frog.cluster.kubernetes.probe", description="Are the ranks well?")
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="how many this pod has")
    parser.add_argument("--within", type=float, default=60.0, metavar="S", help="how old a heartbeat may be")
    parser.add_argument("--fresh", action="store_true", help="what an earlier pod left does not count")
    parser.add_argument("--training", action="store_true", help="each must have begun to train")
    args = parser.parse_args(arguments)
    index = int(variable("JOB_COMPLETION_INDEX") or 0)
    ranks = range(index * args.ranks, (index + 1) * args.ranks)
    found = problem(RunFolder(args.run), host_name(), ranks, args.within, fresh=args.fresh, training=args.training)
    if found is not None:
        print(found)
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
