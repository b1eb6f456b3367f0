"""Figures of session A: one process learns, and why one is not enough."""

from __future__ import annotations

import torch
from draw import Figure, Plot, load

from frog.core.vocabulary import STEP_PHASES


def one_or_four() -> Figure:
    """The losses of one process and of four ranks, step by step: one line upon the other."""
    found = load("mean_gradient")
    alone, four = found["losses_alone"], found["losses_four"]
    figure = Figure(450)
    plot = Plot(figure, 80, 50, 1040, 310, (0, 40), (5, 8))
    plot.axes([(v, str(v)) for v in range(0, 41, 10)], [(v, str(v)) for v in (5, 6, 7, 8)], "step", "loss")
    plot.curve(list(enumerate(alone, 1)), "r0", 10)
    plot.curve(list(enumerate(four, 1)), "r1", 4, "12 10")
    apart = max(abs(a - b) for a, b in zip(alone, four, strict=True))
    figure.line([(640, 110), (700, 110)], "r0", 10)
    figure.text(715, 119, "one process", size=28)
    figure.line([(640, 160), (700, 160)], "r1", 4, "12 10")
    figure.text(715, 169, "four ranks", size=28)
    figure.text(640, 330, f"largest difference {apart:.0e}", "good", size=28, style="bold")
    return figure


def memory_of_a_rank() -> Figure:
    """Bytes of each weight in training, and what 7 billion weights come to."""
    figure = Figure(450)
    parts = (
        ("weights", 4, "forward"),
        ("gradients", 4, "backward"),
        ("Adam: mean", 4, "optimize"),
        ("Adam: square", 4, "zero"),
    )
    x = 0.0
    for name, size, color in parts:
        figure.box(x, 50, 268, 84, f"{size} bytes", color, size=32)
        figure.text(x + 134, 168, name, "ink", "middle", 26)
        x += 276
    figure.text(0, 32, "one weight in float32", "quiet", size=26)
    figure.text(1104, 32, "= 16 bytes", "ink", "end", 30, "bold")
    unit = 1104 / 140
    figure.text(0, 250, "7 billion weights", "quiet", size=26)
    for i, (_, _, color) in enumerate(parts):
        figure.rect(i * 28 * unit, 268, 28 * unit - 3, 70, color, round_=2)
    figure.text(112 * unit + 12, 314, "112 GB", "ink", size=34, style="bold")
    figure.line([(80 * unit, 252), (80 * unit, 372)], "bad", 5)
    figure.text(80 * unit, 408, "one GPU: 80 GB", "bad", "middle", 28)
    figure.text(0, 408, "and no activation yet", "quiet", size=26)
    return figure


def measured_memory() -> Figure:
    """What the demo's rank held, measured: a tiny model is mostly activations."""
    found = load("curve")["memory"]
    figure = Figure(400)
    total = sum(found.values())
    x = 0.0
    colors = {"parameters": "forward", "gradients": "backward", "optimizer": "optimize", "activations": "reduce"}
    for i, (name, size) in enumerate(found.items()):
        width = 1160 * size / total
        figure.rect(x, 60, width - 3, 110, colors[name], round_=2)
        figure.rect(0 + 290 * i, 226, 28, 28, colors[name])
        figure.text(40 + 290 * i, 250, name, "ink", size=28)
        figure.text(40 + 290 * i, 292, f"{size / 1e6:.2f} MB", "ink", size=32, style="bold")
        x += width
    figure.text(0, 370, f"weights, gradients, Adam: 664,192 x 16 bytes = {664192 * 16 / 1e6:.2f} MB", "quiet", size=28)
    return figure


def three_splits() -> Figure:
    """The same model and batch, cut in three ways for two ranks."""
    figure = Figure(450)
    for i, (name, what) in enumerate((("data", "samples"), ("tensor", "matrices"), ("pipeline", "layers"))):
        x = 20 + i * 395
        figure.text(x + 165, 34, name, "ink", "middle", 32, "bold")
        figure.text(x + 165, 70, f"cuts the {what}", "quiet", "middle", 26)
        for layer in range(3):
            y = 120 + layer * 76
            if name == "data":
                figure.rect(x, y, 150, 58, "r0")
                figure.rect(x + 180, y, 150, 58, "r1")
            elif name == "tensor":
                figure.rect(x, y, 162, 58, "r0")
                figure.rect(x + 168, y, 162, 58, "r1")
            else:
                figure.rect(x, y + (18 if layer == 2 else 0), 330, 58, "r0" if layer < 2 else "r1")
        if name == "data":
            figure.box(x, 360, 150, 50, "batch 1/2", "raised", "line", 24)
            figure.box(x + 180, 360, 150, 50, "batch 2/2", "raised", "line", 24)
        else:
            figure.box(x, 372 if name == "pipeline" else 360, 330, 50, "whole batch", "raised", "line", 24)
    return figure


