"""Figures of session B: how gradients are summed, and what a rank must store."""

from __future__ import annotations

import math

from draw import Figure, Plot, load

from frog.core.runs.vocabulary import STEP_PHASES

WORLD = 4


def ring_states() -> list[list[list[set[int]]]]:
    """Simulate a ring all-reduce: after each message, the ranks whose parts are in each piece of each rank."""
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
    figure = Figure()
    for column, at in enumerate(range(first, last + 1)):
        x = 108 + column * 269
        figure.text(x + 121, 34, names[column], "ink", "middle", 30, "bold")
        for rank in range(WORLD):
            y = 58 + rank * 102
            if column == 0:
                figure.text(0, y + 54, f"rank {rank}", "quiet", size=28)
            for piece in range(WORLD):
                count = len(states[at][rank][piece])
                new = at > first and states[at][rank][piece] != states[at - 1][rank][piece]
                fill = "optimize" if count == WORLD else ("reduce" if count > 1 else "grid")
                figure.rect(x + piece * 62, y, 55, 84, fill, "ink" if new else "")
                color = {"optimize": "page", "reduce": "dark", "grid": "ink"}[fill]
                figure.text(x + piece * 62 + 28, y + 55, str(count), color, "middle", 36)
    figure.text(108, 506, "number: how many ranks are summed in that piece; outlined: just arrived", "quiet", size=28)
    return figure


def ring_reduce_scatter() -> Figure:
    """The first half of a ring all-reduce of four ranks: after three messages each rank has one complete sum."""
    return _ring(0, 3, ["before", "message 1", "message 2", "message 3"])


def ring_all_gather() -> Figure:
    """The second half of a ring all-reduce of four ranks: after three more messages all ranks have all sums."""
    return _ring(3, 6, ["halfway", "message 4", "message 5", "message 6"])


def ring_bytes() -> Figure:
    """Bytes that the kernel counted on each rank's sockets, on the textbook's curve."""
    found = load("ring")
    payload = found["payload_bytes"]
    figure = Figure()
    plot = Plot(figure, 70, 44, 1080, 396, (1, 9), (0, 2.2))
    plot.axes(
        [(n, str(n)) for n in range(2, 9)],
        [(0, "0"), (0.5, "0.5"), (1, "1"), (1.5, "1.5"), (2, "2")],
        "ranks",
        "bytes sent by a rank / bytes of the gradient",
    )
    plot.curve([(n / 20, 2 * (n / 20 - 1) / (n / 20)) for n in range(20, 181)], "quiet", 4)
    for size, sent in found["sent_bytes"].items():
        for one in sent:
            plot.dot(int(size), one / payload, "r1", 11)
        figure.text(
            plot.x(int(size)), plot.y(max(sent) / payload) + 52, f"{max(sent) / payload:.3f}", "ink", "middle", 30
        )
    figure.line([(560, 352), (630, 352)], "quiet", 4)
    figure.text(650, 362, "2(N−1)/N", size=30)
    figure.dot(596, 402, 11, "r1")
    figure.text(650, 412, "measured: every rank's sockets", size=30)
    return figure


def tree() -> Figure:
    """Eight ranks in a tree, and the numbers of sequential messages that a ring and a tree need."""
    figure = Figure()
    places = {
        0: (260, 20),
        1: (130, 142),
        2: (400, 142),
        3: (50, 264),
        4: (194, 264),
        5: (334, 264),
        6: (478, 264),
        7: (50, 386),
    }
    for child, parent in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)):
        (x1, y1), (x2, y2) = places[child], places[parent]
        figure.arrow(x1, y1 - 3, x2 + (x1 - x2) * 0.12, y2 + 70, "reduce", 5)
    for rank, (x, y) in places.items():
        figure.box(x - 44, y, 88, 66, str(rank), f"r{rank % 8}", size=34)
    figure.text(0, 506, "sums go up, then the result comes down", "quiet", size=28)
    figure.text(1160, 40, "sequential messages", "quiet", "end", 28)
    for column, words, color in ((740, "ranks", "quiet"), (950, "ring", "ink"), (1160, "tree", "optimize")):
        figure.text(column, 104, words, color, "end", 32, "bold")
    figure.line([(610, 124), (1160, 124)], "line", 2)
    for i, size in enumerate((4, 8, 64, 1024, 24576)):
        y = 182 + i * 76
        figure.text(740, y, f"{size:,}", "quiet", "end", 34)
        figure.text(950, y, f"{2 * (size - 1):,}", "ink", "end", 34)
        figure.text(1160, y, f"{2 * math.ceil(math.log2(size)):,}", "optimize", "end", 34, "bold")
    return figure


