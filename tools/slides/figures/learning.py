"""Figures of session A: one process learns, and why one is not enough."""

from __future__ import annotations

import math

import torch
from draw import TEXT_ON, Figure, Plot, load

from frog.core.runs.vocabulary import STEP_PHASES


def one_or_four() -> Figure:
    """The losses of one process and of four ranks, step by step: the lines coincide."""
    found = load("mean_gradient")
    alone, four = found["losses_alone"], found["losses_four"]
    figure = Figure()
    plot = Plot(figure, 70, 44, 1064, 396, (0, 40), (5, 8))
    plot.axes([(v, str(v)) for v in range(0, 41, 10)], [(v, str(v)) for v in (5, 6, 7, 8)], "step", "loss")
    plot.curve(list(enumerate(alone, 1)), "r0", 12)
    plot.curve(list(enumerate(four, 1)), "r1", 4, "14 12")
    apart = max(abs(a - b) for a, b in zip(alone, four, strict=True))
    figure.line([(620, 100), (700, 100)], "r0", 12)
    figure.text(720, 111, "one process, 32 sequences", size=30)
    figure.line([(620, 152), (700, 152)], "r1", 4, "14 12")
    figure.text(720, 163, "four ranks, 8 sequences each", size=30)
    figure.text(620, 390, f"largest difference: {apart:.0e}", "good", size=30, style="bold")
    return figure


_PARTS = (
    ("weight", "forward"),
    ("gradient", "backward"),
    ("Adam: mean", "optimize"),
    ("Adam: square", "zero"),
)


def memory_of_a_rank() -> Figure:
    """Bytes per weight in training, and the total for 7 billion weights."""
    figure = Figure()
    figure.text(0, 34, "one weight, in float32", "quiet", size=28)
    figure.text(1160, 34, "= 16 bytes", "ink", "end", 34, "bold")
    for i, (name, color) in enumerate(_PARTS):
        figure.box(i * 292, 54, 284, 112, "4 bytes", color, size=38)
        figure.text(i * 292 + 142, 204, name, "ink", "middle", 28)
    unit = 1160 / 125
    figure.text(0, 284, "7 billion weights", "quiet", size=28)
    for i, (_, color) in enumerate(_PARTS):
        figure.rect(i * 28 * unit, 304, 28 * unit - 3, 108, color, round_=3)
        figure.text((i + 0.5) * 28 * unit, 368, "28 GB", TEXT_ON[color], "middle", 30)
    for gb in (0, 20, 40, 60, 100, 112):
        figure.text(gb * unit, 452, str(gb), "quiet", "start" if gb == 0 else "middle", 26)
    figure.text(1160, 452, "GB", "quiet", "end", 26)
    figure.line([(80 * unit, 262), (80 * unit, 466)], "bad", 6)
    figure.text(80 * unit, 506, "memory of one GPU: 80 GB", "bad", "middle", 30, "bold")
    return figure


def measured_memory() -> Figure:
    """Measured memory of the demo's rank: activations are the largest part."""
    found = load("curve")["memory"]
    figure = Figure()
    colors = {"parameters": "forward", "gradients": "backward", "optimizer": "optimize", "activations": "reduce"}
    most = max(found.values())
    for i, (name, size) in enumerate(found.items()):
        y = i * 104
        figure.text(0, y + 56, name, size=32)
        figure.rect(230, y + 8, 740 * size / most, 76, colors[name])
        figure.text(250 + 740 * size / most, y + 58, f"{size / 1e6:.2f} MB", size=32, style="bold")
    state = 664192 * 16
    figure.text(0, 454, f"first three: 664,192 weights × 16 bytes = {state / 1e6:.2f} MB", "quiet", size=28)
    words = f"activations, 32 sequences of 64 tokens: {found['activations'] / state:.1f} times as much"
    figure.text(0, 500, words, "quiet", size=28)
    return figure


def three_splits() -> Figure:
    """The same model and batch, split in three ways for two ranks."""
    figure = Figure()
    figure.legend(0, 30, [("r0", "rank 0"), ("r1", "rank 1")])
    cuts = (
        ("data", "cuts the samples", "meets once a step"),
        ("tensor (“model”)", "cuts every matrix", "meets in every layer"),
        ("pipeline", "cuts between layers", "meets at the cut"),
    )
    for i, (name, what, meets) in enumerate(cuts):
        x = i * 400
        figure.text(x + 180, 92, name, "ink", "middle", 36, "bold")
        figure.text(x + 180, 132, what, "quiet", "middle", 28)
        for layer in range(3):
            y = 164 + layer * 76
            if i == 0:
                figure.rect(x, y, 172, 62, "r0")
                figure.rect(x + 188, y, 172, 62, "r1")
            elif i == 1:
                figure.rect(x, y, 178, 62, "r0")
                figure.rect(x + 182, y, 178, 62, "r1")
            else:
                figure.rect(x, y, 360, 62, "r0" if layer < 2 else "r1")
        if i == 0:
            figure.box(x, 406, 172, 50, "batch 1/2", "raised", "line", 28)
            figure.box(x + 188, 406, 172, 50, "batch 2/2", "raised", "line", 28)
        else:
            figure.box(x, 406, 360, 50, "whole batch", "raised", "line", 28)
        figure.text(x + 180, 506, meets, "ink", "middle", 30)
    figure.text(1160, 30, "three layers of one model", "quiet", "end", 28)
    return figure


