"""`frog finetune`: one rank of a fine-tuning run, under any launcher or none."""

from __future__ import annotations

import argparse
from typing import Any

from frog.core.errors import RunError
from frog.train.finetune.finetune_setup import Preparation, prepare, spread_problems
from frog.train.finetune.finetune_workload import Finetuning
from frog.train.main import train_run
from frog.train.parallel.build_strategy import build_mesh
from frog.train.process import RankProcess
from frog.train.setup import Run
from frog.train.start import finish, joined_world, open_run
from frog.train.trained import read_finetune


def run_rank(args: argparse.Namespace) -> int:
    """Fine-tune on this rank; return the exit code."""
    with RankProcess() as rank:
        env = rank.begin()
        asked = prepare(args)
        config = asked.config
        config.check_world(
            env.world_size, spread_problems(config), "change --batch-size, the number of ranks, or --set strategy.…"
        )
        with joined_world(config, env) as (world, membership):
            mesh = build_mesh(config, world)
            with open_run(config, mesh, asked.data, rank, membership, asked.resume, args.go_on) as run:
                if run is not None:
                    rank.exit_code = finish(run, finetune(run, asked))
    return rank.exit_code


def finetune(run: Run, asked: Preparation) -> dict[str, Any]:
    """Train the adapters and save them; return the run's record, the same on every rank.

    Raises:  RunError if the resumed run has a different base, head, labels or LoRA configuration.
    """
    if run.resume_from is not None:
        begun = read_finetune(run.folder)
        for name in ("base_sha256", "head", "labels", "lora"):
            if (was := getattr(begun, name)) != (now := getattr(asked.tuning, name)):
                raise RunError(
                    f"{run.folder.path} started with {name} {was} and cannot continue with {now}",
                    f"{run.folder.resume_command}, or start another run: --name NAME",
                )
    return train_run(run, Finetuning(run, asked))
