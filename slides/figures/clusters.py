"""Figures of session C: how machines find each other, what a scheduler does, and what is left when one fails."""

from __future__ import annotations

import re
from pathlib import Path

from draw import Figure, load

from frog.core.vocabulary import STEP_PHASES

_RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def rendezvous() -> Figure:
    """Two real nodes of two ranks: who knocks where, and what each is then called."""
    found = load("world")
    node = found["nodes"][0]
    figure = Figure(450)
    for i in (0, 1):
        x = 0 if i == 0 else 700
        figure.rect(x, 40, 460, 330, "raised", "line")
        figure.text(x + 24, 84, f"NODE_RANK {i}", "quiet", size=28)
    figure.box(24, 110, 412, 76, f"{node['master_addr']} : {node['master_port']}", "reduce", size=30)
    for rank in found["ranks"]:
        x = 24 + 212 * rank["local_rank"] + 700 * rank["node_rank"]
        figure.box(x, 262, 200, 84, f"rank {rank['rank']}", f"r{rank['rank']}", size=32)
    figure.arrow(124, 258, 124, 192, "r0", 4)
    figure.arrow(336, 258, 336, 192, "r1", 4)
    figure.arrow(796, 258, 444, 160, "r2", 4)
    figure.arrow(1020, 258, 444, 136, "r3", 4)
    figure.text(724, 146, "MASTER_ADDR, MASTER_PORT", "ink", size=26)
    figure.text(580, 426, "rank 0 opens the door; all knock; complete when the last is in", "ink", "middle", 28)
    return figure