NAMES = {"naive": "each alone", "bucketed": "buckets", "overlapped": "overlapped"}


def overlap() -> Figure:
    """The median step of two nodes on a slow link, with the gradient sent in three ways, each from its start."""
    found = load("overlap")
    figure = Figure()
    lanes = {way: found[way]["step"][0] for way in NAMES}
    begins = {way: min(start for _, start, _ in lane["spans"]) for way, lane in lanes.items()}
    until = max(span[2] - begins[way] for way, lane in lanes.items() for span in lane["spans"])
    unit = 920 / until
    phases = ("forward", "backward", "reduce", "optimize")
    figure.legend(0, 30, [(phase, phase) for phase in phases] + [("checkpoint", "an all-reduce under way")], 26)
    for i, (way, lane) in enumerate(lanes.items()):
        top = 62 + i * 140
        large = [call for call in lane["collectives"] if call[0] == "all_reduce" and call[1] > 256]
        figure.text(0, top + 30, NAMES[way], size=30, style="bold")
        figure.text(0, top + 68, f"{len(large)} messages", "quiet", size=26)
        figure.text(0, top + 104, f"reduce {found[way]['reduce_ms']:.0f} ms", "ink", size=28)
        figure.rect(240, top, 920, 64, "grid", round_=2)
        figure.rect(240, top + 72, 920, 40, "grid", round_=2)
        for phase, start, end in lane["spans"]:
            if phase in STEP_PHASES:
                figure.rect(240 + (start - begins[way]) * unit, top, (end - start) * unit, 64, phase, round_=0)
        for _, _, start, end in large:
            x = 240 + (start - begins[way]) * unit
            figure.rect(x, top + 75, max((end - start) * unit - 1, 1), 34, "checkpoint", round_=0)
    tick = next(ms for ms in (50, 100, 200, 250, 500, 1000) if ms > until / 9)
    for ms in range(0, int(until - tick / 3), tick):
        figure.text(240 + ms * unit, 508, str(ms), "quiet", "start" if ms == 0 else "middle", 26)
    figure.text(1160, 508, "ms", "quiet", "end", 26)
    return figure


def kernels() -> Figure:
    """AdamW as eight kernels and as one: the passes over memory that a profiler saw, and the time."""
    found = load("kernels")["ways"]
    figure = Figure()
    for row, (name, color) in enumerate((("one by one", "reduce"), ("fused", "optimize"))):
        y, way = 4 + row * 250, found[name]
        calls = [op.strip("_") for op, count in way["operations"].items() for _ in range(count)]
        passes = f"{len(calls)} pass{'es' if len(calls) > 1 else ''} over memory"
        figure.text(0, y + 34, f"{name}: {passes}", size=34, style="bold")
        figure.text(1160, y + 34, f"{way['ms']:.1f} ms", "ink", "end", 38, "bold")
        figure.rect(0, y + 176, 1160, 44, "grid")
        figure.text(580, y + 208, "memory: weights, gradients, both averages", "quiet", "middle", 28)
        for i, op in enumerate(calls):
            x, width = i * 147, 131 if len(calls) > 1 else 1160
            figure.box(x, y + 56, width, 72, op, color, size=28)
            figure.arrow(x + width / 2 - 20, y + 174, x + width / 2 - 20, y + 131, "ink", 4)
            figure.arrow(x + width / 2 + 20, y + 130, x + width / 2 + 20, y + 173, "ink", 4)
    figure.text(0, 511, "8 million weights, one CPU thread; arrows: read and write", "quiet", size=28)
    return figure


