"""The first failure of a run, from the logs of its ranks."""


def find_first_failure(logs: list[str]) -> dict[str, int | str]:
    """Find which rank brought the run down.

    logs:  the log of each rank, in order of ranks, with lines as in the README: a time, then words.

    Returns  "rank"; "step": the step in which it happened; "what":
             "error"   the rank raised an error of its own
             "nan"     its loss was not a number, before any other rank's was
             "killed"  its process ended without a message
             "hung"    its process was alive, but did not reach the all-reduce
    """
    raise NotImplementedError("fill in find_first_failure")
