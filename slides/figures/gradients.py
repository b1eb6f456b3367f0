"""Figures of session B: how gradients meet, and what a rank has to hold."""

from __future__ import annotations

import math
from typing import Any

from draw import Figure, Plot, load

from frog.core.vocabulary import STEP_PHASES

WORLD = 4


def ring_states() -> list[list[list[set[int]]]]:
    """A ring all-reduce, carried out: after each message, whose parts are in each piece of each rank."""
    holds = [[{rank} for _ in range(WORLD)] for rank in range(WORLD)]
    states = [[[set(piece) for piece in rank] for rank in holds]]
    for step in range(2 * (WORLD - 1)):
        sends = []
        for rank in range(WORLD):
            piece = (rank - step) % WORLD if step < WORLD - 1 else (rank + 1 - (step - WORLD + 1)) % WORLD
            sends.append((rank, piece, set(holds[rank][piece])))
        for rank, piece, parts in sends:
            right = (rank + 1) % WORLD
            holds[right][piece] = holds[right][piece] | parts if step < WORLD - 1 else parts
        states.append([[set(piece) for piece in rank] for rank in holds])
    return states


def _ring(first: int, last: int, names: list[str]) -> Figure:
    states = ring_states()
    figure = Figure(450)
    for column, at in enumerate(range(first, last + 1)):
        x = 96 + column * 274
        figure.text(x + 108, 40, names[column], "ink", "middle", 26, "bold")
        for rank in range(WORLD):
            y = 66 + rank * 84
            if column == 0:
                figure.text(0, y + 45, f"rank {rank}", "quiet", size=24)
            for piece in range(WORLD):
                count = len(states[at][rank][piece])
                new = at > first and states[at][rank][piece] != states[at - 1][rank][piece]
                fill = "optimize" if count == WORLD else ("reduce" if count > 1 else "grid")
                figure.rect(x + piece * 55, y, 50, 66, fill, "ink" if new else "")
                color = {"optimize": "page", "reduce": "dark", "grid": "ink"}[fill]
                figure.text(x + piece * 55 + 25, y + 44, str(count), color, "middle", 30)
    figure.text(96, 436, "number: how many ranks are summed in that piece; edge: it just came", "quiet", size=24)
    return figure


def ring_reduce_scatter() -> Figure:
    """The first half of a ring all-reduce of four ranks: after three messages each rank has one whole sum."""
    return _ring(0, 3, ["before", "message 1", "message 2", "message 3"])


def ring_all_gather() -> Figure:
    """The second half of a ring all-reduce of four ranks: after three more messages all have all sums."""
    return _ring(3, 6, ["half way", "message 4", "message 5", "message 6"])


def ring_bytes() -> Figure:
    """What the kernel counted on each rank's sockets, on the textbook's curve."""
    found = load("ring")
    payload = found["payload_bytes"]
    figure = Figure(470)
    plot = Plot(figure, 90, 50, 1050, 320, (1, 9), (0, 2.2))
    plot.axes(
        [(n, str(n)) for n in range(2, 9)],
        [(0, "0"), (1, "1 x"), (2, "2 x")],
        "ranks",
        "bytes sent by a rank / bytes of the gradient",
    )
    plot.curve([(n / 20, 2 * (n / 20 - 1) / (n / 20)) for n in range(20, 181)], "quiet", 3)
    for size, sent in found["sent_bytes"].items():
        for one in sent:
            plot.dot(int(size), one / payload, "r1", 9)
        figure.text(
            plot.x(int(size)), plot.y(max(sent) / payload) + 44, f"{max(sent) / payload:.3f}", "ink", "middle", 26
        )
    figure.text(540, 330, "line: 2(N-1)/N", "quiet", size=26)
    figure.text(800, 330, "dots: every rank, measured", "r1", size=26)
    return figure


def tree() -> Figure:
    """Eight ranks in a tree, and how many messages one after the other a ring and a tree need."""
    figure = Figure(460)
    places = {
        0: (270, 40),
        1: (140, 140),
        2: (400, 140),
        3: (70, 250),
        4: (205, 250),
        5: (335, 250),
        6: (470, 250),
        7: (70, 350),
    }
    for child, parent in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)):
        (x1, y1), (x2, y2) = places[child], places[parent]
        figure.arrow(x1, y1 - 2, x2 + (x1 - x2) * 0.12, y2 + 56, "reduce")
    for rank, (x, y) in places.items():
        figure.box(x - 38, y, 76, 56, str(rank), f"r{rank % 8}", size=28)
    figure.text(0, 446, "sums go up, the result comes down", "quiet", size=26)
    figure.text(700, 40, "messages one after the other", "quiet", size=26)
    for column, words in ((880, "ring"), (1130, "tree")):
        figure.text(column, 92, words, "ink", "end", 28, "bold")
    for i, size in enumerate((4, 8, 64, 1024, 24576)):
        y = 146 + i * 62
        figure.text(700, y, f"{size:,}", "quiet", "end", 28)
        figure.text(880, y, f"{2 * (size - 1):,}", "ink", "end", 30)
        figure.text(1130, y, f"{2 * math.ceil(math.log2(size)):,}", "optimize", "end", 30, "bold")
    figure.text(700, 446, "ranks", "quiet", "end", 24)
    return figure


