"""Training over a slow link: ddp, ddp in 8 bits and DiLoCo, compared with the same run without the link.

    python benchmarks/slow_links.py [--steps 200] [--network "rate=100mbit delay=50ms"] [--tiny]

Two nodes of one rank each train the same model on the same number of samples in every run. For each run it prints:
tokens/s, from the end of step 10 to the end of the last; per step, on average, the time in which rank 0 waited for
collectives, their time according to the alpha-beta formula (frog.plan.links), and the bytes that the rank sent; and
the held-out loss at the end. Formula, bytes and losses are reproducible, even on a busy machine.

"plain" is DiLoCo with an outer learning rate of 0.7, or 1, and no momentum; "frog" uses Frog's own collectives.

Two runs without the link, the first and the last, show whether the machine has become slower meanwhile. `--only`
selects some of the variants; with fewer steps, a minute or two shows which of them are fast enough.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from frog.core.runs import RankEvents, read_run
from frog.core.runs.event_schema import CollectiveEvent, EvalEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.launch.network import Link, parse_network
from frog.plan.links import collective_cost, payload_rate, wire_bytes

ROOT = Path(__file__).parents[1]
NETWORK = "rate=100mbit delay=50ms"
WORLD_SIZE = 2
DEADLINE_S = 900.0
AIM_SPEED, AIM_LOSS = 0.90, 1.02


@dataclass(frozen=True)
class Way:
    """A run: its settings, and True if a slow link separates its nodes."""

    name: str
    settings: tuple[str, ...] = ()
    far: bool = True


@dataclass(frozen=True)
class Found:
    """The result of a run."""

    tokens_per_s: float
    waited_s: float
    """Waiting time for collectives, per step."""
    link_s: float
    """Time according to the formula; 0 without a link."""
    bytes_a_step: float
    heldout_loss: float


def diloco(inner_steps: int, *more: str) -> tuple[str, ...]:
    return ("strategy.name=diloco", f"strategy.inner_steps={inner_steps}", *more)


INT8 = "strategy.compression=int8"
FROG = "comm.backend=frog"
"""Frog's collectives send immediately; gloo's ask first, which adds one delay to each message."""
PLAIN = "strategy.outer_momentum=0"
"""The published outer optimizer, 0.7 with a momentum of 0.9, needs many rounds; here there are 20 at most."""
NEAR = Way("ddp, no link", far=False)
WAYS = [
    NEAR,
    Way("ddp"),
    Way("ddp, int8", (INT8,)),
    *(Way(f"diloco, H={h}", diloco(h)) for h in (10, 50, 100)),
    *(Way(f"diloco, H={h}, plain", diloco(h, PLAIN)) for h in (10, 20)),
    Way("diloco, H=50, plain 1", diloco(50, PLAIN, "strategy.outer_learning_rate=1")),
    Way("diloco, H=50, int8", diloco(50, INT8)),
    Way("diloco, H=10, plain int8", diloco(10, PLAIN, INT8)),
    Way("diloco, H=10, plain int8 frog", diloco(10, PLAIN, INT8, FROG)),
    Way("ddp, no link, again", far=False),
]
TINY = [NEAR, Way("diloco, H=2, int8", (*diloco(2, INT8), "eval.tokens=1024"))]


def train(folder: Path, number: int, way: Way, steps: int, network: str, size: list[str]) -> Found:
    """Run one training to its end. Raises SystemExit if it fails."""
    settings = [
        f"name=way-{number}", f"train.steps={steps}", f"eval.every={steps}", f"checkpoint.every={steps}",
        "eval.sample_tokens=0", *size, *way.settings,
    ]  # fmt: skip
    words = ["run", "--nodes", f"{WORLD_SIZE}x1", "--threads", "1", *(["--network", network] if way.far else [])]
    words += ["--", "train", str(ROOT / "config" / "demo.toml")]
    words += [word for setting in settings for word in ("--set", setting)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "frog.cli", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise SystemExit(f"{way.name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    main = read_run(RunFolder(folder / "runs" / f"way-{number}")).main
    link = parse_network(network) if way.far else None
    return measure(main, min(10, steps // 2), steps, link, asks=FROG not in way.settings)


def measure(main: RankEvents, first: int, last: int, link: Link | None, asks: bool) -> Found:
    """Summarize rank 0's steps first + 1 to last."""
    steps = main.by_step(StepEvent)
    start_ns, end_ns = steps[first].end_ns, steps[last].end_ns
    sent = [one for one in main.of(CollectiveEvent) if start_ns <= one.start_ns <= end_ns]
    heldout = main.of(EvalEvent)[-1].loss
    assert heldout is not None
    return Found(
        tokens_per_s=(steps[last].tokens - steps[first].tokens) / ((end_ns - start_ns) / 1e9),
        waited_s=sum(one.wait_ns for one in sent) / 1e9 / (last - first),
        link_s=sum(on_the_link(one, link, asks) for one in sent) / (last - first) if link else 0.0,
        bytes_a_step=sum(wire_bytes(one.op, one.payload_bytes, WORLD_SIZE) for one in sent) / (last - first),
        heldout_loss=heldout,
    )


