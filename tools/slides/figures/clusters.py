"""Figures of session C: how machines find each other, what a scheduler does, and what survives a failure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from draw import Figure, Plot, load

from frog.launch.network import parse_network
from frog.plan.links import collective_cost, payload_rate

_RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def rendezvous() -> Figure:
    """Two simulated nodes of two ranks: every rank connects to one address and one port on the node of rank 0."""
    found = load("world")
    node = found["nodes"][0]
    figure = Figure()
    for i in (0, 1):
        x = 0 if i == 0 else 690
        figure.rect(x, 10, 470, 410, "raised", "line")
        figure.text(x + 24, 62, f"node {i}", "quiet", size=32)
    figure.text(24, 122, "MASTER_ADDR : MASTER_PORT", "ink", size=26, style="mono")
    figure.box(24, 142, 422, 92, f"{node['master_addr']} : {node['master_port']}", "reduce", size=38)
    for rank in found["ranks"]:
        x = 24 + 218 * rank["local_rank"] + 690 * rank["node_rank"]
        figure.box(x, 306, 204, 94, f"rank {rank['rank']}", f"r{rank['rank']}", size=36)
    figure.arrow(126, 302, 126, 240, "r0", 5)
    figure.arrow(344, 302, 344, 240, "r1", 5)
    figure.arrow(816, 302, 452, 206, "r2", 5)
    figure.arrow(1034, 302, 452, 170, "r3", 5)
    figure.text(
        580, 492, "each rank sends its number; once all four join, each learns all addresses", "ink", "middle", 30
    )
    return figure


def ranks() -> Figure:
    """The variables of each rank of a real world of two nodes with two ranks, and their names by launcher."""
    found = load("world")
    size = found["nodes"][0]["world_size"]
    figure = Figure()
    columns = (440, 680, 920, 1160)
    for x, words in zip(columns, ("WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "RANK"), strict=True):
        figure.text(x, 32, words, "ink", "end", 28, "mono bold")
    for i, rank in enumerate(found["ranks"]):
        y = 52 + i * 60
        figure.box(0, y, 170, 50, f"rank {rank['rank']}", f"r{rank['rank']}", size=30)
        for x, value in zip(columns, (size, rank["node_rank"], rank["local_rank"], rank["rank"]), strict=True):
            figure.text(x, y + 38, str(value), "ink", "end", 36, "bold" if x == columns[-1] else "")
    figure.line([(0, 306), (1160, 306)], "line", 2)
    for i, (launcher, *names) in enumerate(_NAMES):
        y = 346 + i * 48
        figure.text(0, y, launcher, "quiet", size=28)
        for x, name in zip(columns, names, strict=True):
            figure.text(x, y, name, "quiet" if name.startswith("no") else "ink", "end", 26, "mono")
    figure.text(0, 510, "RANK = NODE_RANK × ranks on a node + LOCAL_RANK", "ink", size=26, style="bold")
    figure.text(1160, 510, "*: OMPI_COMM_WORLD_*", "quiet", "end", 24)
    return figure


_NAMES = (
    ("torchrun", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "RANK"),
    ("srun", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_PROCID"),
    ("mpirun", "*SIZE", "none", "*LOCAL_RANK", "*RANK"),
)
"""Each launcher's names for the four numbers."""


