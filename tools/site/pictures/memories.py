"""Pictures of memory: what ZeRO's stages leave of it, and what FSDP gathers and frees during a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from frog.plan.layout import FROG, Layout, Traits
from frog.plan.memory import cluster_states
from frog.plan.model import PlannedModel
from tools.site.pictures.scene import MARGIN, WIDTH, Scene

SIZES: Final = (1e9, 3e9, 7e9, 13e9, 70e9, 405e9)
RANKS: Final = (1, 2, 4, 8, 16, 64, 256, 1024)
PRECISIONS: Final = ("bf16 + float32 masters", "float32")
GPU_BYTES: Final = 80e9
_NAMES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
_PARTS = ("parameters", "gradients", "optimizer")
_FILLS = ("forward", "backward", "optimize")


def state_bytes(stage: int, parameters: float, ranks: int, precision: str) -> list[float]:
    """Return a rank's bytes of parameters, gradients and optimizer state, by the planner's formula."""
    traits = FROG if precision == "float32" else Traits(gradient_bytes=2)
    layout = Layout(seq_len=1, global_batch=ranks, dp=ranks, zero=stage, traits=traits)
    return [float(size) for size in cluster_states(layout, (parameters, 0.0))]


def in_gb(num_bytes: float) -> str:
    """Write a number of bytes with three digits."""
    return f"{num_bytes / 1e9:,.0f} GB" if num_bytes >= 100e9 else f"{num_bytes / 1e9 + 1e-9:.3g} GB"


def zero(parameters: float, ranks: int, precision: str) -> Scene:
    """The state of a rank under DDP and ZeRO 1 to 3, one bar each"""
    rows = [state_bytes(stage, parameters, ranks, precision) for stage in range(4)]
    longest = max(sum(rows[0]), 1.15 * GPU_BYTES)
    left = 70.0
    scale = (WIDTH - left - MARGIN) / longest
    scene = Scene("Memory of a rank under DDP and ZeRO 1 to 3: what is divided shrinks to its share", 262, 1.8)
    x = float(MARGIN)
    for fill, words in zip(_FILLS, _PARTS, strict=True):
        scene.add(scene.rect(x, 12, 12, 12, fill) + scene.text(x + 17, 23, words))
        x += 17 + 8 * len(words) + 12
    limit = left + GPU_BYTES * scale
    scene.add(scene.line([(limit, 38), (limit, 240)], "bad", 1.5, "4 3"))
    scene.add(scene.text(min(limit, WIDTH - 40), 255, f"{GPU_BYTES / 1e9:.0f} GB", "bad", "middle"))
    for row, sizes in enumerate(rows):
        y = 40.0 + 51 * row
        before, begin, end = rows[row - 1] if row else sizes, row + 0.3, row + 1.2
        scene.add(scene.text(MARGIN, y + 17, _NAMES[row], bold=True))
        old_x = new_x = left
        for fill, old, new in zip(_FILLS, before, sizes, strict=True):
            if old > 0:
                scene.add(
                    scene.rect(old_x, y, old * scale, 24, fill, "", 0),
                    show=(float(row), 999.0),
                    grow=[(begin, 1.0), (end, new / old)] if new != old else (),
                    origin=(old_x, y),
                    move=[(begin, 0, 0), (end, new_x - old_x, 0)] if abs(new_x - old_x) > 0.05 else (),
                )
            old_x, new_x = old_x + old * scale, new_x + new * scale
        fits = sum(sizes) <= GPU_BYTES
        words = f"{in_gb(sum(sizes))}{'' if fits else ': more than a GPU has'}"
        is_crossed = left - 4 < limit < left + 8 * len(words)
        scene.add(
            scene.text(limit + 6 if is_crossed else left, y + 41, words, "ink" if fits else "bad"), show=(end, 999.0)
        )
    numbers = "2 + 2 + 12" if precision != "float32" else "4 + 4 + 8"
    billions = f"{parameters / 1e9:g} billion parameters"
    captions = (
        f"DDP: {billions} at {numbers} bytes. Every rank has all of it, whether 1 or {ranks} ranks train.",
        f"ZeRO-1: each rank keeps the optimizer's state of 1/{ranks} of the parameters, and updates these.",
        "ZeRO-2: and keeps only their gradients. The others are reduced to their ranks, then freed.",
        "ZeRO-3, FSDP: and only their weights. The others are gathered when a layer computes, then freed.",
    )
    for row, words in enumerate(captions):
        scene.mark(row, words)
    fitting = [name for name, sizes in zip(_NAMES, rows, strict=True) if sum(sizes) <= GPU_BYTES]
    words = f"{billions} on {ranks} {'rank' if ranks == 1 else 'ranks'}: "
    words += (
        f"{', '.join(fitting)} {'fits' if len(fitting) == 1 else 'fit'} in 80 GB"
        if fitting
        else "no stage fits in 80 GB"
    )
    scene.mark(4, f"{words}, before the first activation.")
    scene.end(6)
    return scene


# ---- FSDP ------------------------------------------------------------------------------------------------------------

MODEL = PlannedModel(layers=8, hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=2816, vocab=8192, tied=True)
ROOT = -1
"""The unit with the embedding and the last norm."""
FORWARD, BACKWARD, SEND = 1.0, 2.0, 0.7
"""Times of a layer's passes and of a gather or reduction, in forward passes of a layer: an example."""

