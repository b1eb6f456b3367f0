"""Run the script with torchrun, and compute in one process what the samples that it read should give."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import torch

from frog.learn.grader.grade import Grade

TASK = (Path(__file__).parent / "task.py").read_text()
NOTES = """

import json
import os
from torch.optim.optimizer import register_optimizer_step_post_hook


def note(rank, what, value):
    with open("notes." + os.environ["RANK"], "a") as file:
        file.write(json.dumps([what, value]) + chr(10))


def noted_loss(outputs, targets, real=loss_of):
    if outputs.requires_grad:
        note(None, "batch", len(outputs))
    return real(outputs, targets)


loss_of = noted_loss
register_optimizer_step_post_hook(lambda *_: note(None, "step", None))
"""
START = """
import atexit, os, runpy, sys, threading

import torch
import torch.distributed as dist


def destroy_process_group(group=None, real=dist.destroy_process_group):
    kept.append(dist.group.WORLD)  # its destructor can wait for a thread that waits for Python's lock
    real(group)


code, kept = 0, []
dist.destroy_process_group = destroy_process_group
torch.default_generator.seed()  # ranks that were forked would draw the same numbers
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if end.code is not None and not isinstance(end.code, int):
        print(end.code, file=sys.stderr)
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
import task

task.note(None, "exit", code)
os._exit(code)  # sometimes a gloo thread that releases a tensor while Python exits aborts the process
"""
"""The program that torchrun starts. An error in train.py passes through it."""
TORCHRUN = """
import inspect, os, sys

from torch.distributed.run import main

if os.environ.get("FROG_START") != "spawn":
    from frog.launch.torchrun.elastic import fork_ranks_with, missing_to_fork
    from frog.launch.torchrun.forkserver import start_fork_server

    server = start_fork_server(None)
    if server is not None and missing_to_fork() is None:
        fork_ranks_with(server.fork)

def stack(context=1):
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found

inspect.stack = stack  # torchrun reads the names of its callers; for their lines, Python would search all of torch
main(sys.argv[1:])
"""
"""torchrun, which forks its ranks from a process that has loaded torch, if possible."""
SIZE = 2


class Rank:
    """The notes of one rank."""

    def __init__(self, lines: list[list[object]]) -> None:
        read = [value for what, value in lines if what == "sample"]
        self.saved = [value for what, value in lines if what == "saved"]
        self.exits = [value for what, value in lines if what == "exit"]
        self.computed = sum(value for what, value in lines if what == "batch")
        self.steps = steps_of(lines)
        half = len(read) // 2
        self.epochs = [read[:half], read[half:]]


def steps_of(lines: list[list[object]]) -> list[list[int]]:
    """Return, for each optimizer step, the sizes of the batches whose loss was computed since the previous step."""
    steps, batches = [], []
    for what, value in lines:
        if what == "batch":
            batches.append(value)
        elif what == "step":
            steps.append(batches)
            batches = []
    return steps


def check(grade: Grade) -> None:
    draw = grade.seed % 10_000
    text = TASK.replace("NUM_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED, RATE = 48, 8, 2, 5, 0.1", constants(draw))
    words = [sys.executable, "torchrun.py", "--standalone", "--nproc_per_node=2", "start.py"]
    files = {"task.py": text + NOTES, "start.py": START, "torchrun.py": TORCHRUN}
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} if sys.platform.startswith("linux") else {}
    done = grade.program(words, files=files, env=env, seconds=40.0, fork=True)
    space: dict[str, object] = {}
    exec(compile(text, "task.py", "exec"), space)
    ranks = [Rank(grade.records(done, f"notes.{rank}", tuple[Any, Any])) for rank in range(SIZE)]
    if done.code != 0 and not any(rank.saved for rank in ranks):
        fail(grade, done, ranks)
    check_samples(grade, ranks, space)
    expected = train(space, ranks)
    check_batches(grade, done, ranks, space, expected)
    check_end(grade, done, ranks)
    check_weights(grade, done, ranks, space, expected)
    check_losses(grade, done, expected)
    difference = f"largest difference {largest_difference(done, expected):.1e}"
    grade.measured("final weights, compared with one process", difference)
    grade.measured("samples read in an epoch", f"{space['NUM_SAMPLES']}, each by one rank")
    grade.predicted("steps", 48 // (SIZE * 4))


def constants(draw: int) -> str:
    """Draw sizes that divide evenly and that differ between checks."""
    batch = (6, 8, 10)[draw % 3]
    return f"NUM_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED, RATE = {batch * (4 + draw % 4)}, {batch}, 2, {draw}, 0.05"


ERROR = re.compile(r"^(?:\[rank\d\]: ?)?([\w.]*(?:Error|Exception)\w*: .*)$", re.MULTILINE)
LEFT = ("Connection closed", "Connection reset")
"""Errors that the peers of an ended rank print."""
MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""Words of gloo as it ends a rank that receives more than it expects; torchrun may end the peer before it prints."""


