"""The arguments of `frog finetune`, shared by the command and each of its ranks."""

from __future__ import annotations

import argparse

from frog.core.config.arguments import add_resume_arguments
from frog.core.config.finetune import GUARD, HEADS
from frog.core.user_input import at_least

DEFAULTS = {
    "lora": "",
    "data": GUARD,
    "head": HEADS[0],
    "epochs": 10,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "heldout": 0.25,
    "seed": 1337,
}
"""Defaults of a new fine-tuning run; a resumed run keeps its own values."""


def add_finetune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `frog.train.finetune.finetune_main.run_rank` reads."""
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="the base: a trained or imported run (a name, a folder, or latest)")
    add("--step", type=int, metavar="N", help="step of the base's checkpoint; default: the last")
    add(
        "--lora",
        metavar="SPEC",
        help="for example rank=8,alpha=16,targets=q_proj,v_proj; targets=all adapts every projection; "
        "defaults: rank=8, alpha=16, targets=all",
    )
    add(
        "--data",
        metavar="guard|FILE",
        help='a .jsonl of {"text", "label"} or {"prompt", "completion"} lines; guard (the default) is part of Frog: '
        "safe and unsafe prompts",
    )
    add(
        "--head",
        choices=HEADS,
        help="classification: a new small matrix on the last token's hidden state; completion: the model's own head "
        f"learns to generate the completion, or the label of a labeled text (default: {DEFAULTS['head']})",
    )
    add(
        "--epochs", type=at_least(1), metavar="N", help=f"passes over the training part (default: {DEFAULTS['epochs']})"
    )
    add(
        "--batch-size",
        type=at_least(1),
        metavar="N",
        help=f"texts per step over all ranks (default: {DEFAULTS['batch_size']})",
    )
    add("--learning-rate", type=float, metavar="RATE", help=f"the peak rate (default: {DEFAULTS['learning_rate']})")
    add("--max-length", type=int, metavar="N", help="maximum tokens per text; default: the model's positions")
    add("--heldout", type=float, metavar="PART", help=f"share of groups to hold out (default: {DEFAULTS['heldout']})")
    add("--seed", type=int, help=f"seed of adapters and data order (default: {DEFAULTS['seed']})")
    add("--name", metavar="NAME", help="name of the new run, under runs/; default: RUN-DATA, such as demo-guard")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a field of the run's configuration, such as strategy.name=zero3, optimizer.weight_decay=0.1, "
        "checkpoint.every=50 or train.grad_accum=2; repeatable",
    )
    add_resume_arguments(parser)


def with_defaults(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments of a new fine-tuning run with all defaults filled in."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    return argparse.Namespace(**{**vars(args), **DEFAULTS, **given})
