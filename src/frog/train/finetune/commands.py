"""`frog finetune` and `frog classify` as people type them. What loads torch is imported when a command runs."""

from __future__ import annotations

import argparse

from frog.core.loading import loading
from frog.train.finetune.arguments import add_finetune_arguments

_DESCRIPTION = """Train low-rank adapters (LoRA) beside a run's frozen weights, on labelled texts.

The adapters alone are saved, in the format of `peft`, under runs/NAME/adapter. In a world of several ranks:
frog run --nproc 2 -- finetune RUN ..."""


def add_finetune_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `finetune` and `classify`; each sets `handler`, which takes the arguments and returns an exit code."""
    finetune = commands.add_parser(
        "finetune",
        help="train LoRA adapters on labelled texts, beside a run's frozen weights",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_finetune_arguments(finetune)
    finetune.set_defaults(handler=_finetune)

    classify = commands.add_parser(
        "classify",
        help="let a fine-tuned run sort texts into its classes",
        description="One line a text: the likeliest class, its probability, the text.",
    )
    classify.add_argument("run", metavar="RUN", help="a run of `frog finetune`: a name, a folder, or latest")
    classify.add_argument(
        "--text", action="append", metavar="TEXT", help="repeatable; without it the lines of standard input are read"
    )
    classify.add_argument("--json", action="store_true", help="a JSON object a text, with every class's probability")
    classify.set_defaults(handler=_classify)


def _finetune(args: argparse.Namespace) -> int:
    with loading():
        from frog.train.finetune.main import run_rank

    return run_rank(args)


def _classify(args: argparse.Namespace) -> int:
    with loading():
        from frog.train.finetune.classify import classify

    return classify(args)