def tensor_layer() -> Figure:
    """A feed-forward layer on two ranks: columns, then rows, then one all-reduce."""
    figure = Figure(450)
    figure.box(0, 160, 130, 130, "x\nwhole", "raised", "line", 28)
    for rank in (0, 1):
        y = 40 + rank * 230
        figure.arrow(136, 225, 196, y + 70, f"r{rank}")
        figure.box(200, y, 210, 140, f"W1, columns\nhalf {rank + 1}", f"r{rank}", size=26)
        figure.arrow(414, y + 70, 454, y + 70, f"r{rank}")
        figure.box(458, y + 30, 130, 80, "SwiGLU", "raised", f"r{rank}", 26)
        figure.arrow(592, y + 70, 632, y + 70, f"r{rank}")
        figure.box(636, y, 210, 140, f"W2, rows\nhalf {rank + 1}", f"r{rank}", size=26)
        figure.arrow(850, y + 70, 902, 225, f"r{rank}")
    figure.box(906, 150, 120, 150, "all-\nreduce", "reduce", size=28)
    figure.arrow(1030, 225, 1062, 225)
    figure.box(1064, 160, 96, 130, "y\nwhole", "raised", "line", 28)
    figure.text(523, 232, "no message in between", "quiet", "middle", 26)
    return figure


def _schedule(figure: Figure, name: str, top: float) -> None:
    found = load("pipeline")[name]
    unit = 1020 / load("pipeline")["gpipe"]["makespan"]
    for rank, actions in enumerate(found["actions"]):
        y = top + rank * 44
        figure.rect(135, y, 1020, 40, "grid", round_=2)
        figure.text(0, y + 29, f"stage {rank}", "quiet", size=24)
        for kind, micro, start, end in actions:
            fill = "forward" if kind == "F" else "backward"
            figure.rect(135 + start * unit + 1, y, (end - start) * unit - 2, 40, fill, round_=2)
            color = "dark" if kind == "F" else "white"
            figure.text(135 + (start + end) / 2 * unit, y + 29, str(micro), color, "middle", 24)


def pipeline() -> Figure:
    """Two real schedules of four stages and eight micro-batches."""
    found = load("pipeline")
    figure = Figure(446)
    for i, name in enumerate(("gpipe", "1f1b")):
        top = 36 + i * 230
        one = found[name]
        title = {"gpipe": "GPipe", "1f1b": "1F1B"}[name]
        words = f"{title}: bubble {one['bubble']:.0%}, stage 0 keeps {one['held'][0]} micro-batches"
        figure.text(135, top - 12, words, "ink", size=26, style="bold")
        _schedule(figure, name, top)
    return figure


def autograd() -> Figure:
    """The graph that autograd really wrote for one neuron and its loss."""
    x, w = torch.ones(3), torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    b = torch.tensor(0.25, requires_grad=True)
    loss = (torch.nn.functional.silu(x @ w + b) - 1) ** 2
    loss.backward()
    names, node = [], loss.grad_fn
    while node is not None and "AccumulateGrad" not in type(node).__name__:
        names.append(type(node).__name__.removesuffix("0").removesuffix("Backward"))
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
    names.reverse()
    figure = Figure(430)
    for i, name in enumerate(names):
        px = 190 + i * 164
        figure.box(px, 150, 136, 74, name, "backward", size=26)
        if i:
            figure.arrow(px - 26, 175, px - 2, 175, "forward", 4)
            figure.arrow(px - 2, 200, px - 26, 200, "backward", 4)
    assert w.grad is not None
    assert b.grad is not None
    figure.box(0, 50, 150, 66, "w", "forward", size=30)
    figure.box(0, 250, 150, 66, "b", "forward", size=30)
    figure.arrow(150, 100, 190, 158, "forward", 4)
    figure.line([(150, 283), (422, 283), (422, 240)], "forward", 4)
    figure.arrow(422, 283, 422, 228, "forward", 4)
    figure.text(170, 50, "w.grad = " + " ".join(f"{g:.2f}" for g in w.grad.tolist()), "ink", size=26)
    figure.text(170, 330, f"b.grad = {b.grad.item():.2f}", "ink", size=26)
    figure.text(1150, 280, f"loss = {loss.item():.2f}", "ink", "end", 30, "bold")
    figure.arrow(0, 391, 60, 391, "forward", 5)
    figure.text(76, 400, "forward writes it", size=28)
    figure.arrow(660, 391, 600, 391, "backward", 5)
    figure.text(676, 400, "backward reads it", size=28)
    return figure


