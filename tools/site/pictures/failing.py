"""Pictures of what goes wrong: a rank that is lost and a new rendezvous; ranks that wait for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from tools.site.pictures.scene import WIDTH, Scene

# ---- a lost rank -----------------------------------------------------------------------------------------------------

CHECKPOINT_EVERY: Final = 20
KILLED_IN: Final = 43


def resumed_from(step: int, every: int) -> int:
    """Return the step of the last checkpoint before a step in which a rank is lost."""
    return (step - 1) // every * every


def rendezvous() -> Scene:
    """Two nodes meet, train, lose a rank, meet again and resume"""
    scene = Scene(
        "Rendezvous and restart: nodes meet, a rank is lost, all meet again and resume from a checkpoint", 306, 2.4
    )
    kept = resumed_from(KILLED_IN, CHECKPOINT_EVERY)
    x_of, y_node = (96.0, 344.0), 130.0
    scene.add(scene.rect(112, 12, 216, 40, "raised", "line"))
    scene.add(
        scene.text(WIDTH / 2, 29, "rendezvous", at="middle", bold=True)
        + scene.text(WIDTH / 2, 46, "MASTER_ADDR:MASTER_PORT", "quiet", "middle", 12)
    )
    scene.add(scene.rect(130, 252, 180, 40, "raised", "line"))
    scene.add(scene.text(WIDTH / 2, 269, "shared storage", at="middle", bold=True))
    scene.add(scene.text(WIDTH / 2, 286, "no checkpoint yet", "quiet", "middle"), show=(0, 3.5))
    scene.add(scene.text(WIDTH / 2, 286, f"checkpoint of step {kept}", "good", "middle"), show=(3.5, 999))
    for node, x in enumerate(x_of):
        scene.add(scene.rect(x - 84, y_node - 34, 168, 106, "raised", "line", 8))
        scene.add(scene.text(x, y_node - 16, f"node {node}: agent", at="middle", bold=True))
        target = (WIDTH / 2 + (-46 if node == 0 else 46), 54.0)
        start = (x + (20 if node == 0 else -20), y_node - 36.0)
        came = 1.0 if node == 0 else 0.2
        for begin, end in ((came, 3.0), (6.0 + came * 0.4, 8.0)):
            scene.add(scene.arrow(*start, *target, "good", 2.5), show=(begin, end))
        if node == 1:
            scene.add(scene.text(428, 76, "tries again", "quiet", "end"), show=(0.2, 1.0))
        for place in (0, 1):
            rank = 2 * node + place
            left = x - 74 + 76 * place
            scene.add(scene.rect(left, y_node, 72, 60, "ground", "line", 5))
            scene.add(
                scene.text(left + 36, y_node + 20, f"rank {rank}", f"r{rank}", "middle", bold=True),
                show=[(2, 5 if rank != 1 else 4), (7, 999)],
            )
            said: list[tuple[str, str, float, float]] = [("joins", "quiet", 2, 3)]
            said += [(f"step {KILLED_IN}", "ink", 3, 4)]
            if rank == 1:
                said += [("killed", "bad", 4, 6)]
            else:
                said += [("error", "bad", 4, 5), ("ended", "quiet", 5, 6)]
            said += [("joins", "quiet", 7, 8), (f"step {kept + 1}", "good", 8, 999)]
            for words, color, begin, end in said:
                scene.add(scene.text(left + 36, y_node + 42, words, color, "middle"), show=(begin, end))
            if rank == 1:
                scene.add(scene.cross(left + 36, y_node + 15, 8), show=(4, 6))
            middle = WIDTH / 2 + (left + 36 - WIDTH / 2) * 0.35
            scene.add(scene.arrow(left + 36, y_node + 62, middle, 250, "checkpoint", 2), show=(3.1, 4))
            scene.add(scene.arrow(middle, 250, left + 36, y_node + 62, "good", 2), show=(8, 999))
    scene.mark(
        0, "Node 1 starts first. It connects to the address of node 0, where no process listens yet, and tries again."
    )
    scene.mark(1, "Node 0 listens. Both agents are there: they agree on the number of ranks and on their order.")
    scene.mark(2, "Each agent starts its ranks, and tells them RANK, WORLD_SIZE and where all connect.")
    scene.mark(
        3,
        f"The ranks train, and save a checkpoint every {CHECKPOINT_EVERY} steps. The last one is of step {kept}.",
    )
    scene.mark(4, f"Rank 1 is killed in step {KILLED_IN}. The others' all-reduce fails: its connections are closed.")
    scene.mark(5, "The agents see the loss and end all ranks: a world of three was not agreed on.")
    scene.mark(6, "Restart: the agents meet again.")
    scene.mark(7, "They start new processes with the same numbers.")
    scene.mark(8, f"All ranks load the checkpoint of step {kept}. Steps {kept + 1} to {KILLED_IN} are computed again.")
    scene.end(10)
    return scene


# ---- a hang ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A line of a rank's program: a collective of all ranks, a send or receive, or a computation that never ends."""

    kind: Literal["collective", "send", "receive", "endless"]
    words: str
    peer: int = 0


RANKS: Final = 4
MISTAKES: Final = ("only rank 0 calls it", "one rank is elsewhere", "all send first")