def errors_of(done) -> list[tuple[str, str]]:
    """Return each error that Python printed, except torchrun's own, with the innermost line of train.py above it."""
    found, start = [], 0
    for error in ERROR.finditer(done.err):
        places = re.findall(r'train.py", line (\d+)', done.err[start : error.start()])
        if "ChildFailedError" not in error[1]:
            found.append((error[1][:160], places[-1] if places else "?"))
        start = error.end()
    return found


def fail(grade: Grade, done, ranks: list[Rank]) -> None:
    """Explain a nonzero exit code of torchrun: an error, an exit code of a rank, or a signal."""
    errors = errors_of(done)
    own = [one for one in errors if not any(words in one[0] for words in LEFT)]
    ended = f"torchrun ended with exit code {done.code}"
    if own:
        text, line = own[0]
        grade.reject("raised", f"{ended}. The first error: {text} (train.py, line {line}).")
    for number, rank in enumerate(ranks):
        if any(rank.exits):
            grade.reject("exited", f"{ended}. Rank {number} ended with exit code {rank.exits[-1]}, without an error.")
    if mismatch := MISMATCH.search(done.err):
        grade.reject(
            "one-rank-waits",
            f"{ended}. Collectives do not match: a rank received {mismatch[1]} bytes and expected {mismatch[2]}.",
        )
    if errors:
        text, line = errors[0]
        grade.reject(
            "one-rank-waits", f"{ended}. A rank waited for another that had ended: {text} (train.py, line {line})."
        )
    gone = " and ".join(f"rank {number}" for number, rank in enumerate(ranks) if not rank.exits)
    grade.reject("crashed", f"{ended}. No error was printed, and {gone or 'no rank'} ended before Python did.")