def tensor_layer() -> Figure:
    """A feed-forward block on two ranks: columns, then rows, then one all-reduce."""
    figure = Figure()
    figure.box(0, 170, 130, 130, "x\nwhole", "raised", "line", 30)
    for rank in (0, 1):
        y = 20 + rank * 270
        figure.arrow(136, 235, 196, y + 80, f"r{rank}")
        figure.box(200, y, 214, 160, f"W1, columns\nhalf {rank + 1}", f"r{rank}", size=30)
        figure.arrow(418, y + 80, 458, y + 80, f"r{rank}")
        figure.box(462, y + 30, 140, 100, "SwiGLU", "raised", f"r{rank}", 30)
        figure.arrow(606, y + 80, 644, y + 80, f"r{rank}")
        figure.box(648, y, 214, 160, f"W2, rows\nhalf {rank + 1}", f"r{rank}", size=30)
        figure.arrow(866, y + 80, 914, 235, f"r{rank}")
    figure.box(918, 160, 112, 150, "all-\nreduce", "reduce", size=28)
    figure.arrow(1034, 235, 1062, 235)
    figure.box(1064, 170, 96, 130, "y\nwhole", "raised", "line", 30)
    figure.text(532, 245, "no message in between", "quiet", "middle", 28)
    figure.text(0, 506, "attention is cut the same way: 2 all-reduces a layer forward, 2 backward", "ink", size=30)
    return figure


def _schedule(figure: Figure, name: str, top: float) -> None:
    found = load("pipeline")[name]
    unit = 1010 / load("pipeline")["gpipe"]["makespan"]
    for rank, actions in enumerate(found["actions"]):
        y = top + rank * 46
        figure.rect(140, y, 1020, 42, "grid", round_=2)
        figure.text(0, y + 31, f"stage {rank}", "quiet", size=26)
        for kind, micro, start, end in actions:
            fill = "forward" if kind == "F" else "backward"
            figure.rect(140 + start * unit + 1, y, (end - start) * unit - 2, 42, fill, round_=2)
            color = "dark" if kind == "F" else "white"
            figure.text(140 + (start + end) / 2 * unit, y + 30, str(micro), color, "middle", 26)


def pipeline() -> Figure:
    """Two real schedules of four stages and eight micro-batches."""
    found = load("pipeline")
    figure = Figure()
    figure.legend(140, 30, [("forward", "forward"), ("backward", "backward"), ("grid", "waiting: the bubble")])
    for i, name in enumerate(("gpipe", "1f1b")):
        top = 98 + i * 238
        one = found[name]
        title = {"gpipe": "GPipe", "1f1b": "1F1B"}[name]
        words = f"{title}: {one['bubble']:.0%} bubble, stage 0 keeps {one['held'][0]} micro-batches"
        figure.text(140, top - 14, words, "ink", size=30, style="bold")
        _schedule(figure, name, top)
    return figure


def _neuron() -> tuple[list[str], list[float], list[float], list[float], float]:
    """Return autograd's nodes of one neuron and its squared error, with values and gradients, and those of w and b."""
    x, w = torch.ones(3), torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    b = torch.tensor(0.25, requires_grad=True)
    dot = x @ w
    total = dot + b
    silu = torch.nn.functional.silu(total)
    error = silu - 1
    loss = error**2
    values = [dot, total, silu, error, loss]
    for value in values:
        value.retain_grad()
    loss.backward()
    names = [type(value.grad_fn).__name__.removesuffix("0").removesuffix("Backward") for value in values]
    slopes = [value.grad.item() for value in values if value.grad is not None]
    assert w.grad is not None
    assert b.grad is not None
    return names, [value.item() for value in values], slopes, w.grad.tolist(), b.grad.item()


def autograd() -> Figure:
    """The graph that autograd recorded for one neuron and its loss, with each node's value and gradient."""
    names, values, slopes, w_grad, b_grad = _neuron()
    figure = Figure()
    figure.arrow(0, 28, 70, 28, "forward", 6)
    figure.text(90, 38, "forward writes a node and its value", size=30)
    for i, (name, value, slope) in enumerate(zip(names, values, slopes, strict=True)):
        x = 250 + i * 186
        figure.text(x + 68, 122, f"{value:.2f}", "ink", "middle", 34, "bold")
        figure.box(x, 142, 136, 96, name, "backward", size=32)
        figure.text(x + 68, 284, f"{slope:.2f}", "r1", "middle", 34, "bold")
        if i:
            figure.arrow(x - 48, 172, x - 3, 172, "forward", 5)
            figure.arrow(x - 3, 208, x - 48, 208, "r1", 5)
    figure.box(8, 142, 186, 96, "w", "forward", size=34)
    figure.text(101, 122, "0.5,  −1,  2", "ink", "middle", 30, "bold")
    figure.text(101, 284, "  ".join(f"{g:.2f}" for g in w_grad), "r1", "middle", 24, "bold")
    figure.arrow(198, 172, 247, 172, "forward", 5)
    figure.arrow(247, 208, 198, 208, "r1", 5)
    figure.box(436, 356, 136, 76, "b", "forward", size=34)
    figure.text(416, 404, "0.25", "ink", "end", 30, "bold")
    figure.text(592, 404, f"{b_grad:.2f}", "r1", "start", 34, "bold")
    figure.arrow(480, 352, 480, 300, "forward", 5)
    figure.arrow(528, 300, 528, 352, "r1", 5)
    figure.text(1160, 404, "last value = loss", "quiet", "end", 28)
    figure.arrow(70, 488, 0, 488, "r1", 6)
    figure.text(90, 498, "backward reads the graph from its end; only w and b keep a .grad", size=30)
    return figure


