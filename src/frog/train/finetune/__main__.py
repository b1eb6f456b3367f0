"""`python -m frog.train.finetune RUN ...`: one rank of a fine-tuning run. Launchers start this."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from frog.core.processes import leave
from frog.core.terminal import printable_output
from frog.train.finetune.arguments import add_finetune_arguments
from frog.train.finetune.finetune_main import run_rank


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and fine-tune; return the exit code."""
    parser = argparse.ArgumentParser(prog="frog finetune", description="Fine-tune a run, on this rank.")
    add_finetune_arguments(parser)
    return run_rank(parser.parse_args(arguments))


if __name__ == "__main__":
    with printable_output():
        leave(main(sys.argv[1:]))
