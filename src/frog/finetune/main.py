"""`frog finetune`: one rank of a fine-tuning, under any launcher or none."""

from __future__ import annotations

import argparse
from typing import Any

from frog.core.env import WorldEnv
from frog.core.errors import RunError
from frog.finetune.setup import Preparation, prepare, spread_problems
from frog.finetune.workload import Finetuning
from frog.train.failure import FailureReporter, as_rank
from frog.train.loop import train
from frog.train.setup import Run
from frog.train.start import Start, run_start
from frog.train.stop import StopRequest
from frog.train.trained import read_finetune


def run_rank(args: argparse.Namespace) -> int:
    """Fine-tune on this rank; return the exit code."""
    return as_rank(lambda env, stop, reporter: _run(args, env, stop, reporter))


def _run(args: argparse.Namespace, env: WorldEnv, stop: StopRequest, reporter: FailureReporter) -> int:
    asked = prepare(args)
    hint = "change --batch-size, the number of ranks, or --set strategy.…"
    asked.config.check_world(env.world_size, spread_problems(asked.config), hint)
    start = Start(asked.config, asked.resume, args.go_on)
    return run_start(start, env, stop, reporter, lambda world: asked.data, lambda run, data: finetune(run, asked))


def finetune(run: Run, asked: Preparation) -> dict[str, Any]:
    """Train the adapters and save them; return the run's record, the same on every rank.

    Raises:  RunError if the run that is gone on with trained something else.
    """
    if run.resume_from is not None:
        begun = read_finetune(run.folder)
        for name in ("base_sha256", "head", "labels", "lora"):
            if (was := getattr(begun, name)) != (now := getattr(asked.tuning, name)):
                raise RunError(
                    f"{run.folder.path}: was begun with {name} {was}, and would go on with {now}",
                    f"{run.folder.resume_command}, or begin another: --name NAME",
                )
    return train(run, Finetuning(run, asked))
