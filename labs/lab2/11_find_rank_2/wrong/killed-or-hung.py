"""The first failure of a run, from the logs of its ranks."""

import re


def find_first_failure(logs: list[str]) -> dict[str, int | str]:
    """Find which rank brought the run down.

    logs:  the log of each rank, in order of ranks, with lines as in the README: a time, then words.

    Returns  "rank"; "step": the step in which it happened; "what":
             "error"   the rank raised an error of its own
             "nan"     its loss was not a number, before any other rank's was
             "killed"  its process ended without a message
             "hung"    its process was alive, but did not reach the all-reduce
    """
    last_step = [int(re.findall(r"step (\d+) begins", log)[-1]) for log in logs]

    lost = [(int(step), rank) for rank, log in enumerate(logs) for step in re.findall(r"step (\d+) loss nan", log)]
    if lost:
        step, rank = min(lost)
        return {"rank": rank, "step": step, "what": "nan"}

    for rank, log in enumerate(logs):
        is_waiting = log.count("all-reduce begins") > log.count("all-reduce ends")
        if " FAILED " in log and not is_waiting:
            return {"rank": rank, "step": last_step[rank], "what": "error"}

    silent = next(rank for rank, log in enumerate(logs) if " FAILED " not in log)
    return {"rank": silent, "step": last_step[silent], "what": "hung"}
