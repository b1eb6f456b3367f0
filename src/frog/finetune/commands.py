"""The arguments of `frog finetune` and `frog classify`. What loads torch is imported when a command runs."""

from __future__ import annotations

import argparse

from frog.config.finetune import GUARD, HEADS

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


def add_finetune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `frog.finetune.main.run_rank` reads."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the base: a trained or imported run (a name, a folder, or latest)")
    add("--step", type=int, metavar="N", help="the base's checkpoint of that step; default: the last")
    add(
        "--lora",
        default="",
        metavar="SPEC",
        help="rank=8,alpha=16,targets=q_proj,v_proj and so on; targets=all takes every projection; "
        "what is left out is rank=8, alpha=16, targets=all",
    )
    add(
        "--data",
        default=GUARD,
        metavar="guard|FILE",
        help='a .jsonl of {"text", "label"} or {"prompt", "completion"} lines; guard (the default) comes with Frog: '
        "safe and unsafe prompts",
    )
    add(
        "--head",
        choices=HEADS,
        default=HEADS[0],
        help="classification: a new small matrix on the last token's hidden state; completion: the model's own head "
        "learns to write what follows, which with labelled texts is the label (default: %(default)s)",
    )
    add("--epochs", type=int, default=10, metavar="N", help="passes over the training part (default: %(default)s)")
    add("--batch-size", type=int, default=16, metavar="N", help="texts a step, over all ranks (default: %(default)s)")
    add("--learning-rate", type=float, default=3e-3, metavar="RATE", help="the highest (default: %(default)s)")
    add("--max-length", type=int, metavar="N", help="tokens of a text that count; default: the model's positions")
    add("--heldout", type=float, default=0.25, metavar="PART", help="of the groups of texts (default: %(default)s)")
    add("--seed", type=int, default=1337, help="of the adapters' first values and of the order (default: %(default)s)")
    add("--name", metavar="NAME", help="of the new run, under runs/; default: RUN-DATA, as demo-guard")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a field of the run's configuration, as strategy.name=zero3, optimizer.weight_decay=0.1 or "
        "train.grad_accum=2; repeatable",
    )


def _finetune(args: argparse.Namespace) -> int:
    from frog.finetune.main import run_rank

    return run_rank(args)


def _classify(args: argparse.Namespace) -> int:
    from frog.finetune.classify import classify

    return classify(args)