def on_the_link(one: CollectiveEvent, link: Link, asks: bool) -> float:
    """Return the seconds according to the formula. For a few numbers, only the delays of an all-reduce count; Frog's
    doubling has one."""
    nodes = [list(range(WORLD_SIZE))]
    beta = payload_rate(link.rate_bits_per_s, link.mtu)
    few = collective_cost("all_reduce" if asks else "all_to_all", 64, nodes, asks=asks)
    cost = collective_cost(one.op, one.payload_bytes, nodes, asks=asks) or few
    assert cost is not None
    return cost.seconds(link.delay_s, beta)


def line(way: Way, found: Found, near: Found) -> str:
    speed, loss = found.tokens_per_s / near.tokens_per_s, found.heldout_loss / near.heldout_loss
    aim = ""
    if way.settings and "diloco" in way.name:
        aim = "within both aims" if speed >= AIM_SPEED and loss <= AIM_LOSS else ""
        aim = aim or ", ".join(
            text for missed, text in ((speed < AIM_SPEED, "too slow"), (loss > AIM_LOSS, "loss too high")) if missed
        )
    return (
        f"{way.name:<30}{found.tokens_per_s:>9,.0f}{speed:>7.2f}{1e3 * found.waited_s:>11,.0f}"
        f"{1e3 * found.link_s:>10,.0f}{found.bytes_a_step / 1e3:>10,.0f}{found.heldout_loss:>10.4f}{loss - 1:>+8.2%}   "
        f"{aim}".rstrip()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--batch", type=int, default=64, help="sequences per step, of 64 tokens each")
    parser.add_argument("--only", action="append", metavar="NAME", help="run only this variant; repeatable")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    args = parser.parse_args()
    steps, network = (4, "rate=1gbit delay=1ms") if args.tiny else (args.steps, args.network)
    size = [f"train.global_batch_size={args.batch}"]
    print(f"{steps} steps of {args.batch} x 64 tokens on 2 nodes of one rank, 1 thread each; link: {network}")
    print("ratios are to the mean of the two runs without a link\n", flush=True)
    ways = [way for way in (TINY if args.tiny else WAYS) if not way.far or not args.only or way.name in args.only]
    found: dict[Way, Found] = {}
    with tempfile.TemporaryDirectory(prefix="frog-slow-links-") as scratch:
        for number, way in enumerate(ways):
            found[way] = train(Path(scratch), number, way, steps, network, size)
            print(f"  {way.name}: {found[way].tokens_per_s:,.0f} tokens/s", file=sys.stderr, flush=True)
    both = [one for way, one in found.items() if not way.far]
    near = Found(
        sum(one.tokens_per_s for one in both) / len(both), both[0].waited_s, 0.0, both[0].bytes_a_step,
        both[0].heldout_loss,
    )  # fmt: skip
    print(f"{'':<30}{'tokens/s':>9}{'ratio':>7}{'waited ms':>11}{'link ms':>10}{'sent kB':>10}{'held-out':>10}{'':>8}")
    for way, one in found.items():
        print(line(way, one, near))


if __name__ == "__main__":
    main()
