"""Draw which rank waited for which, as text."""

from __future__ import annotations

from frog.learn.grader.gate import Gate

_MOST = 3
"""Number of last operations to draw per rank."""


def draw(gate: Gate, running: str = "is still running") -> str:
    """Draw a line for each rank: its operations in order, and its state.

    rank 0  all_reduce 1 █ all_reduce 2 ░░░░ waits
    rank 1  all_reduce 1 █ returned

    `running`: the words for a rank that neither waits nor has ended.
    """
    return "\n".join(_line(gate, rank, running) for rank in range(len(gate.ranks)))


def _line(gate: Gate, rank: int, running: str) -> str:
    state = gate.ranks[rank]
    words = [f"rank {rank} "] + (["…"] if len(state.operations) > _MOST else [])
    for number, operation in list(enumerate(state.operations))[-_MOST:]:
        holds = state.waits_for == number and not state.finished
        words.append(f"{operation.op} {number + 1} {'░░░░ waits' if holds else '█'}")
    if state.finished:
        words.append(state.finished)
    elif state.waits_for is None:
        words.append(running)
    return " ".join(words)
