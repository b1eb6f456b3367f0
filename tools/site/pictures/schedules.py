"""Pictures of who computes and sends when: pipelines, and the buckets of data parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.errors import ConfigError
from frog.core.units import count
from frog.plan.links import collective_cost, payload_rate
from frog.plan.model import PlannedModel
from frog.train.comm.collectives.exchange import cuts
from frog.train.parallel.schedules.schedule import NAMES, make_schedule
from frog.train.parallel.schedules.simulation import Simulation, bubble_formula, simulate
from tools.site.pictures.scene import MARGIN, WIDTH, Scene

# ---- pipelines -------------------------------------------------------------------------------------------------------

VIRTUAL_STAGES = 2
_TITLES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved, 2 stages each", "zero_bubble": "zero bubble"}
_FILLS = {"F": "forward", "B": "backward", "W": "optimize"}
_LANE, _LEFT = 15.0, 20.0


def simulated(name: str, stages: int, micro: int) -> Simulation:
    """Run a schedule whose forward, input-gradient and weight-gradient passes take one unit each."""
    return simulate(make_schedule(name, stages, micro, VIRTUAL_STAGES if name == "interleaved" else 1))


def pipelines(stages: int, micro: int) -> Scene:
    """Four schedules of the same work, one below the other, on one scale of time"""
    runs = {}
    refused = {}
    for name in NAMES:
        try:
            runs[name] = simulated(name, stages, micro)
        except ConfigError as problem:
            refused[name] = problem.args[0].partition(": ")[2].splitlines()[0]
    longest = max((run.makespan for run in runs.values()), default=1.0)
    scale = (WIDTH - _LEFT - MARGIN) / longest
    block = 26 + _LANE * stages + 8
    scene = Scene(
        "Pipeline schedules: GPipe, 1F1B, interleaved and zero bubble on one scale of time",
        24 + block * len(NAMES),
        1.0,
    )
    x = MARGIN
    for fill, words in (
        ("forward", "forward"),
        ("backward", "backward"),
        ("optimize", "weights' gradient (zero bubble)"),
    ):
        scene.add(scene.rect(x, 10, 12, 12, fill) + scene.text(x + 17, 21, words))
        x += 17 + 8 * len(words) + 12
    for row, name in enumerate(NAMES):
        top = 30.0 + row * block
        if name in refused:
            for line, words in enumerate(_halves(refused[name])):
                scene.add(scene.text(MARGIN, top + 34 + 17 * line, words, "quiet"))
            continue
        run = runs[name]
        for rank in range(stages):
            scene.add(scene.text(MARGIN - 4, top + 32 + rank * _LANE, str(rank), "quiet"))
        _draw_run(scene, run, top + 20, scale)
        if run.makespan < longest:
            end = _LEFT + run.makespan * scale
            scene.add(scene.line([(end, top + 18), (end, top + 22 + _LANE * stages)], "good", 2))
    steps = 8
    _uncover(scene, 30, 24 + block * len(NAMES) - 30, [(0.3, 0.0), (steps, 1.0)])
    for row, name in enumerate(NAMES):
        y = 44.0 + row * block
        scene.add(scene.text(MARGIN, y, _TITLES[name], bold=True))
        if name in runs:
            said = f"bubble {runs[name].bubble:.1%}, rank 0 keeps {runs[name].peak_in_flight[0]}"
            scene.add(scene.text(WIDTH - MARGIN, y, said, at="end"), show=(steps, 999))
    for step in range(steps):
        scene.mark(
            step,
            f"{stages} ranks, {micro} micro-batches, time to the right. A rank that has no input waits: the bubble.",
        )
    best = min(runs, key=lambda name: runs[name].makespan)
    words = _TITLES[best].partition(",")[0]
    first = words[0].upper() + words[1:]
    scene.mark(steps, f"The same work; {first} ends first. A rank keeps the inputs of passes that wait for backward.")
    scene.end(steps + 4)
    return scene


def _halves(words: str) -> list[str]:
    middle = len(words) // 2
    cut = words.find(" ", middle)
    return [words] if len(words) < 50 or cut < 0 else [words[:cut], words[cut + 1 :]]


def _draw_run(scene: Scene, run: Simulation, top: float, scale: float) -> None:
    """Draw a path for all passes of a kind, and their micro-batches' numbers where there is room."""
    stages = len(run.schedule.ranks)
    for rank in range(stages):
        y = top + rank * _LANE
        scene.add(scene.rect(_LEFT, y, run.makespan * scale, _LANE - 2, "grid", "", 0))
    for kind, fill in _FILLS.items():
        path, numbers = [], []
        for action, (start, end) in run.times.items():
            if action.kind != kind:
                continue
            y = top + run.schedule.rank_of(action.stage) * _LANE
            x, width = _LEFT + start * scale, (end - start) * scale - 0.8
            path.append(f"M{x:.1f} {y:.1f}h{width:.1f}v{_LANE - 2:.0f}h-{width:.1f}z")
            if width >= 11 and micro_fits(action.micro, width):
                numbers.append((x + width / 2, y + 10.5, action.micro))
        if path:
            scene.add(f'<path class="f-{fill}" d="{"".join(path)}"/>')
        color = "white" if kind == "B" else "dark" if kind == "F" else "ground"
        if numbers:
            digits = "".join(f'<tspan x="{x:.1f}" y="{y:.1f}">{micro}</tspan>' for x, y, micro in numbers)
            scene.add(f'<text font-size="10" text-anchor="middle" class="f-{color}">{digits}</text>')