def _kib(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


def alpha_beta() -> Figure:
    """Time of a two-node all-reduce by size: measured and computed, with only rate or only delay changed."""
    figure = Figure()
    found = load("links")["ms"]
    plot = Plot(figure, 110, 44, 1020, 396, (3500, 20e6), (5, 2500), "xy")
    sizes = [int(size) for size in next(iter(found.values()))]
    ticks = [(v, f"{v:,}") for v in (10, 100, 1000)]
    plot.axes([(size, _kib(size)) for size in sizes], ticks, "", "ms: all-reduce of two nodes")
    names = dict(zip(found, ("100 Mbit/s, 20 ms", "10 × the rate", "1/10 of the delay"), strict=True))
    for i, (text, times) in enumerate(found.items()):
        plot.curve([(size, _formula_ms(text, size)) for size in sizes], f"r{i}", 4)
        for size, ms in times.items():
            plot.dot(int(size), ms, f"r{i}", 10)
        figure.line([(150, 72 + 46 * i), (220, 72 + 46 * i)], f"r{i}", 4)
        figure.dot(185, 72 + 46 * i, 10, f"r{i}")
        figure.text(240, 82 + 46 * i, names[text], size=30)
    figure.text(110, 512, "dots: measured with gloo; lines: 4 delays + bytes / rate", "quiet", size=26)
    return figure


def _formula_ms(text: str, num_bytes: int) -> float:
    """Compute the time of a two-node all-reduce by gloo's ring."""
    link = parse_network(text)
    assert link.rate_bits_per_s, text
    cost = collective_cost("all_reduce", num_bytes, [[0, 1]])
    assert cost is not None
    return 1e3 * cost.seconds(link.delay_s, payload_rate(link.rate_bits_per_s, link.mtu))


def slurm() -> Figure:
    """Stages of a job (sbatch, allocation, srun's workers, cleanup), and the program behind each."""
    figure = Figure()
    stages = [
        ("sbatch", "you, once", "data", "the file goes\ninto the queue"),
        ("allocate", "the controller", "forward", "2 nodes with\n4 GPUs each"),
        ("srun", "the first node", "backward", "one task a node:\ntorchrun, 4 ranks"),
        ("cleanup", "Slurm", "optimize", "no process stays;\nrequeue or end"),
    ]
    for i, (name, who, color, what) in enumerate(stages):
        x = i * 300
        figure.box(x, 10, 260, 104, name, color, size=40)
        figure.text(x + 130, 160, who, "quiet", "middle", 28)
        for j, line in enumerate(what.split("\n")):
            figure.text(x + 130, 212 + 40 * j, line, "ink", "middle", 30)
        if i < 3:
            figure.arrow(x + 264, 62, x + 297, 62, width=5)
    for node in (0, 1):
        x = 300 + node * 435
        figure.rect(x, 300, 425, 154, "raised", "line")
        figure.text(x + 20, 344, f"SLURM_NODEID {node}", "quiet", size=28)
        for rank in range(4):
            figure.box(x + 20 + 98 * rank, 362, 90, 76, str(4 * node + rank), f"r{4 * node + rank}", size=36)
    figure.text(0, 382, "8 ranks,", "ink", size=34, style="bold")
    figure.text(0, 426, "one world", "ink", size=34, style="bold")
    figure.text(1160, 506, "rendezvous on the first node; the port depends on the job id", "quiet", "end", 28)
    return figure


def pods() -> Figure:
    """A pod requests GPUs: the device plugin counts them, the scheduler places the pod, the kubelet assigns them."""
    figure = Figure()
    figure.box(0, 40, 262, 130, "pod asks for\nnvidia.com/gpu: 4", "forward", size=26)
    figure.text(131, 214, "whole GPUs", "quiet", "middle", 28)
    figure.arrow(267, 105, 316, 105, width=5)
    figure.box(320, 40, 200, 130, "scheduler", "backward", size=34)
    figure.text(420, 214, "finds a node", "quiet", "middle", 28)
    figure.arrow(525, 105, 594, 105, width=5)
    figure.rect(600, 0, 560, 420, "raised", "line")
    figure.text(624, 48, "a node", "quiet", size=30)
    figure.box(624, 70, 220, 100, "kubelet", "optimize", size=34)
    figure.box(916, 70, 220, 100, "device plugin", "reduce", size=28)
    figure.arrow(912, 102, 850, 102, width=5)
    figure.arrow(848, 140, 910, 140, width=5)
    figure.text(624, 230, "1: “this node has 8 GPUs”", size=28)
    figure.text(624, 272, "2: “give pod 0 the GPUs 0 to 3”", size=28)
    for gpu in range(8):
        figure.box(624 + 65 * gpu, 304, 57, 94, str(gpu), "r0" if gpu < 4 else "grid", size=34)
    for i, (name, meaning) in enumerate((("pod's index", "NODE_RANK"), ("pod 0's host name", "MASTER_ADDR"))):
        figure.text(0, 320 + 62 * i, name, "quiet", size=30)
        figure.text(560, 320 + 62 * i, meaning, "ink", "end", 30, "mono bold")
    figure.text(0, 498, "The plugin passes device files: the pod sees its four GPUs", "ink", size=28)
    return figure


def commit() -> Figure:
    """Four stages of a checkpoint, and the files that remain after a kill in each."""
    figure = Figure()
    moments = [
        ("1 write", "each rank its part,\nin a staging folder", "the one before\ncounts"),
        ("2 flush", "fsync: the bytes\nare on disk", "the one before\ncounts"),
        ("3 manifest", "rank 0: sizes and\nSHA-256 of all", "the one before\ncounts"),
        ("4 rename", "one step of the\nfile system", "the new one\ncounts"),
    ]
    for i, (name, what, left) in enumerate(moments):
        x = i * 300
        figure.box(x, 6, 260, 92, name, "checkpoint" if i < 3 else "optimize", size=38)
        for j, line in enumerate(what.split("\n")):
            figure.text(x + 130, 146 + 38 * j, line, "ink", "middle", 28)
        if i < 3:
            figure.arrow(x + 264, 52, x + 297, 52, width=5)
        figure.text(x + 130, 252, "killed here:" if i < 3 else "killed after it:", "bad", "middle", 30, "bold")
        for j, line in enumerate(left.split("\n")):
            figure.text(x + 130, 300 + 38 * j, line, "good" if i == 3 else "ink", "middle", 30, "bold")
    met, good = _campaign()
    figure.line([(0, 372), (1160, 372)], "line", 2)
    figure.text(0, 430, f"{met} faults injected, in every phase of every step:", "ink", size=34)
    figure.text(
        0, 486, f"{good} runs ended with the uninterrupted run's weights, bitwise", "good", size=30, style="bold"
    )
    return figure


def _campaign() -> tuple[int, int]:
    """Results of the campaign of all faults: faults that struck, and runs that ended with the undisturbed weights."""
    words = (_RESULTS / "chaos_two-ranks.txt").read_text()
    met = re.search(r"of (\d+) faults (?:met|tested)", words)
    good = re.search(r"undisturbed run's weights: (\d+) of", words)
    assert met, "chaos_two-ranks.txt"
    assert good, "chaos_two-ranks.txt"
    return int(met[1]), int(good[1])


COMPUTE_MS, GRADIENT_BYTES, NODES = 200.0, 2_656_768, (1, 2, 4, 8, 16, 32)
LINKS = {  # delay in ms, bytes in a ms
    "100 Mbit/s, 20 ms": (20.0, 12_500.0),
    "1 Gbit/s, 1 ms": (1.0, 125_000.0),
    "10 Gbit/s, 0.1 ms": (0.1, 1_250_000.0),
}


def reduce_ms(nodes: int, delay_ms: float, bytes_per_ms: float) -> float:
    """Return the alpha-beta formula of a ring all-reduce of the gradient."""
    return 2 * (nodes - 1) * delay_ms + 2 * (nodes - 1) / nodes * GRADIENT_BYTES / bytes_per_ms


def step_ms(nodes: int, delay_ms: float, bytes_per_ms: float) -> float:
    """Compute the time of a step with evenly divided computation, followed by the all-reduce."""
    return COMPUTE_MS / nodes + reduce_ms(nodes, delay_ms, bytes_per_ms)


def scaling() -> Figure:
    """Computed times of a step of 200 ms divided among 1 to 32 nodes, and of the all-reduce of each world."""
    figure = Figure()
    plot = Plot(figure, 70, 88, 560, 322, (0, 6), (0, 235))
    plot.axes([(i + 0.5, str(n)) for i, n in enumerate(NODES)], [(v, str(v)) for v in (0, 100, 200)], "", "ms")
    figure.legend(150, 34, [("backward", "compute"), ("reduce", "all-reduce")], 28)
    link = LINKS["1 Gbit/s, 1 ms"]
    for i, nodes in enumerate(NODES):
        total = step_ms(nodes, *link)
        x, width = plot.x(i + 0.1), plot.x(0.8) - plot.x(0)
        split = plot.y(COMPUTE_MS / nodes)
        figure.rect(x, split, width, plot.y(0) - split, "backward", round_=0)
        if nodes > 1:
            figure.rect(x, plot.y(total), width, split - plot.y(total) - 1, "reduce", round_=0)
        figure.text(x + width / 2, plot.y(total) - 10, f"{total:.0f}", "ink", "middle", 30, "bold")
    figure.text(1160, 34, "fastest, of 1 to 32 nodes", "quiet", "end", 28)
    for i, (name, link) in enumerate(LINKS.items()):
        y = 64 + i * 134
        best = min(NODES, key=lambda nodes: step_ms(nodes, *link))
        chosen = name == "1 Gbit/s, 1 ms"
        figure.rect(690, y, 470, 118, "raised", "ink" if chosen else "line")
        figure.text(712, y + 48, name, "quiet", size=28)
        words = f"{best} node{'s' if best > 1 else ''}: {step_ms(best, *link):.0f} ms"
        figure.text(712, y + 96, words, "ink", size=34, style="bold")
        if chosen:
            figure.text(1140, y + 48, "the chart", "quiet", "end", 26)
    figure.text(
        0,
        511,
        "n nodes: 200 ms / n + 2(n−1) delay + 2(n−1)/n × 2.66 MB / rate, no overlap",
        "ink",
        size=28,
    )
    return figure


def barrier() -> Figure:
    """Four real ranks arrive at a barrier at different times and leave it together."""
    waited = [
        _seconds(words) for words in re.findall(r"^rank \d .*waited (.*)$", load("barrier")["said"], re.MULTILINE)
    ]
    figure = Figure()
    longest = max(waited)
    plot = Plot(figure, 130, 74, 880, 366, (0, longest), (0, 1))
    figure.legend(0, 34, [("forward", "at work"), ("data", "waiting at the barrier")], 30)
    figure.text(1160, 34, "waited", "quiet", "end", 30)
    for rank, seconds in enumerate(waited):
        y = 78 + rank * 90
        arrives = plot.x(longest - seconds)
        figure.text(0, y + 48, f"rank {rank}", "quiet", size=32)
        if arrives > plot.left + 1:
            figure.rect(plot.left, y, arrives - plot.left, 72, "forward", round_=2)
        figure.rect(arrives, y, plot.x(longest) - arrives, 72, "data", round_=2)
        figure.text(1160, y + 48, f"{seconds:.2f} s", "ink", "end", 34)
    figure.line([(plot.x(longest), 62), (plot.x(longest), 440)], "ink", 6)
    tenths = 5 if longest > 1 else 1
    for tenth in range(0, int(longest * 10 * 0.6) + 1, tenths):  # the rest is left for the words at the end
        figure.text(plot.x(tenth / 10), 478, f"{tenth / 10:g}", "quiet", "middle", 26)
    figure.text(1010, 478, "all leave together", "ink", "end", 28, "bold")
    figure.text(0, 511, "seconds; rank 0 had nothing to do, so it came first and waited longest", "quiet", size=28)
    return figure


def _seconds(words: str) -> float:
    number, unit = words.split()
    return float(number) / {"s": 1, "ms": 1000}[unit]


FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__: function for function in (rendezvous, ranks, alpha_beta, slurm, pods, commit, scaling, barrier)
}
