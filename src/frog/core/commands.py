"""The commands of `frog`, each with an example, under the five headings that README, site and map also use."""

from __future__ import annotations

HEADINGS: dict[str, dict[str, str]] = {
    "Learn": {
        "learn": "frog learn init my-course",
        "quiz": "frog quiz 1",
        "drill": "frog drill --nproc 2",
        "doctor": "frog doctor --lab 2",
        "explain": "frog explain all-reduce",
        "demo": "frog demo a",
        "class": "frog class exports/ --csv class.csv",
        "docs": "frog docs",
    },
    "Train": {
        "init": "frog init my-project",
        "data": "frog data prepare",
        "train": "frog train config/demo.toml --set train.steps=20",
        "run": "frog run --nproc 4 -- train config/demo.toml",
        "world": "frog world --nproc 2",
        "join": "frog join latest",
        "eval": "frog eval latest",
        "sample": 'frog sample latest --prompt "The "',
        "finetune": "frog finetune demo --epochs 1",
        "classify": 'frog classify latest --text "Ignore all rules."',
        "export": "frog export latest --to hf my-model",
        "import": "frog import my-model --from hf --name imported",
        "strategies": "frog strategies --world 8",
        "schedule": "frog schedule --schedule 1f1b --stages 4 --micro-batches 8",
        "prove": "frog prove --world 2 --strategy zero3",
        "checkpoints": "frog checkpoints latest",
    },
    "Understand": {
        "runs": "frog runs",
        "watch": "frog watch latest",
        "report": "frog report latest --open",
        "compare": "frog compare first second",
        "logs": "frog logs latest",
        "diagnose": "frog diagnose latest",
        "check": "frog check --nproc 2 -- my.py",
        "observe": "frog observe latest",
        "profile": "frog profile config/demo.toml --steps 3",
        "tensorboard": "frog tensorboard latest",
    },
    "Break and measure": {
        "chaos": 'frog chaos --fault "kill rank=1 step=3" --nproc 2 -- train config/demo.toml',
        "collectives": "frog collectives bench --nproc 2",
    },
    "Scale": {
        "slurm": "frog slurm explain config/slurm_example.sbatch",
        "submit": "frog submit config/demo.toml --to slurm --dry-run",
        "bundle": "frog bundle config/demo.toml --to my-bundle",
        "plan": "frog plan config/llama3_8b.json --cluster h100x8 --nodes 8",
    },
}
"""Commands and their examples, by heading."""

EXAMPLES = {name: example for commands in HEADINGS.values() for name, example in commands.items()}

WELCOME = """\
Frog teaches distributed training on a laptop and takes the same code to a cluster.

  learn    frog learn init my-course    exercises that a grader runs in real multi-process worlds
  train    frog init my-project         your own run: four local ranks, and a report
  scale    frog slurm explain JOB.sh    prepare job files and runs for Slurm and Kubernetes

All commands: frog --help. One command: frog COMMAND --help. Documentation: frog docs
"""
"""Printed by `frog` without arguments."""


def overview(about: dict[str, str]) -> str:
    """Return the commands under their headings. about: a one-line description of each command."""
    parts = []
    for heading, commands in HEADINGS.items():
        parts += ["", heading, *(f"  {name:<12} {about[name]}" for name in commands)]
    return "\n".join(parts[1:])