def step_phases() -> Figure:
    """Time of a step in one real process, by phase."""
    found = load("curve")["phase_ms"]
    phases = [phase for phase in STEP_PHASES if phase in found]
    total = sum(found[phase] for phase in phases)
    figure = Figure()
    figure.text(0, 34, f"median of 399 steps, one process: {total:.0f} ms", "quiet", size=28)
    x = 0.0
    for phase in phases:
        width = 1160 * found[phase] / total
        figure.rect(x, 56, width - 2, 130, phase, round_=2)
        x += width
    for ms in range(0, int(total), 100):
        figure.text(1160 * ms / total, 226, str(ms), "quiet", "start" if ms == 0 else "middle", 26)
    figure.text(1160, 226, "ms", "quiet", "end", 26)
    for i, phase in enumerate(sorted(phases, key=lambda phase: -found[phase])):
        px, y = 400 * (i % 3), 290 + 134 * (i // 3)
        figure.rect(px, y - 26, 32, 32, phase)
        figure.text(px + 48, y, phase, size=32)
        figure.text(px + 48, y + 52, f"{found[phase]:.1f} ms", size=38, style="bold")
        figure.text(px + 244, y + 52, f"{found[phase] / total:.1%}", "quiet", size=30)
    return figure


def loss_curve() -> Figure:
    """The loss of each step and the held-out loss of a real run."""
    found = load("curve")
    figure = Figure()
    plot = Plot(figure, 70, 44, 1064, 396, (0, 400), (4, 8))
    plot.axes([(v, str(v)) for v in range(0, 401, 100)], [(v, str(v)) for v in range(4, 9)], "step", "loss")
    plot.curve(list(enumerate(found["loss"], 1)), "r0", 4)
    plot.curve(found["held_out"], "heldout", 5)
    for step, loss in found["held_out"]:
        plot.dot(step, loss, "heldout", 8)
    blind = math.log(2048)
    plot.curve([(0, blind), (400, blind)], "quiet", 3, "10 10")
    figure.text(1134, plot.y(blind) + 38, f"a blind guess: ln 2048 = {blind:.2f}", "quiet", "end", 28)
    figure.legend(560, 190, [("r0", "training batch")], 32)
    figure.legend(560, 240, [("heldout", "held-out text")], 32)
    step, loss = found["held_out"][-1]
    figure.text(1134, plot.y(loss) - 42, f"{loss:.2f}", "heldout", "end", 34, "bold")
    return figure


def recovery() -> Figure:
    """A rank killed in step 45, the restart from step 40, and the losses on top of those of an undisturbed run."""
    found = load("recovery")
    calm, again = found["losses"]["calm"], found["losses"]["again"]
    figure = Figure()
    plot = Plot(figure, 70, 44, 1064, 256, (0, 60), (5, 8))
    plot.axes([(v, str(v)) for v in range(0, 61, 10)], [(v, str(v)) for v in (5, 6, 7, 8)], "step", "loss")
    plot.curve(list(enumerate(calm, 1)), "r0", 12)
    plot.curve(list(enumerate(again, 1)), "r1", 4, "14 12")
    figure.line([(560, 88), (630, 88)], "r0", 12)
    figure.text(650, 98, "never disturbed", size=30)
    figure.line([(560, 136), (630, 136)], "r1", 4, "14 12")
    figure.text(650, 146, "killed in step 45, then resumed", size=30)
    for i, steps in enumerate(found["attempts"]):
        y = 392 + i * 64
        begin, end = plot.x(steps[0] - 1), plot.x(steps[-1])
        figure.rect(begin, y, end - begin, 52, "r1")
        figure.text(begin + 16, y + 37, f"steps {steps[0]} to {steps[-1]}", "page", size=30)
        if i == 0:
            figure.text(end + 14, y + 37, "killed", "bad", size=30, style="bold")
        else:
            figure.text(begin - 16, y + 37, "again, from the checkpoint of step 40", "ink", "end", 30)
    return figure


FIGURES = {
    function.__name__: function
    for function in (
        one_or_four, memory_of_a_rank, measured_memory, three_splits, tensor_layer, pipeline, autograd, step_phases,
        loss_curve, recovery,
    )
}  # fmt: skip
