"""Which rank hangs, and at which line, from the stacks of all ranks."""

import re
from collections import Counter

FRAME = re.compile(r'  File ".*trainer\.py", line (\d+) in (\w+)')


def training_thread(stacks: str) -> tuple[tuple[str, int], ...]:
    """The frames of trainer.py in the thread that trains, from the outermost."""
    for thread in stacks.split("\n\n"):
        frames = tuple((name, int(line)) for line, name in reversed(FRAME.findall(thread)))
        if frames and frames[0][0] == "run":
            return frames
    raise ValueError("no thread runs Trainer.run")


def find_hang(stacks: list[str]) -> dict[str, int | str] | None:
    """Compare the ranks' stacks, which were taken while all of them stood still."""
    ranks = [training_thread(one) for one in stacks]
    (usual, count), *_ = Counter(ranks).most_common()
    rank = next((rank for rank, frames in enumerate(ranks) if frames != usual), 0)
    function, line = next((mine for mine, theirs in zip(ranks[rank], usual, strict=False) if mine != theirs), ranks[rank][-1])
    return {"rank": rank, "function": function, "line": line}