def check_samples(grade: Grade, ranks: list[Rank], space) -> None:
    num = space["NUM_SAMPLES"]
    for epoch in range(2):
        read = [rank.epochs[epoch] for rank in ranks]
        together = sorted(sample for share in read for sample in share)
        if together == list(range(num)):
            continue
        twice = len(together) - len(set(together))
        words = f"Epoch {epoch}: of {num} samples, the ranks read {len(together)} ({len(read[0])} and {len(read[1])})"
        id = "sampler-not-used" if any(len(share) > num // SIZE for share in read) or twice else "unknown"
        grade.reject(id, f"{words}; both ranks read {twice}, and neither read {num - len(set(together))}.")
    if any(rank.epochs[0] == rank.epochs[1] for rank in ranks):
        first = ranks[0].epochs[0][:5]
        grade.reject("same-order", f"Rank 0 read {first} … in epoch 0, and the same order again in epoch 1.")


def check_batches(grade: Grade, done, ranks: list[Rank], space, expected) -> None:
    """Check that each rank computes its part of every step, in one batch or in several."""
    if not any(rank.computed for rank in ranks):  # a loss other than task.py's: the check of the weights decides
        return
    for number, rank in enumerate(ranks):
        if not rank.computed:
            other = f"rank {1 - number} computed that of {ranks[1 - number].computed}"
            grade.reject("one-rank-trains", f"Rank {number} computed no loss; {other}.")
    takes = sorted({sum(step) for rank in ranks for step in rank.steps})
    if takes in ([], [space["GLOBAL_BATCH"] // SIZE]) or has_weights(done, ranks, expected):
        return
    together = ", ".join(str(samples * SIZE) for samples in takes)
    grade.reject(
        "batch-is-per-rank",
        f"Between two steps of the optimizer a rank computes the loss of {', '.join(map(str, takes))} samples: "
        f"a step takes {together} on all ranks together. GLOBAL_BATCH is {space['GLOBAL_BATCH']}.",
    )


def has_weights(done, ranks: list[Rank], expected) -> bool:
    """True if one rank saved, and saved the weights of the training in one process."""
    is_whole = done.code == 0 and [len(rank.saved) for rank in ranks].count(0) == SIZE - 1
    return is_whole and largest_difference(done, expected) < 1e-5


def check_end(grade: Grade, done, ranks: list[Rank]) -> None:
    saved = [number for number, rank in enumerate(ranks) for _ in rank.saved]
    if done.code != 0:
        fail(grade, done, ranks)
    if len(set(saved)) > 1:
        grade.reject("all-ranks-save", f"Ranks {saved} each wrote the weights to the same file.")
    if not saved:
        grade.reject("not-saved", "torchrun ended with exit code 0, but no rank saved the weights.")
    names = next(rank.saved[-1] for rank in ranks if rank.saved)
    if names[0].startswith("module."):
        grade.reject(
            "module-prefix", f"The file has the names {', '.join(names[:2])}, …; the model's are {names[0][7:]}, …."
        )


def train(space, ranks: list[Rank], way: str = "right"):
    """Train one process on the same samples in the same steps; return each epoch's losses and the final weights."""
    data, model = space["Points"](0), space["make_model"]()
    rate = space["RATE"] * (SIZE if way == "step-times-world" else 1)
    optimizer, part = torch.optim.SGD(model.parameters(), lr=rate), space["GLOBAL_BATCH"] // SIZE
    losses = {"mean": [], "first rank": [], "last batch": []}
    for epoch in range(2):
        total, first = [], []
        shares = [rank.epochs[epoch] for rank in ranks]
        for at in range(0, len(shares[0]), part):
            parts = [share[at : at + part] for share in shares]
            each = [space["loss_of"](model(data.inputs[rows]), data.targets[rows]) for rows in parts]
            if way != "gradients-add-up":
                optimizer.zero_grad()
            (each[0] if way == "wrapper-bypassed" else sum(each) / SIZE).backward()
            optimizer.step()
            total.append(sum(loss.item() for loss in each) / SIZE)
            first.append(each[0].item())
        losses["mean"].append(sum(total) / len(total))
        losses["first rank"].append(sum(first) / len(first))
        losses["last batch"].append(first[-1])
    return {"losses": losses, "weights": model.state_dict()}


WAYS = {
    "wrapper-bypassed": "They result from the gradients of the saving rank's own samples alone.",
    "step-times-world": f"They result from steps that are {SIZE} times as long.",
    "gradients-add-up": "They result from the sum of each gradient and all earlier ones.",
}


def check_weights(grade: Grade, done, ranks: list[Rank], space, expected) -> None:
    gap = largest_difference(done, expected)
    if gap < 1e-5:
        return
    says = f"The saved weights differ by up to {gap:.2g} from those of one process that trained on the same samples."
    saver = next(number for number, rank in enumerate(ranks) if rank.saved)
    for id, words in WAYS.items():
        turned = ranks[saver:] + ranks[:saver] if id == "wrapper-bypassed" else ranks
        if largest_difference(done, train(space, turned, id)) < 1e-5:
            parts = max(map(len, ranks[saver].steps), default=1)
            if id == "step-times-world" and parts > 1:  # the factor may not be the world size
                grade.reject("unknown", f"{says} {words} The gradients of {parts} batches add up in each step.")
            grade.reject(id, f"{says} {words}")
    grade.reject("unknown", says)


def largest_difference(done, expected) -> float:
    found = torch.load(done.folder / "model.pt")
    if found.keys() != expected["weights"].keys():
        return math.inf
    return max((found[name] - value).abs().max().item() for name, value in expected["weights"].items())


def check_losses(grade: Grade, done, expected) -> None:
    lines = re.findall(r"^epoch (\d+) loss (\S+)$", done.out, re.MULTILINE)
    printed = dict(lines)
    for epoch in range(2):
        found = [loss for number, loss in lines if number == str(epoch)]
        if len(found) > 1:
            says = f"{len(found)} lines say 'epoch {epoch} loss X', with {' and '.join(found[:SIZE])}"
            grade.reject("all-ranks-print", f"{says}. Rank 0 should print one.")
    for epoch in range(2):
        right = expected["losses"]["mean"][epoch]
        if str(epoch) not in printed:
            grade.reject("unknown", f"No line says 'epoch {epoch} loss X'.")
        try:
            found = float(printed[str(epoch)])
        except ValueError:
            grade.reject("unknown", f"epoch {epoch}: the loss is printed as {printed[str(epoch)]!r}.")
        if math.isclose(found, right, rel_tol=1e-4):
            continue
        says = f"Epoch {epoch}: printed {found:.6f}; the mean over all samples is {right:.6f}"
        for name, words in (("first rank", "rank 0's samples"), ("last batch", "rank 0's last batch")):
            if math.isclose(found, expected["losses"][name][epoch], rel_tol=1e-4):
                grade.reject("own-loss", f"{says}. {found:.6f} is the mean over {words}.")
        if math.isclose(found, SIZE * right, rel_tol=1e-4):
            grade.reject("own-loss", f"{says}. It is {SIZE} times as large: a sum over the ranks.")
        grade.reject("unknown", f"{says}.")
