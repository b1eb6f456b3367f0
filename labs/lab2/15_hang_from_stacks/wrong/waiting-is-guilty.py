"""Find which rank hangs, and at which line, from the stacks of all ranks."""

import re
from collections import Counter

FRAME = re.compile(r'  File ".*trainer\.py", line (\d+) in (\w+)')


def training_thread(stacks: str) -> tuple[tuple[str, int], ...]:
    """Return the frames of trainer.py in the training thread, outermost first."""
    for thread in stacks.split("\n\n"):
        frames = tuple((name, int(line)) for line, name in reversed(FRAME.findall(thread)))
        if frames and frames[0][0] == "run":
            return frames
    raise ValueError("no thread runs Trainer.run")


def find_hang(stacks: list[str]) -> dict[str, int | str] | None:
    """Compare the ranks' stacks, which were taken while all ranks were blocked.

    stacks:  the dump of each rank, in order of ranks, as faulthandler writes it: several threads, each with the most
             recent call first.

    Returns  "rank": the one rank whose training thread is in a different place from all others;
             "function" and "line": the first frame of its training thread, from the outermost, that differs from
             the others': the line of trainer.py where it took a different path.
             None if all ranks are at the same place.
    """
    ranks = [training_thread(one) for one in stacks]
    (usual, count), *_ = Counter(ranks).most_common()
    if count == len(ranks):
        return None
    rank = next(rank for rank, frames in enumerate(ranks) if frames[-1][0] == "all_reduce" and frames == usual)
    function, line = ranks[rank][-1]
    return {"rank": rank, "function": function, "line": line}
