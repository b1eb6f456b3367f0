"""Figures of the crash courses: training as turning knobs, models too big for one GPU, the sum of gradients, TCP."""

from __future__ import annotations

from typing import Any

from draw import Figure, Plot, load

from frog.core.runs.vocabulary import STEP_PHASES


def knobs() -> Figure:
    """Four boxes in a ring: the training of a network as turning knobs."""
    figure = Figure()
    stages = [
        ("forward", "Forward", "play with", "these settings"),
        ("evaluate", "Loss", "how bad does", "it sound?"),
        ("backward", "Backward", "gradient: which", "knob, how far?"),
        ("optimize", "Optimizer", "turn all the", "knobs a little"),
    ]
    for i, (color, name, first, second) in enumerate(stages):
        x = i * 300
        figure.box(x, 40, 260, 140, name, color, size=42)
        figure.text(x + 130, 236, first, "ink", "middle", 32)
        figure.text(x + 130, 278, second, "ink", "middle", 32)
        if i < 3:
            figure.arrow(x + 264, 110, x + 297, 110, width=5)
    figure.line([(1030, 306), (1030, 400), (130, 400)], "ink", 5)
    figure.arrow(130, 400, 130, 304, width=5)
    figure.text(580, 460, "again, with the next batch of data", "quiet", "middle", 34)
    return figure


def formula() -> Figure:
    """The only formula, on one weight: four steps down a real parabola."""
    figure = Figure()
    plot = Plot(figure, 60, 44, 620, 396, (0, 10), (0, 25))
    plot.axes([(v, str(v)) for v in (0, 2, 4, 6, 8, 10)], [(0, "0"), (10, "10"), (20, "20")], "weight", "loss")
    plot.curve([(w / 20, (w / 20 - 5) ** 2) for w in range(201)], "quiet", 4)
    weight, rows = 0.5, []
    for _ in range(4):
        slope = 2 * (weight - 5)
        rows.append((weight, slope, weight - 0.2 * slope))
        plot.dot(weight, (weight - 5) ** 2, "r1", 12)
        weight = rows[-1][2]
    plot.dot(weight, (weight - 5) ** 2, "r2", 12)
    figure.text(1160, 44, "learning rate 0.2", "quiet", "end", 30)
    for column, words in ((860, "weight"), (1020, "gradient"), (1160, "new")):
        figure.text(column, 116, words, "quiet", "end", 30)
    figure.line([(750, 136), (1160, 136)], "line", 2)
    for i, (old, slope, new) in enumerate(rows):
        for column, value in ((860, old), (1020, slope), (1160, new)):
            figure.text(column, 192 + 66 * i, f"{value:.2f}".replace("-", "−"), "ink", "end", 36)
    figure.text(1160, 508, "0.50 − 0.2 × (−9.00) = 2.30", "r1", "end", 30, "bold")
    return figure


def too_big() -> Figure:
    """Memory of 1.8 trillion parameters, compared with that of one GPU."""
    figure = Figure()
    rows = [("memory of one GPU", 0.08, "80 GB", "data"), ("weights, bf16", 3.6, "3.6 TB = 45 GPUs", "forward")]
    rows.append(("weights, gradients and Adam, 16 bytes each", 28.8, "28.8 TB = 360 GPUs", "optimize"))
    for i, (name, size, words, color) in enumerate(rows):
        y = i * 172
        figure.text(0, y + 40, name, "ink", size=34)
        width = 660 * size / 28.8
        figure.rect(0, y + 60, width, 80, color)
        figure.text(width + 20, y + 114, words, "ink", size=38, style="bold")
    return figure


def combine() -> Figure:
    """Each of four ranks with its own samples, loss and gradient norm, and the one norm after the reduction."""
    found = load("mean_gradient")["ranks"]
    figure = Figure()
    heads = [(330, "loss"), (572, "gradient norm"), (1140, "after all-reduce")]
    for x, words in heads:
        figure.text(x, 40, words, "quiet", "end", 30)
    for i, rank in enumerate(found):
        y = 66 + i * 114
        figure.rect(0, y, 592, 90, "raised", "line")
        figure.box(12, y + 14, 140, 62, f"rank {rank['rank']}", f"r{i}", size=32)
        figure.text(330, y + 58, f"{rank['loss']:.4f}", "ink", "end", 36)
        figure.text(572, y + 58, f"{rank['before']:.4f}", "ink", "end", 36)
        figure.arrow(598, y + 45, 688, 282, f"r{i}", 4)
        figure.arrow(872, 282, 956, y + 45, f"r{i}", 4)
        figure.rect(960, y, 200, 90, "raised", "line")
        figure.text(1140, y + 58, f"{rank['after']:.4f}", "ink", "end", 36, "bold")
    figure.box(692, 222, 176, 120, "add up,\ndivide by 4", "reduce", size=30)
    return figure


def tcp() -> Figure:
    """Two machines, an address, a port, a socket; a packet lost and sent again."""
    node = load("world")["nodes"][0]
    figure = Figure()
    figure.rect(0, 20, 340, 400, "raised", "line")
    figure.text(24, 74, "node 1", "quiet", size=32)
    figure.box(40, 170, 260, 110, "rank 2", "r2", size=38)
    figure.text(24, 380, "a program", "quiet", size=28)
    figure.rect(810, 20, 350, 400, "raised", "line")
    figure.text(834, 74, "address: the house", "quiet", size=28)
    figure.text(834, 124, node["master_addr"], "ink", size=38, style="mono")
    figure.box(834, 170, 302, 110, f"port {node['master_port']}", "r0", size=38)
    figure.text(834, 332, "port: the door where", "quiet", size=28)
    figure.text(834, 372, "rank 0 listens", "quiet", size=28)
    for i, (words, color) in enumerate((("1", "r2"), ("2", "r2"), ("3 lost", "bad"), ("3 again", "good"))):
        y = 64 + i * 84
        figure.arrow(348, y + 30, 660 if color == "bad" else 802, y + 30, color, 5, "12 10" if color == "bad" else "")
        figure.box(470, y, 160, 60, words, color, size=32)
    figure.text(580, 490, "a socket: the line between the two programs", "ink", "middle", 34)
    return figure


def _lanes(figure: Figure, lanes: list[dict[str, Any]], top: float, height: float, gap: float, until_ms: float) -> None:
    for i, lane in enumerate(lanes):
        y = top + i * (height + gap)
        figure.text(0, y + height / 2 + 10, f"rank {lane['rank']}", "quiet", size=30)
        figure.rect(120, y, 1040, height, "grid")
        for phase, start, end in lane["spans"]:
            if start < until_ms:
                x = 120 + 1040 * start / until_ms
                figure.rect(x, y, 1040 * (min(end, until_ms) - start) / until_ms, height, phase, round_=0)


def frog_step() -> Figure:
    """One step of four real ranks in the colours of FROG."""
    lanes = load("mean_gradient")["step"]
    figure = Figure()
    end = max(span[2] for lane in lanes for span in lane["spans"] if span[0] in STEP_PHASES)
    figure.legend(0, 32, [(phase, phase) for phase in STEP_PHASES])
    _lanes(figure, lanes, 64, 86, 14, end)
    for ms in range(0, int(end), 50):
        figure.text(120 + 1040 * ms / end, 492, str(ms), "quiet", "start" if ms == 0 else "middle", 26)
    figure.text(1160, 492, "ms", "quiet", "end", 26)
    return figure


FIGURES = {function.__name__: function for function in (knobs, formula, too_big, combine, tcp, frog_step)}
