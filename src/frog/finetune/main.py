"""`frog finetune`: one rank of a fine-tuning, under any launcher or none."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from frog.comm import join_world
from frog.comm.world import pick_device
from frog.core.env import WorldEnv
from frog.core.errors import UsageError
from frog.core.files import write_json
from frog.core.runfile import FORMAT
from frog.core.runfolder import find_run
from frog.data.labelled import read_labelled
from frog.finetune.loop import FinetuneRun, finetune
from frog.finetune.setup import finetune_config, read_task, run_config, spread_problems, write_run_json
from frog.model.lora import target_names
from frog.parallel.build import build_mesh
from frog.train.failure import FailureReporter, as_rank
from frog.train.log import RankLog
from frog.train.setup import new_folder, now_text, open_events, start_event
from frog.train.state import weights_sha256
from frog.train.stop import StopRequest
from frog.train.trained import load_trained, read_finetune


def run_rank(args: argparse.Namespace) -> int:
    """Fine-tune on this rank; return the exit code."""
    return as_rank(lambda env, stop, reporter: _run(args, env, stop, reporter))


def _run(args: argparse.Namespace, env: WorldEnv, stop: StopRequest, reporter: FailureReporter) -> int:
    base = find_run(args.run)
    if read_finetune(base) is not None:
        raise UsageError(f"{base.path}: is itself fine-tuned", "name its base, or export it merged and import that")
    data = read_labelled(args.data, args.heldout)
    config = run_config(args, base, data)
    hint = "change --batch-size, the number of ranks, or --set strategy.…"
    config.check_world(env.world_size, spread_problems(config), hint)
    model, _, step = load_trained(base, args.step)
    tuning = finetune_config(args, base, step, weights_sha256(model.named_parameters()), data)
    target_names(model, tuning.lora)  # what cannot be is refused before there is a run folder
    task = read_task(base, tuning, config.data.sequence_length)
    world = join_world(env, pick_device(config.train.device, env), config.train.timeout_s)
    try:
        mesh = build_mesh(config, world)
        reporter.folder = folder = new_folder(world, Path("runs"), config.name)
        events = reporter.events = open_events(folder, world)
        with RankLog(folder.rank_log(env.rank), env.rank, show=env.is_main) as log:
            run = FinetuneRun(config, tuning, world, mesh, folder, model, data, task, events, log, stop)
            if env.is_main:
                write_run_json(run, base)
            events.emit("start", **start_event(world, mesh, from_step=0))
            record = finetune(run)
            _finish(run, record)
            events.emit("end", step=record["step"], status=record["status"])
        return stop.exit_code if record["status"] == "interrupted" else 0
    finally:
        world.leave()


def _finish(run: FinetuneRun, record: dict[str, Any]) -> None:
    if not run.world.is_main:
        return
    write_json(run.folder.record_json, {"format": FORMAT, **record, "error": None, "ended": now_text()})
    if record["status"] == "interrupted":
        run.log.say(f"stopped at step {record['step']}; the adapter is of that step")
        return
    found = record["classification"]
    outcome = f"accuracy {found['accuracy']:.3f}, always the commonest class {found['baseline']:.3f}" if found else ""
    outcome = outcome or f"held-out loss {record['eval']['loss']:.4f}"
    run.log.say(f"done: {record['step']} steps in {record['wall_s']:.1f} s, {outcome}")