def programs(mistake: str) -> list[list[Call]]:
    """Return the calls of each rank, in order."""
    gradients = Call("collective", "all_reduce")
    if mistake == MISTAKES[0]:
        return [[gradients, Call("collective", "all_reduce")] if rank == 0 else [gradients] for rank in range(RANKS)]
    if mistake == MISTAKES[1]:
        return [
            [gradients, Call("endless", "next(data)"), gradients] if rank == 2 else [gradients] * 2
            for rank in range(RANKS)
        ]
    return [
        [
            gradients,
            Call("send", f"send to {(rank + 1) % RANKS}", (rank + 1) % RANKS),
            Call("receive", f"receive {(rank - 1) % RANKS}", (rank - 1) % RANKS),
        ]
        for rank in range(RANKS)
    ]


@dataclass(frozen=True)
class Standstill:
    """Where each rank is when none can continue; None: its program has ended. And for whom it waits."""

    at: list[Call | None]
    waits: dict[int, list[int]]


def standstill(calls: list[list[Call]]) -> Standstill:
    """Run programs until no rank can continue. A collective needs all ranks, a send its receiver."""
    places = [0] * len(calls)

    def now(rank: int) -> Call | None:
        return calls[rank][places[rank]] if places[rank] < len(calls[rank]) else None

    moved = True
    while moved:
        moved = False
        if all((call := now(rank)) is not None and call.kind == "collective" for rank in range(len(calls))):
            places = [place + 1 for place in places]
            moved = True
        for rank in range(len(calls)):
            call = now(rank)
            if call is None or call.kind != "send":
                continue
            other = now(call.peer)
            if other is not None and other.kind == "receive" and other.peer == rank:
                places[rank] += 1
                places[call.peer] += 1
                moved = True
    at = [now(rank) for rank in range(len(calls))]
    waits: dict[int, list[int]] = {}
    for rank, call in enumerate(at):
        if call is not None and call.kind == "collective":
            waits[rank] = [other for other, there in enumerate(at) if there is None or there.kind != "collective"]
        elif call is not None and call.kind in ("send", "receive"):
            waits[rank] = [call.peer]
    return Standstill(at, waits)


def hang(mistake: str) -> Scene:
    """Four ranks stand still; an arrow leads from each to the ones for which it waits"""
    end = standstill(programs(mistake))
    scene = Scene("A hang: an arrow leads from each rank to the ranks for which it waits", 258, 2.4)
    places = [(98.0, 66.0), (342.0, 66.0), (342.0, 194.0), (98.0, 194.0)]
    half = (70.0, 40.0)
    for rank, (x, y) in enumerate(places):
        call = end.at[rank]
        waits = rank in end.waits
        scene.add(scene.rect(x - half[0], y - half[1], 2 * half[0], 2 * half[1], "raised", "line", 8))
        scene.add(scene.text(x, y - 16, f"rank {rank}", f"r{rank}", "middle", bold=True))
        scene.add(scene.text(x, y + 6, "all_reduce", at="middle"), show=(0, 1))
        scene.add(scene.text(x, y + 27, "gets the sum", "good", "middle"), show=(0.5, 1))
        words = call.words if call else "has ended"
        scene.add(scene.text(x, y + 6, words, at="middle", bold=bool(call)), show=(1, 999))
        if waits:
            scene.add(scene.rect(x - half[0], y - half[1], 2 * half[0], 2 * half[1], "none", "bad", 8), show=(2, 999))
            scene.add(scene.text(x, y + 27, "waits", "bad", "middle", bold=True), show=(2, 999))
        elif call:
            scene.add(scene.text(x, y + 27, "is elsewhere", "quiet", "middle"), show=(1, 999))
    for rank, others in end.waits.items():
        for other in others:
            scene.add(_between(scene, places[rank], places[other], half), show=(2.3, 999))
    for time, words in enumerate(_hang_captions(mistake)):
        scene.mark(time, words)
    scene.end(5.5)
    return scene


def _between(scene: Scene, start: tuple[float, float], end: tuple[float, float], half: tuple[float, float]) -> str:
    """Return an arrow from one box's edge to the other's."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    share = min(half[0] / abs(dx) if dx else math.inf, half[1] / abs(dy) if dy else math.inf)
    gap = 5 / math.hypot(dx, dy)
    a, b = share + gap, 1 - share - gap
    return scene.arrow(start[0] + a * dx, start[1] + a * dy, start[0] + b * dx, start[1] + b * dy, "bad", 2.5)


def _hang_captions(mistake: str) -> tuple[str, ...]:
    if mistake == MISTAKES[0]:
        return (
            "All four ranks call all_reduce: each gets the sum.",
            "Then “if rank == 0: all_reduce(…)”. The others do not call it, and end.",
            "Rank 0 waits for three ranks that never come. It prints nothing until its timeout.",
            "Rank 0 waits, but the line to repair is the “if”: a collective needs all ranks.",
        )
    if mistake == MISTAKES[1]:
        return (
            "All four ranks call all_reduce: each gets the sum.",
            "In the next step, rank 2 waits for its data. The others have theirs, and call all_reduce.",
            "Three ranks wait for rank 2. Their messages will all name the collective, not the data.",
            "The rank without an arrow is the one to look at: why has it no data?",
        )
    return (
        "All four ranks call all_reduce: each gets the sum.",
        "Now each rank sends to the next one. A large send returns when the other side receives.",
        "But the other side sends, too: each rank waits for the next one, in a circle.",
        "No rank is slow and none has failed. Every second rank must receive first, or use isend.",
    )