def ranks() -> Figure:
    """The variables of each rank of a real world of two nodes with two ranks."""
    found = load("world")
    size = found["nodes"][0]["world_size"]
    figure = Figure(430)
    heads = ("WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "RANK")
    for column, words in enumerate(heads):
        figure.text(420 + 240 * column, 44, words, "quiet", "end", 28, "mono")
    for i, rank in enumerate(found["ranks"]):
        y = 76 + i * 72
        figure.box(0, y, 200, 58, f"rank {rank['rank']}", f"r{rank['rank']}", size=28)
        for column, value in enumerate((size, rank["node_rank"], rank["local_rank"], rank["rank"])):
            style = "bold" if column == 3 else ""
            figure.text(420 + 240 * column, y + 42, str(value), "ink", "end", 34, style)
    figure.text(0, 416, "RANK = NODE_RANK x ranks on a node + LOCAL_RANK", "ink", size=32, style="bold")
    return figure


def _network() -> dict[str, list[tuple[float, float]]]:
    """Of benchmarks/results/network.txt: KiB and ms of each measured all-reduce between two nodes, by link."""
    found: dict[str, list[tuple[float, float]]] = {}
    link = ""
    for line in (_RESULTS / "network.txt").read_text().splitlines():
        if head := re.match(r"rate=(.*), (.*): beta", line):
            link = head[1] if head[2] == "2 nodes" else ""
        elif link and (row := re.match(r"  all_reduce +(\d+) KiB  measured +([\d.]+) ms", line)):
            found.setdefault(link, []).append((float(row[1]), float(row[2])))
    return found


def alpha_beta() -> Figure:
    """Time of an all-reduce between two nodes by its size, measured on two links."""
    figure = Figure(470)
    found = _network()
    links = [link for link in ("100mbit delay=20ms", "1gbit delay=1ms") if link in found]
    for column, link in enumerate(links):
        rate, delay = link.split(" delay=")
        figure.text(
            640 + 460 * column, 40, f"{_in_words(rate)}, {delay.replace('ms', ' ms')}", "ink", "end", 28, "bold"
        )
    most = {link: max(ms for _, ms in found[link]) for link in links}
    for i, (kib, _) in enumerate(found[links[0]]):
        y = 66 + i * 78
        figure.text(0, y + 40, f"{kib / 1024:g} MiB" if kib >= 1024 else f"{kib:g} KiB", size=30)
        for column, link in enumerate(links):
            ms = dict(found[link])[kib]
            figure.rect(250 + 460 * column, y + 4, 200 * ms / most[link], 54, "reduce" if column == 0 else "forward")
            figure.text(640 + 460 * column, y + 41, f"{ms:,.1f} ms", "ink", "end", 28)
    return figure


def slurm() -> Figure:
    """A job's way: sbatch, allocation, srun's workers, cleanup; and who does it."""
    figure = Figure(450)
    stages = [
        ("sbatch", "you, once", "data", "the file goes\ninto the queue"),
        ("allocate", "the controller", "forward", "2 nodes, 4 GPUs\non each: yours"),
        ("srun", "the first node", "backward", "one task a node:\ntorchrun, 4 ranks"),
        ("cleanup", "Slurm", "optimize", "no process stays;\nrequeue or end"),
    ]
    for i, (name, who, color, what) in enumerate(stages):
        x = i * 300
        figure.box(x, 40, 230, 90, name, color, size=34)
        figure.text(x + 115, 170, who, "quiet", "middle", 26)
        for j, line in enumerate(what.split("\n")):
            figure.text(x + 115, 218 + 34 * j, line, "ink", "middle", 26)
        if i < 3:
            figure.arrow(x + 236, 85, x + 294, 85)
    for node in (0, 1):
        x = 380 + node * 300
        figure.rect(x, 290, 270, 110, "raised", "line")
        figure.text(x + 14, 322, f"SLURM_NODEID {node}", "quiet", size=24)
        for rank in range(4):
            figure.box(x + 14 + 62 * rank, 336, 54, 52, str(4 * node + rank), f"r{4 * node + rank}", size=26)
    figure.text(0, 356, "8 ranks, one world", "ink", size=28, style="bold")
    figure.text(380, 436, "they meet on the first node, at a port from the job's number", "quiet", size=24)
    return figure


def pods() -> Figure:
    """A pod asks for GPUs; the device plugin counts them, the scheduler places, the kubelet gives them."""
    figure = Figure(460)
    figure.box(0, 60, 250, 120, "pod\nnvidia.com/gpu: 4", "forward", size=26)
    figure.text(0, 214, "asks in whole GPUs", "quiet", size=24)
    figure.arrow(256, 120, 340, 120)
    figure.box(346, 60, 200, 120, "scheduler", "backward", size=28)
    figure.text(346, 214, "finds a node", "quiet", size=24)
    figure.arrow(552, 120, 636, 120)
    figure.rect(642, 30, 518, 330, "raised", "line")
    figure.text(662, 70, "a node", "quiet", size=28)
    figure.box(662, 90, 220, 84, "kubelet", "optimize", size=28)
    figure.box(920, 90, 220, 84, "device plugin", "reduce", size=28)
    figure.arrow(916, 118, 886, 118)
    figure.arrow(886, 148, 916, 148)
    for gpu in range(8):
        figure.box(662 + 61 * gpu, 250, 53, 70, str(gpu), "r0" if gpu < 4 else "grid", size=28)
    figure.text(662, 230, "8 GPUs; 4 given to this pod", "ink", size=26)
    figure.text(0, 300, "pod 0's name is MASTER_ADDR", "ink", size=28)
    figure.text(0, 344, "pod index is NODE_RANK", "ink", size=28)
    figure.text(0, 426, 'the plugin: "this node has 8"; then "take 0 to 3" = device files in the pod', "quiet", size=26)
    return figure


def commit() -> Figure:
    """Four moments of a checkpoint, and what a kill at each leaves."""
    figure = Figure(460)
    moments = [
        ("1 write", "each rank, its part,\nstaging folder", "nothing new:\nthe last one counts"),
        ("2 flush", "fsync: bytes\nare on disk", "nothing new:\nthe last one counts"),
        ("3 manifest", "rank 0: size and\nSHA-256 of each", "nothing new:\nthe last one counts"),
        ("4 rename", "one step: there,\nor not there", "the new one,\nwhole"),
    ]
    for i, (name, what, left) in enumerate(moments):
        x = i * 296
        figure.box(x, 20, 262, 74, name, "checkpoint" if i < 3 else "optimize", size=32)
        for j, line in enumerate(what.split("\n")):
            figure.text(x + 131, 134 + 34 * j, line, "ink", "middle", 25)
        if i < 3:
            figure.arrow(x + 265, 57, x + 293, 57)
        figure.text(x + 131, 244, "killed here:", "bad", "middle", 26, "bold")
        for j, line in enumerate(left.split("\n")):
            figure.text(x + 131, 284 + 34 * j, line, "good" if i == 3 else "ink", "middle", 25)
    met, good = _campaign()
    figure.text(0, 390, f"{met} faults injected, in every phase of every step:", "ink", size=30)
    figure.text(0, 436, f"{good} ended with the undisturbed run's weights, bit for bit", "good", size=30, style="bold")
    return figure


def _campaign() -> tuple[int, int]:
    """Of the campaign of all faults: how many were met, how many ended with the undisturbed weights."""
    words = (_RESULTS / "chaos_two-ranks.txt").read_text()
    met = re.search(r"of (\d+) faults met", words)
    good = re.search(r"undisturbed run's weights: (\d+) of", words)
    assert met, "chaos_two-ranks.txt"
    assert good, "chaos_two-ranks.txt"
    return int(met[1]), int(good[1])


def scaling() -> Figure:
    """The fastest step on 1, 2 and 4 pretended nodes, and how much of it is the reduction, on two links."""
    found = load("far")
    figure = Figure(450)
    times = {link: {nodes: _spent(lanes[0]["spans"]) for nodes, lanes in ways.items()} for link, ways in found.items()}
    scale = 760 / max(sum(spent) for ways in times.values() for spent in ways.values())
    for i, (link, ways) in enumerate(times.items()):
        top = 6 + i * 214
        rate, delay = link.removeprefix("rate=").split(" delay=")
        figure.text(0, top + 26, f"{_in_words(rate)}, {delay.replace('ms', ' ms')}", "ink", size=28, style="bold")
        for j, (nodes, (compute, reduce)) in enumerate(ways.items()):
            y = top + 44 + j * 52
            figure.text(0, y + 32, f"{nodes} node{'s' if nodes != '1' else ''}", "quiet", size=26)
            figure.rect(130, y, compute * scale, 44, "backward", round_=2)
            figure.rect(130 + compute * scale, y, reduce * scale, 44, "reduce", round_=2)
            figure.text(146 + (compute + reduce) * scale, y + 32, f"{compute:.0f} + {reduce:.0f} ms", size=26)
    for x, words, color in ((620, "compute", "backward"), (840, "reduce", "reduce")):
        figure.rect(x, 10, 24, 24, color)
        figure.text(x + 34, 32, words, size=26)
    figure.text(130, 440, "the same 32 sequences in every step, on two real cores", "quiet", size=24)
    return figure


def _spent(spans: list[tuple[str, float, float]]) -> tuple[float, float]:
    """Of a rank's step: ms outside of the reduction, and in it."""
    took = {True: 0.0, False: 0.0}
    for phase, start, end in spans:
        took[phase == "reduce"] += end - start if phase in STEP_PHASES else 0.0
    return took[False], took[True]


def _in_words(rate: str) -> str:
    return rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")


def barrier() -> Figure:
    """Four real ranks come to a barrier at different times and leave it together."""
    waited = [
        _seconds(words) for words in re.findall(r"^rank \d .*waited (.*)$", load("barrier")["said"], re.MULTILINE)
    ]
    figure = Figure(400)
    for rank, seconds in enumerate(waited):
        y = 40 + rank * 76
        works = 900 * (1 - seconds / max(waited))
        figure.text(0, y + 38, f"rank {rank}", "quiet", size=28)
        figure.rect(130, y, works, 56, f"r{rank}", round_=2)
        figure.rect(130 + works, y, 900 - works, 56, "grid", round_=2)
        figure.text(1160, y + 38, f"{seconds:.2f} s", "ink", "end", 28)
    figure.line([(1034, 30), (1034, 330)], "ink", 5)
    figure.text(1034, 380, "all leave together", "ink", "end", 28)
    figure.text(1160, 380, "waited", "quiet", "end", 26)
    return figure


def _seconds(words: str) -> float:
    number, unit = words.split()
    return float(number) / {"s": 1, "ms": 1000}[unit]


FIGURES = {
    function.__name__: function for function in (rendezvous, ranks, alpha_beta, slurm, pods, commit, scaling, barrier)
}
