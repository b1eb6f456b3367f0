"""Accuracy of the guard model on held-out prompts, compared with simpler ways to tell safe from unsafe prompts.

    python benchmarks/guard.py [--steps 1 600 3000] [--seeds 1 2 3] [--epochs 10] [--ways WAY ...]

First trains base models for `frog finetune`, config/demo.toml for each number of steps; then tests every way on the
same held-out prompts. `commonest` always predicts the most frequent class. `words` is a naive Bayes classifier on the
words of a prompt: no order, no model. `head alone` is a fine-tuning with negligible adapters: a rank of 1 and an alpha
near zero.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from frog.train.data.labelled import Example, LabelledSet, read_labelled

DEMO = Path(__file__).parents[1] / "config" / "demo.toml"
FROG = (sys.executable, "-m", "frog.cli")
WAYS = {
    "head alone": ["--lora", "rank=1,alpha=1e-6", "--learning-rate", "0.02"],
    "lora, q and v": ["--lora", "rank=8,alpha=16,targets=q_proj,v_proj"],
    "lora, all": ["--lora", "rank=8,alpha=16,targets=all"],
    "lora, all, writing the label": ["--lora", "rank=8,alpha=16,targets=all", "--head", "completion"],
}


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def naive_bayes(data: LabelledSet) -> float:
    """Return the accuracy of naive Bayes on the prompt's known words, with half a text added to every count."""
    texts = Counter(example.label for example in data.train)
    counts = {label: Counter() for label in texts}
    for example in data.train:
        counts[example.label].update(words(example.text))
    known = set().union(*counts.values())

    def score(example: Example, label: str | None) -> float:
        seen = words(example.text) & known
        return math.log(texts[label]) + sum(math.log((counts[label][w] + 0.5) / (texts[label] + 1)) for w in seen)

    right = sum(max(texts, key=lambda label: score(example, label)) == example.label for example in data.heldout)
    return right / len(data.heldout)


def trained(folder: Path, steps: int) -> str:
    """Train the demo for this many steps; return the run's name."""
    name = f"steps-{steps}"
    words = ("train", str(DEMO), "--set", f"name={name}", "--set", f"train.steps={steps}")
    subprocess.run((*FROG, *words), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return name


def fine_tuned(folder: Path, base: str, options: list[str], seed: int) -> dict[str, float]:
    """Return the accuracy on all held-out prompts, and the time of the steps."""
    name = f"way-{time.monotonic_ns()}"
    command = (*FROG, "finetune", base, "--seed", str(seed), "--name", name, *options)
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    record = json.loads((folder / "runs" / name / "record.json").read_text())
    return {"accuracy": record["classification"]["accuracy"], "wall_s": record["wall_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 600, 3000], help="steps of each base model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=10, help="epochs of each fine-tuning")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    args = parser.parse_args()
    data = read_labelled("guard", 0.25)
    commonest = max(Counter(example.label for example in data.heldout).values()) / len(data.heldout)
    error = 1.96 * math.sqrt(0.75 * 0.25 / len(data.heldout))
    print(f"{len(data.train)} prompts to train on, {len(data.heldout)} held out; {len(args.seeds)} seeds")
    print(f"an accuracy near 0.75 of so few prompts is known to within {error:.2f} (95 %)")
    print(f"{'commonest':48} {commonest:.3f}")
    print(f"{'words':48} {naive_bayes(data):.3f}")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run((*FROG, "data", "prepare"), cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        for steps in args.steps:
            base = trained(Path(scratch), steps)
            for way in args.ways:
                options = [*WAYS[way], "--epochs", str(args.epochs)]
                found = [fine_tuned(Path(scratch), base, options, seed) for seed in args.seeds]
                accuracies = [row["accuracy"] for row in found]
                spread = f"{min(accuracies):.3f} to {max(accuracies):.3f}"
                wall_s = statistics.median(row["wall_s"] for row in found)
                name = f"{steps} steps, {way}"
                print(f"{name:48} {statistics.mean(accuracies):.3f}  ({spread}), {wall_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