Kind = Literal["gather", "forward", "backward", "free", "reduce", "reduced"]


@dataclass(frozen=True)
class Event:
    """Something that begins, for a unit: a layer or the root."""

    time: float
    kind: Kind
    unit: int


def unit_parameters(unit: int) -> int:
    """Return the number of parameters of a unit."""
    if unit == ROOT:
        return MODEL.embedding_parameters() + MODEL.head_parameters()
    return MODEL.dense_layer_parameters()


def fsdp_events(num_layers: int = MODEL.layers) -> list[Event]:
    """Return one micro-batch under ZeRO-3, as `parallel/data/zero3.py` plans it: one layer is gathered ahead."""
    events = [Event(0.0, "gather", ROOT)]
    link = now = SEND
    ready = {ROOT: SEND}

    def begin(unit: int, time: float) -> None:
        nonlocal link
        if unit not in ready:
            events.append(Event(time, "gather", unit))  # its memory is taken now, even if the link is busy
            ready[unit] = link = max(link, time) + SEND

    def free(unit: int, time: float) -> None:
        if unit in ready:
            del ready[unit]
            events.append(Event(time, "free", unit))

    sent: list[int] = []

    def reduce(unit: int, time: float) -> float:
        """Send a unit's gradient; the one before has been received by then, and is freed."""
        nonlocal link
        start = max(link, time)
        events.append(Event(start, "reduce", unit))
        events.extend(Event(start, "reduced", earlier) for earlier in sent)
        sent[:] = [unit]
        link = start + SEND
        return link

    for layer in range(num_layers):
        begin(layer, now)
        now = max(now, ready[layer])
        if layer + 1 < num_layers:
            begin(layer + 1, now)
        events.append(Event(now, "forward", layer))
        now += FORWARD
        if layer < num_layers - 1:
            free(layer, now)
    for layer in reversed(range(num_layers)):
        free(layer + 1, now)
        begin(layer, now)
        now = max(now, ready[layer])
        if layer > 0:
            begin(layer - 1, now)
        events.append(Event(now, "backward", layer))
        now += BACKWARD
        last = reduce(layer, now)
    last = reduce(ROOT, last)
    events.append(Event(last, "reduced", ROOT))
    free(ROOT, last)
    free(0, last)
    return sorted(events, key=lambda event: event.time)


def gathered_over_time(events: list[Event]) -> list[tuple[float, int]]:
    """Return the bytes, from each time on, of whole parameters and of gradients that are not reduced yet."""
    changes: dict[float, int] = {}
    root_gradient = min(event.time for event in events if event.kind == "backward")
    changes[root_gradient] = 4 * unit_parameters(ROOT)
    signs = {"gather": 1, "free": -1, "backward": 1, "reduced": -1}
    for event in events:
        if event.kind in signs:
            change = signs[event.kind] * 4 * unit_parameters(event.unit)
            changes[event.time] = changes.get(event.time, 0) + change
    found, total = [], 0
    for time in sorted(changes):
        total += changes[time]
        found.append((time, total))
    return found


