"""Measure the numbers on the slides: small real runs of this repository, recorded as JSON in tools/slides/data/.

    python tools/slides/measure.py               all (about twenty minutes on two cores)
    python tools/slides/measure.py curve links   only these

Each file records the commands that produced it. The runs are in build/slides/runs; `frog report` shows them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

from recorded import ROOT, WORK, Commands, Found, lanes, median_step, memory_of, phase_ms, step_ms, steps_of

from frog.core.runs import read_run
from frog.core.runs.event_schema import CollectiveEvent, EvalEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import WorldEvent

DATA = Path(__file__).parent / "data"


def curve(at: Commands) -> Found:
    run = at.train("curve", launch="", train__steps=400, eval__every=25, checkpoint__every=100)
    return {
        "parameters": 664192,
        "loss": [round(step.loss_mean or 0, 4) for step in steps_of(run)],
        "held_out": [[event.step, round(event.loss or 0, 4)] for event in run.ranks[0].of(EvalEvent)],
        "phase_ms": phase_ms(run),
        "step_ms": step_ms(run),
        "memory": memory_of(run),
        "checkpoints": at.frog("checkpoints curve"),
        "sample": at.frog('sample curve --prompt "Return the " --tokens 24'),
    }


def mean_gradient(at: Commands) -> Found:
    """Run four ranks: losses and norms differ before the reduction, norms agree after it; equal to one process."""
    run = at.train("four", "run --nproc 4 --", train__steps=40, eval__every=40)
    alone = at.train("alone", "", train__steps=40, eval__every=40)
    first = {rank: events.by_step(StepEvent)[1] for rank, events in sorted(run.ranks.items())}
    return {
        "ranks": [
            {"rank": rank, "loss": s.loss, "before": s.grad_norm_local, "after": s.grad_norm, "samples": s.sample_ids}
            for rank, s in first.items()
        ],
        "losses_four": [s.loss_mean for s in steps_of(run)],
        "losses_alone": [s.loss_mean for s in steps_of(alone)],
        "compare": at.frog("compare alone four --rtol 3e-5"),
        "step": lanes(run, 20),
    }


def recovery(at: Commands) -> Found:
    at.train("calm", "run --nproc 2 --", train__steps=60, checkpoint__every=20, eval__every=60)
    shutil.rmtree(WORK / "runs" / "again", ignore_errors=True)
    said = at.frog(
        'chaos --fault "kill rank=1 step=45 phase=backward" --nproc 2 --restarts 1 -- train config/demo.toml '
        "--set name=again --set train.steps=60 --set checkpoint.every=20 --set eval.every=60"
    )
    runs = {name: read_run(RunFolder(WORK / "runs" / name)) for name in ("calm", "again")}
    return {
        "losses": {name: [s.loss_mean for s in steps_of(run)] for name, run in runs.items()},
        "attempts": [[event.step for event in attempt.workers[0].of(StepEvent)] for attempt in runs["again"].attempts],
        "said": said,
        "compare": at.frog("compare calm again"),
        "diagnose": at.frog("diagnose again"),
    }


def ring(at: Commands) -> Found:
    """Count the bytes that each rank's sockets sent in an all-reduce of 1 MiB, as seen by the kernel, by world size."""
    found = {}
    for size in (2, 3, 4, 6, 8):
        said = at.frog(f"explain all-reduce --nproc {size}")
        line = re.search(r"as counted by the kernel: ([\d, ]+) bytes", said)
        assert line, said
        found[size] = [int(number) for number in line[1].split(", ")]
    return {"payload_bytes": 2**20, "sent_bytes": found, "said": at.frog("explain all-reduce --nproc 3")}


LINK = '--nodes 2x1 --network "rate=500mbit delay=1ms" --'


