"""Run benchmarks and save their output, with the commit and the machine on which they were measured.

    python benchmarks/run.py [NAME ...]           all, or some, into benchmarks/results/NAME.txt
    python benchmarks/run.py start -- --rounds 9  one, with additional arguments
    python benchmarks/run.py --tiny [NAME ...]    with small sizes, to check that they run; nothing is saved
    python benchmarks/run.py --list

A result is replaced when its benchmark succeeds. Figures are valid for the machine that the result names.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from frog.core.files import write_atomic

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CPUINFO = Path("/proc/cpuinfo")
JOB_FILES = HERE.parent / "tests" / "cluster" / "jobfile" / "right"


FUZZ = ("--processes", "30")


@dataclass(frozen=True)
class Benchmark:
    """A program in this folder: its arguments, and arguments with which it ends within seconds."""

    script: str
    words: tuple[str, ...] = ()
    tiny: tuple[str, ...] = ()
    nproc: int = 1
    needs: str = ""
    """A requirement that some machines do not meet."""

    def command(self, words: tuple[str, ...]) -> list[str]:
        """Return the arguments of `python`."""
        launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={self.nproc}"] if self.nproc > 1 else []
        return [*launcher, str(HERE / self.script), *words]


BENCHMARKS = {
    "chaos_cut": Benchmark("chaos.py", ("cut",), ("cut", "--count", "1")),
    "chaos_elastic": Benchmark("chaos.py", ("elastic",), ("elastic", "--count", "1")),
    "chaos_four-ranks": Benchmark("chaos.py", ("four-ranks",), ("four-ranks", "--count", "1")),
    "chaos_shrink": Benchmark("chaos.py", ("shrink",), ("shrink", "--count", "1")),
    "chaos_shrink-cut": Benchmark("chaos.py", ("shrink-cut",), ("shrink-cut", "--count", "1")),
    "chaos_shrink-nodes": Benchmark("chaos.py", ("shrink-nodes",), ("shrink-nodes", "--count", "1")),
    "chaos_shrink-tcp": Benchmark("chaos.py", ("shrink-tcp",), ("shrink-tcp", "--count", "1")),
    "chaos_two-ranks": Benchmark("chaos.py", ("two-ranks",), ("two-ranks", "--count", "1")),
    "check_cost": Benchmark("check_cost.py", tiny=("--tiny",)),
    "checked_strategies": Benchmark("checked_strategies.py", tiny=("--only", "no-strategy")),
    "checkpoint": Benchmark("checkpoint.py", tiny=("--sizes", "4", "--rounds", "1")),
    "collectives": Benchmark("collectives.py", tiny=("--tiny",)),
    "cs336": Benchmark("cs336.py", tiny=(str(HERE), "--only", "no-test"), needs="a folder after --"),
    "data_prepare": Benchmark("data_prepare.py", tiny=("--mb", "1")),
    "ddp_step": Benchmark("ddp_step.py", tiny=("--tiny",), nproc=2),
    "events": Benchmark("events.py", tiny=("--steps", "4")),
    "false_alarms": Benchmark("false_alarms.py", tiny=(str(HERE), "--only", "no-program"), needs="a folder after --"),
    "framework_bugs": Benchmark("framework_bugs.py", tiny=("--only", "no-program")),
    "fuzz": Benchmark("fuzz.py", FUZZ, ("--cases", "60", "--processes", "1")),
    "gpu": Benchmark("gpu.py", tiny=("--tiny",), needs="a GPU"),
    "guard": Benchmark("guard.py", tiny=("--steps", "1", "--seeds", "1", "--epochs", "1", "--ways", "head alone")),
    "jupyter": Benchmark("jupyter.py", tiny=("--tiny",)),
    "learn": Benchmark("learn.py", ("--solutions",), ("--rounds", "1", "--only", "lab0/01_one_formula")),
    "loader": Benchmark("loader.py", tiny=("--runs", "1", "--repeats", "1")),
    "network": Benchmark("network.py", tiny=("--rounds", "1", "--tiny")),
    "observe": Benchmark("observe.py", tiny=("--pairs", "2", "--block-s", "0.2", "--hangs", "1")),
    "overlap": Benchmark("overlap.py", tiny=("--tiny",)),
    "planner": Benchmark("planner.py", ("--cross", "--kinds")),
    "planner_here": Benchmark("planner_here.py", tiny=("--tiny",)),
    "planner_kinds": Benchmark("planner_kinds.py", ("--rows",), ("--only", "vLLM")),
    "planner_memory": Benchmark("planner_memory.py", tiny=("--only", "1B, 8 GPUs, none, micro-batch 1")),
    "planner_programs": Benchmark("planner_programs.py", tiny=("--only", "no-case")),
    "planner_speed": Benchmark("planner_speed.py", tiny=("--tiny",)),
    "program_campaign": Benchmark("program_campaign.py", tiny=("--nproc", "2", "--only", "forward", "--count", "1")),
    "prove": Benchmark("prove.py", tiny=("--world", "2", "--strategy", "zero3", "--implementation", "frog")),
    "public_bugs": Benchmark("public_bugs.py", tiny=(str(HERE), "--only", "no-program"), needs="a folder after --"),
    "reported_hangs": Benchmark("reported_hangs.py", tiny=("--only", "no-program")),
    "silent_bugs": Benchmark("silent_bugs.py", tiny=("--only", "no-program")),
    "simulated_gpus_cost": Benchmark("simulated_gpus_cost.py", tiny=("--tiny",)),
    "slow_links": Benchmark("slow_links.py", tiny=("--tiny", "--batch", "8")),
    "start": Benchmark("start.py", tiny=("--tiny",)),
    "strategies": Benchmark("strategies.py", tiny=("--tiny",), nproc=2),
    "survive": Benchmark("survive.py", tiny=("--tiny",)),
    "threads": Benchmark("threads.py", tiny=("--tiny",)),
    "train_cpu": Benchmark("train_cpu.py", tiny=("--tiny", "--threads", "1")),
    "train_ddp": Benchmark("train_ddp.py", tiny=("--tiny",), nproc=2),
    "watch": Benchmark("watch.py", tiny=("--steps", "40", "--seconds", "0.5")),
    "wild_jobfiles": Benchmark("wild_jobfiles.py", tiny=(str(JOB_FILES),), needs="a folder after --"),
    "wild_logs": Benchmark("wild_logs.py", tiny=(str(JOB_FILES),), needs="a folder after --"),
    "wild_programs": Benchmark("wild_programs.py", tiny=(str(HERE), "--only", "no-program"), needs="a folder after --"),
    "wild_solutions": Benchmark("wild_solutions.py", tiny=(str(HERE), "--only", "no-class"), needs="a folder after --"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="small sizes; nothing is saved")
    parser.add_argument("--list", action="store_true", help="list the names and programs")
    own, _, more = split_at("--", sys.argv[1:])
    args = parser.parse_args(own)
    if args.list:
        print("\n".join(f"{name:20} {benchmark.script}" for name, benchmark in BENCHMARKS.items()))
        return 0
    if more and len(args.names) != 1:
        parser.error("arguments after -- need exactly one benchmark name")
    signal.signal(signal.SIGTERM, _end)
    worst = 0
    for name in args.names or BENCHMARKS:
        worst = max(worst, run(name, tuple(more), args.tiny))
    return worst


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def split_at(mark: str, words: list[str]) -> tuple[list[str], str, list[str]]:
    """Split a list of words, like `str.partition`."""
    place = words.index(mark) if mark in words else len(words)
    return words[:place], mark, words[place + 1 :]


def run(name: str, more: tuple[str, ...], tiny: bool) -> int:
    """Run one benchmark; show its output as it arrives, and save it if the benchmark succeeds.

    Returns: the exit code.
    """
    benchmark = BENCHMARKS[name]
    if benchmark.needs and not (tiny or more or has_gpu()):
        print(f"{name}: skipped: it needs {benchmark.needs}")
        return 0
    command = benchmark.command((*(benchmark.tiny if tiny else benchmark.words), *more))
    head = header(command)
    print(head, flush=True)
    start = time.monotonic()
    lines = []
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        except BaseException:  # Ctrl-C, or an error of `_end`
            end_group(process)
            raise
    if process.returncode:
        print(f"{name} ended with exit code {process.returncode}: result not saved")
    elif not tiny and not {"-h", "--help"} & {*more}:
        took = f"\n(took {time.monotonic() - start:.0f} s)\n"
        write_atomic(RESULTS / f"{name}.txt", head + "\n" + "".join(lines) + took)
    return process.returncode


def end_group(process: subprocess.Popen[str]) -> None:
    """End a program and its children: first ask, then kill them."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def header(command: list[str]) -> str:
    """Return the command, the commit, the date, the machine and its load, and the versions."""
    words = [os.path.relpath(word, HERE.parent) if word.startswith(str(HERE)) else word for word in command]
    machine = f"{platform.system()} {platform.machine()}, {processor()}, {os.cpu_count()} cores"
    load = f"load {os.getloadavg()[0]:.1f} before"
    versions = f"Python {platform.python_version()}, torch {version('torch')}"
    day = time.strftime("%Y-%m-%d")
    return f"python {shlex.join(words)}\ncommit {commit()}, {day}; {machine}, {load}; {versions}\n"


def commit() -> str:
    """Return the commit of this folder, and whether anything except results has changed since."""
    git = ["git", "-C", str(HERE)]
    done = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ":/", ":!results"]).returncode == 1
    return done.stdout.strip() + " with changes" * changed or "not known"


def has_gpu() -> bool:
    import torch  # takes seconds, which --list should not need

    return torch.cuda.is_available()


def processor() -> str:
    """Return the processor's name and, on Linux, its model numbers: processors of one name differ, and so do ratios."""
    said = CPUINFO.read_text() if CPUINFO.exists() else ""
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", said, re.MULTILINE))
    name = facts.pop("model name", platform.processor() or "unknown processor")
    return " ".join([name, *(f"{key.removeprefix('cpu ')} {number}" for key, number in facts.items())])


if __name__ == "__main__":
    sys.exit(main())
