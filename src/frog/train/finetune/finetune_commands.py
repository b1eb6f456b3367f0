"""The commands `frog finetune` and `frog classify`. Modules that need torch are imported when a command runs."""

from __future__ import annotations

import argparse

from frog.core.processes import loading
from frog.core.startup import EndedByInterrupt
from frog.train.finetune.arguments import add_finetune_arguments

_DESCRIPTION = """Train low-rank adapters (LoRA) on a run's frozen weights, with labeled texts.

Only the adapters are saved, in the format of `peft`, under runs/NAME/adapter. To use several ranks:
frog run --nproc 2 -- finetune RUN ..."""


def add_finetune_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `finetune` and `classify`; each sets `handler`, which takes the arguments and returns an exit code."""
    finetune = commands.add_parser(
        "finetune",
        help="train LoRA adapters for a run, on labeled texts",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_finetune_arguments(finetune)
    finetune.set_defaults(handler=_finetune)

    classify = commands.add_parser(
        "classify",
        help="classify texts with a fine-tuned run",
        description="Print one line per text: the most likely class, its probability, the text.",
    )
    classify.add_argument("run", metavar="RUN", help="a run of `frog finetune`: a name, a folder, or latest")
    classify.add_argument(
        "--text", action="append", metavar="TEXT", help="repeatable; default: the lines of standard input"
    )
    classify.add_argument("--json", action="store_true", help="print JSON objects with the probability of each class")
    classify.set_defaults(handler=_classify)


def _finetune(args: argparse.Namespace) -> int:
    with EndedByInterrupt(), loading():
        from frog.train.finetune.finetune_main import run_rank

    return run_rank(args)


def _classify(args: argparse.Namespace) -> int:
    with EndedByInterrupt(), loading():
        from frog.train.finetune.classify import classify

    return classify(args)