def overlap(at: Commands) -> Found:
    """Run two nodes on a link of 500 Mbit/s, with the gradient sent in three ways: medians, and the median step."""
    found: Found = {}
    wide = {"train__steps": 40, "eval__every": 40, "strategy__bucket_mb": 0.5}
    for way in ("naive", "bucketed", "overlapped"):
        run = at.train(way, f"run {LINK}", strategy__reduction=way, **wide)
        medians = {"step_ms": step_ms(run), "reduce_ms": phase_ms(run)["reduce"]}
        found[way] = medians | {"step": lanes(run, median_step(run))}
    return found


def zero(at: Commands) -> Found:
    """Measure the memory of one of four ranks under each strategy."""
    found: Found = {}
    for name in ("ddp", "zero1", "zero2", "zero3"):
        run = at.train(name, "run --nproc 4 --", train__steps=5, eval__every=5, strategy__name=name)
        sent = Counter[str]()
        for call in run.ranks[0].of(CollectiveEvent):
            if call.step == 4 and call.payload_bytes > 4096:
                sent[call.op] += call.payload_bytes
        found[name] = {"memory": memory_of(run), "payload_bytes": dict(sent)}
    return found


def accumulation(at: Commands) -> Found:
    found: Found = {}
    for pieces in (1, 2, 4, 8):
        run = at.train(f"pieces{pieces}", "", train__steps=40, eval__every=40, train__grad_accum=pieces)
        last = steps_of(run)[-1]
        found[str(pieces)] = {"memory": memory_of(run), "last_loss": last.loss_mean}
    return {"pieces": found, "compare": at.frog("compare pieces1 pieces8 --rtol 3e-5")}


def scaler(at: Commands) -> Found:
    """Train in fp16 with a scale that is much too high, which is halved until the gradients are finite."""
    run = at.train(
        "half", "", train__steps=40, eval__every=40, train__precision="fp16", train__initial_loss_scale=float(2**36)
    )
    return {"scale": [s.loss_scale for s in steps_of(run)], "skipped": [s.skipped for s in steps_of(run)]}


def world(at: Commands) -> Found:
    """Run two nodes of two ranks: variables set by the agents, and identities reported by the ranks."""
    said = at.train(
        "pond",
        'run --nodes 2x2 --network "rate=1gbit delay=1ms" --',
        train__steps=20,
        eval__every=20,
        checkpoint__every=10,
    )
    told = [event for event in said.launcher if isinstance(event, WorldEvent)]
    ranks = [events.start for _, events in sorted(said.attempts[0].workers.items())]
    return {
        "nodes": [
            {
                "node_rank": event.node_rank,
                "ranks": event.ranks,
                "world_size": event.world_size,
                "master_addr": event.master_addr,
                "master_port": event.master_port,
            }
            for event in sorted(told, key=lambda event: event.node_rank)
        ],
        "ranks": [
            {"rank": s.rank, "node_rank": s.node_rank, "local_rank": s.local_rank, "host": s.host}
            for s in ranks
            if s is not None
        ],
        "logs": at.frog('logs pond --grep "step 20"'),
        "rendezvous": at.frog("explain rendezvous --nodes 2x2"),
        "checkpoint": at.frog("checkpoints pond"),
    }