def overlap() -> Figure:
    """One real step of two nodes on a slow link, with the gradient sent in three ways."""
    found = load("overlap")
    figure = Figure(490)
    ends = {way: max(span[2] for lane in found[way]["step"] for span in lane["spans"]) for way in found if way in NAMES}
    until = max(ends.values())
    x = 250.0
    for phase in ("forward", "backward", "reduce", "optimize"):
        figure.rect(x, 8, 24, 24, phase)
        figure.text(x + 34, 30, phase, size=26)
        x += 190
    for i, (way, name) in enumerate(NAMES.items()):
        top = 62 + i * 142
        lane = found[way]["step"][0]
        large = [call for call in lane["collectives"] if call[0] == "all_reduce" and call[1] > 256]
        figure.text(0, top + 34, name, size=26, style="bold")
        figure.text(0, top + 70, f"{len(large)} messages", "quiet", size=24)
        figure.text(0, top + 102, f"reduce {_waited(lane):.0f} ms", "ink", size=26)
        figure.rect(250, top, 910, 52, "grid", round_=2)
        figure.rect(250, top + 58, 910, 32, "grid", round_=2)
        for phase, start, end in lane["spans"]:
            if phase in STEP_PHASES:
                figure.rect(250 + 910 * start / until, top, 910 * (end - start) / until, 52, phase, round_=0)
        for _, _, start, end in large:
            figure.rect(
                250 + 910 * start / until, top + 60, max(910 * (end - start) / until - 1, 1), 28, "checkpoint", round_=0
            )
    figure.text(250, 484, "brown: an all-reduce is under way", "quiet", size=24)
    return figure


def _waited(lane: dict[str, Any]) -> float:
    """How long the step stood in reduce, in ms."""
    return sum(end - start for phase, start, end in lane["spans"] if phase == "reduce")


NAMES = {"naive": "each alone", "bucketed": "buckets", "overlapped": "overlapped"}


def kernels() -> Figure:
    """AdamW as eight kernels and as one: the passes over memory that a profiler saw, and the time."""
    found = load("kernels")["ways"]
    figure = Figure(440)
    y = 60.0
    for name, color in (("one by one", "reduce"), ("fused", "optimize")):
        way = found[name]
        calls = [op.strip("_") for op, count in way["operations"].items() for _ in range(count)]
        figure.text(
            0, y + 14, f"{name}: {len(calls)} pass{'es' if len(calls) > 1 else ''} over memory", size=30, style="bold"
        )
        width = (1160 - 8 * (len(calls) - 1)) / 8 - 6
        for i, op in enumerate(calls):
            figure.box(i * (width + 8), y + 36, width if len(calls) > 1 else 250, 66, op, color, size=24)
        figure.text(1160, y + 14, f"{way['ms']:.0f} ms", "ink", "end", 34, "bold")
        y += 190
    figure.text(0, 420, "8 million weights, one CPU thread, measured", "quiet", size=26)
    return figure


def loss_scaling() -> Figure:
    """The gradients of the trained demo model by size, and what fp16 can hold, before and after scaling."""
    found = load("gradients")
    figure = Figure(450)
    plot = Plot(figure, 40, 130, 1110, 220, (-44, 4), (0, 5.3))
    figure.rect(plot.x(-44), 10, plot.x(-24) - plot.x(-44), 340, "grid")
    for power, count in found["by_power"]:
        high = math.log10(count) + 0.1
        figure.rect(
            plot.x(power) + 2, plot.y(high), plot.x(1) - plot.x(0) - 4, plot.y(0) - plot.y(high), "backward", round_=1
        )
    lost, left = (sum(count for power, count in found["by_power"] if power < edge) for edge in (-24, -40))
    figure.text(plot.x(-43.5), 46, "below fp16's smallest", "bad", size=28, style="bold")
    figure.text(plot.x(-43.5), 86, f"{lost:,}: {lost / found['total']:.1%}", "bad", size=28)
    figure.arrow(plot.x(-23.5), 112, plot.x(-7.5), 112, "reduce", 5)
    figure.text(plot.x(-23.5), 46, "loss x 65536: all move 16 to the right", "ink", size=26)
    figure.text(plot.x(-23.5), 86, f"still below: {left}", "good", size=28, style="bold")
    for power in (-40, -32, -24, -16, -8, 0):
        figure.text(plot.x(power), 384, f"2^{power}", "quiet", "middle", 24)
    figure.text(
        1150,
        430,
        f"size of a gradient, {found['total']:,} of them; height: their number, as a power of ten",
        "quiet",
        "end",
        24,
    )
    return figure