def step_phases() -> Figure:
    """Where a step of one real process goes."""
    found = load("curve")["phase_ms"]
    phases = [phase for phase in STEP_PHASES if phase in found]
    total = sum(found[phase] for phase in phases)
    figure = Figure(400)
    x = 0.0
    for phase in phases:
        width = 1160 * found[phase] / total
        figure.rect(x, 40, width - 2, 110, phase, round_=2)
        x += width
    shown = sorted(phases, key=lambda phase: -found[phase])[:4]
    for i, phase in enumerate(shown):
        px = 290 * i
        figure.rect(px, 214, 28, 28, phase)
        figure.text(px + 40, 238, phase, size=28)
        figure.text(px + 40, 288, f"{found[phase]:.1f} ms", size=34, style="bold")
        figure.text(px + 40, 328, f"{found[phase] / total:.1%}", "quiet", size=28)
    return figure


def loss_curve() -> Figure:
    """The loss of each step and the held-out loss of a real run."""
    found = load("curve")
    figure = Figure(450)
    plot = Plot(figure, 80, 50, 1040, 310, (0, 400), (4, 8))
    plot.axes([(v, str(v)) for v in range(0, 401, 100)], [(v, str(v)) for v in range(4, 9)], "step", "loss")
    plot.curve(list(enumerate(found["loss"], 1)), "r0", 3)
    plot.curve(found["held_out"], "heldout", 4)
    for step, loss in found["held_out"]:
        plot.dot(step, loss, "heldout", 6)
    blind = 7.6246
    plot.curve([(0, blind), (400, blind)], "quiet", 2.5, "8 8")
    figure.text(1120, plot.y(blind) - 10, "a blind guess: ln 2048 = 7.62", "quiet", "end", 26)
    figure.text(620, 140, "training batch", "r0", size=28, style="bold")
    figure.text(620, 180, "held-out text", "heldout", size=28, style="bold")
    step, loss = found["held_out"][-1]
    figure.text(1120, plot.y(loss) - 34, f"{loss:.2f}", "heldout", "end", 30, "bold")
    return figure


def recovery() -> Figure:
    """A rank killed in step 45, the restart from step 40, and the losses upon those of a run never disturbed."""
    found = load("recovery")
    calm, again = found["losses"]["calm"], found["losses"]["again"]
    first, second = found["attempts"][0], found["attempts"][1]
    figure = Figure(450)
    plot = Plot(figure, 80, 40, 1040, 220, (0, 60), (4.5, 8))
    plot.axes([(v, str(v)) for v in range(0, 61, 10)], [(v, str(v)) for v in (5, 6, 7)], "step", "loss")
    plot.curve(list(enumerate(calm, 1)), "r0", 10)
    plot.curve(list(enumerate(again, 1)), "r1", 4, "12 10")
    figure.text(640, 80, "never disturbed", "r0", size=28, style="bold")
    figure.text(640, 118, "killed and resumed", "r1", size=28, style="bold")
    for i, steps in enumerate((first, second)):
        y = 344 + i * 50
        figure.rect(plot.x(steps[0] - 1), y, plot.x(steps[-1]) - plot.x(steps[0] - 1), 40, "r1")
        words = f"steps {steps[0]} to {steps[-1]}"
        if i == 0:
            figure.text(plot.x(steps[0] - 1) + 14, y + 30, words, "page", size=26)
            figure.text(plot.x(steps[-1]) + 12, y + 30, "killed", "bad", size=26, style="bold")
        else:
            figure.text(plot.x(steps[0] - 1) - 14, y + 30, "again from the checkpoint of step 40", "ink", "end", 26)
            figure.text(plot.x(steps[0] - 1) + 14, y + 30, words, "page", size=26)
    return figure


FIGURES = {
    function.__name__: function
    for function in (
        one_or_four, memory_of_a_rank, measured_memory, three_splits, tensor_layer, pipeline, autograd, step_phases,
        loss_curve, recovery,
    )
}  # fmt: skip
