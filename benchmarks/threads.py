"""Variation of step times with different thread settings, on idle cores and on cores that other programs use.

    python benchmarks/threads.py [--rounds 15] [--steps 3] [--seconds 25] [--tiny]

For each setting one process trains the demo's model. The processes alternate in turns of a few steps, first alone, then
next to a busy loop per core. A setting that has used its time takes no more turns under that load.

The threads of a process meet at a barrier in each operation. By default the first one there spins: it occupies the core
of the thread that it waits for. With OMP_WAIT_POLICY=passive it sleeps.

For each load and setting it prints: the number of turns, the median and the slowest turn, as the time of a step, and
both as multiples of the median of one thread under the same load. Other running programs add to the load.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

SCRIPTS = Path(__file__).parents[1] / "scripts"
NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS")
SETTINGS = {
    "1 thread": {"OMP_NUM_THREADS": "1"},
    f"{NUM_CORES} threads": {"OMP_NUM_THREADS": str(NUM_CORES)},
    f"{NUM_CORES} threads, spin count 10000": {"OMP_NUM_THREADS": str(NUM_CORES), "GOMP_SPINCOUNT": "10000"},
    f"{NUM_CORES} threads, passive": {"OMP_NUM_THREADS": str(NUM_CORES), "OMP_WAIT_POLICY": "passive"},
}


class Trainer:
    """A process that trains with one setting, a few steps per request."""

    def __init__(self, settings: dict[str, str], steps: int) -> None:
        env = {name: value for name, value in os.environ.items() if name not in VARIABLES} | settings
        command = [sys.executable, __file__, "--trainer", "--steps", str(steps)]
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.turn_s()

    def turn_s(self) -> float:
        """Return the seconds of its next steps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a trainer ended with exit code {self._process.wait()}")
        return float(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def serve_turns(steps: int) -> None:
    """Train on random tokens for each line of standard input, and print the seconds: the trainer's side."""
    import torch  # here, since it would determine how threads wait

    sys.path.insert(0, str(SCRIPTS))
    from train_tiny_transformer import CONFIG, TinyTransformer, loss_of

    from frog.core.config import load_model_config

    model = TinyTransformer(load_model_config(CONFIG))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(model.config.vocab_size, (32, 65), generator=torch.Generator().manual_seed(1))
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(steps):
            loss_of(model, tokens[:, :-1], tokens[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(time.perf_counter() - start, flush=True)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep the cores busy with other programs."""
    endless = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    loops = [subprocess.Popen([sys.executable, "-c", endless]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def take_turns(trainers: dict[str, Trainer], rounds: int, limit_s: float) -> dict[str, list[float]]:
    """Return the seconds of each trainer's turns."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            if sum(times[name]) < limit_s:
                times[name].append(trainer.turn_s())
    return times


def print_table(times: dict[str, list[float]], steps: int) -> None:
    one = median(times["1 thread"])
    print(f"  {'setting':30}{'turns':>5}{'median':>10}{'slowest':>10}{'median':>10}{'slowest':>10}")
    for name, seconds in times.items():
        middle, slowest = median(seconds), max(seconds)
        in_ms = f"{middle / steps * 1e3:>7.0f} ms{slowest / steps * 1e3:>7.0f} ms"
        print(f"  {name:30}{len(seconds):>5}{in_ms}{middle / one:>8.2f} x{slowest / one:>8.2f} x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="steps per turn")
    parser.add_argument("--seconds", type=float, default=25.0, help="time for each setting under each load")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--trainer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trainer:
        serve_turns(args.steps)
        return
    rounds, steps = (1, 1) if args.tiny else (args.rounds, args.steps)
    print(
        f"{NUM_CORES} cores; {rounds} rounds, {steps} steps per turn; "
        "time per step, and as a multiple of 1 thread's median"
    )
    with contextlib.ExitStack() as stack:
        trainers = {name: Trainer(settings, steps) for name, settings in SETTINGS.items()}
        for trainer in trainers.values():
            stack.callback(trainer.close)
        for per_core in (0, 1):
            print(f"\n{'a busy loop per core' if per_core else 'no busy loops'}")
            with busy_loops(per_core * NUM_CORES):
                times = take_turns(trainers, rounds, args.seconds)
            print_table(times, steps)


if __name__ == "__main__":
    main()
