"""A rank that fine-tunes every case with every strategy and every mutant, one after another in one world."""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from finetune_cases import CASES, STRATEGIES, run_case

from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import World, join_world
from frog.train.data import Batch
from frog.train.data.labelled_batches import LabelledBatches
from frog.train.finetune.score import HeldOut


@contextlib.contextmanager
def broken(mutant: str) -> Iterator[None]:
    """Break fine-tuning inside this context; do nothing if `mutant` names a strategy."""
    make, score = LabelledBatches._batch, HeldOut.score

    def equal_shares(self: LabelledBatches, step: int, ids: Any) -> Batch:
        batch = make(self, step, ids)
        return replace(batch, loss_weight_A=(1 / len(batch.loss_weight_A),) * len(batch.loss_weight_A))

    def own_scores(self: HeldOut, model: Any, world: World) -> Any:
        with mock.patch.object(World, "all_reduce"):
            return score(self, model, world)

    patches = {
        "equal shares": mock.patch.object(LabelledBatches, "_batch", equal_shares),
        "own scores": mock.patch.object(HeldOut, "score", own_scores),
        "adapter of the start": mock.patch("frog.train.finetune.finetune_workload.take_whole"),
    }
    with patches.get(mutant, contextlib.nullcontext()):
        yield


folder, names = Path(sys.argv[1]), sys.argv[2].split(",")
env = world_env()
world = join_world(env, torch.device("cpu"), timeout_s=60)
for name in names:
    for case in CASES:
        with broken(name):
            record = run_case(world, folder / name / case, case, STRATEGIES.get(name, STRATEGIES["ddp"]))
        (folder / name / case / f"record_{env.rank}.json").write_text(json.dumps(record))
world.leave()
leave(0)
