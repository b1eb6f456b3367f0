"""The arguments of a fine-tuning, the same for `frog finetune` and for each rank of one."""

from __future__ import annotations

import argparse

from frog.config.arguments import add_resume_arguments
from frog.config.finetune import GUARD, HEADS
from frog.core.argument_types import at_least

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
"""What a new fine-tuning takes where nothing is said; one that is resumed has its own."""


def add_finetune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `frog.train.finetune.main.run_rank` reads."""
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="the base: a trained or imported run (a name, a folder, or latest)")
    add("--step", type=int, metavar="N", help="the base's checkpoint of that step; default: the last")
    add(
        "--lora",
        metavar="SPEC",
        help="rank=8,alpha=16,targets=q_proj,v_proj and so on; targets=all takes every projection; "
        "what is left out is rank=8, alpha=16, targets=all",
    )
    add(
        "--data",
        metavar="guard|FILE",
        help='a .jsonl of {"text", "label"} or {"prompt", "completion"} lines; guard (the default) comes with Frog: '
        "safe and unsafe prompts",
    )
    add(
        "--head",
        choices=HEADS,
        help="classification: a new small matrix on the last token's hidden state; completion: the model's own head "
        f"learns to write what follows, which with labelled texts is the label (default: {DEFAULTS['head']})",
    )
    add(
        "--epochs", type=at_least(1), metavar="N", help=f"passes over the training part (default: {DEFAULTS['epochs']})"
    )
    add(
        "--batch-size",
        type=at_least(1),
        metavar="N",
        help=f"texts a step, of all ranks (default: {DEFAULTS['batch_size']})",
    )
    add("--learning-rate", type=float, metavar="RATE", help=f"the highest (default: {DEFAULTS['learning_rate']})")
    add("--max-length", type=int, metavar="N", help="tokens of a text that count; default: the model's positions")
    add("--heldout", type=float, metavar="PART", help=f"of the groups of texts (default: {DEFAULTS['heldout']})")
    add("--seed", type=int, help=f"of the adapters' first values and of the order (default: {DEFAULTS['seed']})")
    add("--name", metavar="NAME", help="of the new run, under runs/; default: RUN-DATA, as demo-guard")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a field of the run's configuration, as strategy.name=zero3, optimizer.weight_decay=0.1, "
        "checkpoint.every=50 or train.grad_accum=2; repeatable",
    )
    add_resume_arguments(parser)


def with_defaults(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a new fine-tuning, each with a value."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    return argparse.Namespace(**{**vars(args), **DEFAULTS, **given})