def roofline() -> Figure:
    """Greatest throughput of an H100, by the number of operations per byte."""
    figure = Figure()
    peak, bandwidth = 989.4e12, 3.35e12
    plot = Plot(figure, 150, 44, 984, 396, (0.05, 4096), (0.1, 5000), "xy")
    plot.axes(
        [(0.1, "0.1"), (1, "1"), (10, "10"), (100, "100"), (1000, "1,000")],
        [(0.1, "0.1"), (1, "1"), (10, "10"), (100, "100"), (1000, "1,000")],
        "operations for each byte of memory traffic",
        "TFLOP/s at most, one H100 SXM in bf16",
    )
    knee = peak / bandwidth
    plot.curve([(0.05, 0.05 * bandwidth / 1e12), (knee, peak / 1e12), (4096, peak / 1e12)], "quiet", 5)
    for name, work, color in (
        ("add two tensors", 1 / 6, "reduce"),
        ("AdamW, fused", _ADAMW_OPS / _ADAMW_BYTES, "optimize"),
        ("4096 × 4096 product", 4096 / 3, "forward"),
    ):
        reached = min(peak, work * bandwidth) / 1e12
        plot.dot(work, reached, color, 14)
        at = "end" if work > knee else "start"
        x, y = (1134, plot.y(reached) - 28) if work > knee else (plot.x(work) + 28, plot.y(reached) + 12)
        figure.text(x, y, f"{name}: {reached:.2g}" if reached < 10 else f"{name}: {reached:.0f}", "ink", at, 30)
    return figure


_ADAMW_OPS, _ADAMW_BYTES = 14, 28
"""Operations (about) and bytes per float32 weight of the fused update: four numbers read and three written."""


def loss_scaling() -> Figure:
    """Gradients of the trained demo model by size, and their fp16 values before and after scaling."""
    found = load("gradients")
    total = found["total"]
    figure = Figure()
    for row, shift in enumerate((0, 16)):
        plot = Plot(figure, 130, 62 + row * 216, 1020, 158, (-42, 18), (1, 10**5.4), "y")
        figure.rect(plot.x(-42), plot.top, plot.x(-25) - plot.x(-42), plot.height, "grid", round_=0)
        for value, words in ((1, "1"), (1e2, "100"), (1e4, "10,000")):
            figure.line([(plot.left, plot.y(value)), (1150, plot.y(value))], "line", 1.5)
            figure.text(plot.left - 14, plot.y(value) + 9, words, "quiet", "end", 26)
        for power, count in found["by_power"]:
            x, high = plot.x(power + shift), plot.y(max(count, 1.15))
            figure.rect(x + 1.5, high, plot.x(1) - plot.x(0) - 3, plot.y(1) - high, "backward", round_=1)
        zero = sum(count for power, count in found["by_power"] if power + shift < -25)
        figure.line([(plot.x(-25), plot.top), (plot.x(-25), plot.y(1))], "bad", 4)
        figure.line([(plot.x(16), plot.top), (plot.x(16), plot.y(1))], "bad", 4)
        words = f"become 0: {zero:,} of {total:,}" if zero else "become 0: none"
        color = "bad" if zero else "good"
        figure.text(plot.left, plot.top - 14, words, color, size=30, style="bold")
        name = "loss as it is" if not shift else "loss × 65,536: all move 16 powers to the right"
        figure.text(1150, plot.top - 14, name, "ink", "end", 30)
    for power in (-40, -32, -25, -16, -8, 0, 8, 16):
        edge = power in (-25, 16)
        figure.text(plot.x(power), 472, f"2^{power}", "bad" if edge else "quiet", "middle", 26)
    figure.text(130, 510, "grey: 0 in fp16; right of 2^16: infinite", "quiet", size=26)
    figure.text(1150, 510, "size of a gradient; height: how many", "quiet", "end", 26)
    return figure