def scaler() -> Figure:
    """The loss scale of a real fp16 run that began too high: halved until nothing overflows."""
    found = load("scaler")
    powers = [math.log2(scale) for scale in found["scale"]]
    low, high = math.floor(min(powers)) - 2, math.ceil(max(powers)) + 1
    figure = Figure(470)
    plot = Plot(figure, 100, 50, 1040, 310, (0, len(powers)), (low, high))
    ticks = range(low + (low % 4 and 4 - low % 4), high + 1, 4)
    plot.axes([(v, str(v)) for v in range(0, 41, 10)], [(v, f"2^{v}") for v in ticks], "step", "loss scale")
    for step, (power, skipped) in enumerate(zip(powers, found["skipped"], strict=True), 1):
        plot.dot(step, power, "bad" if skipped else "good", 9)
    figure.dot(620, 96, 10, "bad")
    figure.text(644, 106, f"overflow: step left out ({sum(found['skipped'])})", size=28)
    figure.dot(620, 142, 10, "good")
    figure.text(644, 152, "finite: step taken", size=28)
    return figure


def accumulation() -> Figure:
    """Activations and loss of the same batch in 1, 2, 4 and 8 pieces, measured."""
    found = load("accumulation")["pieces"]
    figure = Figure(430)
    most = max(way["memory"]["activations"] for way in found.values())
    for x, at, words in (
        (0, "start", "pieces x sequences"),
        (290, "start", "activations"),
        (1160, "end", "loss after 40 steps"),
    ):
        figure.text(x, 36, words, "quiet", at)
    for i, (pieces, way) in enumerate(found.items()):
        y, held = 60 + i * 90, way["memory"]["activations"]
        figure.text(0, y + 44, f"{pieces} x {32 // int(pieces)}", size=32, style="bold")
        figure.rect(290, y, 480 * held / most, 64, "reduce")
        figure.text(302 + 480 * held / most, y + 43, f"{held / 1e6:.1f} MB", size=28)
        figure.text(1160, y + 43, f"{way['last_loss']:.5f}", "ink", "end", 28)
    return figure


def zero_stages() -> Figure:
    """Parameters, gradients and optimizer state of one of four ranks, measured under each stage."""
    found = load("zero")
    figure = Figure(440)
    colors = {"parameters": "forward", "gradients": "backward", "optimizer": "optimize"}
    most = sum(found["ddp"]["memory"][name] for name in colors)
    x = 130.0
    for name, color in colors.items():
        figure.rect(x, 8, 24, 24, color)
        figure.text(x + 34, 30, name, size=26)
        x += 240
    for i, (name, way) in enumerate(found.items()):
        y = 62 + i * 90
        figure.text(0, y + 44, name, size=30, style="bold")
        x, total = 130.0, sum(way["memory"][part] for part in colors)
        for part, color in colors.items():
            width = 760 * way["memory"][part] / most
            figure.rect(x, y, width - 2, 64, color, round_=2)
            x += width
        figure.text(x + 14, y + 43, f"{total / 1e6:.2f} MB", size=30)
    return figure


def global_batch() -> Figure:
    """Three ways to a global batch of 32: ranks, micro-batches, samples at once."""
    figure = Figure(430)
    for i, (ranks, pieces) in enumerate(((1, 4), (2, 2), (4, 1))):
        y = 20 + i * 124
        figure.text(0, y + 60, f"{ranks} rank{'s' if ranks > 1 else ''}", size=30, style="bold")
        for rank in range(ranks):
            for piece in range(pieces):
                x = 170 + (rank * pieces + piece) * 150
                figure.box(x + 12 * rank, y, 142, 92, "8", f"r{rank}", size=34)
        figure.text(1160, y + 56, f"{ranks} x {pieces} x 8 = 32", "ink", "end", 32, "bold")
    figure.text(170, 410, "ranks x micro-batches x samples at once: the optimizer sees the same 32", "quiet", size=26)
    return figure


FIGURES = {
    function.__name__: function
    for function in (
        ring_reduce_scatter, ring_all_gather, ring_bytes, tree, overlap, kernels, loss_scaling, scaler, accumulation,
        zero_stages, global_batch,
    )
}  # fmt: skip
