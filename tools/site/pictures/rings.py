"""All-reduce in a ring and along a tree, message by message, and what a rank that stops does to the others.

A rank's buffer has parts; for each of them we keep whose values it sums. A message waits for the ones that its sender
needs, so a rank that stops makes others wait, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frog.train.comm.collectives.exchange import cuts
from tools.site.pictures.scene import WIDTH, Scene

Sums = frozenset[int]
Buffers = list[list[Sums]]
"""For each rank and each part: the ranks whose values it sums."""


@dataclass(frozen=True)
class Message:
    """One part of a buffer from a rank to another, in a step."""

    step: int
    sender: int
    receiver: int
    part: int
    adds: bool
    """The receiver adds it to its own; otherwise it replaces its own."""


def ring_messages(num_ranks: int) -> list[Message]:
    """Return what `comm/collectives/ring.py` sends: n - 1 steps that add, and n - 1 that pass sums on."""
    return [
        Message(step, rank, (rank + 1) % num_ranks, (rank - step) % num_ranks, step < num_ranks - 1)
        for step in range(2 * num_ranks - 2)
        for rank in range(num_ranks)
    ]


def tree_messages(num_ranks: int) -> list[Message]:
    """Return an all-reduce along the binomial tree of `comm/collectives/exchange.py`: up to rank 0, and down again."""
    levels = math.ceil(math.log2(num_ranks))
    up = [
        Message(level, rank, rank & (rank - 1), 0, True)
        for level in range(levels)
        for rank in range(1, num_ranks)
        if rank & -rank == 1 << level
    ]
    down = [Message(2 * levels - 1 - message.step, message.receiver, message.sender, 0, False) for message in up]
    return sorted(up + down, key=lambda message: (message.step, message.sender))


def deliver(buffers: Buffers, messages: Sequence[Message]) -> None:
    """Deliver the messages of one step, all at once."""
    carried = [buffers[message.sender][message.part] for message in messages]
    for message, sums in zip(messages, carried, strict=True):
        own = buffers[message.receiver][message.part]
        if message.adds and own & sums:
            raise ValueError(f"{message} adds {sorted(own & sums)} twice")
        buffers[message.receiver][message.part] = own | sums if message.adds else sums


@dataclass(frozen=True)
class Moment:
    """A step: what is sent in it, the buffers after it, and who waits for whom from then on."""

    sent: list[Message]
    buffers: Buffers
    waits: dict[int, int]


def play(
    num_ranks: int, num_parts: int, messages: Sequence[Message], stopped: tuple[int, int] | None
) -> Iterator[Moment]:
    """Yield the steps, until all ranks are done or wait.

    stopped: a rank, and the step from which it neither sends nor receives; None: all take part.

    A rank sends its message of a step when it has received those of earlier steps, as the algorithms do.
    """
    buffers: Buffers = [[frozenset([rank])] * num_parts for rank in range(num_ranks)]
    waits: dict[int, int] = {}
    for step in range(max(message.step for message in messages) + 1):
        sent = []
        now = [message for message in messages if message.step == step]
        blocked = set(waits) | ({stopped[0]} if stopped and step >= stopped[1] else set())
        for message in now:
            if message.sender in blocked:
                continue
            if message.receiver in blocked and message.receiver not in waits:
                continue
            sent.append(message)
        missing = {message.receiver: message.sender for message in now if message.sender in blocked}
        deliver(buffers, [message for message in sent if message.receiver not in blocked])
        if stopped:
            for receiver, sender in missing.items():
                if receiver != stopped[0]:
                    waits.setdefault(receiver, sender)
        yield Moment(sent, [list(parts) for parts in buffers], dict(waits))
        if len(waits) == num_ranks - 1:
            return


def bytes_sent(num_elements: int, num_ranks: int, messages: Sequence[Message], num_parts: int, size: int = 4) -> int:
    """Return the bytes that the busiest rank sends, of a buffer of so many elements."""
    parts = [piece.stop - piece.start for piece in cuts(num_elements, num_parts)]
    sent = [0] * num_ranks
    for message in messages:
        sent[message.sender] += size * parts[message.part]
    return max(sent)


STOPPED = "rank 1 stops"


def ring(ranks: int, fault: str) -> Scene:
    """Ranks on a circle pass parts of their gradient to the next one, until all have the sum"""
    messages = ring_messages(ranks)
    stop = (1, ranks // 2) if fault == STOPPED else None
    moments = list(play(ranks, ranks, messages, stop))
    scene = Scene("Ring all-reduce: each rank sends a part to the next one; after two laps all have the sum", 344)
    center, radius = (WIDTH / 2, 176.0), (152.0, 128.0)
    cell = min(18.0, 88.0 / ranks)
    places = [
        (
            center[0] + radius[0] * math.sin(2 * math.pi * r / ranks),
            center[1] - radius[1] * math.cos(2 * math.pi * r / ranks),
        )
        for r in range(ranks)
    ]
    for rank in range(ranks):
        (x1, y1), (x2, y2) = places[rank], places[(rank + 1) % ranks]
        if ranks > 2 or rank == 0:
            scene.add(scene.line([(x1, y1), (x2, y2)], "grid", 6))
    boxes = [(x - cell * ranks / 2, y - 8.0) for x, y in places]
    for rank, (x, y) in enumerate(boxes):
        width = cell * ranks
        scene.add(scene.rect(x - 8, y - 20, width + 16, 60, "raised", "line", 6))
        scene.add(scene.text(x + width / 2, y - 5, f"rank {rank}", at="middle", bold=True))
    _cells(scene, boxes, moments, ranks, cell)
    _tokens(scene, boxes, moments, cell)
    _waiting(scene, boxes, moments, stop, cell * ranks)
    share = bytes_sent(1 << 20, ranks, messages, ranks) / (4 << 20)
    words = [f"{ranks} ranks, {2 * ranks - 2} steps", "each rank sends", f"{share:.3g} x the gradient"]
    for row, line in enumerate(words):
        scene.add(scene.text(center[0] + (100 if ranks == 2 else 0), center[1] - 4 + 18 * row, line, "quiet", "middle"))
    scene.mark(0, f"Each rank has its own gradient, in {ranks} parts. A bar shows how many ranks are summed in a part.")
    for step, moment in enumerate(moments):
        scene.mark(step + 1, _ring_caption(ranks, step, moment, stop))
    scene.mark(len(moments) + 1, _ring_end(ranks, stop, moments[-1]))
    scene.end(len(moments) + 3)
    return scene


def _ring_caption(ranks: int, step: int, moment: Moment, stop: tuple[int, int] | None) -> str:
    if moment.waits and stop:
        waiting = len(moment.waits)
        verb = "rank waits" if waiting == 1 else "ranks wait"
        return f"Step {step + 1}: rank {stop[0]} does nothing. {waiting} {verb}, one more in each step."
    if step < ranks - 1:
        return f"Step {step + 1}, reduce-scatter: each rank sends one part to the next rank, which adds it to its own."
    return f"Step {step + 1}, all-gather: each rank passes a complete part (green) on to the next rank."


def _ring_end(ranks: int, stop: tuple[int, int] | None, last: Moment) -> str:
    if stop and ranks == 2:
        return "Rank 0 waits for rank 1, until a deadline ends it: nothing that arrives says what happened."
    if stop:
        first = next(rank for rank, on in last.waits.items() if on == stop[0])
        return (
            f"All wait. Only rank {first} waits for rank {stop[0]} itself; each other one names a rank that waits, too."
        )
    return f"Every part has been summed over all {ranks} ranks, on every rank: that is the all-reduce."


def _cells(scene: Scene, boxes: list[tuple[float, float]], moments: list[Moment], total: int, cell: float) -> None:
    """Draw each part as a bar as high as the number of summed ranks; a part is added when its message has arrived."""
    for rank, (x, y) in enumerate(boxes):
        for part in range(len(moments[0].buffers[rank])):
            left = x + part * cell
            scene.add(scene.rect(left + 1, y, cell - 2, 32, "grid", "", 1))
            counts = [1, *(len(moment.buffers[rank][part]) for moment in moments)]
            starts = [0.0, *(step + 1.8 for step in range(len(moments)))]
            since = 0
            for at in range(1, len(counts) + 1):
                if at < len(counts) and counts[at] == counts[since]:
                    continue
                until = starts[at] if at < len(counts) else 999.0
                height = 32 * counts[since] / total
                fill = "optimize" if counts[since] == total else "reduce"
                scene.add(
                    scene.rect(left + 1, y + 32 - height, cell - 2, height, fill, "", 1), show=(starts[since], until)
                )
                since = at


def _tokens(scene: Scene, boxes: list[tuple[float, float]], moments: list[Moment], cell: float) -> None:
    before = None
    for step, moment in enumerate(moments):
        for message in moment.sent:
            (x1, y1), (x2, y2) = boxes[message.sender], boxes[message.receiver]
            count = 1 if before is None else len(before.buffers[message.sender][message.part])
            height = 32 * count / len(boxes)
            fill = "optimize" if count == len(boxes) else "reduce"
            left = x1 + message.part * cell + 1
            begin, end = step + 1.0, step + 1.8
            scene.add(
                scene.rect(left, y1 + 32 - height, cell - 2, height, fill, "ink", 1),
                show=(begin, end),
                move=[(begin, 0, 0), (end, x2 - x1, y2 - y1)],
            )
        before = moment


def _waiting(
    scene: Scene, boxes: list[tuple[float, float]], moments: list[Moment], stop: tuple[int, int] | None, width: float
) -> None:
    """Draw a rank that stopped, and those that wait, with the rank for which each waits."""
    if stop is None:
        return
    x, y = boxes[stop[0]]
    scene.add(
        scene.rect(x - 8, y - 20, width + 16, 60, "raised", "bad", 6)
        + scene.text(x + width / 2, y - 5, f"rank {stop[0]}", "bad", "middle", bold=True)
        + scene.cross(x + width / 2, y + 16),
        show=(stop[1] + 1, 999),
    )
    for rank in {rank for moment in moments for rank in moment.waits}:
        since = next(step for step, moment in enumerate(moments) if rank in moment.waits)
        on = moments[-1].waits[rank]
        x, y = boxes[rank]
        scene.add(
            scene.rect(x - 8, y - 20, width + 16, 60, "raised", "bad", 6)
            + scene.text(x + width / 2, y - 5, f"rank {rank}", "bad", "middle", bold=True)
            + scene.text(x + width / 2, y + 13, "waits", "bad", "middle")
            + scene.text(x + width / 2, y + 30, f"for {on}", "bad", "middle"),
            show=(since + 1.8, 999),
        )


def tree(ranks: int, fault: str) -> Scene:
    """Sums go up a tree to rank 0, and the result comes down again"""
    messages = tree_messages(ranks)
    stop = (1, 0) if fault == STOPPED else None
    moments = list(play(ranks, 1, messages, stop))
    levels = len(moments) // 2
    depth = {rank: bin(rank).count("1") for rank in range(ranks)}
    gap = 80.0
    title = "Tree all-reduce: sums go up a tree of ranks to rank 0, and the result comes down again"
    scene = Scene(title, 42 + gap * max(depth.values()) + 42)
    slots = _slots(ranks)
    step_x = (WIDTH - 24) / ranks
    places = [(12 + step_x * (slots[rank] + 0.5), 42 + gap * depth[rank]) for rank in range(ranks)]
    boxes = [(x - 9, y - 4) for x, y in places]
    for rank in range(1, ranks):
        scene.add(scene.line([places[rank & (rank - 1)], places[rank]], "line", 2))
    wide = min(step_x - 2, 52)
    for rank, (x, y) in enumerate(places):
        scene.add(scene.rect(x - wide / 2, y - 24, wide, 58, "raised", "line", 6))
        scene.add(scene.text(x, y - 9, f"rank {rank}" if wide > 48 else str(rank), at="middle", bold=True))
    _cells(scene, boxes, moments, ranks, 18)
    _tokens(scene, boxes, moments, 18)
    if stop:
        _tree_waits(scene, places, moments, stop, wide)
    scene.mark(0, "Each rank has its own gradient. A bar shows how many ranks are summed in it.")
    for step, moment in enumerate(moments):
        scene.mark(step + 1, _tree_caption(step, levels, moment, stop, ranks))
    if stop:
        end = f"All wait: rank 0 for rank {stop[0]}, and every other rank for a result that rank 0 cannot send."
    else:
        end = f"{len(moments)} steps for {ranks} ranks; a ring takes {2 * ranks - 2}. "
        end += "But each message is the whole gradient."
    scene.mark(len(moments) + 1, end)
    scene.end(len(moments) + 3)
    return scene


def _slots(ranks: int) -> dict[int, float]:
    """Return each rank's place from left to right: a parent is left of its children's subtrees' middle."""
    order: list[int] = []

    def visit(rank: int) -> None:
        children = [rank | 1 << bit for bit in range(ranks.bit_length()) if (rank == 0 or 1 << bit < rank & -rank)]
        children = [child for child in children if rank < child < ranks]
        for child in children[1:]:
            visit(child)
        order.append(rank)
        for child in children[:1]:
            visit(child)

    visit(0)
    return {rank: float(slot) for slot, rank in enumerate(order)}