def fsdp(ranks: int) -> Scene:
    """Which layers are whole at each moment of a step, and the memory of weights and gradients below"""
    events = fsdp_events()
    whole = 8 * sum(unit_parameters(unit) for unit in range(ROOT, MODEL.layers))
    shard = whole / ranks
    curve = gathered_over_time(events)
    end = max(event.time for event in events)
    scene = Scene("FSDP: a layer is gathered before it computes and freed afterwards; memory over a step", 312, 0.8)
    left, top, bottom = 44.0, 128.0, 284.0
    per = 0.8
    _units(scene, events, end, per)
    scale_x, scale_y = (WIDTH - left - MARGIN) / end, (bottom - top) / (1.08 * whole)

    def y_of(num_bytes: float) -> float:
        return bottom - num_bytes * scale_y

    points = [(left, y_of(shard))]
    for time, num_bytes in curve:
        x = left + time * scale_x
        points += [(x, points[-1][1]), (x, y_of(shard + num_bytes))]
    points += [(WIDTH - MARGIN, points[-1][1])]
    area = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(left, bottom), *points, (WIDTH - MARGIN, bottom)])
    scene.add(f'<polygon points="{area}" class="f-reduce"/>')
    scene.add(scene.rect(left, y_of(shard), WIDTH - MARGIN - left, shard * scale_y, "optimize", "", 0))
    _uncover(scene, left, top, bottom, end, per)
    scene.add(scene.line([(left, bottom), (WIDTH - MARGIN, bottom)]))
    scene.add(scene.line([(left, y_of(whole)), (WIDTH - MARGIN, y_of(whole))], "bad", 1.5, "4 3"))
    peak = shard + max(num_bytes for _, num_bytes in curve)
    scene.add(scene.text(WIDTH - MARGIN, y_of(whole) + 17, f"DDP: {whole / 1e6:.0f} MB", "bad", "end"))
    scene.add(scene.text(left + 4, y_of(whole) + 17, f"FSDP, peak: {peak / 1e6:.0f} MB"))
    scene.add(scene.text(MARGIN, bottom + 4, "0", "quiet"))
    scene.add(scene.text(left, bottom + 18, "time: forward, then backward", "quiet"))
    scene.add(scene.rect(262, bottom + 8, 12, 12, "optimize") + scene.text(278, bottom + 18, "shard"))
    scene.add(scene.rect(326, bottom + 8, 12, 12, "reduce") + scene.text(342, bottom + 18, "whole"))
    _fsdp_marks(scene, events, end, per, ranks, whole, peak)
    return scene


def _units(scene: Scene, events: list[Event], end: float, per: float) -> None:
    """Draw a cell for each unit: outlined while sharded, filled while whole, dark while it computes."""
    count = MODEL.layers + 1
    cell = (WIDTH - 2 * MARGIN) / count
    scene.add(scene.text(MARGIN, 24, "weights on this rank", bold=True))
    x = 180.0
    for fill, words in (("raised", "sharded"), ("reduce", "whole"), ("backward", "computes")):
        scene.add(scene.rect(x, 13, 12, 12, fill, "line") + scene.text(x + 16, 24, words))
        x += 28 + 7.6 * len(words)
    for unit in range(ROOT, MODEL.layers):
        left = MARGIN + (unit + 1) * cell
        name = "root" if unit == ROOT else str(unit)
        scene.add(scene.box(left + 1, 36, cell - 3, 40, name, "raised", "line"))
        own = [event for event in events if event.unit == unit]
        opened = None
        for event in own:
            if event.kind == "gather":
                opened = event.time
            if event.kind == "free" and opened is not None:
                scene.add(scene.box(left + 1, 36, cell - 3, 40, name, "reduce"), show=(opened * per, event.time * per))
        for kind, length in (("forward", FORWARD), ("backward", BACKWARD)):
            for event in own:
                if event.kind == kind:
                    scene.add(
                        scene.box(left + 1, 36, cell - 3, 40, name, "backward"),
                        show=(event.time * per, (event.time + length) * per),
                    )
        for event in own:
            if event.kind == "reduce":
                scene.add(
                    scene.text(left + cell / 2 - 0.5, 94, "reduce", "reduce", "middle", 12),
                    show=(event.time * per, (event.time + SEND) * per),
                )
    scene.add(scene.text(MARGIN, 118, "weights and gradients of a rank", bold=True))


def _uncover(scene: Scene, left: float, top: float, bottom: float, end: float, per: float) -> None:
    span = WIDTH - MARGIN - left
    cover = scene.rect(left, top, WIDTH, bottom - top, "ground", "", 0)
    scene.add(
        f'<g fill-opacity=".9">{cover}</g>' + scene.line([(left, top), (left, bottom)], "bad", 1.5),
        move=[(0.0, 0, 0), (end * per, span, 0), (end * per + 0.01, 2 * WIDTH, 0)],
    )


def _fsdp_marks(
    scene: Scene, events: list[Event], end: float, per: float, ranks: int, whole: float, peak: float
) -> None:
    scene.mark(
        0, f"{ranks} ranks, each with 1/{ranks} of every layer. The root (embedding) is gathered first, and stays."
    )
    for event in events:
        if event.kind == "forward":
            ahead = f" Layer {event.unit + 1} is gathered meanwhile." if event.unit + 1 < MODEL.layers else ""
            last = " It stays whole: backward begins with it." if not ahead else ""
            scene.mark(event.time * per, f"Forward of layer {event.unit}.{ahead}{last}")
        elif event.kind == "backward":
            words = f"Backward of layer {event.unit}."
            if event.unit + 1 < MODEL.layers:
                words += f" The gradient of layer {event.unit + 1} is reduced."
            if event.unit > 0:
                words += f" Layer {event.unit - 1} is gathered."
            scene.mark(event.time * per, words)
    scene.mark(
        end * per,
        f"Peak {peak / 1e6:.0f} MB instead of {whole / 1e6:.0f}: the shard, and weights and gradients "
        "of the root and two layers.",
    )
    scene.end(end * per + 5)