def scaler() -> Figure:
    """Loss scale of a real fp16 run that started too high and was halved until nothing overflowed."""
    found = load("scaler")
    powers = [math.log2(scale) for scale in found["scale"]]
    figure = Figure()
    plot = Plot(figure, 90, 44, 1050, 396, (0, len(powers)), (16, 38))
    plot.axes([(v, str(v)) for v in range(0, 41, 10)], [(v, f"2^{v}") for v in range(16, 38, 4)], "step", "loss scale")
    for step, (power, skipped) in enumerate(zip(powers, found["skipped"], strict=True), 1):
        plot.dot(step, power, "bad" if skipped else "good", 11)
    taken = len(powers) - sum(found["skipped"])
    figure.dot(470, 96, 12, "bad")
    figure.text(500, 107, f"overflow: step skipped, scale halved ({sum(found['skipped'])})", size=30)
    figure.dot(470, 152, 12, "good")
    figure.text(500, 163, f"finite: step taken ({taken})", size=30)
    return figure


def accumulation() -> Figure:
    """Activations and loss of the same batch in 1, 2, 4 and 8 micro-batches, measured."""
    found = load("accumulation")["pieces"]
    figure = Figure()
    most = max(way["memory"]["activations"] for way in found.values())
    for x, at, words in (
        (0, "start", "micro-batches"),
        (290, "start", "activations"),
        (1160, "end", "loss after 40 steps"),
    ):
        figure.text(x, 38, words, "quiet", at, 30)
    for i, (pieces, way) in enumerate(found.items()):
        y, held = 68 + i * 114, way["memory"]["activations"]
        figure.text(0, y + 58, f"{pieces} × {32 // int(pieces)}", size=40, style="bold")
        figure.rect(290, y, 470 * held / most, 86, "reduce")
        figure.text(308 + 470 * held / most, y + 56, f"{held / 1e6:.1f} MB", size=34)
        figure.text(1160, y + 56, f"{way['last_loss']:.5f}", "ink", "end", 34)
    return figure


def zero_stages() -> Figure:
    """Parameters, gradients and optimizer state of one of four ranks, measured under each stage."""
    found = load("zero")
    figure = Figure()
    colors = {"parameters": "forward", "gradients": "backward", "optimizer": "optimize"}
    most = sum(found["ddp"]["memory"][name] for name in colors)
    figure.legend(0, 34, [(color, name) for name, color in colors.items()], 30)
    for i, (name, way) in enumerate(found.items()):
        y = 72 + i * 114
        figure.text(0, y + 56, name, size=36, style="bold")
        x, total = 150.0, sum(way["memory"][part] for part in colors)
        for part, color in colors.items():
            width = 790 * way["memory"][part] / most
            figure.rect(x, y, width - 2, 86, color, round_=2)
            x += width
        figure.text(x + 18, y + 56, f"{total / 1e6:.2f} MB", size=36)
    return figure


def global_batch() -> Figure:
    """Three ways to a global batch of 32: ranks, micro-batches, samples per pass."""
    figure = Figure()
    figure.legend(0, 32, [(f"r{rank}", f"rank {rank}") for rank in range(4)], 30)
    for i, (ranks, pieces) in enumerate(((1, 4), (2, 2), (4, 1))):
        y = 74 + i * 134
        figure.text(0, y + 64, f"{ranks} rank{'s' if ranks > 1 else ''}", size=34, style="bold")
        for rank in range(ranks):
            for piece in range(pieces):
                x = 160 + (rank * pieces + piece) * 156
                figure.box(x, y, 148, 104, "8", f"r{rank}", size=42)
        figure.text(1160, y + 64, f"{ranks} × {pieces} × 8 = 32", "ink", "end", 38, "bold")
    figure.text(1160, 506, "ranks × micro-batches × samples at once", "quiet", "end", 30)
    return figure


FIGURES = {
    function.__name__: function
    for function in (
        ring_reduce_scatter, ring_all_gather, ring_bytes, tree, overlap, kernels, roofline, loss_scaling, scaler,
        accumulation, zero_stages, global_batch,
    )
}  # fmt: skip