def micro_fits(micro: int, width: float) -> bool:
    """True if a micro-batch's number can be read in a pass of this width."""
    return 6.5 * len(str(micro)) + 3 <= width


def _uncover(scene: Scene, top: float, height: float, places: list[tuple[float, float]], left: float = _LEFT) -> None:
    """Cover what has not happened yet, up to the right edge: `places` are times and shares of the way."""
    span = WIDTH - MARGIN - left
    cover = scene.rect(left, top, WIDTH, height, "ground", "", 0)
    scene.add(
        f'<g fill-opacity=".88">{cover}</g>' + scene.line([(left, top), (left, top + height)], "bad", 1.5),
        move=[*((time, share * span, 0.0) for time, share in places), (places[-1][0] + 0.01, 2 * WIDTH, 0.0)],
    )


def formula_of(name: str, stages: int, micro: int) -> float:
    """Return the textbook's bubble of a schedule with this picture's times."""
    return bubble_formula(name, stages, micro, VIRTUAL_STAGES if name == "interleaved" else 1)


# ---- buckets ---------------------------------------------------------------------------------------------------------

MODEL = PlannedModel(layers=12, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=688, vocab=4096)
RANKS = 4
DELAY_S, BITS_PER_S, MTU = 1e-3, 1e9, 1500
BACKWARD_S = 0.04
"""For one layer: what a layer of this size takes on a laptop's core, about."""


@dataclass(frozen=True)
class Bucket:
    """The gradients of some layers, from the last layer on, and when they are full and reduced."""

    layers: range
    num_bytes: int
    full_s: float
    start_s: float
    end_s: float


def buckets_of(num_buckets: int) -> list[Bucket]:
    """Return the buckets of a backward pass that goes from the last layer to the first.

    A bucket is sent when it is full and the one before has been reduced. Its time is the planner's for a ring over
    ranks on different nodes, as in `frog run --nodes 4 --network`.
    """
    each = 4 * MODEL.dense_layer_parameters()
    found: list[Bucket] = []
    free_s = 0.0
    for part in cuts(MODEL.layers, num_buckets):
        num_bytes = each * (part.stop - part.start)
        full_s = BACKWARD_S * part.stop
        start_s = max(full_s, free_s)
        cost = collective_cost("all_reduce", num_bytes, [list(range(RANKS))])
        assert cost is not None
        free_s = start_s + cost.seconds(DELAY_S, payload_rate(BITS_PER_S, MTU))
        layers = range(MODEL.layers - part.stop, MODEL.layers - part.start)
        found.append(Bucket(layers, num_bytes, full_s, start_s, free_s))
    return found


