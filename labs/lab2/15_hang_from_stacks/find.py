"""Find which rank hangs, and at which line, from the stacks of all ranks."""


def find_hang(stacks: list[str]) -> dict[str, int | str] | None:
    """Compare the ranks' stacks, which were taken while all ranks were blocked.

    stacks:  the dump of each rank, in order of ranks, as faulthandler writes it: several threads, each with the most
             recent call first.

    Returns  "rank": the one rank whose training thread is in a different place from all others;
             "function" and "line": the first frame of its training thread, from the outermost, that differs from
             the others': the line of trainer.py where it took a different path.
             None if all ranks are at the same place.
    """
    raise NotImplementedError("fill in find_hang")
