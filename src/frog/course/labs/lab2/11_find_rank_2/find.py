"""The first failure of a run, from the logs of its ranks."""


def find_first_failure(logs: list[str]) -> dict[str, int | str]:
    """Which rank brought the run down.

    logs:  the log of each rank, in order of ranks. Lines as in the README: a time, then words.

    Returns  "rank"; "step": the step in which it happened; "what":
             "error"   the rank raised an error of its own
             "nan"     its loss was not a number, before anybody else's
             "killed"  its process was gone without a word
             "hung"    it was there, and did not come to the all-reduce
    """
    raise NotImplementedError("fill in find_first_failure")