def buckets(buckets: int) -> Scene:
    """Backward from the last layer to the first, and the all-reduce of each bucket below it"""
    found = buckets_of(buckets)
    backward_s = BACKWARD_S * MODEL.layers
    longest = max(buckets_of(number)[-1].end_s for number in BUCKETS)
    left = 84.0
    scale = (WIDTH - left - MARGIN) / longest
    scene = Scene("DDP's buckets: gradients are reduced while backward computes the others", 178, 1.0)
    scene.add(scene.text(MARGIN, 40, "backward"))
    scene.add(scene.text(MARGIN, 57, "layer", "quiet"))
    scene.add(scene.text(MARGIN, 100, "all-reduce"))
    scene.add(scene.text(MARGIN, 117, "bucket", "quiet"))
    for layer in range(MODEL.layers):
        x = left + BACKWARD_S * (MODEL.layers - 1 - layer) * scale
        scene.add(scene.rect(x, 26, BACKWARD_S * scale - 1, 34, "backward", "", 2))
        if layer % 2 == 0 and layer < 10:
            scene.add(scene.text(x + BACKWARD_S * scale / 2, 48, str(layer), "white", "middle", 12))
    for number, bucket in enumerate(found):
        x, width = left + bucket.start_s * scale, (bucket.end_s - bucket.start_s) * scale
        full = left + bucket.full_s * scale
        scene.add(scene.line([(full - 0.5, 60), (full - 0.5, 86)], "reduce", 1.5, "3 2"))
        scene.add(scene.rect(x, 86, width - 1, 34, "reduce", "", 2))
        if width > 10:
            scene.add(scene.text(x + width / 2, 108, str(number), "dark", "middle", 12))
    alone, done = left + backward_s * scale, left + found[-1].end_s * scale
    scene.add(scene.line([(alone, 20), (alone, 132)], "quiet", 1.5))
    scene.add(scene.line([(done, 80), (done, 132)], "good", 2))
    scene.add(scene.text(left, 150, f"backward {1000 * backward_s:.0f} ms", "quiet"))
    steps = 8
    words = f"all reduced after {1000 * found[-1].end_s:.0f} ms"
    scene.add(scene.text(WIDTH - MARGIN, 150, words, "good", "end", bold=True), show=(steps, 999))
    hidden = 1 - (found[-1].end_s - backward_s) / sum(bucket.end_s - bucket.start_s for bucket in found)
    words = f"{hidden:.0%} of the communication is hidden behind backward"
    scene.add(scene.text(WIDTH - MARGIN, 169, words, at="end"), show=(steps, 999))
    _uncover(scene, 22, 114, [(0.3, 0.0), (steps, found[-1].end_s / longest)], left)
    size = found[0].num_bytes / 1e6
    for step in range(steps):
        words = f"{count(buckets, 'bucket')} of {size:.1f} MB, {RANKS} ranks, 1 Gbit/s with 1 ms delay."
        scene.mark(step, f"{words} A full bucket is sent at once.")
    scene.mark(steps, _buckets_end(buckets))
    scene.end(steps + 4)
    return scene


BUCKETS = (1, 2, 3, 4, 6, 12)


def _buckets_end(now: int) -> str:
    times = {number: buckets_of(number)[-1].end_s for number in BUCKETS}
    best = min(times, key=lambda number: times[number])
    if now == 1:
        return "One bucket is full only when backward is done: nothing overlaps. Try more buckets."
    if now == best:
        return f"Of these numbers, {now} is the fastest: overlap without too many delays."
    if now < best:
        return f"The last bucket is large and is full last: nothing hides it. {best} buckets are faster here."
    return f"Each all-reduce pays its delays: {best} buckets are faster here."
