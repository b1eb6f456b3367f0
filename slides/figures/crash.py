"""Figures of the crash courses: training as turning knobs, too big for one GPU, gradients that meet, TCP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draw import Figure, Plot, load

from frog.core.vocabulary import STEP_PHASES


def knobs() -> Figure:
    """Five words in a ring: the training of a network as turning knobs."""
    figure = Figure(430)
    stages = [
        ("forward", "Forward", "play the settings,", "hear the output"),
        ("evaluate", "Loss", "how bad does", "it sound?"),
        ("backward", "Backward", "which knobs, how far?", "= the gradient"),
        ("optimize", "Optimizer", "turn the", "knobs"),
    ]
    for i, (color, name, first, second) in enumerate(stages):
        x = 10 + i * 292
        figure.box(x, 60, 230, 90, name, color, size=32)
        figure.text(x + 115, 196, first, "ink", "middle", 24)
        figure.text(x + 115, 228, second, "ink", "middle", 24)
        if i < 3:
            figure.arrow(x + 236, 105, x + 286, 105)
    figure.line([(1001, 250), (1001, 330), (125, 330)], "ink", 3)
    figure.arrow(125, 330, 125, 246)
    figure.text(580, 374, "again, with the next batch", "quiet", "middle", 28)
    return figure


def formula() -> Figure:
    """The only formula, on one weight: five steps down a real parabola."""
    figure = Figure(440)
    plot = Plot(figure, 90, 50, 640, 290, (0, 10), (0, 25))
    plot.axes([(v, str(v)) for v in (0, 2, 4, 6, 8, 10)], [(0, "0"), (10, "10"), (20, "20")], "weight", "loss")
    plot.curve([(w / 20, (w / 20 - 5) ** 2) for w in range(201)], "quiet", 3)
    weight, rows = 0.5, []
    for _ in range(4):
        slope = 2 * (weight - 5)
        rows.append((weight, slope, weight - 0.2 * slope))
        plot.dot(weight, (weight - 5) ** 2, "r1", 10)
        weight = rows[-1][2]
    plot.dot(weight, (weight - 5) ** 2, "r2", 10)
    for column, words in ((900, "weight"), (1030, "gradient"), (1155, "new")):
        figure.text(column, 90, words, "quiet", "end", 24)
    for i, (old, slope, new) in enumerate(rows):
        for column, value in ((900, old), (1030, slope), (1155, new)):
            figure.text(column, 140 + 48 * i, f"{value:.2f}", "ink", "end", 28)
    figure.text(1155, 356, "learning rate 0.2", "quiet", "end", 24)
    return figure


def too_big() -> Figure:
    """What 1.8 trillion parameters take, beside the memory of one GPU."""
    figure = Figure(400)
    rows = [("one GPU", 0.08, "80 GB", "data"), ("weights, bf16", 3.6, "3.6 TB = 45 GPUs", "forward")]
    rows.append(("with Adam, 16 bytes each", 28.8, "28.8 TB = 360 GPUs", "optimize"))
    for i, (name, size, words, color) in enumerate(rows):
        y = 30 + i * 120
        figure.text(0, y + 24, name, "ink", size=28)
        width = 760 * size / 28.8
        figure.rect(0, y + 38, width, 50, color)
        figure.text(width + 16, y + 74, words, "ink", size=30, style="bold")
    return figure


def combine() -> Figure:
    """Each of four ranks with its own samples, loss and gradient norm, and the one norm after the reduction."""
    found = load("mean_gradient")["ranks"]
    figure = Figure(440)
    heads = [
        (20, "start", "rank"),
        (330, "end", "loss"),
        (560, "end", "own gradient"),
        (1130, "end", "after all-reduce"),
    ]
    for x, at, words in heads:
        figure.text(x, 44, words, "quiet", at, 26)
    for i, rank in enumerate(found):
        y = 84 + i * 84
        figure.rect(0, y, 570, 64, "raised", "line")
        figure.box(8, y + 8, 110, 48, f"rank {rank['rank']}", f"r{i}")
        figure.text(330, y + 42, f"{rank['loss']:.4f}", "ink", "end", 30)
        figure.text(550, y + 42, f"{rank['before']:.4f}", "ink", "end", 30)
        figure.arrow(578, y + 32, 680, 248, f"r{i}")
        figure.arrow(850, 248, 952, y + 32, f"r{i}")
        figure.rect(958, y, 200, 64, "raised", "line")
        figure.text(1136, y + 42, f"{rank['after']:.4f}", "ink", "end", 30, "bold")
    figure.box(684, 200, 164, 96, "add up,\ndivide by 4", "reduce", size=24)
    return figure


def tcp() -> Figure:
    """Two machines, an address, a port, a socket; a packet lost and sent again."""
    node = load("world")["nodes"][0]
    figure = Figure(450)
    figure.rect(0, 40, 330, 330, "raised", "line")
    figure.text(20, 86, "node 1", "quiet", size=28)
    figure.box(40, 170, 250, 90, "rank 2", "r2", size=30)
    figure.rect(830, 40, 330, 330, "raised", "line")
    figure.text(850, 86, "address (the house)", "quiet", size=24)
    figure.text(850, 126, node["master_addr"], "ink", size=32, style="mono")
    figure.box(850, 170, 290, 90, f"port {node['master_port']}", "r0", size=30)
    figure.text(850, 304, "the door: rank 0 listens", "quiet", size=24)
    for i, (words, color) in enumerate((("1", "r2"), ("2", "r2"), ("3 lost", "bad"), ("3 again", "good"))):
        y = 100 + i * 66
        figure.arrow(340, y + 20, 700 if color == "bad" else 820, y + 20, color, 4, "10 8" if color == "bad" else "")
        figure.box(520, y - 4, 130, 48, words, color, size=26)
    figure.text(580, 420, "TCP: every byte, in order, or an error", "ink", "middle", 30)
    return figure


def _lanes(figure: Figure, lanes: list[dict[str, Any]], top: float, height: float, gap: float, until_ms: float) -> None:
    for i, lane in enumerate(lanes):
        y = top + i * (height + gap)
        figure.text(0, y + height / 2 + 9, f"rank {lane['rank']}", "quiet", size=26)
        figure.rect(110, y, 1050, height, "grid")
        for phase, start, end in lane["spans"]:
            if start < until_ms:
                x = 110 + 1050 * start / until_ms
                figure.rect(x, y, 1050 * (min(end, until_ms) - start) / until_ms, height, phase, round_=0)


def _key(figure: Figure, y: float, phases: Sequence[str] = STEP_PHASES) -> None:
    x = 110.0
    for phase in phases:
        figure.rect(x, y - 20, 24, 24, phase)
        figure.text(x + 34, y, phase, size=26)
        x += 34 + 15.5 * len(phase) + 34


def frog_step() -> Figure:
    """One step of four real ranks in the colours of FROG."""
    lanes = load("mean_gradient")["step"]
    figure = Figure(430)
    end = max(span[2] for lane in lanes for span in lane["spans"] if span[0] in STEP_PHASES)
    _key(figure, 34)
    _lanes(figure, lanes, 64, 62, 14, end)
    figure.text(110, 404, "0", "quiet", "start", 24)
    figure.text(1160, 404, f"{end:.0f} ms", "quiet", "end", 24)
    return figure


FIGURES = {function.__name__: function for function in (knobs, formula, too_big, combine, tcp, frog_step)}