def links(at: Commands) -> Found:
    """Measure an all-reduce of two nodes by size, on three links that differ from the first only in rate or delay."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import network

    from frog.launch.network import parse_network

    found: Found = {}
    for link in ("rate=100mbit delay=20ms", "rate=1gbit delay=20ms", "rate=100mbit delay=2ms"):
        seconds = network.measure(parse_network(link), [0, 1], ["all_reduce"], list(network.SIZES), 9)
        found[link] = {str(size): round(1e3 * took, 2) for (_, size), took in seconds.items()}
    return {"ms": found}


def pipeline(at: Commands) -> Found:
    """Return the program of each schedule, timed by the simulator that tests compare with real runs."""
    from frog.train.parallel.schedules.schedule import make_schedule
    from frog.train.parallel.schedules.simulation import simulate

    found: Found = {"said": at.frog("schedule --schedule all --stages 4 --micro-batches 8")}
    for name in ("gpipe", "1f1b"):
        schedule = make_schedule(name, 4, 8, 1)
        simulation = simulate(schedule)
        found[name] = {
            "actions": [
                [[action.kind, action.micro, *simulation.times[action]] for action in rank] for rank in schedule.ranks
            ],
            "makespan": simulation.makespan,
            "bubble": simulation.bubble,
            "held": list(simulation.peak_in_flight),
        }
    return found


def kernels(at: Commands) -> Found:
    """Measure AdamW on the demo's weights, as separate operations and fused: passes over memory, and time."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    found: Found = {}
    for name, options in (("one by one", {"foreach": False}), ("fused", {"fused": True})):
        weight = torch.nn.Parameter(torch.randn(8_000_000))
        weight.grad = torch.randn_like(weight)
        optimizer = torch.optim.AdamW([weight], lr=1e-4, **options)
        optimizer.step()
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            optimizer.step()
        heavy = [event for event in trace.events() if event.self_cpu_time_total > 1000]
        passes = Counter(event.name.removeprefix("aten::") for event in heavy if event.name.startswith("aten::"))
        times = [_timed(optimizer.step) for _ in range(15)]
        found[name] = {"operations": dict(passes), "ms": round(median(times), 2)}
    return {"weights": 8_000_000, "ways": found}


def _timed(call: Callable[[], object]) -> float:
    """Return this process' CPU time in ms, which other programs on the machine do not affect."""
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def gradients(at: Commands) -> Found:
    """Count the trained demo model's gradients by power of two, to show which ones fp16 cannot represent.

    Needs the run of `curve`.
    """
    import numpy as np
    import torch

    from frog.train.data import Windows, ensure_prepared
    from frog.train.trained import load_trained

    model, _, step = load_trained(RunFolder(WORK / "runs" / "curve"))
    tokens = torch.from_numpy(Windows(ensure_prepared("python-docs").split("train"), 64).gather(np.arange(32)))
    logits = model(tokens[:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    sizes = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).abs()
    powers = sizes[sizes > 0].log2().floor().int()
    counts = Counter(powers.tolist())
    return {"step": step, "total": sizes.numel(), "zero": int((sizes == 0).sum()), "by_power": sorted(counts.items())}


def autocast(at: Commands) -> Found:
    """Return the data type of each tensor of a training step under autocast."""
    import torch
    from torch.nn import functional

    norm, linear = torch.nn.RMSNorm(64), torch.nn.Linear(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        normed = norm(torch.randn(8, 64))
        product = linear(normed)
        scores = functional.scaled_dot_product_attention(*[product.view(1, 1, 8, 64)] * 3)
        loss = functional.cross_entropy(product, torch.zeros(8, dtype=torch.long))
    loss.backward()
    assert linear.weight.grad is not None
    things = {
        "weight": linear.weight, "matrix product": product, "attention": scores, "norm": normed, "loss": loss,
        "gradient of the weight": linear.weight.grad,
    }  # fmt: skip
    return {"types": {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in things.items()}}


def barrier(at: Commands) -> Found:
    return {"said": at.frog("explain barrier --nproc 4")}


MEASURES: dict[str, Callable[[Commands], Found]] = {
    function.__name__: function
    for function in (
        curve, mean_gradient, recovery, ring, overlap, zero, accumulation, scaler, world, links, pipeline, kernels,
        gradients, autocast, barrier,
    )
}  # fmt: skip


def main(names: list[str]) -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "config", WORK / "config", dirs_exist_ok=True)
    DATA.mkdir(exist_ok=True)
    for name in names or MEASURES:
        at = Commands()
        found = MEASURES[name](at)
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        kept = {"machine": machine, "commands": at.typed, **found}
        (DATA / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