def _tree_caption(step: int, levels: int, moment: Moment, stop: tuple[int, int] | None, ranks: int) -> str:
    count = len(moment.sent)
    if stop:
        if step == 0:
            return f"Step 1: rank {stop[0]} does not send. Rank 0 waits for it."
        if not count:
            return f"Step {step + 1}: nothing can be sent. {len(moment.waits)} of {ranks} ranks wait."
        has = "rank has" if count == 1 else "ranks have"
        return f"Step {step + 1}: {count} more {has} sent; rank 0 still waits for rank {stop[0]}."
    if step < levels:
        sends = "rank sends its" if count == 1 else "ranks send their"
        return f"Step {step + 1}, up: {count} {sends} sum to the parent, which adds it."
    gets = "rank gets" if count == 1 else "ranks get"
    return f"Step {step + 1}, down: {count} {gets} the complete sum (green) from the parent."


def _tree_waits(
    scene: Scene, places: list[tuple[float, float]], moments: list[Moment], stop: tuple[int, int], wide: float
) -> None:
    x, y = places[stop[0]]
    scene.add(
        scene.rect(x - wide / 2, y - 24, wide, 58, "raised", "bad", 6)
        + scene.text(x, y - 9, f"rank {stop[0]}" if wide > 48 else str(stop[0]), "bad", "middle", bold=True)
        + scene.cross(x, y + 14),
        show=(stop[1] + 1, 999),
    )
    for rank in {rank for moment in moments for rank in moment.waits}:
        since = next(step for step, moment in enumerate(moments) if rank in moment.waits)
        x, y = places[rank]
        on = moments[-1].waits[rank]
        scene.add(
            scene.rect(x - wide / 2, y - 24, wide, 58, "raised", "bad", 6)
            + scene.text(x, y - 9, f"rank {rank}" if wide > 48 else str(rank), "bad", "middle", bold=True)
            + scene.text(x, y + 10, "waits", "bad", "middle")
            + scene.text(x, y + 26, f"for {on}", "bad", "middle"),
            show=(since + 1.8, 999),
        )
