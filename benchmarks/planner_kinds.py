"""Compare the planner with published figures of LoRA, QLoRA, serving and RL post-training.

    python benchmarks/planner_kinds.py [--rows] [--only WORD]
    python benchmarks/planner_kinds.py --peft

Runs `frog plan` for each row of published_kinds.toml, and prints the table of docs/plan/kinds.md, with a line for each
source and the errors of its rows; `--rows` prints every row. No constant is fitted on these rows. `--peft` compares the
memory with that of a real program of PEFT and transformers (peft_llama.py), recorded at full size with fake tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import statistics
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.cli import main as frog

ROWS = Path(__file__).with_name("published_kinds.toml")
GIB = 2**30

METRICS: dict[str, Callable[[dict[str, Any]], float]] = {
    "tokens_per_s": lambda plan: plan["tokens_per_s"],
    "tokens_per_s_per_gpu": lambda plan: plan["tokens_per_s"] / plan["num_gpus"],
    "first_token_s": lambda plan: plan["first_token_s"],
    "batch_s": lambda plan: plan["batch_s"],
    "step_s.total": lambda plan: plan["step_s"]["total"],
    "tensors_gib": lambda plan: (plan["memory_bytes"]["total"] - plan["memory_bytes"]["allocator"]) / GIB,
}


@dataclass(frozen=True)
class Compared:
    """A published figure and the plan's."""

    source: str
    row: str
    published: float
    predicted: float
    fits: bool
    inside: bool
    """The published figure is in the plan's range, if the plan has one for it."""

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


def compare(only: str = "") -> Iterator[Compared]:
    """Yield each row of the sources whose name contains a word."""
    content = tomllib.loads(ROWS.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for name, config in content["models"].items():
            Path(folder, f"{name}.json").write_text(json.dumps(config))
        for source in content["source"]:
            if only not in source["name"]:
                continue
            for *values, published in source["rows"]:
                cells = dict(zip(source["columns"], values, strict=True))
                plan = plan_of(source["command"], cells, Path(folder))
                predicted = METRICS[source["metric"]](plan)
                words = ", ".join(f"{name} {value}" for name, value in cells.items() if value != "")
                yield Compared(source["name"], words, published, predicted, fits(plan), inside(plan, source, published))


def plan_of(command: str, cells: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the JSON of a plan."""
    model = cells.get("model", "")
    words = shlex.split(command.format(model=model))
    known = {path.stem: str(path) for path in folder.glob("*.json")}
    words = [known.get(word, word) for word in words]
    for name, value in cells.items():
        if name != "model" and value != "":
            words += [f"--{name}", str(value)]
    return json_of([*words, "--json"])


def json_of(words: list[str]) -> dict[str, Any]:
    """Return what `frog plan` prints as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if frog(["plan", *words]) != 0:
            raise SystemExit(f"frog plan {shlex.join(words)} failed")
    return json.loads(out.getvalue())  # type: ignore[no-any-return]


def fits(plan: dict[str, Any]) -> bool:
    """Return True if the plan fits in memory."""
    return bool("largest_batch" not in plan or plan["largest_batch"] >= plan["batch"])


def inside(plan: dict[str, Any], source: dict[str, Any], published: float) -> bool:
    """Return True if the published figure is in the plan's range; figures of memory and single batches have the range
    of rates.
    """
    if source["metric"] == "step_s.total":
        return bool(plan["step_low_s"] <= published <= plan["step_high_s"])
    predicted = METRICS[source["metric"]](plan)
    width = plan.get("tokens_per_s_high", 1.0) / plan.get("tokens_per_s", 1.0)
    return bool(predicted / width <= published <= predicted * width)


def lines(rows: list[Compared]) -> Iterator[str]:
    """Yield the table of the page: a line for each source."""
    yield "| source | mean absolute error, % | errors of its rows, in the file's order, % |"
    yield "|---|---|---|"
    for name in dict.fromkeys(row.source for row in rows):
        errors = [100 * row.error for row in rows if row.source == name]
        each = ", ".join(f"{round(error):+d}" for error in errors)
        yield f"| {name} | {statistics.fmean(map(abs, errors)):.0f} | {each} |"


def coverage(rows: list[Compared]) -> tuple[float, int]:
    """Return the share of rates and times that are in the plan's range, and how many there are."""
    timed = [row for row in rows if "GiB" not in row.source]
    return statistics.fmean(row.inside for row in timed), len(timed)


PEFT_CASES = [(recompute, targets) for targets in ("all-linear", "q_proj,v_proj") for recompute in ("full", "none")]


def compare_with_peft() -> Iterator[str]:
    """Yield the memory of tensors in each case: as the recorded program allocates it, and as planned."""
    yield "| matrices with adapters | recomputation | recorded, GiB | planned, GiB | error |"
    yield "|---|---|---|---|---|"
    llama, program = ROWS.parents[1] / "config" / "llama3_8b.json", ROWS.with_name("peft_llama.py")
    for recompute, targets in PEFT_CASES:
        words = [*shlex.split("--cluster h100x8 --json --"), str(program), "--targets", targets]
        recorded = json_of([*words, *(["--recompute"] if recompute == "full" else [])])["memory"]["allocated"] / GIB
        usual = "--cluster h100x8 --gpus 1 --seq-len 2048 --global-batch 1 --micro-batch 1 --lora-r 16 --json"
        words = [str(llama), *shlex.split(usual), "--lora-targets", targets, "--recompute", recompute]
        planned = METRICS["tensors_gib"](json_of(words))
        error = 100 * (planned / recorded - 1)
        yield f"| {targets} | {recompute} | {recorded:.2f} | {planned:.2f} | {error:+.1f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--only", default="", help="sources whose name contains this word")
    parser.add_argument("--peft", action="store_true", help="compare memory with a program of PEFT; takes minutes")
    args = parser.parse_args()
    if args.peft:
        for line in compare_with_peft():
            print(line, flush=True)
        return
    rows = []
    for row in compare(args.only):
        rows.append(row)
        if args.rows:
            note = "" if row.fits else "  does not fit"
            print(f"{row.source[:28]:<28} {row.published:>9.4g} {row.predicted:>9.4g} {100 * row.error:>+7.1f} %"
                  f" {'in' if row.inside else 'OUT':<3} {row.row}{note}", flush=True)  # fmt: skip
    print("\n".join(lines(rows)))
    if any("GiB" not in row.source for row in rows):
        share, num = coverage(rows)
        print(f"\n{100 * share:.0f} % of {num} rates and times are in their ranges")


if __name__ == "__main__":
    main()
